// Rows of family `visibility`: which devices a process sees and in which order, and what they are
// known by. How entry points are found is in visibility_lookup.cpp.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>

#include "tests/conformance/harness.h"

namespace conformance {
namespace {

constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES", kOrder[] = "CUDA_DEVICE_ORDER";
constexpr char kByBus[] = "PCI_BUS_ID", kFastest[] = "FASTEST_FIRST";

struct Gpu {
  char bus[16];   // as cuDeviceGetPCIBusId tells it
  char uuid[48];  // as CUDA_VISIBLE_DEVICES takes it
};

/// What cuInit answers in a new process, and the devices that it then has.
struct View {
  CUresult init = CUDA_ERROR_UNKNOWN;
  std::vector<Gpu> gpus;
  std::vector<std::string> buses() const {
    std::vector<std::string> result;
    for (const Gpu& gpu : gpus) result.emplace_back(gpu.bus);
    return result;
  }
};

Gpu gpu_read(CUdevice device) {
  Gpu gpu{};
  CUuuid uuid{};
  EXPECT_EQ(cuDeviceGetPCIBusId(gpu.bus, sizeof gpu.bus, device), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGetUuid(&uuid, device), CUDA_SUCCESS);
  char* at = gpu.uuid + std::snprintf(gpu.uuid, sizeof gpu.uuid, "GPU-");
  for (int i = 0; i < 16; ++i) {
    const bool dash = i == 4 || i == 6 || i == 8 || i == 10;
    at += std::snprintf(at, 4, dash ? "-%02x" : "%02x",
                        static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
  }
  return gpu;
}

void view_write(int to) {
  const CUresult init = cuInit(0);
  int count = 0;
  if (init == CUDA_SUCCESS && cuDeviceGetCount(&count) != CUDA_SUCCESS) _exit(1);
  bool good = write(to, &init, sizeof init) == sizeof init;
  for (CUdevice device = 0; device < count; ++device) {
    const Gpu gpu = gpu_read(device);
    good = good && write(to, &gpu, sizeof gpu) == sizeof gpu;
  }
  _exit(good && !::testing::Test::HasFailure() ? 0 : 1);
}

void variable_set(const char* name, std::optional<std::string> value) {
  if (value)
    setenv(name, value->c_str(), 1);
  else
    unsetenv(name);
}

/// What a process with these variables sees. This process must not have used the driver.
View view(std::optional<std::string> visible, std::optional<std::string> order = kByBus) {
  View seen;
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    variable_set(kVisible, visible);
    variable_set(kOrder, order);
    view_write(ends[1]);
  }
  close(ends[1]);
  EXPECT_EQ(read(ends[0], &seen.init, sizeof seen.init), static_cast<ssize_t>(sizeof seen.init));
  Gpu gpu{};
  while (read(ends[0], &gpu, sizeof gpu) == static_cast<ssize_t>(sizeof gpu))
    seen.gpus.push_back(gpu);
  close(ends[0]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return seen;
}

/// All devices of the machine in the order of their buses. The software GPU has three, of which the
/// second is the fastest.
std::vector<Gpu> machine() {
  settings_soft({{"SOFTGPU_COUNT", "3"}, {"SOFTGPU_RATE", "20e6,80e6,40e6"}});
  return view({}).gpus;
}

#define NEED_DEVICES(all, n) \
  if ((all).size() < (n)) GTEST_SKIP() << "needs " << (n) << " GPUs"

std::vector<std::string> buses(const std::vector<Gpu>& all, std::initializer_list<std::size_t> at) {
  std::vector<std::string> result;
  for (const std::size_t i : at) result.emplace_back(all[i].bus);
  return result;
}

void expect_none(const std::string& visible, CUresult init = CUDA_ERROR_NO_DEVICE) {
  const View seen = view(visible);
  EXPECT_EQ(seen.init, init) << "'" << visible << "'";
  EXPECT_TRUE(seen.gpus.empty()) << "'" << visible << "'";
}

ROW(visibility, an_index_shows_one_device) {
  const auto all = machine();
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(view(std::to_string(i)).buses(), buses(all, {i}));
}

ROW(visibility, the_list_gives_the_order) {
  const auto all = machine();
  NEED_DEVICES(all, 2U);
  EXPECT_EQ(view("1,0").buses(), buses(all, {1, 0}));
}

ROW(visibility, what_is_not_listed_is_hidden) {
  const auto all = machine();
  NEED_DEVICES(all, 3U);
  EXPECT_EQ(view("2,1").buses(), buses(all, {2, 1}));
}

ROW(visibility, a_uuid_shows_its_device) {
  const auto all = machine();
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(view(all[i].uuid).buses(), buses(all, {i}));
}

ROW(visibility, uuids_give_the_order) {
  const auto all = machine();
  NEED_DEVICES(all, 2U);
  EXPECT_EQ(view(std::string(all[1].uuid) + "," + all[0].uuid).buses(), buses(all, {1, 0}));
}

/// The shortest beginning of the UUID of `all[at]` that no other device shares, at least a digit.
std::string uuid_short(const std::vector<Gpu>& all, std::size_t at) {
  const std::string uuid = all[at].uuid;
  for (std::size_t length = 5; length < uuid.size(); ++length) {
    const std::string head = uuid.substr(0, length);
    if (std::count_if(all.begin(), all.end(),
                      [&](const Gpu& gpu) { return std::string(gpu.uuid).starts_with(head); }) == 1)
      return head;
  }
  return uuid;
}

ROW(visibility, the_beginning_of_a_uuid_is_enough) {
  const auto all = machine();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string head = uuid_short(all, i);
    EXPECT_LT(head.size(), std::strlen(all[i].uuid));
    EXPECT_EQ(view(head).buses(), buses(all, {i})) << head;
  }
}

ROW(visibility, the_beginning_of_two_uuids_is_none) {
  const auto all = machine();
  NEED_DEVICES(all, 2U);
  expect_none("GPU-");
}

ROW(visibility, an_unknown_uuid_ends_the_list) {
  const auto all = machine();
  const std::string unknown = "GPU-00000000-1111-2222-3333-444444444444";
  EXPECT_EQ(view(std::string(all[0].uuid) + "," + unknown).buses(), buses(all, {0}));
  expect_none(unknown + "," + all[0].uuid);
}

ROW(visibility, an_invalid_index_ends_the_list) {
  const auto all = machine();
  const std::string beyond = std::to_string(all.size());
  EXPECT_EQ(view("0," + beyond).buses(), buses(all, {0}));
  expect_none(beyond + ",0");
  NEED_DEVICES(all, 2U);
  EXPECT_EQ(view("0," + beyond + ",1").buses(), buses(all, {0}));
}

ROW(visibility, minus_one_ends_the_list) {
  const auto all = machine();
  NEED_DEVICES(all, 3U);
  EXPECT_EQ(view("0,2,-1,1").buses(), buses(all, {0, 2}));
}

ROW(visibility, minus_one_hides_all) {
  machine();
  expect_none("-1");
}

ROW(visibility, empty_hides_all) {
  machine();
  expect_none("");
}

ROW(visibility, a_device_listed_twice_hides_all) {
  const auto all = machine();
  expect_none("0,0", CUDA_ERROR_INVALID_DEVICE);
  expect_none(std::string(all[0].uuid) + "," + all[0].uuid, CUDA_ERROR_INVALID_DEVICE);
}

ROW(visibility, unset_shows_all) {
  const auto all = machine();
  const View seen = view({}, {});
  EXPECT_EQ(seen.init, CUDA_SUCCESS);
  EXPECT_EQ(seen.gpus.size(), all.size());
}

ROW(visibility, bus_order_is_ascending) {
  const auto all = machine();
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(), [](const Gpu& a, const Gpu& b) {
    return std::string(a.bus) < b.bus;
  }));
}

ROW(visibility, fastest_first_is_the_default) {
  machine();
  EXPECT_EQ(view({}, {}).buses(), view({}, kFastest).buses());
}

ROW(visibility, both_orders_hold_the_same_devices) {
  const auto all = machine();
  auto fastest = view({}, kFastest).buses();
  std::sort(fastest.begin(), fastest.end());
  EXPECT_EQ(fastest, view({}, kByBus).buses());
}

ROW(visibility, an_index_counts_in_the_chosen_order) {
  const auto all = machine();
  for (const char* order : {kByBus, kFastest}) {
    const auto whole = view({}, order).buses();
    for (std::size_t i = 0; i < whole.size(); ++i)
      EXPECT_EQ(view(std::to_string(i), order).buses(), std::vector{whole[i]}) << order;
  }
}

ROW(visibility, a_uuid_is_the_same_in_every_order) {
  const auto all = machine();
  for (const Gpu& gpu : all)
    EXPECT_EQ(view(gpu.uuid, kFastest).buses(), std::vector<std::string>{gpu.bus});
}

ROW(visibility, uuids_are_unique) {
  const auto all = machine();
  std::set<std::string> uuids, buses;
  for (const Gpu& gpu : all) {
    uuids.insert(gpu.uuid);
    buses.insert(gpu.bus);
  }
  EXPECT_EQ(uuids.size(), all.size());
  EXPECT_EQ(buses.size(), all.size());
}

ROW(visibility, a_bus_id_names_its_device) {
  machine();
  const int count = devices_count();
  for (CUdevice device = 0; device < count; ++device) {
    char bus[16] = {};
    CUdevice found = -1;
    MUST(cuDeviceGetPCIBusId(bus, sizeof bus, device));
    ANSWERS(CUDA_SUCCESS, cuDeviceGetByPCIBusId(&found, bus));
    EXPECT_EQ(found, device) << bus;
  }
}

ROW(visibility, a_bus_id_agrees_with_the_attributes) {
  machine();
  const int count = devices_count();
  for (CUdevice device = 0; device < count; ++device) {
    int domain = -1, bus = -1, number = -1;
    MUST(cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device));
    MUST(cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device));
    MUST(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device));
    unsigned told[4] = {};
    char text[16] = {};
    MUST(cuDeviceGetPCIBusId(text, sizeof text, device));
    ASSERT_EQ(std::sscanf(text, "%x:%x:%x.%x", &told[0], &told[1], &told[2], &told[3]), 4) << text;
    EXPECT_EQ(static_cast<int>(told[0]), domain);
    EXPECT_EQ(static_cast<int>(told[1]), bus);
    EXPECT_EQ(static_cast<int>(told[2]), number);
  }
}

ROW(visibility, a_bus_id_may_leave_out_domain_or_function) {
  machine();
  if (devices_count() == 0) GTEST_SKIP();
  char text[16] = {};
  MUST(cuDeviceGetPCIBusId(text, sizeof text, 0));
  const std::string whole = text;
  CUdevice found = -1;
  ANSWERS(CUDA_SUCCESS, cuDeviceGetByPCIBusId(&found, whole.substr(0, whole.find('.')).c_str()));
  EXPECT_EQ(found, 0);
  int domain = -1;
  MUST(cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0));
  if (domain != 0) GTEST_SKIP() << "without a domain, 0 is meant";
  found = -1;
  ANSWERS(CUDA_SUCCESS, cuDeviceGetByPCIBusId(&found, whole.substr(whole.find(':') + 1).c_str()));
  EXPECT_EQ(found, 0);
}

ROW(visibility, an_unknown_bus_id_is_no_device) {
  machine();
  devices_count();
  CUdevice found = -1;
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetByPCIBusId(&found, "0000:ff:1f.0"));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetByPCIBusId(&found, "no bus at all"));
}

ROW(visibility, a_hidden_device_is_not_found_by_its_bus_id) {
  const auto all = machine();
  NEED_DEVICES(all, 2U);
  setenv(kVisible, "0", 1);
  setenv(kOrder, kByBus, 1);
  ASSERT_EQ(devices_count(), 1);
  CUdevice found = -1;
  ANSWERS(CUDA_SUCCESS, cuDeviceGetByPCIBusId(&found, all[0].bus));
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetByPCIBusId(&found, all[1].bus));
}

ROW(visibility, names_are_cut_to_their_place) {
  machine();
  if (devices_count() == 0) GTEST_SKIP();
  char whole[256] = {}, cut[256] = {};
  MUST(cuDeviceGetName(whole, sizeof whole, 0));
  ASSERT_GT(std::strlen(whole), 5U);
  std::memset(cut, 'x', sizeof cut);
  ANSWERS(CUDA_SUCCESS, cuDeviceGetName(cut, 5, 0));
  EXPECT_EQ(std::string(cut), std::string(whole).substr(0, 4));
  EXPECT_EQ(cut[5], 'x') << "nothing is written beyond it";
}

}  // namespace
}  // namespace conformance

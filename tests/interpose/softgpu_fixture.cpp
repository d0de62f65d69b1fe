// See softgpu_fixture.h.
#include "tests/interpose/softgpu_fixture.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>
#include <thread>

#include "softgpu/device/directory.h"

namespace sluice::test {

using protocol::ClaimsGpu;
using protocol::ClaimsSlot;
using softgpu::device::Account;

bool eventually(const std::function<bool()>& condition, int timeout_ms) {
  for (int i = 0; !condition(); ++i) {
    if (i == timeout_ms) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void* unhooked(const char* symbol) {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  const link_map* map = nullptr;
  if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return nullptr;
  dlclose(library);
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
  }
  // Nothing tells how many there are; linkers put the names behind them.
  for (const auto* s = symbols; reinterpret_cast<const char*>(s) < names; ++s) {
    if (s->st_shndx != SHN_UNDEF && strcmp(names + s->st_name, symbol) == 0)
      return reinterpret_cast<void*>(map->l_addr + s->st_value);
  }
  return nullptr;
}

void SoftGpuTest::SetUp() {
  char name[] = "/tmp/sluice-softgpu-XXXXXX";
  ASSERT_NE(mkdtemp(name), nullptr);
  directory = name;
  setenv("SOFTGPU_DIR", name, 1);
  setenv("SOFTGPU_MEMORY", (std::to_string(options.device_bytes / kMiB) + "MiB").c_str(), 1);
  setenv("SOFTGPU_PAGE", std::to_string(options.page).c_str(), 1);
  setenv("SOFTGPU_COUNT", std::to_string(options.gpus).c_str(), 1);
  std::string error;
  for (auto* segment : softgpu::device::directory_open(directory, error))
    devices.push_back(std::make_unique<softgpu::device::Device>(segment));
  ASSERT_EQ(devices.size(), static_cast<size_t>(options.gpus)) << error;
  broker = std::make_unique<TestBroker>(options.quota, options.context_told);
  broker->gpu_uuid_set(devices[0]->settings().uuid);
  const size_t of_tenant =
      static_cast<size_t>(options.gpus_of_tenant == 0 ? options.gpus : options.gpus_of_tenant);
  for (size_t i = 1; i < of_tenant; ++i) broker->gpu_add(devices[i]->settings().uuid);
  if (options.swap) broker->swap_set();
  if (!options.listed) broker->host_pid_hide();
  broker->environment_set();
  if (!options.uses_cuda) return;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

void SoftGpuTest::TearDown() {
  broker->lease_store(protocol::kLeaseOpen);
  // Work that frees in stream order has to end first; what the helper still has to learn takes it
  // no longer than its longest interval.
  if (options.uses_cuda) cuCtxSynchronize();
  if (options.page == 0 || options.listed) {
    eventually([&] { return difference().empty(); });
    agrees("after the test");
  } else {  // small pieces are charged whole pages, each of them
    EXPECT_GE(held_total(), device_total()) << "after the test";
  }
  const std::string command = "rm -rf " + directory;
  EXPECT_EQ(system(command.c_str()), 0);
}

namespace {

Account account_on(softgpu::device::Device& device, int pid) {
  for (const auto& process : device.snapshot().processes) {
    if (process.alive && process.account.pid == pid) return process.account;
  }
  return {};
}

}  // namespace

Account SoftGpuTest::device_account(int pid, int gpu) {
  return account_on(*devices[static_cast<size_t>(gpu)], pid);
}

uint64_t SoftGpuTest::device_bytes(int pid, int gpu) {
  return device_account(pid, gpu).memory_bytes;
}

uint64_t SoftGpuTest::device_total(int gpu) {
  return devices[static_cast<size_t>(gpu)]->snapshot().used_bytes;
}

uint64_t SoftGpuTest::device_peak(int gpu) {
  return devices[static_cast<size_t>(gpu)]->snapshot().peak_bytes;
}

namespace {

uint64_t reserved_for_limits(const ClaimsSlot& slot, size_t gpu) {
  return slot.limits_pages[gpu].load() * protocol::kLimitPageBytes;
}

uint64_t on_device(const ClaimsSlot& slot, size_t gpu) {
  const ClaimsGpu& account = slot.gpus[gpu];
  return account.held_bytes.load() - account.swapped_bytes.load() - reserved_for_limits(slot, gpu);
}

}  // namespace

uint64_t SoftGpuTest::held(int pid, int gpu) {
  for (const ClaimsSlot& slot : broker->claims().slots) {
    if (slot.pid.load() == static_cast<uint32_t>(pid))
      return on_device(slot, static_cast<size_t>(gpu));
  }
  return 0;
}

uint64_t SoftGpuTest::limits(int pid, int gpu) {
  for (const ClaimsSlot& slot : broker->claims().slots) {
    if (slot.pid.load() == static_cast<uint32_t>(pid))
      return reserved_for_limits(slot, static_cast<size_t>(gpu));
  }
  return 0;
}

namespace {

uint64_t held_by_all(TestBroker& broker, size_t gpu) {
  uint64_t sum = 0;
  for (const ClaimsSlot& slot : broker.claims().slots)
    sum += on_device(slot, gpu) + slot.gpus[gpu].reserved_bytes.load();
  return sum;
}

}  // namespace

uint64_t SoftGpuTest::held_total(int gpu) { return held_by_all(*broker, static_cast<size_t>(gpu)); }

std::string accounts_difference(
    TestBroker& broker, const std::vector<std::unique_ptr<softgpu::device::Device>>& devices,
    size_t gpus) {
  std::string text;
  for (size_t gpu = 0; gpu < gpus; ++gpu) {
    for (const ClaimsSlot& slot : broker.claims().slots) {
      const int pid = static_cast<int>(slot.pid.load());
      if (pid == 0) continue;
      const ClaimsGpu& account = slot.gpus[gpu];
      const uint64_t device = account_on(*devices[gpu], pid).memory_bytes;
      if (on_device(slot, gpu) == device && account.reserved_bytes.load() == 0 &&
          account.asked_bytes.load() == 0)
        continue;
      text += "GPU " + std::to_string(gpu) + ", process " + std::to_string(pid) + ": held " +
              std::to_string(on_device(slot, gpu)) + ", reserved " +
              std::to_string(account.reserved_bytes.load()) + ", asked " +
              std::to_string(account.asked_bytes.load()) + ", device " + std::to_string(device) +
              "\n";
    }
    const uint64_t tenant = held_by_all(broker, gpu), used = devices[gpu]->snapshot().used_bytes;
    if (tenant != used)
      text += "GPU " + std::to_string(gpu) + ": the tenant " + std::to_string(tenant) +
              ", the device " + std::to_string(used) + "\n";
  }
  return text;
}

std::string SoftGpuTest::difference() {
  const int of_tenant = options.gpus_of_tenant == 0 ? options.gpus : options.gpus_of_tenant;
  return accounts_difference(*broker, devices, static_cast<size_t>(of_tenant));
}

}  // namespace sluice::test

// Whole tables, under the preloaded shim over a driver that only notes its calls: every request
// that the CUDA runtime makes, every version and flag of every name, and a call through every hook.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/interpose/fake_driver.h"
#include "tests/interpose/recording.h"
#include "tests/interpose/test_broker.h"

namespace {

using Gpa11030 = decltype(&cuGetProcAddress);
using Gpa12000 = decltype(&cuGetProcAddress_v2);

struct Entry {
  std::string symbol;
  int since;
  bool per_thread;
};

/// Every name the reference list has, also those of graphics that the toolkit's stub lacks.
std::multimap<std::string, Entry> families() {
  std::ifstream file(SLUICE_ENTRYPOINTS);
  std::multimap<std::string, Entry> made;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string symbol, version, classes, notes;
    std::getline(fields, symbol, '\t');
    std::getline(fields, version, '\t');
    std::getline(fields, classes, '\t');
    std::getline(fields, notes);
    const auto at = notes.find("base=") + 5;
    made.emplace(
        notes.substr(at, notes.find(' ', at) - at),
        Entry{symbol, std::stoi(version), version.find("_pt", version.find('/')) != version.npos});
  }
  return made;
}

/// What each function does, by the words of the reference list.
std::map<std::string, std::set<std::string>> classes_of_all() {
  std::ifstream file(SLUICE_ENTRYPOINTS);
  std::map<std::string, std::set<std::string>> made;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string symbol, version, classes;
    std::getline(fields, symbol, '\t');
    std::getline(fields, version, '\t');
    std::getline(fields, classes, '\t');
    std::istringstream list(classes);
    for (std::string one; std::getline(list, one, ';');) made[symbol].insert(one);
  }
  return made;
}

struct Request {
  std::string base;
  int version;
  cuuint64_t flags;
  std::string symbol;
};

std::vector<Request> runtime_requests() {
  std::ifstream file(SLUICE_RUNTIME_LOOKUPS);
  std::vector<Request> made;
  bool header = true;
  for (std::string line; std::getline(file, line);) {
    if (line[0] == '#') continue;
    if (!header) {
      Request request;
      std::istringstream(line) >> request.base >> request.version >> request.flags >>
          request.symbol;
      made.push_back(request);
    }
    header = false;
  }
  return made;
}

/// NVIDIA's rule, from the reference list; "" where there is nothing old enough.
std::string selected(const std::multimap<std::string, Entry>& all, const std::string& base,
                     int version, cuuint64_t flags) {
  const bool wants = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  for (int pass = wants; pass >= 0; --pass) {
    const Entry* best = nullptr;
    for (auto [i, end] = all.equal_range(base); i != end; ++i) {
      const Entry& one = i->second;
      if (one.per_thread == (pass == 1) && one.since <= version &&
          (best == nullptr || one.since > best->since)) {
        best = &one;
      }
    }
    if (best != nullptr) return best->symbol;
  }
  return "";
}

std::string object_of(void* function) {
  Dl_info info{};
  if (function == nullptr || dladdr(function, &info) == 0) return "nothing";
  const char* slash = strrchr(info.dli_fname, '/');
  return slash == nullptr ? info.dli_fname : slash + 1;
}

class RouteTableTest : public testing::Test {
 protected:
  RouteTableTest() {
    std::ifstream file(SLUICE_EXPORTS);
    for (std::string name; std::getline(file, name);) {
      if (name.rfind("cu", 0) == 0) hooks.insert(name);
    }
  }

  void* named(const std::string& symbol) { return dlsym(handle, symbol.c_str()); }

  const char* owner(const std::string& symbol) {
    return hooks.count(symbol) != 0 ? "libsluice.so" : "libcuda.so.1";
  }

  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  std::set<std::string> hooks;
};

TEST_F(RouteTableTest, EveryRequestOfTheRuntimeGetsTheHookOfItsAbi) {
  const auto requests = runtime_requests();
  ASSERT_EQ(requests.size(), 439u);
  // As the runtime goes: dlsym for the first, then both ABIs from the answer of that.
  const auto first = reinterpret_cast<Gpa12000>(named("cuGetProcAddress_v2"));
  void *old = nullptr, *now = nullptr;
  ASSERT_EQ(first("cuGetProcAddress", &old, 11030, 0, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(first("cuGetProcAddress", &now, 12000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(old, reinterpret_cast<void*>(&cuGetProcAddress));
  EXPECT_EQ(now, reinterpret_cast<void*>(&cuGetProcAddress_v2));
  size_t hooked = 0;
  for (const Request& request : requests) {
    SCOPED_TRACE(request.base + " " + std::to_string(request.version) + " " +
                 std::to_string(request.flags));
    void *by_first = nullptr, *by_old = nullptr, *by_now = nullptr;
    auto status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    EXPECT_EQ(first(request.base.c_str(), &by_first, request.version, request.flags, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(reinterpret_cast<Gpa11030>(old)(request.base.c_str(), &by_old, request.version,
                                              request.flags),
              CUDA_SUCCESS);
    EXPECT_EQ(reinterpret_cast<Gpa12000>(now)(request.base.c_str(), &by_now, request.version,
                                              request.flags, &status),
              CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    EXPECT_EQ(by_now, named(request.symbol));
    EXPECT_EQ(by_first, by_now);
    EXPECT_EQ(by_old, by_now);
    EXPECT_EQ(object_of(by_now), owner(request.symbol));
    hooked += hooks.count(request.symbol);
  }
  EXPECT_GT(hooked, 150u);
}

// The list of requests is what the toolkit's own runtime asks for. It gets no further here: the
// driver has none of NVIDIA's private tables.
TEST_F(RouteTableTest, TheRuntimeOfTheToolkitMakesTheListedRequests) {
  void* runtime = dlopen(SLUICE_CUDART, RTLD_NOW | RTLD_LOCAL);
  if (runtime == nullptr) GTEST_SKIP() << "no CUDA runtime here: " << dlerror();
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(runtime, "cudaGetDeviceCount"));
  ASSERT_NE(count, nullptr);
  int devices = 0;
  fake_lookup_count = 0;
  EXPECT_NE(count(&devices), 0);
  using Key = std::tuple<std::string, int, cuuint64_t>;
  std::set<Key> listed, made;
  for (const Request& one : runtime_requests()) listed.emplace(one.base, one.version, one.flags);
  ASSERT_LT(fake_lookup_count, kFakeLookupsMax);
  for (int i = 0; i < fake_lookup_count; ++i) {
    const FakeLookup& one = fake_lookups[i];
    // It asks for nothing first, to see whether the driver is the toolkit's stub.
    if (one.symbol[0] != '\0') made.emplace(one.symbol, one.version, one.flags);
  }
  for (const auto& [symbol, version, flags] : made) {
    EXPECT_EQ(listed.count({symbol, version, flags}), 1u)
        << "not listed: " << symbol << " " << version << " " << flags;
  }
  for (const auto& [symbol, version, flags] : listed) {
    EXPECT_EQ(made.count({symbol, version, flags}), 1u)
        << "not made: " << symbol << " " << version << " " << flags;
  }
}

TEST_F(RouteTableTest, EveryVersionAndFlagOfEveryName) {
  const auto all = families();
  std::set<int> versions{1000, CUDA_VERSION};
  for (const auto& [base, entry] : all) versions.insert({entry.since - 1, entry.since});
  std::set<std::string> bases;
  for (const auto& [base, entry] : all) bases.insert(base);
  ASSERT_GT(bases.size(), 450u);
  ASSERT_GT(versions.size(), 40u);
  for (const std::string& base : bases) {
    for (const int version : versions) {
      for (const cuuint64_t flags : {0, 1, 2}) {
        const std::string symbol = selected(all, base, version, flags);
        void* pointer = nullptr;
        auto status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        ASSERT_EQ(cuGetProcAddress_v2(base.c_str(), &pointer, version, flags, &status),
                  CUDA_SUCCESS);
        ASSERT_EQ(pointer, symbol.empty() ? nullptr : named(symbol))
            << base << " " << version << " " << flags << " should be " << symbol;
        ASSERT_EQ(status, symbol.empty() ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                         : CU_GET_PROC_ADDRESS_SUCCESS);
      }
    }
  }
}

// A driver may answer with a function that its dlsym does not know. Version and flags then tell
// which one it is, unless the request is newer than the shim's table.
TEST_F(RouteTableTest, FunctionsThatOnlyTheDriverKnowsAreToldByVersionAndFlags) {
  void* now = nullptr;
  ASSERT_EQ(cuGetProcAddress_v2("cuInit", &now, 12000, 0, nullptr), CUDA_SUCCESS);
  fake_lookup_private = 1;
  for (const Request& request : runtime_requests()) {
    SCOPED_TRACE(request.base + " " + std::to_string(request.version));
    void *pointer = nullptr, *newer = nullptr;
    ASSERT_EQ(cuGetProcAddress_v2(request.base.c_str(), &pointer, request.version, request.flags,
                                  nullptr),
              CUDA_SUCCESS);
    if (hooks.count(request.symbol) != 0) {
      EXPECT_EQ(pointer, named(request.symbol));
    } else {
      EXPECT_EQ(object_of(pointer), "libcuda.so.1");
    }
    ASSERT_EQ(cuGetProcAddress_v2(request.base.c_str(), &newer, CUDA_VERSION + 1000, request.flags,
                                  nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(object_of(newer), "libcuda.so.1");
  }
}

// Every program of the runtime asks for all of them: what is counted as unknown must be news.
TEST_F(RouteTableTest, WhatTheRuntimeAsksForIsNotUnknown) {
  sluice::test::TestBroker broker(1ull << 30);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const auto ask = [](const Request& request, int version) {
    void* pointer = nullptr;
    ASSERT_EQ(cuGetProcAddress_v2(request.base.c_str(), &pointer, version, request.flags, nullptr),
              CUDA_SUCCESS);
    ASSERT_NE(pointer, nullptr);
  };
  const auto seen = [&] { return broker.claims().slots[0].unhooked_seen.load(); };
  const auto requests = runtime_requests();
  for (const Request& request : requests) ask(request, request.version);
  sleep(1);  // the helper tells at least every half second
  EXPECT_EQ(seen(), 0u);
  // A function of a newer driver, by a name that is known.
  fake_lookup_private = 1;
  ask(requests.front(), CUDA_VERSION + 1000);
  for (int i = 0; i < 500 && seen() == 0; ++i) usleep(10'000);
  EXPECT_EQ(seen(), 1u);
}

// ---- a call through every hook

alignas(64) unsigned char zeroes[1 << 20];

template <class T>
T argument_make(size_t index) {
  T value{};
  if constexpr (std::is_pointer_v<T>) {
    // Pointers that differ, to memory that may be read and written.
    value = reinterpret_cast<T>(&zeroes[(index + 1) * 32768]);
  } else {
    memset(static_cast<void*>(&value), 0, sizeof value);
    // Small numbers that differ; of an enumeration one that every one has.
    const auto low = static_cast<unsigned char>(std::is_enum_v<T> ? index % 2 : index + 1);
    memcpy(static_cast<void*>(&value), &low, 1);
  }
  return value;
}

struct Call {
  std::vector<unsigned long long> arguments;
  CUresult result;
};

// Not a template: there are hundreds of signatures.
Call made(const unsigned long long* digests, size_t count, CUresult result) {
  return {std::vector<unsigned long long>(digests, digests + count), result};
}

template <class F>
struct Caller;
template <class... A>
struct Caller<CUresult (*)(A...)> {
  static Call call(void* function) { return expand(function, std::index_sequence_for<A...>()); }
  template <size_t... I>
  static Call expand(void* function, std::index_sequence<I...>) {
    return with(function, argument_make<A>(I)...);
  }
  static Call with(void* function, A... arguments) {
    const unsigned long long digests[] = {argument_digest(arguments)..., 0};
    return made(digests, sizeof...(A),
                reinterpret_cast<CUresult (*)(A...)>(function)(arguments...));
  }
};

const struct {
  const char* symbol;
  const char* real;
  Call (*call)(void* function);
} kEntries[] = {
#define ENTRY(symbol, real) {#symbol, #real, &Caller<decltype(&symbol)>::call},
#include "call_table.gen.inc"
#undef ENTRY
};

bool same_call(const RecordedCall& recorded, const std::string& symbol, const Call& call) {
  return symbol == recorded.symbol &&
         std::vector<unsigned long long>(
             recorded.arguments, recorded.arguments + recorded.argument_count) == call.arguments;
}

std::string names_of_recorded() {
  std::string names;
  for (int i = 0; i < fake_calls.count && i < kRecordedCallsMax; ++i) {
    names += std::string(" ") + fake_calls.calls[i].symbol;
  }
  return names;
}

/// Calls asked for and answered by the look-up itself, which has tests of its own.
bool is_lookup(const std::string& symbol) { return symbol.rfind("cuGetProcAddress", 0) == 0; }

TEST_F(RouteTableTest, WithoutATenantEveryHookMakesItsOwnCallAndNoOther) {
  unsetenv("SLUICE_TENANT");
  setenv("SLUICE_SOCKET", "/nonexistent/sluice.sock", 1);
  size_t called = 0;
  for (const auto& entry : kEntries) {
    if (hooks.count(entry.symbol) == 0 || is_lookup(entry.symbol)) continue;
    SCOPED_TRACE(entry.symbol);
    void* hook = named(entry.symbol);
    ASSERT_EQ(object_of(hook), "libsluice.so");
    fake_calls.count = 0;
    const Call call = entry.call(hook);
    EXPECT_EQ(call.result, CUDA_SUCCESS);
    ASSERT_EQ(fake_calls.count, 1) << names_of_recorded();
    EXPECT_TRUE(same_call(fake_calls.calls[0], entry.real, call)) << names_of_recorded();
    ++called;
  }
  EXPECT_EQ(called + 2, hooks.size());
}

/// The view asks the driver into variables of its own.
bool answers_by_itself(const std::string& symbol) { return symbol.rfind("cuMemGetInfo", 0) == 0; }

bool waits_for_the_gpu(const std::string& symbol) {
  return symbol.find("Synchronize") != std::string::npos ||
         symbol.find("cuMemcpyDtoH") != std::string::npos;
}

/// That the call ended in its own function with its own arguments, in no other ABI of the same
/// name, and in none that waits for the GPU.
void expect_own_call(const std::multimap<std::string, Entry>& all, const std::string& base,
                     const char* real, const Call& call) {
  int own = 0;
  const int kept = std::min<int>(fake_calls.count, kRecordedCallsMax);
  for (int i = 0; i < kept; ++i) {
    const RecordedCall& one = fake_calls.calls[i];
    if (same_call(one, real, call) ||
        (answers_by_itself(real) && one.symbol == std::string(real))) {
      ++own;
      continue;
    }
    EXPECT_FALSE(waits_for_the_gpu(one.symbol)) << "a wait that the program did not ask for";
    for (auto [j, end] = all.equal_range(base); j != end; ++j) {
      EXPECT_NE(j->second.symbol, one.symbol) << "a call of another ABI, or with other arguments";
    }
  }
  EXPECT_EQ(own, 1) << "called:" << names_of_recorded();
}

TEST_F(RouteTableTest, ForATenantEveryHookReachesItsOwnAbi) {
  sluice::test::TestBroker broker(1ull << 30);
  broker.lease_store(sluice::protocol::kLeaseOpen);
  broker.environment_set();
  const auto all = families();
  std::map<std::string, std::string> base_of;
  for (const auto& [base, entry] : all) base_of[entry.symbol] = base;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  size_t called = 0;
  for (const auto& entry : kEntries) {
    if (hooks.count(entry.symbol) == 0 || is_lookup(entry.symbol)) continue;
    SCOPED_TRACE(entry.symbol);
    fake_calls.count = 0;
    const Call call = entry.call(named(entry.symbol));
    EXPECT_EQ(call.result, CUDA_SUCCESS);
    expect_own_call(all, base_of[entry.symbol], entry.real, call);
    ++called;
  }
  EXPECT_EQ(called + 2, hooks.size());
  EXPECT_EQ(broker.registrations(), 1);
}

// ---- what a refusal asks of the driver

constexpr size_t kTooMuch = 70 << 20;

CUmemAllocationProp on_device() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return properties;
}

CUDA_ARRAY3D_DESCRIPTOR large_box() {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = shape.Height = 512;
  shape.Depth = 70;
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  return shape;
}

struct FullWay {
  const char* name;
  CUresult (*call)(uint64_t* out);
};
/// Every call that asks for memory by its size, or for a context.
const FullWay kFullWays[] = {
    {"cuMemAlloc",
     [](uint64_t* out) { return cuMemAlloc(reinterpret_cast<CUdeviceptr_v1*>(out), kTooMuch); }},
    {"cuMemAlloc_v2",
     [](uint64_t* out) { return cuMemAlloc_v2(reinterpret_cast<CUdeviceptr*>(out), kTooMuch); }},
    {"cuMemAllocPitch",
     [](uint64_t* out) {
       unsigned int pitch = 0;
       return cuMemAllocPitch(reinterpret_cast<CUdeviceptr_v1*>(out), &pitch, 1000, kTooMuch / 1000,
                              4);
     }},
    {"cuMemAllocPitch_v2",
     [](uint64_t* out) {
       size_t pitch = 0;
       return cuMemAllocPitch_v2(reinterpret_cast<CUdeviceptr*>(out), &pitch, 1000, kTooMuch / 1000,
                                 4);
     }},
    {"cuMemAllocManaged",
     [](uint64_t* out) {
       return cuMemAllocManaged(reinterpret_cast<CUdeviceptr*>(out), kTooMuch,
                                CU_MEM_ATTACH_GLOBAL);
     }},
    {"cuMemAllocAsync",
     [](uint64_t* out) {
       return cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(out), kTooMuch, nullptr);
     }},
    {"cuMemAllocAsync_ptsz",
     [](uint64_t* out) {
       return cuMemAllocAsync_ptsz(reinterpret_cast<CUdeviceptr*>(out), kTooMuch, nullptr);
     }},
    {"cuMemAllocFromPoolAsync",
     [](uint64_t* out) {
       return cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(out), kTooMuch,
                                      reinterpret_cast<CUmemoryPool>(0x5000), nullptr);
     }},
    {"cuMemAllocFromPoolAsync_ptsz",
     [](uint64_t* out) {
       return cuMemAllocFromPoolAsync_ptsz(reinterpret_cast<CUdeviceptr*>(out), kTooMuch,
                                           reinterpret_cast<CUmemoryPool>(0x5000), nullptr);
     }},
    {"cuMemCreate",
     [](uint64_t* out) {
       const CUmemAllocationProp properties = on_device();
       return cuMemCreate(reinterpret_cast<CUmemGenericAllocationHandle*>(out), kTooMuch,
                          &properties, 0);
     }},
    {"cuArrayCreate_v2",
     [](uint64_t* out) {
       CUDA_ARRAY_DESCRIPTOR shape{};
       shape.Width = 1024;
       shape.Height = 70 * 256;
       shape.Format = CU_AD_FORMAT_FLOAT;
       shape.NumChannels = 1;
       return cuArrayCreate_v2(reinterpret_cast<CUarray*>(out), &shape);
     }},
    {"cuArray3DCreate_v2",
     [](uint64_t* out) {
       const CUDA_ARRAY3D_DESCRIPTOR shape = large_box();
       return cuArray3DCreate_v2(reinterpret_cast<CUarray*>(out), &shape);
     }},
    {"cuMipmappedArrayCreate",
     [](uint64_t* out) {
       const CUDA_ARRAY3D_DESCRIPTOR shape = large_box();
       return cuMipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(out), &shape, 2);
     }},
    {"cuDevicePrimaryCtxRetain",
     [](uint64_t* out) { return cuDevicePrimaryCtxRetain(reinterpret_cast<CUcontext*>(out), 0); }},
    {"cuCtxCreate",
     [](uint64_t* out) { return cuCtxCreate(reinterpret_cast<CUcontext*>(out), 0, 0); }},
    {"cuCtxCreate_v2",
     [](uint64_t* out) { return cuCtxCreate_v2(reinterpret_cast<CUcontext*>(out), 0, 0); }},
    {"cuCtxCreate_v3",
     [](uint64_t* out) {
       return cuCtxCreate_v3(reinterpret_cast<CUcontext*>(out), nullptr, 0, 0, 0);
     }},
    {"cuCtxCreate_v4",
     [](uint64_t* out) {
       return cuCtxCreate_v4(reinterpret_cast<CUcontext*>(out), nullptr, 0, 0);
     }},
};

/// What the shim asks before it refuses - pools read again, contexts and graphs asked - waits for
/// no work of the program, and the call itself is not made.
TEST_F(RouteTableTest, ARefusalAtAFullQuotaSynchronisesNothing) {
  constexpr size_t kFull = 64 << 20;
  sluice::test::TestBroker broker(kFull, 1 << 20);
  broker.lease_store(sluice::protocol::kLeaseOpen);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr filler = 0x1234;
  ASSERT_EQ(cuMemAlloc_v2(&filler, kFull), CUDA_SUCCESS);
  // Launches are in flight, and fences behind them.
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
              CUDA_SUCCESS);
  }
  for (const FullWay& way : kFullWays) {
    SCOPED_TRACE(way.name);
    fake_calls.count = 0;
    uint64_t out = 0x77;
    EXPECT_EQ(way.call(&out), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(out, 0x77u);
    ASSERT_LE(fake_calls.count, kRecordedCallsMax);
    for (int i = 0; i < fake_calls.count; ++i) {
      const RecordedCall& one = fake_calls.calls[i];
      EXPECT_FALSE(waits_for_the_gpu(one.symbol)) << one.symbol;
      EXPECT_NE(one.symbol, std::string(way.name)) << "the driver was asked for what was refused";
    }
  }
  EXPECT_EQ(broker.account().refused.load(), std::size(kFullWays));
}

// ---- who waits

/// Hooks that pass while a hold lasts, and why they may.
const std::pair<const char*, std::vector<std::string>> kPassing[] = {
    {"asks nothing of the device", {"cuInit", "cuDeviceTotalMem", "cuDeviceTotalMem_v2"}},
    {"a query",
     {"cuEventQuery", "cuStreamQuery", "cuStreamQuery_ptsz", "cuMemGetInfo", "cuMemGetInfo_v2"}},
    {"the answer is the shim's own while memory is out",
     {"cuMemGetAddressRange_v2", "cuPointerGetAttribute", "cuPointerGetAttributes"}},
    {"a wait: what it waits for is over", {"cuEventSynchronize"}},
    {"a hold waits for its end", {"cuStreamEndCapture", "cuStreamEndCapture_ptsz"}},
    {"says which context is meant",
     {"cuCtxPopCurrent", "cuCtxPopCurrent_v2", "cuCtxPushCurrent", "cuCtxPushCurrent_v2",
      "cuCtxSetCurrent"}},
};

enum class Fate { kReturned, kWaited };

/// Whether the call returns by itself, or is stopped at a gate with its function not yet called;
/// release() is to let it go on, after which it must end in its own function.
template <class Entry, class Release>
Fate fate(sluice::test::TestBroker& broker, const Entry& entry, void* hook, Release release) {
  const auto wants = [&] {
    const auto notes = broker.notes();
    return std::count_if(notes.begin(), notes.end(), [](const auto& note) {
      return note.type == sluice::protocol::MessageType::kGateWant;
    });
  };
  const auto before = wants();
  std::atomic<bool> done{false};
  Call call;
  fake_calls.count = 0;
  std::thread program([&] {
    call = entry.call(hook);
    done = true;
  });
  while (!done && wants() == before) std::this_thread::yield();
  const auto reached = [&] {
    const int kept = std::min<int>(fake_calls.count, kRecordedCallsMax);
    return std::any_of(fake_calls.calls, fake_calls.calls + kept, [&](const RecordedCall& one) {
      return one.symbol == std::string(entry.real);
    });
  };
  const Fate found = done ? Fate::kReturned : Fate::kWaited;
  if (found == Fate::kWaited) {
    EXPECT_FALSE(reached()) << "it waits, and has called the driver already";
  }
  release();
  program.join();
  EXPECT_EQ(call.result, CUDA_SUCCESS);
  const int kept = std::min<int>(fake_calls.count, kRecordedCallsMax);
  EXPECT_TRUE(
      answers_by_itself(entry.symbol) ||
      std::any_of(fake_calls.calls, fake_calls.calls + kept,
                  [&](const RecordedCall& one) { return same_call(one, entry.real, call); }))
      << "called:" << names_of_recorded();
  return found;
}

/// A capture that was begun stops no hold for longer than its own row.
void capture_end(const std::string& symbol, void* end) {
  if (symbol.rfind("cuStreamBeginCapture", 0) != 0) return;
  EXPECT_EQ(
      reinterpret_cast<decltype(&cuStreamEndCapture)>(end)(argument_make<CUstream>(0), nullptr),
      CUDA_SUCCESS);
}

TEST_F(RouteTableTest, WhatLaunchesWaitsForItsLeaseAndNothingElse) {
  sluice::test::TestBroker broker(1ull << 30);
  broker.environment_set();
  const auto classes = classes_of_all();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  size_t launches = 0;
  for (const auto& entry : kEntries) {
    if (hooks.count(entry.symbol) == 0 || is_lookup(entry.symbol)) continue;
    SCOPED_TRACE(entry.symbol);
    const bool launches_now = classes.at(entry.symbol).count("launch") != 0;
    const Fate found = fate(broker, entry, named(entry.symbol), [&] {
      if (launches_now) broker.lease_store(sluice::protocol::kLeaseOpen);
    });
    EXPECT_EQ(found, launches_now ? Fate::kWaited : Fate::kReturned);
    capture_end(entry.symbol, named("cuStreamEndCapture"));
    if (!launches_now) continue;
    broker.lease_store(0);
    EXPECT_TRUE(broker.wait_for(sluice::protocol::MessageType::kDrained, broker.epoch(), 5000));
    ++launches;
  }
  EXPECT_GE(launches, 14u);
}

// Everything that has a hook waits for the end of a hold, unless it is named here.
TEST_F(RouteTableTest, WhatIsHookedWaitsForTheEndOfAHoldOrIsNamedAsPassing) {
  std::set<std::string> passing;
  for (const auto& [reason, symbols] : kPassing) passing.insert(symbols.begin(), symbols.end());
  sluice::test::TestBroker broker(1ull << 30);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  size_t waited = 0, passed = 0;
  for (const auto& entry : kEntries) {
    if (hooks.count(entry.symbol) == 0 || is_lookup(entry.symbol)) continue;
    SCOPED_TRACE(entry.symbol);
    broker.lease_store(0);
    broker.hold_store(true);
    ASSERT_TRUE(broker.wait_held(5000));
    const Fate found = fate(broker, entry, named(entry.symbol), [&] {
      broker.hold_store(false);
      broker.lease_store(sluice::protocol::kLeaseOpen);
    });
    EXPECT_EQ(found, passing.count(entry.symbol) != 0 ? Fate::kReturned : Fate::kWaited);
    (found == Fate::kWaited ? waited : passed) += 1;
    capture_end(entry.symbol, named("cuStreamEndCapture"));
  }
  EXPECT_EQ(passed, passing.size());
  EXPECT_EQ(waited + passed + 2, hooks.size());
}

// Four names mean one function when compiled and another when asked for at the version of this
// toolkit, with other arguments; and a stream's twin is another again.
TEST_F(RouteTableTest, NamesThatChangedTheirArgumentsAreCalledWithTheRightOnes) {
  sluice::test::TestBroker broker(1ull << 30);
  broker.lease_store(sluice::protocol::kLeaseOpen);
  broker.environment_set();
  const auto all = families();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const Request traps[] = {
      {"cuCtxGetDevice", 12090, 0, "cuCtxGetDevice"},
      {"cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"},
      {"cuCtxSynchronize", 12090, 0, "cuCtxSynchronize"},
      {"cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"},
      {"cuStreamGetCtx", 12040, 0, "cuStreamGetCtx"},
      {"cuStreamGetCtx", 12040, 2, "cuStreamGetCtx_ptsz"},
      {"cuStreamGetCtx", 13000, 0, "cuStreamGetCtx_v2"},
      {"cuStreamGetCtx", 13000, 2, "cuStreamGetCtx_v2_ptsz"},
      {"cuGraphInstantiate", 10000, 0, "cuGraphInstantiate"},
      {"cuGraphInstantiate", 13000, 0, "cuGraphInstantiate_v2"},
      {"cuGraphInstantiateWithFlags", 13000, 0, "cuGraphInstantiateWithFlags"},
  };
  for (const Request& trap : traps) {
    SCOPED_TRACE(trap.symbol);
    void* pointer = nullptr;
    ASSERT_EQ(cuGetProcAddress_v2(trap.base.c_str(), &pointer, trap.version, trap.flags, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(object_of(pointer), owner(trap.symbol));
    const auto* entry = std::find_if(std::begin(kEntries), std::end(kEntries),
                                     [&](const auto& one) { return trap.symbol == one.symbol; });
    ASSERT_NE(entry, std::end(kEntries));
    fake_calls.count = 0;
    const Call call = entry->call(pointer);
    EXPECT_EQ(call.result, CUDA_SUCCESS);
    expect_own_call(all, trap.base, entry->real, call);
  }
}

}  // namespace

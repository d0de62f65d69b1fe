// What the shim's benchmarks call: each case is one kind of driver call (or look-up) in a loop. Two
// programs run them: interpose_bench takes the time, interpose_calls is what callgrind counts.
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tests/interpose/fake_driver.h"
#include "tests/interpose/test_broker.h"

namespace sluice::bench {

// Bodies are functions of their own, so that callgrind can be told to count in them alone.
#define SLUICE_BODY __attribute__((noinline)) inline

SLUICE_BODY void body_launch(long count) {
  for (long i = 0; i < count; ++i)
    cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
}
SLUICE_BODY void body_launch_ex(long count) {
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  for (long i = 0; i < count; ++i) cuLaunchKernelEx(&config, nullptr, nullptr, nullptr);
}
SLUICE_BODY void body_launch_streams(long count) {
  CUstream streams[] = {reinterpret_cast<CUstream>(0x7000), reinterpret_cast<CUstream>(0x7040)};
  for (long i = 0; i < count; ++i)
    cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, streams[i % 2], nullptr, nullptr);
}
SLUICE_BODY void body_launch_per_thread(long count) {
  for (long i = 0; i < count; ++i)
    cuLaunchKernel_ptsz(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
}
SLUICE_BODY void body_graph_launch(long count) {
  for (long i = 0; i < count; ++i) cuGraphLaunch(reinterpret_cast<CUgraphExec>(0x6000), nullptr);
}
inline constexpr size_t kAllocationBytes = 4096;
SLUICE_BODY void body_alloc(long count) {
  for (long i = 0; i < count; ++i) {
    CUdeviceptr p = 0;
    cuMemAlloc_v2(&p, kAllocationBytes);
    cuMemFree_v2(p);
  }
}
inline CUevent event_make() {
  CUevent made = nullptr;
  CUcontext context;
  cuDevicePrimaryCtxRetain(&context, 0);
  cuEventCreate(&made, 0);
  return made;
}
SLUICE_BODY void body_event_record(long count) {
  static const CUevent event = event_make();
  for (long i = 0; i < count; ++i) cuEventRecord(event, nullptr);
}
SLUICE_BODY void body_event_query(long count) {
  static const CUevent event = event_make();
  for (long i = 0; i < count; ++i) cuEventQuery(event);
}
SLUICE_BODY void body_memory_info(long count) {
  size_t a, b;
  for (long i = 0; i < count; ++i) cuMemGetInfo_v2(&a, &b);
}
/// Names that programs and their interpreters look up: some begin as the driver's do, and some pass
/// the loader's filter for the shim's own names, which is what a look-up costs most.
inline const char* const kForeignNames[16] = {
    "strlen",      "malloc",         "getrandom",    "memcpy", "pthread_create", "open64",
    "cos",         "write",          "mmap",         "statx",  "getenv",         "calloc",
    "sched_yield", "explicit_bzero", "__cxa_atexit", "printf"};
SLUICE_BODY void body_dlsym_foreign(long count) {
  for (long i = 0; i < count; ++i) dlsym(RTLD_DEFAULT, kForeignNames[i & 15]);
}
SLUICE_BODY void body_dlsym_driver(long count) {
  static void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  for (long i = 0; i < count; ++i) dlsym(handle, "cuLaunchKernel");
}
SLUICE_BODY void body_proc_address(long count) {
  void* p;
  for (long i = 0; i < count; ++i) cuGetProcAddress_v2("cuMemAlloc", &p, 12000, 0, nullptr);
}

/// So many allocations exist from now on: a case is prepared more than once, and no time more are.
inline void allocations_make(int count) {
  static int made = 0;
  for (; made < count; ++made) {
    CUdeviceptr p;
    cuMemAlloc_v2(&p, kAllocationBytes);
  }
}

struct Case {
  const char* name;
  void (*body)(long count);
  int live;          // allocations that exist meanwhile
  double launch_ns;  // how long a kernel takes: a fence goes behind half a millisecond of them
};
inline constexpr Case kCases[] = {
    {"launch", body_launch, 0, 1e3},
    {"launch_10us", body_launch, 0, 1e4},
    {"launch_1ms", body_launch, 0, 1e6},
    {"launch_ex", body_launch_ex, 0, 1e3},
    {"launch_streams", body_launch_streams, 0, 1e3},
    {"launch_per_thread", body_launch_per_thread, 0, 1e3},
    {"graph_launch", body_graph_launch, 0, 1e3},
    {"graph_launch_100us", body_graph_launch, 0, 1e5},
    {"alloc_free", body_alloc, 10, 0},
    {"alloc_free_10000", body_alloc, 10000, 0},
    {"event_record", body_event_record, 0, 0},
    {"event_query", body_event_query, 0, 0},
    {"memory_info", body_memory_info, 0, 0},
    {"dlsym_foreign", body_dlsym_foreign, 0, 0},
    {"dlsym_driver", body_dlsym_driver, 0, 0},
    {"proc_address", body_proc_address, 0, 0},
};

inline void case_prepare(const Case& one) {
  fake.launch_ns = one.launch_ns;
  allocations_make(one.live);
  one.body(1000);
}

/// What the program is to the shim: `plain`, or its own broker's `tenant` or `exclusive` tenant
/// with an open lease. nullptr for plain. Behind cuInit it waits, for shims whose limits are there
/// only when a thread of theirs has looked.
inline std::unique_ptr<test::TestBroker> tenancy_begin(const std::string& mode, double seconds) {
  std::unique_ptr<test::TestBroker> broker;
  if (mode != "plain") {
    broker = std::make_unique<test::TestBroker>(4ull << 30);
    broker->environment_set();
    broker->lease_store(protocol::kLeaseOpen |
                        (mode == "exclusive" ? protocol::kLeaseExclusive : 0u));
  }
  cuInit(0);
  CUcontext context;
  cuDevicePrimaryCtxRetain(&context, 0);  // as every program that goes on has one
  usleep(static_cast<useconds_t>(seconds * 1e6));
  return broker;
}

}  // namespace sluice::bench

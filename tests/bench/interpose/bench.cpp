// Nanoseconds per driver call over the null driver. The same program is run bare and under the
// shim; the caller (interpose_bench.py) subtracts. With `tenant` or `exclusive` it is its own
// broker and opens its own lease.
//
//   interpose_bench MODE CASE COUNT     MODE: plain | tenant | exclusive; prints the median over
//   nine rounds
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/interpose/fake_driver.h"
#include "tests/interpose/test_broker.h"

namespace {

double now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

using Body = void (*)(long count);

__attribute__((noinline)) void body_launch(long count) {
  for (long i = 0; i < count; ++i)
    cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
}
__attribute__((noinline)) void body_alloc(long count) {
  for (long i = 0; i < count; ++i) {
    CUdeviceptr p = 0;
    cuMemAlloc_v2(&p, 4096);
    cuMemFree_v2(p);
  }
}
__attribute__((noinline)) void body_memory_info(long count) {
  size_t a, b;
  for (long i = 0; i < count; ++i) cuMemGetInfo_v2(&a, &b);
}
__attribute__((noinline)) void body_dlsym_foreign(long count) {
  for (long i = 0; i < count; ++i) dlsym(RTLD_DEFAULT, "strlen");
}
__attribute__((noinline)) void body_dlsym_driver(long count) {
  static void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  for (long i = 0; i < count; ++i) dlsym(handle, "cuLaunchKernel");
}
__attribute__((noinline)) void body_proc_address(long count) {
  void* p;
  for (long i = 0; i < count; ++i) cuGetProcAddress_v2("cuMemAlloc", &p, 12000, 0, nullptr);
}

const struct {
  const char* name;
  Body body;
} kCases[] = {{"launch", body_launch},
              {"alloc_free", body_alloc},
              {"alloc_free_1000_live", body_alloc},
              {"memory_info", body_memory_info},
              {"dlsym_foreign", body_dlsym_foreign},
              {"dlsym_driver", body_dlsym_driver},
              {"proc_address", body_proc_address}};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "interpose_bench: usage: interpose_bench plain|tenant|exclusive CASE COUNT\n");
    return 2;
  }
  const std::string mode = argv[1];
  const long count = atol(argv[3]);
  std::unique_ptr<sluice::test::TestBroker> broker;
  if (mode != "plain") {
    broker = std::make_unique<sluice::test::TestBroker>(4ull << 30);
    broker->environment_set();
    broker->lease_store(sluice::protocol::kLeaseOpen |
                        (mode == "exclusive" ? sluice::protocol::kLeaseExclusive : 0u));
  }
  cuInit(0);
  for (const auto& one : kCases) {
    if (strcmp(one.name, argv[2]) != 0) continue;
    if (strstr(one.name, "live") != nullptr) {
      for (int i = 0; i < 1000; ++i) {
        CUdeviceptr p;
        cuMemAlloc_v2(&p, 4096);
      }
    }
    one.body(count / 10 + 1);
    std::vector<double> rounds;
    for (int i = 0; i < 9; ++i) {
      const double begin = now_ns();
      one.body(count);
      rounds.push_back((now_ns() - begin) / static_cast<double>(count));
    }
    std::sort(rounds.begin(), rounds.end());
    printf("%.2f\n", rounds[4]);
    return 0;
  }
  fprintf(stderr, "interpose_bench: no case %s\n", argv[2]);
  return 2;
}

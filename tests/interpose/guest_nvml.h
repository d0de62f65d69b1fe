// What the tests share of a guest under an NVML that says what real ones say and the software GPU
// does not: nothing of processes in a container, no samples, graphics.
#pragma once

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <memory>

#include "tests/interpose/fake_nvml.h"
#include "tests/interpose/guest.h"

namespace sluice::test {

inline constexpr unsigned kStranger = 4242;  // the pid of another's process

class GuestNvmlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    broker = std::make_unique<TestBroker>(kGiB, 30 * kMiB);
    broker->environment_set();
    nvml_open();
  }
  void nvml_open() {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    ASSERT_NE(library, nullptr);
    nvml = static_cast<FakeNvml*>(dlsym(library, "fake_nvml"));
    ASSERT_NE(nvml, nullptr);
  }
  void cuda_start() {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    broker->lease_store(protocol::kLeaseOpen);
  }
  void listed(unsigned pid, unsigned long long bytes, unsigned sm_util = 0) {
    nvml->sm_util[nvml->process_count] = sm_util;
    nvml->processes[nvml->process_count++] = {pid, bytes, 1, 2};
  }
  template <class F>
  F* function(const char* name) {
    void* found = dlsym(library, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<F*>(found);
  }
  template <class F>
  F* function_of_driver(const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<F*>(found);
  }
  unsigned long long held() { return broker->account().held_bytes.load(); }
  std::unique_ptr<TestBroker> broker;
  void* library = nullptr;
  FakeNvml* nvml = nullptr;
  CUcontext context = nullptr;
};

}  // namespace sluice::test

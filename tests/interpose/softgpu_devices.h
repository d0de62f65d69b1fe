// What the tests with two GPUs share: a context on each, the first one's current, and what this
// process is charged on either.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "tests/interpose/softgpu_ways.h"

namespace sluice::test {

class SoftGpuDevicesTest : public SoftGpuTest {
 protected:
  SoftGpuDevicesTest() : SoftGpuTest({.gpus = 2}) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPushCurrent(second), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&stream_there, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  }
  // This process's charge beside one context on each.
  void holds(size_t here, size_t there, const std::string& when) {
    EXPECT_EQ(held(), kContext + here) << when;
    EXPECT_EQ(held(getpid(), 1), kContext + there) << when;
    agrees(when.c_str());
  }
  // When the ledger has caught up with what another process did.
  void come_to(size_t here, size_t there, const char* when) {
    EXPECT_TRUE(eventually([&] {
      return held() == kContext + here && held(getpid(), 1) == kContext + there &&
             difference().empty();
    })) << when
        << ": " << held() << ", " << held(getpid(), 1) << "\n"
        << difference();
  }
  void with_second(const std::function<void()>& work) const {
    EXPECT_EQ(cuCtxPushCurrent(second), CUDA_SUCCESS);
    work();
    EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  }
  // On a thread of its own that has this context current, or none.
  static void on_thread(CUcontext current, const std::function<void()>& work) {
    std::thread([&] {
      EXPECT_EQ(cuCtxSetCurrent(current), CUDA_SUCCESS);
      work();
    }).join();
  }
  CUcontext second = nullptr;
  CUstream stream_there = nullptr;
};

}  // namespace sluice::test

// What reaches the driver under an acknowledged hold, by the software GPU's own log of all calls.
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "tests/interpose/softgpu_launch.h"

namespace {

using sluice::test::kMiB;

class SoftGpuHoldTest : public sluice::test::SoftGpuLaunchTest {
 protected:
  SoftGpuHoldTest() : SoftGpuLaunchTest({.quota = 200 * kMiB}) {
    setenv("SOFTGPU_LOG", path.c_str(), 1);
  }
  ~SoftGpuHoldTest() override { unlink(path.c_str()); }
  static void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
  long calls() const {
    std::ifstream file(path);
    long lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
  std::string path = "/tmp/sluice-hold-" + std::to_string(getpid()) + ".log";
};

// Launches over some seconds have the helper look at pools and loads, later and later; what is due
// when the hold comes waits for its end.
TEST_F(SoftGpuHoldTest, TheHelperAsksTheDriverNothing) {
  broker->lease_store(sluice::protocol::kLeaseOpen);
  kernel_load();
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAllocAsync(&pointer, kMiB, nullptr), CUDA_SUCCESS);
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(launch(100), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    sleep_ms(50);
  }
  ASSERT_GT(calls(), 0);
  broker->lease_store(0);
  broker->hold_store(true);
  ASSERT_TRUE(broker->wait_held());
  const long before = calls();
  sleep_ms(1500);
  EXPECT_EQ(calls(), before);
  broker->hold_store(false);
  broker->lease_store(sluice::protocol::kLeaseOpen);
  EXPECT_EQ(cuMemFreeAsync(pointer, nullptr), CUDA_SUCCESS);
  agrees("afterwards");
}

}  // namespace

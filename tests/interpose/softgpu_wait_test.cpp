// What comes back to the device by a wait, whoever waits and whenever: memory of pools that was
// freed in stream order. Each case is a process of its own.
#include <thread>

#include "tests/interpose/softgpu_fixture.h"

namespace {

using namespace sluice::test;
using sluice::protocol::kHoldIn;
using sluice::protocol::kHoldOut;
using sluice::protocol::kLeaseOpen;

class WaitTest : public SoftGpuTest {
 protected:
  WaitTest()
      : SoftGpuTest([] {
          Options o;
          o.swap = true;
          return o;
        }()) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(kLeaseOpen);
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  }
  // Freed, and not back yet: nobody has waited.
  void pool_memory_free() {
    CUdeviceptr p = 0;
    ASSERT_EQ(cuMemAllocAsync(&p, 2 * kMiB, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
    ASSERT_TRUE(eventually([this] { return cuEventQuery(event) == CUDA_SUCCESS; }));
    ASSERT_EQ(device_bytes(), kContext + 2 * kMiB);
    agrees("freed");
  }
  void hold() {
    broker->lease_store(0);
    broker->hold_store(true);
    ASSERT_TRUE(broker->wait_held());
  }
  void go_on() {
    broker->hold_store(false);
    broker->lease_store(kLeaseOpen);
    EXPECT_TRUE(eventually([this] { return difference().empty(); })) << difference();
  }
  CUstream stream = nullptr;
  CUevent event = nullptr;
};

TEST_F(WaitTest, AThreadWithoutAContextWaits) {
  pool_memory_free();
  std::thread([this] { EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS); }).join();
  EXPECT_EQ(device_bytes(), kContext);
  agrees("waited");
}

TEST_F(WaitTest, AWaitUnderAHoldIsMadeUpFor) {
  pool_memory_free();
  hold();
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(device_bytes(), kContext);
  go_on();
}

TEST_F(WaitTest, TheWaitsOfAMoveFreeNothingOfAPool) {
  CUdeviceptr movable = 0;
  ASSERT_EQ(cuMemAlloc(&movable, 4 * kMiB), CUDA_SUCCESS);
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cuMemAllocAsync(&pooled, 2 * kMiB, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(pooled, stream), CUDA_SUCCESS);
  hold();
  ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldOut)));
  ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldIn)));
  // They are for streams of the shim's own: what the program freed in another stays in its pool.
  EXPECT_EQ(device_bytes(), kContext + 6 * kMiB);
  go_on();
}

// The driver asks for no context where the stream has a handle.
TEST_F(WaitTest, AThreadWithoutAContextFreesMovableMemory) {
  CUdeviceptr movable = 0;
  ASSERT_EQ(cuMemAlloc(&movable, 4 * kMiB), CUDA_SUCCESS);
  std::thread([&] {
    EXPECT_EQ(cuMemFreeAsync(movable + 512, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFreeAsync(movable, stream), CUDA_SUCCESS);
    CUcontext current = nullptr;
    EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
  }).join();
  EXPECT_EQ(device_bytes(), kContext);
  agrees("freed");
}

}  // namespace

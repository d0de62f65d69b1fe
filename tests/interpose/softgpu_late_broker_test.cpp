// A program whose first CUDA call comes while no broker answers goes on without limits. When the
// broker is back, the program is one of its tenant's processes with all that it took meanwhile.
#include "tests/interpose/softgpu_launch.h"

namespace {

using sluice::protocol::kLeaseOpen;
using namespace sluice::test;

class LateBrokerTest : public SoftGpuLaunchTest {
 protected:
  LateBrokerTest() : SoftGpuLaunchTest(Options{.uses_cuda = false}) {}
  void SetUp() override {
    SoftGpuLaunchTest::SetUp();
    broker->die();
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  void broker_come() {
    auto next = std::make_unique<TestBroker>(kQuota, kContext);
    next->gpu_uuid_set(devices[0]->settings().uuid);
    next->lease_store(kLeaseOpen);
    next->path_take(*broker);
    broker = std::move(next);
    ASSERT_TRUE(eventually([&] { return broker->registrations() > 0; }, 20000));
  }
};

TEST_F(LateBrokerTest, CountsWhatWasTakenBefore) {
  CUdeviceptr pointer = 0, pooled = 0;
  ASSERT_EQ(cuMemAlloc(&pointer, 30 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&pooled, kMiB, nullptr), CUDA_SUCCESS);
  kernel_load();
  ASSERT_EQ(launch(10), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  broker_come();
  EXPECT_TRUE(eventually([&] { return difference().empty() && held() != 0; })) << difference();
  // From here on the quota holds.
  CUdeviceptr much = 0;
  EXPECT_EQ(cuMemAlloc(&much, kQuota - kContext - 30 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(launch(10), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(pooled, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&much, 20 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(LateBrokerTest, WhoHasMoreThanTheQuotaKeepsItAndGetsNoMore) {
  CUdeviceptr pointer = 0, more = 0;
  ASSERT_EQ(cuMemAlloc(&pointer, kQuota), CUDA_SUCCESS);
  broker_come();
  EXPECT_TRUE(eventually([&] { return held() == kQuota + kContext; })) << held();
  EXPECT_EQ(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  size_t free = 1, total = 0;
  EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 0u);
  EXPECT_EQ(total, kQuota);
  EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&more, kMiB), CUDA_SUCCESS);
}

}  // namespace

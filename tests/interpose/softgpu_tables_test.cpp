// More pools and contexts than the shim's tables begin with, over the software GPU: the last one
// counts as the first does, against the device's own account.
#include <chrono>
#include <vector>

#include "tests/interpose/softgpu_launch.h"

namespace sluice::test {
namespace {

constexpr int kManyPools = 100;
constexpr int kManyContexts = 70;

class SoftGpuTablesTest : public SoftGpuTest {
 protected:
  static CUmemPoolProps properties() {
    CUmemPoolProps wanted{};
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    return wanted;
  }
};

TEST_F(SoftGpuTablesTest, TheLastOfManyPoolsIsCharged) {
  const CUmemPoolProps wanted = properties();
  std::vector<CUmemoryPool> pools(kManyPools);
  for (CUmemoryPool& pool : pools) ASSERT_EQ(cuMemPoolCreate(&pool, &wanted), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&pointer, kQuota, pools.back(), nullptr),
            CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&pointer, 5 * kMiB, pools.back(), nullptr), CUDA_SUCCESS);
  EXPECT_GE(held(), kContext + 5 * kMiB);
  agrees("the last pool");
  // The device's own is met for the first time when all these are known.
  CUdeviceptr other = 0;
  EXPECT_EQ(cuMemAllocAsync(&other, kQuota, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAllocAsync(&other, 7 * kMiB, nullptr), CUDA_SUCCESS);
  EXPECT_GE(held(), kContext + 12 * kMiB);
  agrees("the device's own pool");
  ASSERT_EQ(cuMemFreeAsync(pointer, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(other, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  for (CUmemoryPool pool : pools) ASSERT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  agrees("pools destroyed");
}

// Room for as many contexts as are needed, and a tenth of the GPU's time by the program's own wish.
class SoftGpuManyContextsTest : public SoftGpuLaunchTest {
 protected:
  SoftGpuManyContextsTest()
      : SoftGpuLaunchTest(Options{.quota = 4096 * kMiB, .device_bytes = 4096 * kMiB}) {
    setenv("SLUICE_SM", "10%", 1);
  }
};

TEST_F(SoftGpuManyContextsTest, WorkInTheLastIsPaidForUnderAShare) {
  broker->lease_store(protocol::kLeaseOpen);
  std::vector<CUcontext> contexts(kManyContexts);
  for (CUcontext& made : contexts) {
    ASSERT_EQ(cuCtxCreate(&made, nullptr, 0, 0), CUDA_SUCCESS);
    CUdeviceptr pointer = 0;
    ASSERT_EQ(cuMemAlloc(&pointer, 16), CUDA_SUCCESS);
  }
  kernel_load();
  // Less than a tenth of what was used cannot have passed, but for what was saved up.
  const auto begin = std::chrono::steady_clock::now();
  const double busy_before = device_account().busy_ns;
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(launch(8000), CUDA_SUCCESS);  // 5 ms
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  const auto passed_ns = (std::chrono::steady_clock::now() - begin).count();
  const double busy_ns = device_account().busy_ns - busy_before;
  EXPECT_GT(busy_ns, 30e6) << "too little to be told from what may be saved up";
  EXPECT_GT(static_cast<double>(passed_ns), 5 * busy_ns);
  for (CUcontext made : contexts) ASSERT_EQ(cuCtxDestroy(made), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test

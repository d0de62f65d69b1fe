// A GPU that the program sees and its job has not got: it gets no memory there by any call that
// names a device. Judged by the device's own account.
#include "tests/interpose/softgpu_fixture.h"

namespace {

using namespace sluice::test;

constexpr int kForeign = 1;

class SoftGpuForeignTest : public SoftGpuTest {
 protected:
  SoftGpuForeignTest() : SoftGpuTest({.gpus = 2, .gpus_of_tenant = 1}) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    testing::internal::CaptureStderr();
  }
  void TearDown() override {
    EXPECT_EQ(device_peak(kForeign), 0U);
    EXPECT_NE(
        testing::internal::GetCapturedStderr().find(
            "sluice: device 1 is none of this job's GPUs, so the program gets no memory there"),
        std::string::npos);
    SoftGpuTest::TearDown();
  }
};

constexpr CUmemLocation kThere{CU_MEM_LOCATION_TYPE_DEVICE, {kForeign}};

TEST_F(SoftGpuForeignTest, PhysicalMemory) {
  CUmemAllocationProp wish{};
  wish.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.location = kThere;
  CUmemGenericAllocationHandle piece = 7;
  EXPECT_EQ(cuMemCreate(&piece, 2 * kMiB, &wish, 0), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(piece, 7U);
}

TEST_F(SoftGpuForeignTest, APoolOfItsOwn) {
  CUmemPoolProps wish{};
  wish.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.location = kThere;
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cuMemPoolCreate(&pool, &wish), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(pool, nullptr);
}

TEST_F(SoftGpuForeignTest, TheDevicesPool) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, kForeign), CUDA_SUCCESS);
  CUdeviceptr pointer = 7;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&pointer, kMiB, pool, nullptr), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(pointer, 7U);
}

}  // namespace

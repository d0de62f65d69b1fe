// A context in which a kernel has faulted: its error is the answer to everything, also to what the
// quota has no room for, and its end gives everything back. Each case is a process of its own.
#include <thread>

#include "tests/interpose/softgpu_fixture.h"

namespace {

using namespace sluice::test;

constexpr char kTrap[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry trapped()
{
  trap;
}
.visible .entry trapped_late()
{
  .reg .pred %p;
  .reg .u32 %r;
  mov.u32 %r, 0;
again:
  add.u32 %r, %r, 1;
  setp.lt.u32 %p, %r, 200;
  @%p bra again;
  trap;
}
)";

class StruckTest : public SoftGpuTest {
 protected:
  explicit StruckTest(const Options& chosen = {}) : SoftGpuTest(chosen) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
  }
  static void strike(const char* kernel = "trapped") {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, kTrap), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&function, module, kernel), CUDA_SUCCESS);
    ASSERT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
              CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
  }
};

TEST_F(StruckTest, ItsErrorComesBeforeTheQuotas) {
  strike();
  const size_t many = 4 * kQuota;
  CUdeviceptr p = 0x77;
  size_t pitch = 0x77;
  EXPECT_EQ(cuMemAlloc(&p, many), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemAllocManaged(&p, many, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemAllocPitch(&p, &pitch, 4096, many / 4096, 4), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemAllocAsync(&p, many, nullptr), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemAllocAsync(&p, many, CU_STREAM_PER_THREAD), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(p, 0x77u);
  EXPECT_EQ(pitch, 0x77u);
  const CUDA_ARRAY3D_DESCRIPTOR shape{8192, 8192, 64, CU_AD_FORMAT_FLOAT, 1, 0};
  CUarray array = nullptr;
  EXPECT_EQ(cuArray3DCreate(&array, &shape), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(array, nullptr);
  EXPECT_EQ(broker->account().refused.load(), 0u);
  agrees("struck");
}

// Without the fault it is the quota's, as ever.
TEST_F(StruckTest, AnotherContextHasItsQuota) {
  CUdeviceptr kept = 0, p = 0;
  ASSERT_EQ(cuMemAlloc(&kept, kMiB), CUDA_SUCCESS);
  strike();
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&p, 4 * kQuota), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAlloc(&p, kMiB), CUDA_SUCCESS);
  agrees("another");
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  EXPECT_EQ(device_bytes(), kContext + kMiB);
  agrees("reset");
}

// A wait that is under way when the fault comes gives back to the device what was freed before; one
// that begins later does not.
TEST_F(StruckTest, TheWaitThatReportsItGivesPooledMemoryBack) {
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAllocAsync(&p, 16 * kMiB, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(p, nullptr), CUDA_SUCCESS);
  strike("trapped_late");
  agrees("struck");
}

class StruckSwapTest : public StruckTest {
 protected:
  StruckSwapTest()
      : StruckTest([] {
          Options o;
          o.swap = true;
          o.quota = 200 * kMiB;
          return o;
        }()) {}
};

// As the driver does with its own memory: what counts is the calling thread's context, or that of a
// stream that is named, and not whose the memory is.
TEST_F(StruckSwapTest, MovableMemoryIsFreedAsAnyOther) {
  CUdeviceptr of_struck[3] = {}, of_other[3] = {}, base = 0;
  size_t bytes = 0;
  for (CUdeviceptr& p : of_struck) ASSERT_EQ(cuMemAlloc(&p, kMiB), CUDA_SUCCESS);
  strike();
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  for (CUdeviceptr& p : of_other) ASSERT_EQ(cuMemAlloc(&p, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cuMemGetAddressRange(&base, &bytes, of_struck[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(of_struck[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(of_struck[0]), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeAsync(of_struck[1], stream), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(cuMemGetAddressRange(&base, &bytes, of_other[0]), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemFree(of_other[0]), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemFreeAsync(of_other[0], nullptr), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemFreeAsync(of_other[0], stream), CUDA_SUCCESS);
  CUcontext ended = nullptr;
  ASSERT_EQ(cuCtxCreate(&ended, nullptr, 0, 0), CUDA_SUCCESS);
  std::thread([&] { ASSERT_EQ(cuCtxDestroy(ended), CUDA_SUCCESS); }).join();
  EXPECT_EQ(cuMemFree(of_other[1]), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuMemFreeAsync(of_other[1], stream), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(other), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(of_other[2]), CUDA_SUCCESS);
  agrees("freed");
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  EXPECT_EQ(device_bytes(), kContext);
}

}  // namespace

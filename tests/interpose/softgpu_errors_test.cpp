// What a program sees when something is wrong: the quota's no, the driver's no, arguments that make
// no sense, a quota that was lowered.
#include <algorithm>

#include "tests/interpose/softgpu_ways.h"

namespace {

using namespace sluice::test;

class SoftGpuErrorsTest : public SoftGpuTest {
 protected:
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
  }
  // Every request for device memory of this process fails, with room or without. A driver may make
  // several for one call.
  void device_refuses() {
    softgpu::device::Fault fault;
    fault.kind = softgpu::device::FaultKind::kAllocation;
    fault.pid = getpid();
    fault.times = 1000;
    uint32_t id = 0;
    ASSERT_TRUE(devices[0]->fault_add(fault, id));
  }
  void nothing_held(const char* when) {
    EXPECT_EQ(held(), kContext) << when;
    EXPECT_EQ(broker->account().reserved_bytes.load(), 0u) << when;
    EXPECT_EQ(broker->account().asked_bytes.load(), 0u) << when;
    agrees(when);
  }
};

TEST_F(SoftGpuErrorsTest, OverQuotaIsOutOfMemoryWithTheOutputUntouchedAndOneLine) {
  testing::internal::CaptureStderr();
  uint64_t refusals = 0;
  for (const Way& way : kWays) {
    uint64_t out = 0x77;
    EXPECT_EQ(way.call(70, &out), CUDA_ERROR_OUT_OF_MEMORY) << way.name;
    EXPECT_EQ(out, 0x77u) << way.name;
    EXPECT_EQ(broker->account().refused.load(), ++refusals) << way.name;
    nothing_held(way.name);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  // At most one a second; they took less than that, or a little more.
  EXPECT_EQ(said.find("sluice: refused 70.0 MiB: you use 32.0 of your 100.0 MiB on GPU 0. The "
                      "program sees CUDA out of memory.\n"),
            0u)
      << said;
  EXPECT_LT(std::count(said.begin(), said.end(), '\n'), 5) << said;
}

TEST_F(SoftGpuErrorsTest, WhatTheDriverRefusesIsGivenBack) {
  for (const Way& way : kWays) {
    uint64_t out = 0x77;
    device_refuses();
    const CUresult result = way.call(1, &out);
    devices[0]->faults_clear();
    EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY) << way.name;
    nothing_held(way.name);
    EXPECT_EQ(broker->account().refused.load(), 0u) << "it was not the quota: " << way.name;
  }
}

TEST_F(SoftGpuErrorsTest, AfterAFailureTheSameCallsSucceed) {
  for (const Way& way : kWays) {
    uint64_t out = 0;
    device_refuses();
    EXPECT_EQ(way.call(1, &out), CUDA_ERROR_OUT_OF_MEMORY) << way.name;
    devices[0]->faults_clear();
    EXPECT_EQ(way.call(1, &out), CUDA_SUCCESS) << way.name;
    EXPECT_NE(out, 0u) << way.name;
    agrees(way.name);
  }
}

TEST_F(SoftGpuErrorsTest, NothingAtAllIsTheDriversBusiness) {
  CUdeviceptr pointer = 7;
  size_t pitch = 7;
  EXPECT_EQ(cuMemAlloc(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocPitch(&pointer, &pitch, 0, 0, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocManaged(&pointer, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocAsync(&pointer, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc(nullptr, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocAsync(nullptr, 4, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(0), CUDA_SUCCESS);
  EXPECT_EQ(pointer, 7u);
  nothing_held("nothing");
}

TEST_F(SoftGpuErrorsTest, PointersThatNobodyGaveAreTheDriversBusiness) {
  EXPECT_EQ(cuMemFree(0x1234), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeAsync(0x1234, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(cuMemRelease(0x1234), CUDA_SUCCESS);
  EXPECT_NE(cuIpcCloseMemHandle(0x1234), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc(&pointer, 4096), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(pointer + 8), CUDA_ERROR_INVALID_VALUE) << "into the middle";
  EXPECT_EQ(held(), kContext + 4096);
  EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(pointer), CUDA_ERROR_INVALID_VALUE) << "twice";
  nothing_held("freed");
}

TEST_F(SoftGpuErrorsTest, UsageAboveALoweredQuotaShowsAsNothingFreeAndComesBack) {
  CUdeviceptr large = 0, small = 0;
  ASSERT_EQ(cuMemAlloc(&large, 40 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&small, 1 * kMiB), CUDA_SUCCESS);
  broker->lease().gpus[0].memory_max_bytes = 50 * kMiB;
  size_t free_bytes = 1, total_bytes = 0;
  EXPECT_EQ(cuMemGetInfo(&free_bytes, &total_bytes), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, 0u);
  EXPECT_EQ(total_bytes, 50 * kMiB);
  CUdeviceptr more = 7;
  EXPECT_EQ(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&more, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(small), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY) << "still above";
  EXPECT_EQ(cuMemFree(large), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&more, 18 * kMiB), CUDA_SUCCESS) << "to the last byte of the new quota";
  EXPECT_EQ(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(SoftGpuErrorsTest, MemoryInfoWithNullArguments) {
  size_t free_bytes = 1, total_bytes = 1;
  EXPECT_EQ(cuMemGetInfo(&free_bytes, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, kQuota - kContext);
  EXPECT_EQ(cuMemGetInfo(nullptr, &total_bytes), CUDA_SUCCESS);
  EXPECT_EQ(total_bytes, kQuota);
  EXPECT_EQ(cuMemGetInfo(nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceTotalMem(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemGetInfo(&free_bytes, &total_bytes), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

}  // namespace

// Rows of family `contexts`: the primary context of a device.
#include "tests/conformance/harness.h"

namespace conformance {
namespace {

/// Whether the primary context of device 0 is active.
bool primary_active() {
  unsigned flags = 0;
  int active = -1;
  EXPECT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  return active == 1;
}

ROW(contexts, primary_is_not_bound_by_retaining) {
  ASSERT_GT(devices_count(), 0);
  CUcontext primary = nullptr;
  ANSWERS(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&primary, 0));
  EXPECT_NE(primary, nullptr);
  EXPECT_EQ(context_current(), nullptr);
  MUST(cuCtxSetCurrent(primary));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
  MUST(cuDevicePrimaryCtxRelease(0));
}

ROW(contexts, primary_is_one) {
  ASSERT_GT(devices_count(), 0);
  CUcontext first = nullptr, second = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&first, 0));
  MUST(cuDevicePrimaryCtxRetain(&second, 0));
  EXPECT_EQ(first, second);
  MUST(cuDevicePrimaryCtxRelease(0));
  EXPECT_TRUE(primary_active()) << "still retained once";
  MUST(cuDevicePrimaryCtxRelease(0));
  EXPECT_FALSE(primary_active());
}

ROW(contexts, primary_state_is_told_without_making_it) {
  ASSERT_GT(devices_count(), 0);
  EXPECT_FALSE(primary_active());
  CUcontext primary = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  EXPECT_TRUE(primary_active());
  MUST(cuDevicePrimaryCtxRelease(0));
}

ROW(contexts, primary_released_too_often_refused) {
  ASSERT_GT(devices_count(), 0);
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
}

ROW(contexts, primary_calls_need_a_device) {
  const int count = devices_count();
  CUcontext primary = nullptr;
  unsigned flags = 0;
  int active = 0;
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&primary, count));
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRelease(count));
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxReset(count));
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxSetFlags(count, 0));
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxGetState(count, &flags, &active));
}

ROW(contexts, primary_flags_are_kept) {
  ASSERT_GT(devices_count(), 0);
  ANSWERS(CUDA_SUCCESS, cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_YIELD));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuDevicePrimaryCtxSetFlags(0, 0x10000));
  unsigned flags = 0;
  int active = -1;
  MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, CU_CTX_SCHED_YIELD);
  CUcontext primary = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxSetCurrent(primary));
  MUST(cuCtxGetFlags(&flags));
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, CU_CTX_SCHED_YIELD);
  MUST(cuDevicePrimaryCtxRelease(0));
}

ROW(contexts, primary_release_pops_nothing) {
  ASSERT_GT(devices_count(), 0);
  CUcontext primary = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxSetCurrent(primary));
  MUST(cuDevicePrimaryCtxRelease(0));
  EXPECT_EQ(context_current(), primary);
  EXPECT_NE(cuCtxSynchronize(), CUDA_SUCCESS) << "nobody retains it";
}

ROW(contexts, primary_reset_frees_everything) {
  const Context watcher;
  constexpr std::size_t kBytes = 64 << 20;
  CUcontext primary = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxPushCurrent(primary));
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, kBytes));
  MUST(cuCtxPopCurrent(nullptr));
  const std::size_t with = memory_free();
  ANSWERS(CUDA_SUCCESS, cuDevicePrimaryCtxReset(0));
  EXPECT_GE(memory_free(), with + kBytes);
  EXPECT_FALSE(primary_active());
}

ROW(contexts, primary_is_released_after_a_reset) {
  ASSERT_GT(devices_count(), 0);
  CUcontext primary = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuDevicePrimaryCtxReset(0));
  ANSWERS(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(0));
}

ROW(contexts, primary_works_again_after_a_reset) {
  ASSERT_GT(devices_count(), 0);
  CUcontext primary = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuDevicePrimaryCtxReset(0));
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxSetCurrent(primary));
  CUdeviceptr data = 0;
  ANSWERS(CUDA_SUCCESS, cuMemAlloc(&data, 16));
  ANSWERS(CUDA_SUCCESS, cuMemFree(data));
}

}  // namespace
}  // namespace conformance

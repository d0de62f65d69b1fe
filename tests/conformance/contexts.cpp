// Rows of family `contexts`: making, binding and ending contexts. Primary ones are in
// contexts_primary.cpp, what a context tells and its limits in contexts_limits.cpp.
#include <cudaProfiler.h>

#include <thread>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

/// What `call` gives in a thread of its own.
template <typename Call>
CUresult elsewhere(Call call) {
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread([&] { result = call(); }).join();
  return result;
}

ROW(contexts, none_at_first) {
  ASSERT_GT(devices_count(), 0);
  EXPECT_EQ(context_current(), nullptr);
  CUdeviceptr data = 0;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&data, 16));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
}

ROW(contexts, created_ones_are_current) {
  ASSERT_GT(devices_count(), 0);
  CUcontext context = nullptr;
  ANSWERS(CUDA_SUCCESS, cuCtxCreate(&context, nullptr, 0, 0));
  EXPECT_NE(context, nullptr);
  EXPECT_EQ(context_current(), context);
}

ROW(contexts, created_ones_cover_the_one_before) {
  const Context first;
  CUcontext second = nullptr, popped = nullptr;
  MUST(cuCtxCreate(&second, nullptr, 0, 0));
  EXPECT_EQ(context_current(), second);
  ANSWERS(CUDA_SUCCESS, cuCtxPopCurrent(&popped));
  EXPECT_EQ(popped, second);
  EXPECT_EQ(context_current(), static_cast<CUcontext>(first));
  MUST(cuCtxDestroy(second));
}

ROW(contexts, create_needs_a_device) {
  const int count = devices_count();
  CUcontext context = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate(&context, nullptr, 0, count));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuCtxCreate(nullptr, nullptr, 0, 0));
  EXPECT_EQ(context_current(), nullptr);
}

ROW(contexts, create_checks_flags) {
  ASSERT_GT(devices_count(), 0);
  CUcontext context = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuCtxCreate(&context, nullptr, 0x10000, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuCtxCreate(&context, nullptr, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD,
                      0));  // one way of waiting only
  ANSWERS(CUDA_SUCCESS, cuCtxCreate(&context, nullptr, CU_CTX_SCHED_BLOCKING_SYNC, 0));
}

ROW(contexts, affinity_needs_support) {
  ASSERT_GT(devices_count(), 0);
  int supported = -1;
  MUST(cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
  if (supported != 0) GTEST_SKIP() << "contexts of some SMs exist here";
  CUexecAffinityParam affinity{};
  affinity.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
  affinity.param.smCount.val = 1;
  CUctxCreateParams params{};
  params.execAffinityParams = &affinity;
  params.numExecAffinityParams = 1;
  CUcontext context = nullptr;
  ANSWERS(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, cuCtxCreate(&context, &params, 0, 0));
  EXPECT_EQ(context_current(), nullptr);
}

ROW(contexts, each_thread_has_its_own) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, elsewhere([] { return cuCtxSynchronize(); }));
  CUcontext there = context;
  std::thread([&] { EXPECT_EQ(cuCtxGetCurrent(&there), CUDA_SUCCESS); }).join();
  EXPECT_EQ(there, nullptr);
}

ROW(contexts, threads_may_share_one) {
  const Context context;
  CUdeviceptr data = 0;
  ANSWERS(CUDA_SUCCESS, elsewhere([&] {
            const CUresult bound = cuCtxSetCurrent(context);
            return bound == CUDA_SUCCESS ? cuMemAlloc(&data, 16) : bound;
          }));
  ANSWERS(CUDA_SUCCESS, cuMemsetD8(data, 1, 16));
  EXPECT_EQ(context_current(), static_cast<CUcontext>(context));
}

ROW(contexts, pushed_and_popped_in_order) {
  const Context first, second;
  MUST(cuCtxPushCurrent(first));
  EXPECT_EQ(context_current(), static_cast<CUcontext>(first));
  CUcontext popped = nullptr;
  MUST(cuCtxPopCurrent(&popped));
  EXPECT_EQ(popped, static_cast<CUcontext>(first));
  MUST(cuCtxPopCurrent(&popped));
  EXPECT_EQ(popped, static_cast<CUcontext>(second));
  EXPECT_EQ(context_current(), static_cast<CUcontext>(first));
  MUST(cuCtxPopCurrent(nullptr));
  EXPECT_EQ(context_current(), nullptr);
}

ROW(contexts, pop_of_nothing_refused) {
  ASSERT_GT(devices_count(), 0);
  CUcontext popped = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&popped));
}

ROW(contexts, set_replaces_the_top) {
  const Context first, second;
  MUST(cuCtxSetCurrent(first));
  EXPECT_EQ(context_current(), static_cast<CUcontext>(first));
  CUcontext popped = nullptr;
  MUST(cuCtxPopCurrent(&popped));
  EXPECT_EQ(popped, static_cast<CUcontext>(first));
  EXPECT_EQ(context_current(), static_cast<CUcontext>(first)) << "the first was below";
}

ROW(contexts, set_null_pops) {
  const Context first, second;
  ANSWERS(CUDA_SUCCESS, cuCtxSetCurrent(nullptr));
  EXPECT_EQ(context_current(), static_cast<CUcontext>(first));
  ANSWERS(CUDA_SUCCESS, cuCtxSetCurrent(nullptr));
  EXPECT_EQ(context_current(), nullptr);
  ANSWERS(CUDA_SUCCESS, cuCtxSetCurrent(nullptr));  // nothing to pop is no error
}

ROW(contexts, set_on_an_empty_stack_binds) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, elsewhere([&] {
            const CUresult bound = cuCtxSetCurrent(context);
            return bound == CUDA_SUCCESS ? cuCtxSynchronize() : bound;
          }));
}

ROW(contexts, destroying_the_current_one_pops_it) {
  const Context first;
  CUcontext second = nullptr;
  MUST(cuCtxCreate(&second, nullptr, 0, 0));
  ANSWERS(CUDA_SUCCESS, cuCtxDestroy(second));
  EXPECT_EQ(context_current(), static_cast<CUcontext>(first));
}

ROW(contexts, destroying_another_leaves_the_current_one) {
  ASSERT_GT(devices_count(), 0);
  CUcontext first = nullptr, popped = nullptr;
  MUST(cuCtxCreate(&first, nullptr, 0, 0));
  MUST(cuCtxPopCurrent(&popped));
  const Context second;
  ANSWERS(CUDA_SUCCESS, cuCtxDestroy(first));
  EXPECT_EQ(context_current(), static_cast<CUcontext>(second));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
}

ROW(contexts, destroyed_under_a_thread) {
  ASSERT_GT(devices_count(), 0);
  CUcontext context = nullptr;
  MUST(cuCtxCreate(&context, nullptr, 0, 0));
  ANSWERS(CUDA_ERROR_CONTEXT_IS_DESTROYED, elsewhere([&] {
            EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
            EXPECT_EQ(elsewhere([&] { return cuCtxDestroy(context); }), CUDA_SUCCESS);
            EXPECT_EQ(context_current(), context) << "it stays current";
            return cuCtxSynchronize();
          }));
}

ROW(contexts, destruction_returns_memory) {
  const Context watcher;
  constexpr std::size_t kBytes = 64 << 20;
  CUcontext context = nullptr;
  MUST(cuCtxCreate(&context, nullptr, 0, 0));
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, kBytes));
  MUST(cuMemsetD8(data, 1, kBytes));
  MUST(cuCtxSynchronize());
  const std::size_t with = memory_free();
  MUST(cuCtxDestroy(context));
  EXPECT_GE(memory_free(), with + kBytes);
}

ROW(contexts, a_context_takes_memory) {
  const Context watcher;
  const std::size_t before = memory_free();
  CUcontext context = nullptr;
  MUST(cuCtxCreate(&context, nullptr, 0, 0));
  const std::size_t with = memory_free();
  observe("bytes", static_cast<long long>(before - with));
  EXPECT_LT(with, before);
  MUST(cuCtxDestroy(context));
  EXPECT_GT(memory_free(), with);
}

ROW(contexts, work_of_different_contexts_is_apart) {
  const Context first;
  const Store store;
  Gate gate;
  const CUstream stream = stream_new();
  MUST(gate.hold(stream));
  const Context second;
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());  // does not wait for the first context's work
  MUST(cuCtxSetCurrent(first));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  gate.open();
  ANSWERS(CUDA_SUCCESS, cuStreamSynchronize(stream));
  MUST(cuCtxSetCurrent(first));
}

ROW(contexts, synchronize_waits_for_all_streams) {
  const Context context;
  const Store store;
  const Word word;
  Gate gate;
  const CUstream first = stream_new(), second = stream_new();
  MUST(gate.hold(first));
  MUST(store(word, 5, first));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.open();
  });
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
  EXPECT_EQ(word.value(), 5U);
  ANSWERS(CUDA_SUCCESS, cuStreamQuery(first));
  ANSWERS(CUDA_SUCCESS, cuStreamQuery(second));
  opener.join();
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
ROW(contexts, attached_ones_live_until_detached) {
  ASSERT_GT(devices_count(), 0);
  CUcontext context = nullptr, attached = nullptr;
  MUST(cuCtxCreate(&context, nullptr, 0, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(&attached, 1));
  ANSWERS(CUDA_SUCCESS, cuCtxAttach(&attached, 0));
  EXPECT_EQ(attached, context);
  ANSWERS(CUDA_SUCCESS, cuCtxDetach(context));
  EXPECT_EQ(context_current(), context) << "it was attached once more than detached";
  MUST(cuCtxSynchronize());
  ANSWERS(CUDA_SUCCESS, cuCtxDetach(context));
  EXPECT_NE(context_current(), context);
}
#pragma GCC diagnostic pop

ROW(contexts, profiling_may_be_started_and_stopped) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, cuProfilerStart());
  ANSWERS(CUDA_SUCCESS, cuProfilerStart());
  ANSWERS(CUDA_SUCCESS, cuProfilerStop());
}

}  // namespace
}  // namespace conformance

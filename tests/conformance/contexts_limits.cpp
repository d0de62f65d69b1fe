// Rows of family `contexts`: what a context tells of itself, its limits, events of whole contexts,
// and what a device says that contexts are made on.
#include <thread>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

std::size_t limit_of(CUlimit limit) {
  std::size_t value = 0;
  EXPECT_EQ(cuCtxGetLimit(&value, limit), CUDA_SUCCESS) << limit;
  return value;
}

int attribute(CUdevice_attribute which) {
  int value = -1;
  EXPECT_EQ(cuDeviceGetAttribute(&value, which, 0), CUDA_SUCCESS) << which;
  return value;
}

ROW(contexts, device_is_told) {
  const Context context;
  CUdevice device = -1;
  ANSWERS(CUDA_SUCCESS, cuCtxGetDevice(&device));
  EXPECT_EQ(device, context.device());
}

ROW(contexts, api_version_is_told) {
  const Context context;
  unsigned of_current = 0, of_handle = 0;
  ANSWERS(CUDA_SUCCESS, cuCtxGetApiVersion(nullptr, &of_current));
  ANSWERS(CUDA_SUCCESS, cuCtxGetApiVersion(context, &of_handle));
  EXPECT_EQ(of_current, of_handle);
  EXPECT_GE(of_handle, 3010U);
  observe("version", of_handle);
}

ROW(contexts, ids_are_unique) {
  const Context first;
  unsigned long long a = 0, b = 0, again = 0;
  ANSWERS(CUDA_SUCCESS, cuCtxGetId(nullptr, &a));
  const Context second;
  ANSWERS(CUDA_SUCCESS, cuCtxGetId(nullptr, &b));
  EXPECT_NE(a, b);
  ANSWERS(CUDA_SUCCESS, cuCtxGetId(first, &again));
  EXPECT_EQ(a, again);
}

ROW(contexts, ids_are_not_used_again) {
  unsigned long long a = 0, b = 0;
  {
    const Context first;
    MUST(cuCtxGetId(nullptr, &a));
  }
  const Context second;
  MUST(cuCtxGetId(nullptr, &b));
  EXPECT_NE(a, b);
}

ROW(contexts, flags_are_told) {
  const Context context(0, CU_CTX_SCHED_BLOCKING_SYNC);
  unsigned flags = 0;
  ANSWERS(CUDA_SUCCESS, cuCtxGetFlags(&flags));
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, CU_CTX_SCHED_BLOCKING_SYNC);
}

ROW(contexts, flags_can_be_changed) {
  const Context context(0, CU_CTX_SCHED_SPIN);
  ANSWERS(CUDA_SUCCESS, cuCtxSetFlags(CU_CTX_SCHED_YIELD));
  unsigned flags = 0;
  MUST(cuCtxGetFlags(&flags));
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, CU_CTX_SCHED_YIELD);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuCtxSetFlags(CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD));
}

ROW(contexts, cache_preference_is_kept) {
  const Context context;
  auto config = no_such<CUfunc_cache>(-1);
  MUST(cuCtxGetCacheConfig(&config));
  EXPECT_EQ(config, CU_FUNC_CACHE_PREFER_NONE);
  ANSWERS(CUDA_SUCCESS, cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
  MUST(cuCtxGetCacheConfig(&config));
  EXPECT_EQ(config, CU_FUNC_CACHE_PREFER_L1);
}

ROW(contexts, stack_limit_is_kept) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
  EXPECT_EQ(limit_of(CU_LIMIT_STACK_SIZE), 4096U);
}

ROW(contexts, stack_limit_has_a_maximum) {
  const Context context;
  EXPECT_NE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, std::size_t{1} << 30), CUDA_SUCCESS);
  EXPECT_LT(limit_of(CU_LIMIT_STACK_SIZE), std::size_t{1} << 30);
}

ROW(contexts, heap_limit_is_kept) {
  const Context context;
  EXPECT_EQ(limit_of(CU_LIMIT_MALLOC_HEAP_SIZE), 8U << 20);
  ANSWERS(CUDA_SUCCESS, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 << 20));
  EXPECT_EQ(limit_of(CU_LIMIT_MALLOC_HEAP_SIZE), 16U << 20);
}

ROW(contexts, heap_limit_is_fixed_by_the_first_user) {
  const Context context;
  const CUfunction function = kernel("allocate");
  const Word word;
  CUdeviceptr address = word.device();
  unsigned bytes = 64;
  MUST(launch(function, 1, 1, {&address, &bytes}));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word.value(), 1U) << "the kernel got its memory";
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 32 << 20));
}

ROW(contexts, heap_limit_bounds_the_device) {
  const Context context;
  MUST(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20));
  const CUfunction function = kernel("allocate");
  const Word word;
  CUdeviceptr address = word.device();
  unsigned bytes = 256 << 20;
  MUST(launch(function, 1, 1, {&address, &bytes}));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word.value(), 2U) << "malloc on the device gave null";
}

ROW(contexts, heap_limit_bounds_all_blocks) {
  const Context context;
  constexpr unsigned kHeap = 8 << 20, kBlock = 4096, kMost = 4 * kHeap / kBlock;
  MUST(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kHeap));
  const CUfunction function = kernel("hoard");
  const Word word;
  CUdeviceptr address = word.device();
  unsigned bytes = kBlock, most = kMost;
  MUST(launch(function, 1, 1, {&address, &bytes, &most}));
  MUST(cuCtxSynchronize());
  EXPECT_GT(word.value(), kHeap / kBlock / 2);
  EXPECT_LE(word.value(), kHeap / kBlock);
  MUST(launch(function, 1, 1, {&address, &bytes, &most}));
  MUST(cuCtxSynchronize());
  EXPECT_LT(word.value(), 4U) << "blocks stay when their kernel ends";
}

ROW(contexts, print_limit_is_kept) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 4 << 20));
  EXPECT_GE(limit_of(CU_LIMIT_PRINTF_FIFO_SIZE), 4U << 20);
}

ROW(contexts, fetch_granularity_is_a_hint) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, cuCtxSetLimit(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 32));
  EXPECT_LE(limit_of(CU_LIMIT_MAX_L2_FETCH_GRANULARITY), 128U);
}

ROW(contexts, some_limits_are_only_told) {
  const Context context;
  EXPECT_NE(cuCtxSetLimit(CU_LIMIT_SHMEM_SIZE, 1024), CUDA_SUCCESS);
  EXPECT_NE(cuCtxSetLimit(CU_LIMIT_CIG_ENABLED, 1), CUDA_SUCCESS);
}

ROW(contexts, unknown_limits_refused) {
  const Context context;
  std::size_t value = 0;
  const auto unknown = no_such<CUlimit>(9999);
  EXPECT_NE(cuCtxGetLimit(&value, unknown), CUDA_SUCCESS);
  EXPECT_NE(cuCtxSetLimit(unknown, 1), CUDA_SUCCESS);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuCtxGetLimit(nullptr, CU_LIMIT_STACK_SIZE));
}

ROW(contexts, limits_are_of_one_context) {
  const Context first;
  MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
  const Context second;
  EXPECT_NE(limit_of(CU_LIMIT_STACK_SIZE), 4096U);
}

ROW(contexts, event_of_a_context_holds_all_its_work) {
  const Context context;
  const Store store;
  const Word word;
  const CUevent event = event_new();
  const CUstream first = stream_new(), second = stream_new();
  Gate gate;
  MUST(gate.hold(first));
  MUST(store(word, 3, first));
  ANSWERS(CUDA_SUCCESS, cuCtxRecordEvent(context, event));
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  MUST(store(word, 4, second));
  gate.open();
  ANSWERS(CUDA_SUCCESS, cuEventSynchronize(event));
  ANSWERS(CUDA_SUCCESS, cuStreamQuery(first));
}

ROW(contexts, later_work_is_not_in_its_event) {
  const Context context;
  const Store store;
  const CUevent event = event_new();
  const CUstream stream = stream_new();
  Gate gate;
  MUST(cuCtxRecordEvent(context, event));
  MUST(gate.hold(stream));
  ANSWERS(CUDA_SUCCESS, cuEventSynchronize(event));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
}

ROW(contexts, a_context_waits_for_an_event) {
  const Context context;
  const Store store;
  const Word before, after;
  const CUevent event = event_new();
  const CUstream first = stream_new(), second = stream_new();
  Gate gate;
  MUST(gate.hold(first));
  MUST(cuEventRecord(event, first));
  ANSWERS(CUDA_SUCCESS, cuCtxWaitEvent(context, event));
  MUST(store(before, 1, second));
  const CUstream third = stream_new();
  MUST(store(after, 1, third));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(before.value(), 0U) << "a stream that was there";
  EXPECT_EQ(after.value(), 0U) << "a stream that was made afterwards";
  gate.open();
  MUST(cuCtxSynchronize());
  EXPECT_EQ(before.value(), 1U);
  EXPECT_EQ(after.value(), 1U);
}

ROW(contexts, events_of_a_context_need_handles) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(context, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuCtxWaitEvent(context, nullptr));
}

ROW(contexts, device_attributes_hold_together) {
  ASSERT_GT(devices_count(), 0);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
  EXPECT_GE(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR), 1024);
  EXPECT_GE(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY), 64 * 1024);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK), 48 * 1024);
  EXPECT_GE(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 48 * 1024);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) -
                attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
            attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING), 1);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
ROW(contexts, device_properties_are_its_attributes) {
  ASSERT_GT(devices_count(), 0);
  CUdevprop properties{};
  MUST(cuDeviceGetProperties(&properties, 0));
  EXPECT_EQ(properties.maxThreadsPerBlock, attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  EXPECT_EQ(properties.SIMDWidth, attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
  EXPECT_EQ(properties.regsPerBlock, attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK));
  EXPECT_EQ(properties.maxGridSize[1], attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y));
  int major = 0, minor = 0;
  MUST(cuDeviceComputeCapability(&major, &minor, 0));
  EXPECT_EQ(major, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  EXPECT_EQ(minor, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

#pragma GCC diagnostic pop

ROW(contexts, device_is_found_by_its_bus_address) {
  ASSERT_GT(devices_count(), 0);
  char address[32] = "";
  MUST(cuDeviceGetPCIBusId(address, sizeof address, 0));
  EXPECT_EQ(std::strlen(address), 12U) << address;
  CUdevice found = -1;
  MUST(cuDeviceGetByPCIBusId(&found, address));
  EXPECT_EQ(found, 0);
}

ROW(contexts, unknown_device_attributes_refused) {
  ASSERT_GT(devices_count(), 0);
  int value = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuDeviceGetAttribute(&value, no_such<CUdevice_attribute>(9999), 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
}

ROW(contexts, affinity_is_not_told_without_support) {
  const Context context;
  int supported = -1;
  ANSWERS(CUDA_SUCCESS,
          cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
  if (supported != 0) GTEST_SKIP() << "contexts of some SMs exist here";
  CUexecAffinityParam affinity{};
  ANSWERS(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY,
          cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
}

ROW(contexts, green_contexts) {
  const Context context;
  if (on_hardware()) GTEST_SKIP() << "hardware has them";
  CUdevResource resource{};
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
          cuDeviceGetDevResource(context.device(), &resource, CU_DEV_RESOURCE_TYPE_SM));
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
          cuCtxGetDevResource(context, &resource, CU_DEV_RESOURCE_TYPE_SM));
  CUgreenCtx green = nullptr;
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
          cuGreenCtxCreate(&green, nullptr, context.device(), CU_GREEN_CTX_DEFAULT_STREAM));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
ROW(contexts, shared_memory_banks_are_fixed) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
  CUsharedconfig config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  ANSWERS(CUDA_SUCCESS, cuCtxGetSharedMemConfig(&config));
  EXPECT_EQ(config, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE);
}
#pragma GCC diagnostic pop

ROW(contexts, persisting_cache_lines_are_reset) {
  ASSERT_GT(devices_count(), 0);
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuCtxResetPersistingL2Cache());
  const Context context;
  ANSWERS(CUDA_SUCCESS, cuCtxResetPersistingL2Cache());
}

}  // namespace
}  // namespace conformance

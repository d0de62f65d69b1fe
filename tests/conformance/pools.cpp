// Rows of family `pools`: stream-ordered allocation, the pools of a device, and what pools tell of
// themselves. Reuse is in pools_reuse.cpp, other processes and devices in pools_share.cpp.
#include "tests/conformance/pools.h"

namespace conformance {
namespace {

ROW(pools, default_pool_is_current) {
  const Context context;
  CUmemoryPool standard = nullptr, current = nullptr;
  MUST(cuDeviceGetDefaultMemPool(&standard, context.device()));
  MUST(cuDeviceGetMemPool(&current, context.device()));
  EXPECT_NE(standard, nullptr);
  EXPECT_EQ(current, standard);
}

ROW(pools, allocation_comes_from_the_current_pool) {
  const Context context;
  CUmemoryPool standard = nullptr, current = nullptr;
  MUST(cuDeviceGetDefaultMemPool(&standard, context.device()));
  const MemPool pool;
  CUdeviceptr before = 0, after = 0;
  MUST(cuMemAllocAsync(&before, 4096, nullptr));
  MUST(cuDeviceSetMemPool(context.device(), pool));
  MUST(cuDeviceGetMemPool(&current, context.device()));
  MUST(cuMemAllocAsync(&after, 4096, nullptr));
  EXPECT_EQ(pool_of(before), standard);
  EXPECT_EQ(current, static_cast<CUmemoryPool>(pool));
  EXPECT_EQ(pool_of(after), static_cast<CUmemoryPool>(pool));
  MUST(cuMemFreeAsync(before, nullptr));
  MUST(cuMemFreeAsync(after, nullptr));
  MUST(cuDeviceSetMemPool(context.device(), standard));
}

ROW(pools, destroying_the_current_pool_restores_the_default) {
  const Context context;
  CUmemoryPool standard = nullptr, current = nullptr;
  MUST(cuDeviceGetDefaultMemPool(&standard, context.device()));
  MemPool pool;
  MUST(cuDeviceSetMemPool(context.device(), pool));
  MUST(cuMemPoolDestroy(pool.release()));
  MUST(cuDeviceGetMemPool(&current, context.device()));
  EXPECT_EQ(current, standard);
}

ROW(pools, default_pool_cannot_be_destroyed) {
  const Context context;
  CUmemoryPool standard = nullptr;
  MUST(cuDeviceGetDefaultMemPool(&standard, context.device()));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(standard));
  CUdeviceptr p = 0;
  MUST(cuMemAllocFromPoolAsync(&p, 4096, standard, nullptr));
  MUST(cuMemFreeAsync(p, nullptr));
}

ROW(pools, location_forms_mean_the_same_pools) {
  const Context context;
  CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, context.device()};
  CUmemoryPool by_device = nullptr, by_location = nullptr;
  MUST(cuDeviceGetDefaultMemPool(&by_device, context.device()));
  MUST(cuMemGetDefaultMemPool(&by_location, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT_EQ(by_location, by_device);
  const MemPool pool;
  MUST(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
  MUST(cuDeviceGetMemPool(&by_device, context.device()));
  MUST(cuMemGetMemPool(&by_location, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT_EQ(by_device, static_cast<CUmemoryPool>(pool));
  EXPECT_EQ(by_location, static_cast<CUmemoryPool>(pool));
}

ROW(pools, location_forms_check_the_location) {
  const Context context;
  CUmemoryPool pool = nullptr;
  CUmemLocation nowhere = {CU_MEM_LOCATION_TYPE_NONE, 0};
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemGetDefaultMemPool(&pool, &nowhere, CU_MEM_ALLOCATION_TYPE_PINNED));
  CUmemLocation far = {CU_MEM_LOCATION_TYPE_DEVICE, 99};
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemGetDefaultMemPool(&pool, &far, CU_MEM_ALLOCATION_TYPE_PINNED));
  CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, context.device()};
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemGetMemPool(&pool, &here, no_such<CUmemAllocationType>(77)));
  for (const auto type : {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, no_such<CUmemLocationType>(77)}) {
    CUmemLocation other = {type, 0};
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
            cuMemGetDefaultMemPool(&pool, &other, CU_MEM_ALLOCATION_TYPE_PINNED));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
            cuMemGetMemPool(&pool, &other, CU_MEM_ALLOCATION_TYPE_INVALID));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
            cuMemSetMemPool(&other, CU_MEM_ALLOCATION_TYPE_PINNED, nullptr));
  }
}

ROW(pools, location_and_pool_must_match) {
  const Context context;
  CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
  const MemPool pool;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
  CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, context.device()};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_MANAGED, pool));
}

ROW(pools, create_checks_its_properties) {
  const Context context;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps props = pool_props();
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(nullptr, &props));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, nullptr));
  props.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &props));
}

ROW(pools, create_refuses_the_current_node) {
  const Context context;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps props = pool_props();
  props.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &props));
}

ROW(pools, host_pools_are_not_shareable) {
  const Context context;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps props = pool_props();
  props.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  props.handleTypes = kDescriptorHandle;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &props));
}

ROW(pools, host_pools) {
  const Context context;
  int supported = 0;
  MUST(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
                            context.device()));
  if (supported != 0) GTEST_SKIP() << "the device has pools of host memory";
  CUmemoryPool pool = nullptr;
  CUmemPoolProps props = pool_props();
  props.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuMemPoolCreate(&pool, &props));
}

ROW(pools, default_stream_needs_a_context) {
  ASSERT_GE(devices_count(), 1);
  CUdeviceptr p = 0;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemAllocAsync(&p, 4096, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemFreeAsync(p, nullptr));
}

ROW(pools, arguments_are_checked) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(nullptr, 4096, nullptr));
  CUdeviceptr p = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&p, 4096, nullptr, nullptr));
}

ROW(pools, pointer_comes_before_the_stream) {
  const Context context;
  const Store store;
  const CUstream stream = stream_new();
  const MemPool pool;
  Gate gate;
  MUST(gate.hold(stream));
  CUdeviceptr p = pool.allocate(4096, stream);
  EXPECT_NE(p, 0U);
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  unsigned value = 7;
  MUST(launch(store.function(), 1, 1, {&p, &value}, stream));
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word_at(p), 7U);
  MUST(cuMemFreeAsync(p, stream));
  MUST(cuStreamSynchronize(stream));
}

ROW(pools, events_carry_an_allocation_to_another_stream) {
  const Context context;
  const Store store;
  const CUstream first = stream_new(), second = stream_new();
  const CUevent event = event_new();
  const MemPool pool;
  CUdeviceptr p = pool.allocate(4096, first);
  MUST(cuEventRecord(event, first));
  MUST(cuStreamWaitEvent(second, event, 0));
  unsigned value = 9;
  MUST(launch(store.function(), 1, 1, {&p, &value}, second));
  MUST(cuStreamSynchronize(second));
  EXPECT_EQ(word_at(p), 9U);
  MUST(cuMemFreeAsync(p, second));
  MUST(cuStreamSynchronize(second));
}

ROW(pools, memory_belongs_to_no_context) {
  const Context first;
  const MemPool pool;
  CUdeviceptr p = pool.allocate(4096, nullptr);
  MUST(cuCtxSynchronize());
  CUcontext owner = first;
  MUST(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
  EXPECT_EQ(owner, nullptr);
  MUST(cuMemFree(p));
}

ROW(pools, attributes_start_as_documented) {
  const Context context;
  const MemPool pool;
  for (const auto attribute :
       {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    int value = 0;
    MUST(cuMemPoolGetAttribute(pool, attribute, &value));
    EXPECT_EQ(value, 1) << attribute;
  }
  EXPECT_EQ(pool.number(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0U);
  EXPECT_EQ(pool.used(), 0U);
}

ROW(pools, attributes_keep_what_is_set) {
  const Context context;
  const MemPool pool;
  for (const auto attribute :
       {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    pool.allow(attribute, false);
    int value = 1;
    MUST(cuMemPoolGetAttribute(pool, attribute, &value));
    EXPECT_EQ(value, 0) << attribute;
  }
  pool.set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 123 * kMiB);
  EXPECT_EQ(pool.number(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 123 * kMiB);
}

ROW(pools, attributes_unknown_refused) {
  const Context context;
  const MemPool pool;
  cuuint64_t value = 0;
  const auto unknown = no_such<CUmemPool_attribute>(1000);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPoolGetAttribute(pool, unknown, &value));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, unknown, &value));
}

ROW(pools, used_memory_is_counted) {
  const Context context;
  const CUstream stream = stream_new();
  const MemPool pool;
  pool.keep_all();
  const CUdeviceptr first = pool.allocate(8 * kMiB, stream);
  const CUdeviceptr second = pool.allocate(4 * kMiB, stream);
  EXPECT_GE(pool.used(), 12 * kMiB);
  EXPECT_GE(pool.reserved(), pool.used());
  MUST(cuMemFreeAsync(first, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_GE(pool.used(), 4 * kMiB);
  EXPECT_LT(pool.used(), 12 * kMiB);
  MUST(cuMemFreeAsync(second, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(pool.used(), 0U);
}

ROW(pools, high_marks_stay_until_reset) {
  const Context context;
  const CUstream stream = stream_new();
  const MemPool pool;
  const CUdeviceptr p = pool.allocate(8 * kMiB, stream);
  const cuuint64_t reserved = pool.reserved(), used = pool.used();
  MUST(cuMemFreeAsync(p, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemPoolTrimTo(pool, 0));
  EXPECT_GE(pool.number(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), reserved);
  EXPECT_GE(pool.number(CU_MEMPOOL_ATTR_USED_MEM_HIGH), used);
  pool.set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0);
  pool.set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
  EXPECT_LT(pool.number(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), reserved);
  EXPECT_LT(pool.number(CU_MEMPOOL_ATTR_USED_MEM_HIGH), used);
}

ROW(pools, high_marks_reset_to_zero_only) {
  const Context context;
  const MemPool pool;
  cuuint64_t value = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
}

ROW(pools, current_amounts_cannot_be_set) {
  const Context context;
  const MemPool pool;
  cuuint64_t value = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
}

ROW(pools, mem_free_does_not_wait) {
  const Context context;
  const CUstream stream = stream_new();
  const MemPool pool;
  const CUdeviceptr p = pool.allocate(4096, stream);
  MUST(cuStreamSynchronize(stream));
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuMemFree(p));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_EQ(pool.reserved(), 0U);
}

ROW(pools, mem_free_is_not_counted) {
  const Context context;
  const MemPool pool;
  const CUdeviceptr p = pool.allocate(4096, nullptr);
  MUST(cuMemFree(p));
  EXPECT_EQ(pool.used(), 4096U);
  EXPECT_EQ(pool.reserved(), 0U);
}

ROW(pools, second_free_refused) {
  const Context context;
  const MemPool pool;
  const CUdeviceptr p = pool.allocate(4096, nullptr);
  MUST(cuMemFreeAsync(p, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, nullptr));
  MUST(cuCtxSynchronize());
}

ROW(pools, destroyed_pool_serves_its_allocations) {
  const Context context;
  const Store store;
  const CUstream stream = stream_new();
  const std::size_t free_before = memory_free();
  MemPool pool;
  CUdeviceptr p = pool.allocate(48 * kMiB, stream);
  MUST(cuMemPoolDestroy(pool.release()));
  unsigned value = 5;
  MUST(launch(store.function(), 1, 1, {&p, &value}, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word_at(p), 5U);
  EXPECT_LT(memory_free(), free_before);
  MUST(cuMemFreeAsync(p, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_GE(memory_free() + 4 * kMiB, free_before);
}

}  // namespace
}  // namespace conformance

// Rows of family `pools`: who may get memory that another stream has freed, what is kept, what is
// given back, and what happens when there is no more.
#include <chrono>
#include <thread>

#include "tests/conformance/pools.h"

namespace conformance {
namespace {

constexpr std::size_t kBlock = 48 * kMiB;  // more than half of what a limited pool has

/// A pool that keeps what it has and knows one way only to reuse what another stream has freed.
class ReusePool : public MemPool {
 public:
  explicit ReusePool(CUmemPool_attribute allowed, bool on, std::size_t bytes_max = 0)
      : MemPool(props(bytes_max)) {
    for (const auto attribute : {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                                 CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                                 CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES})
      allow(attribute, attribute == allowed && on);
    keep_all();
  }

 private:
  static CUmemPoolProps props(std::size_t bytes_max) {
    CUmemPoolProps result = pool_props();
    result.maxSize = bytes_max;
    return result;
  }
};

bool overlap(CUdeviceptr a, CUdeviceptr b) { return a < b + kBlock && b < a + kBlock; }

ROW(pools, a_stream_reuses_what_it_has_freed) {
  const Context context;
  const CUstream stream = stream_new();
  const ReusePool pool(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, false);
  Gate gate;
  MUST(gate.hold(stream));
  const CUdeviceptr first = pool.allocate(kBlock, stream);
  const cuuint64_t reserved = pool.reserved();
  MUST(cuMemFreeAsync(first, stream));
  const CUdeviceptr second = pool.allocate(kBlock, stream);
  EXPECT_EQ(pool.reserved(), reserved);
  MUST(cuMemFreeAsync(second, stream));
}

/// Memory freed in `first`, which is held, as seen from a stream that waits for the free.
CUdeviceptr allocate_after_event(const MemPool& pool, CUstream first, CUstream second,
                                 CUdeviceptr& freed) {
  const CUevent event = event_new();
  freed = pool.allocate(kBlock, first);
  EXPECT_EQ(cuMemFreeAsync(freed, first), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(event, first), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
  return pool.allocate(kBlock, second);
}

ROW(pools, events_make_memory_reusable) {
  const Context context;
  const CUstream first = stream_new(), second = stream_new();
  const ReusePool pool(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, true);
  Gate gate;
  MUST(gate.hold(first));
  CUdeviceptr freed = 0;
  const CUdeviceptr again = allocate_after_event(pool, first, second, freed);
  EXPECT_TRUE(overlap(again, freed));
  MUST(cuMemFreeAsync(again, second));
}

ROW(pools, events_can_be_ignored) {
  const Context context;
  const CUstream first = stream_new(), second = stream_new();
  const ReusePool pool(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, false);
  Gate gate;
  MUST(gate.hold(first));
  CUdeviceptr freed = 0;
  const CUdeviceptr other = allocate_after_event(pool, first, second, freed);
  EXPECT_FALSE(overlap(other, freed));
  MUST(cuMemFreeAsync(other, second));
}

ROW(pools, unordered_streams_never_share) {
  const Context context;
  const CUstream first = stream_new(), second = stream_new();
  const MemPool pool;  // everything allowed
  Gate gate;
  MUST(gate.hold(first));
  const CUdeviceptr freed = pool.allocate(kBlock, first);
  MUST(cuMemFreeAsync(freed, first));
  const CUdeviceptr other = pool.allocate(kBlock, second);
  MUST(cuMemsetD8Async(other, 1, kBlock, second));
  // Either it is other memory, or the second stream was made to wait for the free.
  if (overlap(other, freed)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
  }
  MUST(cuMemFreeAsync(other, second));
}

/// Memory freed in `first`, whose free has been executed, which the host has not waited for.
CUdeviceptr allocate_after_execution(const MemPool& pool, CUdeviceptr& freed) {
  const CUstream first = stream_new(), second = stream_new();
  const Word word;
  freed = pool.allocate(kBlock, first);
  EXPECT_EQ(cuMemFreeAsync(freed, first), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWriteValue32(first, word.device(), 1, 0), CUDA_SUCCESS);
  while (word.value() == 0) std::this_thread::yield();
  return pool.allocate(kBlock, second);
}

ROW(pools, executed_frees_are_reusable) {
  const Context context;
  const ReusePool pool(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, true);
  CUdeviceptr freed = 0;
  const CUdeviceptr again = allocate_after_execution(pool, freed);
  EXPECT_TRUE(overlap(again, freed));
  MUST(cuMemFree(again));
}

ROW(pools, executed_frees_can_be_ignored) {
  const Context context;
  const ReusePool pool(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, false);
  CUdeviceptr freed = 0;
  const CUdeviceptr other = allocate_after_execution(pool, freed);
  EXPECT_FALSE(overlap(other, freed));
  MUST(cuMemFree(other));
}

ROW(pools, synchronized_frees_are_always_reusable) {
  const Context context;
  const CUstream first = stream_new(), second = stream_new();
  const ReusePool pool(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, false);
  const CUdeviceptr freed = pool.allocate(kBlock, first);
  MUST(cuMemFreeAsync(freed, first));
  MUST(cuStreamSynchronize(first));
  const CUdeviceptr again = pool.allocate(kBlock, second);
  EXPECT_TRUE(overlap(again, freed));
  MUST(cuMemFreeAsync(again, second));
  MUST(cuStreamSynchronize(second));
}

ROW(pools, a_full_pool_makes_streams_wait) {
  const Context context;
  const CUstream first = stream_new(), second = stream_new();
  const ReusePool pool(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, true, 64 * kMiB);
  Gate gate;
  MUST(gate.hold(first));
  const CUdeviceptr freed = pool.allocate(kBlock, first);
  MUST(cuMemFreeAsync(freed, first));
  const CUdeviceptr again = pool.allocate(kBlock, second);
  EXPECT_TRUE(overlap(again, freed));
  MUST(cuMemsetD8Async(again, 1, kBlock, second));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
  gate.open();
  MUST(cuStreamSynchronize(second));
  MUST(cuMemFreeAsync(again, second));
  MUST(cuStreamSynchronize(second));
}

ROW(pools, a_full_pool_can_refuse) {
  const Context context;
  const CUstream first = stream_new(), second = stream_new();
  const ReusePool pool(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, false, 64 * kMiB);
  Gate gate;
  MUST(gate.hold(first));
  const CUdeviceptr freed = pool.allocate(kBlock, first);
  MUST(cuMemFreeAsync(freed, first));
  CUdeviceptr other = 0;
  ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&other, kBlock, pool, second));
}

ROW(pools, a_size_limit_holds) {
  const Context context;
  CUmemPoolProps props = pool_props();
  props.maxSize = 64 * kMiB;
  const MemPool pool(props);
  const CUdeviceptr first = pool.allocate(kBlock, nullptr);
  CUdeviceptr second = 0;
  ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&second, kBlock, pool, nullptr));
  EXPECT_LE(pool.reserved(), 64 * kMiB);
  MUST(cuMemFreeAsync(first, nullptr));
  MUST(cuCtxSynchronize());
  second = pool.allocate(kBlock, nullptr);
  MUST(cuMemFreeAsync(second, nullptr));
  MUST(cuCtxSynchronize());
}

ROW(pools, a_full_device_refuses) {
  const Context context;
  const MemPool pool;
  std::size_t total = 0;
  MUST(cuDeviceTotalMem(&total, context.device()));
  CUdeviceptr p = 0;
  ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&p, 2 * total, pool, nullptr));
  p = pool.allocate(kBlock, nullptr);
  MUST(cuMemFreeAsync(p, nullptr));
  MUST(cuCtxSynchronize());
}

ROW(pools, synchronizing_gives_back_above_the_threshold) {
  const Context context;
  const CUstream stream = stream_new();
  const MemPool pool;
  const CUdeviceptr p = pool.allocate(kBlock, stream);
  EXPECT_GE(pool.reserved(), kBlock);
  MUST(cuMemFreeAsync(p, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_LT(pool.reserved(), kBlock);
}

ROW(pools, a_threshold_keeps_memory) {
  const Context context;
  const CUstream stream = stream_new();
  const MemPool pool;
  pool.keep_all();
  const CUdeviceptr p = pool.allocate(kBlock, stream);
  const cuuint64_t reserved = pool.reserved();
  MUST(cuMemFreeAsync(p, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(pool.reserved(), reserved);
}

ROW(pools, reserved_memory_is_the_device_s) {
  const Context context;
  const CUstream stream = stream_new();
  const MemPool pool;
  pool.keep_all();
  const std::size_t before = memory_free();
  const CUdeviceptr p = pool.allocate(kBlock, stream);
  MUST(cuMemFreeAsync(p, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_LE(memory_free() + kBlock, before) << "kept by the pool";
  MUST(cuMemPoolTrimTo(pool, 0));
  EXPECT_GT(memory_free() + kBlock, before);
}

ROW(pools, trimming_keeps_what_it_is_told) {
  const Context context;
  const CUstream stream = stream_new();
  const MemPool pool;
  pool.keep_all();
  CUdeviceptr blocks[4] = {};
  for (CUdeviceptr& p : blocks) p = pool.allocate(kBlock, stream);
  for (const CUdeviceptr p : blocks) MUST(cuMemFreeAsync(p, stream));
  MUST(cuStreamSynchronize(stream));
  const cuuint64_t reserved = pool.reserved();
  MUST(cuMemPoolTrimTo(pool, 2 * kBlock));
  EXPECT_GE(pool.reserved(), 2 * kBlock);
  EXPECT_LT(pool.reserved(), reserved);
  const cuuint64_t kept = pool.reserved();
  MUST(cuMemPoolTrimTo(pool, kept + 1));
  EXPECT_EQ(pool.reserved(), kept);
}

ROW(pools, trimming_takes_what_the_host_knows_to_be_free) {
  const Context context;
  const CUstream stream = stream_new(), other = stream_new();
  const MemPool pool;
  const CUdeviceptr p = pool.allocate(kBlock, stream);
  MUST(cuMemFreeAsync(p, stream));
  while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) continue;
  MUST(cuMemPoolTrimTo(pool, 0));
  EXPECT_GE(pool.reserved(), kBlock) << "a query is no wait";
  MUST(cuStreamSynchronize(other));
  MUST(cuMemPoolTrimTo(pool, 0));
  EXPECT_GE(pool.reserved(), kBlock) << "nor is that for another stream";
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemPoolTrimTo(pool, 0));
  EXPECT_EQ(pool.reserved(), 0U);
}

ROW(pools, trimming_leaves_allocations_alone) {
  const Context context;
  const CUstream stream = stream_new();
  const MemPool pool;
  const CUdeviceptr p = pool.allocate(kBlock, stream);
  MUST(cuMemsetD8Async(p, 3, kBlock, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemPoolTrimTo(pool, 0));
  EXPECT_GE(pool.reserved(), kBlock);
  EXPECT_EQ(word_at(p + kBlock - 4), 0x03030303U);
  MUST(cuMemFreeAsync(p, stream));
  MUST(cuStreamSynchronize(stream));
}

}  // namespace
}  // namespace conformance

// Stream-ordered memory. A free gives memory back to its pool at once, but to the device only when
// the pool is trimmed or synchronised, so what counts is what the pool has reserved, read from the
// driver after every call that may change it. A pool grows in steps of its own: the account may
// pass the quota by one step, never by more.
#include <string.h>

#include "interpose/account.h"

namespace sluice::interpose {

uint32_t pools_seen;

namespace {

constexpr uint32_t kPoolsMax = 64;
Pool pools[kPoolsMax];
Lock lock;

void pool_charge(Pool& pool, uint64_t bytes) {
  const int gpu = device_gpu(pool.device);
  if (gpu < 0 || bytes == pool.charged) return;
  const auto index = static_cast<uint32_t>(gpu);
  if (bytes > pool.charged) {
    process.ledger.hold_unasked(index, bytes - pool.charged);
  } else {
    process.ledger.release(index, pool.charged - bytes);
  }
  pool.charged = bytes;
}

}  // namespace

Lock& pools_lock() { return lock; }

int pool_device_ask(CUmemoryPool handle) {
  for (int device = 0; device < process.device_count; ++device) {
    CUmemoryPool own = nullptr, current = nullptr;
    if (driver.cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS && own == handle)
      return device;
    if (driver.cuDeviceGetMemPool(&current, device) == CUDA_SUCCESS && current == handle)
      return device;
  }
  return -1;
}

Pool* pool_add(CUmemoryPool handle, int device) {
  Pool* place = nullptr;
  for (uint32_t i = 0; i < pools_seen && place == nullptr; ++i) {
    if (pools[i].gone && pools[i].charged == 0) place = &pools[i];
  }
  if (place == nullptr) {
    if (pools_seen == kPoolsMax) return nullptr;
    place = &pools[pools_seen++];
  }
  *place = Pool{handle, device, 0, false};
  return place;
}

Pool* pool_find(CUmemoryPool handle) {
  for (uint32_t i = 0; i < pools_seen; ++i) {
    if (pools[i].handle == handle && !pools[i].gone) return &pools[i];
  }
  return pool_add(handle, pool_device_ask(handle));
}

// A pool that the program destroyed keeps its memory until its last allocation is freed, and no
// call tells how much that is: what lives of it counts, and the residual has the rest.
uint64_t bytes_reserved(const Pool& pool) {
  if (pool.gone) {
    const uint64_t live = process.records.bytes_of(RecordKind::kPooled, pool.handle);
    return live < pool.charged ? live : pool.charged;
  }
  cuuint64_t reserved = pool.charged;
  (void)driver.cuMemPoolGetAttribute(pool.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
  return reserved;
}

void pool_settle(Pool& pool) {
  if (!pool.gone || pool.charged != 0) pool_charge(pool, bytes_reserved(pool));
}

// What was reserved becomes what is held without being free in between: it may be another process's
// last bytes.
void pool_settle_grown(Pool& pool, uint64_t reserved) {
  const uint64_t now = bytes_reserved(pool);
  const uint64_t grown = now > pool.charged ? now - pool.charged : 0;
  const uint64_t expected = grown < reserved ? grown : reserved;
  if (expected > 0) charge_commit(pool.device, expected);
  pool.charged += expected;
  if (expected < reserved) charge_abort(pool.device, reserved - expected);
  pool_charge(pool, now);
}

PoolsRead pools_read(int device) {
  // From a hook that holds the lock already the pools are being settled anyway.
  if (!lock.try_acquire_briefly()) return PoolsRead::kBusy;
  bool smaller = false;
  for (uint32_t i = 0; i < pools_seen; ++i) {
    if (pools[i].device != device) continue;
    const uint64_t before = pools[i].charged;
    pool_settle(pools[i]);
    smaller |= pools[i].gone && pools[i].charged != before;
  }
  lock.release();
  return smaller ? PoolsRead::kSmaller : PoolsRead::kRead;
}

void pool_destroyed(Pool& pool) {
  pool.gone = true;
  pool_settle(pool);
}

void pools_sum(uint64_t* bytes_by_device) {
  for (uint32_t i = 0; i < pools_seen; ++i) {
    if (pools[i].device >= 0) bytes_by_device[pools[i].device] += pools[i].charged;
  }
}

void pools_reset_after_fork() {
  lock.reset_after_fork();
  pools_seen = 0;
}

}  // namespace sluice::interpose

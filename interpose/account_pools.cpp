// Stream-ordered memory. A free gives memory back to its pool at once, but to the device only when
// the pool is trimmed or synchronised, so what counts is what the pool has reserved, read from the
// driver after every call that may change it. A pool grows in steps of its own: the account may
// pass the quota by one step, never by more.
#include <string.h>

#include "interpose/account.h"

namespace sluice::interpose {
namespace {

constexpr int kPoolsMax = 64;
Pool pools[kPoolsMax];
int pool_count;
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

Pool* pool_find(CUmemoryPool handle, int device) {
  for (int i = 0; i < pool_count; ++i) {
    if (pools[i].handle == handle && !pools[i].gone) return &pools[i];
  }
  for (int i = 0; i < pool_count; ++i) {
    if (!pools[i].gone || pools[i].charged != 0) continue;
    pools[i] = Pool{handle, device, 0, false};
    return &pools[i];
  }
  if (pool_count == kPoolsMax) return nullptr;
  pools[pool_count] = Pool{handle, device, 0, false};
  return &pools[pool_count++];
}

void pool_settle(Pool& pool) {
  if (pool.gone) return;
  cuuint64_t reserved = 0;
  if (driver.cuMemPoolGetAttribute(pool.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) ==
      CUDA_SUCCESS) {
    pool_charge(pool, reserved);
  }
}

void pools_settle(int device) {
  if (load_relaxed(pool_count) == 0) return;
  // From a hook that holds the lock already the pools are being settled anyway.
  if (!lock.try_acquire_briefly()) return;
  for (int i = 0; i < pool_count; ++i) {
    if (pools[i].device == device) pool_settle(pools[i]);
  }
  lock.release();
}

void pool_destroyed(Pool& pool) {
  // The driver keeps the pool's memory until its last allocation is freed; those frees come one by
  // one.
  pool.gone = true;
  uint64_t live[kDevicesMax] = {};
  process.records.sum(RecordKind::kPooled, live);
  pool_charge(pool, live[pool.device] < pool.charged ? live[pool.device] : pool.charged);
}

}  // namespace sluice::interpose

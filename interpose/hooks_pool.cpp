// Stream-ordered allocation and its pools. What counts is what a pool has reserved from the device
// (account_pools.cpp); an allocation that cannot come out of the pool's own reserve is checked
// against the quota before the driver is asked. An allocation captured into a graph takes no memory
// now and passes.
#include "interpose/account.h"
#include "interpose/free.h"
#include "interpose/gate.h"

using namespace sluice::interpose;

namespace {

// What an allocation would add to the pool's reserve, if nothing is fragmented.
uint64_t growth_expected(CUmemoryPool pool, uint64_t bytes) {
  cuuint64_t reserved = 0, used = 0;
  if (driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) !=
          CUDA_SUCCESS ||
      driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS) {
    return bytes;
  }
  return used + bytes > reserved ? used + bytes - reserved : 0;
}

template <class Call>
CUresult allocate_from(CUmemoryPool handle, int device, CUdeviceptr* pointer, uint64_t bytes,
                       Call call) {
  const LockScope scope(pools_lock());
  Pool* pool = pool_find(handle, device);
  if (pool == nullptr || pool->device < 0) return call();
  const uint64_t growth = growth_expected(handle, bytes);
  if (growth > 0) {
    pool_settle(*pool);
    if (!charge_reserve(pool->device, growth)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = call();
  if (growth > 0) charge_abort(pool->device, growth);
  pool_settle(*pool);
  if (result == CUDA_SUCCESS) {
    (void)process.records.insert(
        Record{*pointer, bytes, handle, RecordKind::kPooled, pool->device});
  }
  return result;
}

template <class Call>
CUresult allocate(CUmemoryPool handle, CUdeviceptr* pointer, uint64_t bytes, CUstream stream,
                  Call call) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  const int device = account.active() ? account.device() : -1;
  if (device < 0 || stream_is_capturing(stream)) return call();
  if (handle == nullptr && driver.cuDeviceGetMemPool(&handle, device) != CUDA_SUCCESS)
    return call();
  return allocate_from(handle, device, pointer, bytes, call);
}

template <class Call>
CUresult release(CUdeviceptr pointer, CUstream stream, Call call) {
  if (stream_is_capturing(stream)) return call();
  return memory_free(pointer, call);
}

template <class Call>
CUresult with_pool(CUmemoryPool handle, Call call, bool destroys) {
  const AccountScope account;
  if (!account.active()) return call();
  const LockScope scope(pools_lock());
  const CUresult result = call();
  Pool* pool = result == CUDA_SUCCESS ? pool_find(handle, account.device()) : nullptr;
  if (pool == nullptr) return result;
  if (destroys) {
    pool_destroyed(*pool);
  } else {
    pool_settle(*pool);
  }
  return result;
}

}  // namespace

SLUICE_HOOK CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
  return allocate(nullptr, pointer, bytes, stream,
                  [&] { return driver.cuMemAllocAsync(pointer, bytes, stream); });
}

SLUICE_HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
  return allocate(nullptr, pointer, bytes, stream_per_thread(stream),
                  [&] { return driver.cuMemAllocAsync_ptsz(pointer, bytes, stream); });
}

SLUICE_HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
  return allocate(pool, pointer, bytes, stream,
                  [&] { return driver.cuMemAllocFromPoolAsync(pointer, bytes, pool, stream); });
}

SLUICE_HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* pointer, size_t bytes,
                                                  CUmemoryPool pool, CUstream stream) {
  return allocate(pool, pointer, bytes, stream_per_thread(stream), [&] {
    return driver.cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, stream);
  });
}

SLUICE_HOOK CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  return release(pointer, stream, [&] { return driver.cuMemFreeAsync(pointer, stream); });
}

SLUICE_HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
  return release(pointer, stream_per_thread(stream),
                 [&] { return driver.cuMemFreeAsync_ptsz(pointer, stream); });
}

SLUICE_HOOK CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const AccountScope account;
  const CUresult result = driver.cuMemPoolCreate(pool, properties);
  if (!account.active() || result != CUDA_SUCCESS) return result;
  const LockScope scope(pools_lock());
  const bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  (void)pool_find(*pool, on_device ? properties->location.id : -1);
  return result;
}

SLUICE_HOOK CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes) {
  return with_pool(
      pool, [&] { return driver.cuMemPoolTrimTo(pool, bytes); }, false);
}

SLUICE_HOOK CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           void* value) {
  return with_pool(
      pool, [&] { return driver.cuMemPoolSetAttribute(pool, attribute, value); }, false);
}

SLUICE_HOOK CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return with_pool(
      pool, [&] { return driver.cuMemPoolDestroy(pool); }, true);
}

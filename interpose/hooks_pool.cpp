// Stream-ordered allocation and its pools. What counts is what a pool has reserved from the device
// (account_pools.cpp): the most that an allocation may make it take is asked for before the
// driver's call, and the account is looked at behind it. An allocation captured into a graph takes
// no memory now and passes.
#include "interpose/account.h"
#include "interpose/captures.h"
#include "interpose/free.h"
#include "interpose/gate.h"
#include "interpose/residual.h"
#include "interpose/room.h"
#include "interpose/say.h"

using namespace sluice::interpose;

namespace {

// Whether it is the device that has no room for the growth, and not the pool's own limit.
bool device_is_full(uint64_t growth) {
  size_t free_bytes = 0;
  return driver.cuMemGetInfo_v2(&free_bytes, nullptr) != CUDA_SUCCESS || free_bytes < growth;
}

template <class Ask>
bool asked_in(CUcontext context, Ask ask) {
  const CurrentScope current(context);
  return current.result() == CUDA_SUCCESS && ask();
}

// A question about a stream that has a handle. It needs a context, whichever. False: no answer.
template <class Ask>
bool asked_anywhere(Ask ask) {
  if (ask()) return true;
  for (int i = 0, n = context_count(); i < n; ++i) {
    const ContextRecord& record = *context_at(i);
    if (record.is_usable() && asked_in(record.context, ask)) return true;
  }
  for (int i = 0; i < process.device_count; ++i) {
    unsigned int flags = 0;
    int active = 0;
    CUcontext primary = nullptr;
    if (driver.cuDevicePrimaryCtxGetState(i, &flags, &active) != CUDA_SUCCESS || active == 0 ||
        driver.cuDevicePrimaryCtxRetain(&primary, i) != CUDA_SUCCESS) {
      continue;
    }
    const bool known = asked_in(primary, ask);
    driver.cuDevicePrimaryCtxRelease_v2(i);
    if (known) return true;
  }
  return false;
}

bool stream_device(CUstream stream, CUdevice* device) {
  return asked_anywhere([&] { return driver.cuStreamGetDevice(stream, device) == CUDA_SUCCESS; });
}

// Whether what is asked of it becomes a graph's. A default stream is the current context's, and of
// one that cannot be used the driver says that, or takes what orders no work.
bool stream_is_captured(CUstream stream) {
  if (SLUICE_LIKELY(load_acquire(captures_active) == 0)) return false;
  bool captured = false;
  const auto ask = [&] { return stream_capture_status(stream, &captured); };
  return (stream_is_special(stream) ? ask() : asked_anywhere(ask)) && captured;
}

// Whether the driver would take an allocation on it at all: a default stream is the current
// context's, and the legacy one must not be kept from use by a capture.
bool stream_takes(CUstream stream) {
  CUdevice device = 0;
  if (!stream_is_special(stream)) return stream_device(stream, &device);
  return thread_context(this_thread) && !stream_is_capturing(stream);
}

// Of the context whose default stream it is; of a stream that has a handle nobody tells the context
// without one.
CUresult stream_fault(CUstream stream) {
  const bool asked = stream_is_special(stream) && thread_context(this_thread);
  return asked ? context_fault() : CUDA_SUCCESS;
}

// The pool that the stream's device allocates from. The stream may be another device's than the
// current one, and with a stream that has a handle no context need be current at all.
CUmemoryPool pool_of_stream(CUstream stream, int device) {
  CUdevice of_stream = device;
  if (!stream_is_special(stream) && (device < 0 || process.device_count > 1) &&
      !stream_device(stream, &of_stream))
    return nullptr;
  CUmemoryPool pool = nullptr;
  return driver.cuDeviceGetMemPool(&pool, of_stream) == CUDA_SUCCESS ? pool : nullptr;
}

// Frees in stream order that this process has made, and how many there were when one was last
// waited for: what has not come back by then lies in pieces.
uint64_t frees_made, frees_awaited;
// As long as refusals wait for other threads' calls on pools.
constexpr uint64_t kFreesWaitNs = 1'000'000'000;
constexpr uint64_t kFreesLookFirstNs = 1'000'000, kFreesLookNs = 16'000'000;

// A context that another thread is just looking at counts as one with work.
bool work_is_in_flight() {
  for (int i = 0, n = context_count(); i < n; ++i) {
    ContextRecord& record = *context_at(i);
    if (!record.is_usable()) continue;
    if (!record.lock.try_acquire_briefly()) return true;
    const bool works = launches_in_flight(record) != 0;
    record.lock.release();
    if (works) return true;
  }
  return false;
}

// Memory that was freed in stream order is the pool's to give back when the GPU has come to the
// free. A driver whose device is full lets the stream wait for that; a quota is met before. So an
// allocation that is about to be refused, while enough is idle, waits for work in flight: a second
// at most, in no scope and with no bytes of the quota.
class FreesWait {
 public:
  // Before a refusal, in its scopes. True: the attempt ends without one, and again() waits.
  bool begins(int device, uint64_t bytes) {
    const uint64_t made = load_relaxed(frees_made);
    if (over_ || made == load_relaxed(frees_awaited) || load_acquire(captures_active) != 0 ||
        !work_is_in_flight() || !pools_idle_suffices(device, bytes)) {
      return false;
    }
    over_ = true;
    store_relaxed(frees_awaited, made);
    device_ = device;
    bytes_ = bytes;
    return true;
  }
  // Whether to make another attempt, which is the last.
  bool again() {
    if (device_ < 0) return false;
    const ErrnoGuard guard;
    const uint64_t until_ns = clock_now_ns() + kFreesWaitNs;
    for (uint64_t look_ns = kFreesLookFirstNs; clock_now_ns() < until_ns && !has_come();) {
      sleep_ns(look_ns);
      if (look_ns < kFreesLookNs) look_ns *= 2;
    }
    device_ = -1;
    return true;
  }

 private:
  bool has_come() const {
    const AccountScope account;
    if (!account.active()) return true;
    const PoolsScope scope;
    pools_trim_before_refusal(device_);
    return !pools_idle_suffices(device_, bytes_) || charge_has_room(device_, bytes_) ||
           !work_is_in_flight();
  }

  bool over_ = false;
  int device_ = -1;
  uint64_t bytes_ = 0;
};

// Gives back an allocation that the program never had. Memory that the pool took for it was never
// another allocation's, so that it is free at once (cuMemFree waits for nothing there), also while
// the stream has work to do. Else earlier work of the stream may use it.
void give_back(CUdeviceptr pointer, CUstream stream, bool is_new) {
  const RelaxedScope relaxed(RelaxedScope::When::kAlways);
  if (!is_new || driver.cuMemFree_v2(pointer) != CUDA_SUCCESS)
    (void)driver.cuMemFreeAsync(pointer, stream);
}

template <class Call>
CUresult allocate_from(RoomWait& wait, FreesWait& frees, CUmemoryPool handle, CUdeviceptr* pointer,
                       uint64_t bytes, CUstream stream, Call call) {
  const PoolsScope scope;
  Pool* pool = pool_find(handle);
  if (SLUICE_UNLIKELY(pool == nullptr)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (pool->device < 0) return call();
  const CUdeviceptr before = *pointer;
  PoolGrowth growth(*pool, bytes);
  const auto undo = [&] {
    give_back(*pointer, stream, growth.grew());
    *pointer = before;
    growth.undone();
  };
  if (!growth.fits()) {
    if (const CUresult fault = stream_fault(stream); fault != CUDA_SUCCESS) return fault;
    if (frees.begins(pool->device, growth.most())) return CUDA_ERROR_OUT_OF_MEMORY;
    return charge_refuse(pool->device, bytes, !stream_takes(stream), call, undo);
  }
  const CUresult result = call();
  const bool within = growth.ended();
  if (SLUICE_LIKELY(result == CUDA_SUCCESS && within)) {
    const Record record{*pointer, bytes, handle, RecordKind::kPooled, pool->device};
    if (SLUICE_LIKELY(process.records.insert(record))) return result;
    unrecorded_say("an allocation's record");
    undo();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result == CUDA_SUCCESS) {
    undo();
    if (!frees.begins(pool->device, growth.most())) charge_refused(device_gpu(pool->device), bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY && device_is_full(growth.most()))
    wait.refused(device_gpu(pool->device), growth.most());
  return result;
}

template <class Call>
CUresult allocate_once(RoomWait& wait, FreesWait& frees, CUmemoryPool handle, CUdeviceptr* pointer,
                       uint64_t bytes, CUstream stream, Call call) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  if (!account.active() || pointer == nullptr || stream_is_captured(stream)) return call();
  const int device = account.device();
  if (handle == nullptr) handle = pool_of_stream(stream, device);
  return handle == nullptr ? call()
                           : allocate_from(wait, frees, handle, pointer, bytes, stream, call);
}

template <class Call>
CUresult allocate(CUmemoryPool handle, CUdeviceptr* pointer, uint64_t bytes, CUstream stream,
                  Call call) {
  FreesWait frees;
  return with_room([&](RoomWait& wait) {
    CUresult result;
    do {
      result = allocate_once(wait, frees, handle, pointer, bytes, stream, call);
    } while (SLUICE_UNLIKELY(frees.again()));
    return result;
  });
}

template <class Call>
CUresult release(CUdeviceptr pointer, CUstream stream, Call call) {
  if (stream_is_captured(stream)) return call();
  const CUresult result = memory_free<Free::kInStreamOrder>(pointer, stream, call);
  // Behind the call: a wait that does not count this one has looked for it.
  __atomic_add_fetch(&frees_made, 1, __ATOMIC_RELAXED);
  return result;
}

int device_of(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1;
}

template <class Call>
CUresult pool_of_location(CUmemoryPool* pool, const CUmemLocation* location, Call call) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUmemoryPool before = pool == nullptr ? nullptr : *pool;
  const CUresult result = call();
  if (!account.active() || result != CUDA_SUCCESS) return result;
  const PoolsScope scope;
  if (SLUICE_LIKELY(pool_place(*pool, device_of(*location)))) return result;
  *pool = before;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

enum class After : uint8_t { kLives, kDestroyed };

template <class Call>
CUresult with_pool(CUmemoryPool handle, After after, Call call) {
  CUresult result;
  int device = -1;
  SharedEnd shared(residual_is_shared());
  {
    const AccountScope account;
    if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
    if (!account.active()) return call();
    const PoolsScope scope;
    Pool* pool = pool_find(handle);
    result = call();
    if (result != CUDA_SUCCESS || pool == nullptr) return result;
    device = pool->device;
    if (after == After::kDestroyed) {
      pool_destroyed(*pool);
    } else {
      pool_settle(*pool);
    }
  }
  shared.ended();
  // Memory that outlives its pool, and what others have of it. The device has it back behind the
  // frees that are still in a stream, and no call tells when.
  if (after == After::kDestroyed || residual_is_shared()) residual_settle();
  if (after == After::kDestroyed) (void)residual_defer(device, 0);
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
  if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUmemoryPool before = pool == nullptr ? nullptr : *pool;
  if (account.active() && properties != nullptr) {
    const CUresult refusal = device_refuse(device_of(properties->location), "memory");
    if (refusal != CUDA_SUCCESS) return refusal;
  }
  const CUresult result = driver.cuMemPoolCreate(pool, properties);
  if (!account.active() || result != CUDA_SUCCESS) return result;
  const PoolsScope scope;
  if (SLUICE_LIKELY(pool_add(*pool, device_of(properties->location)) != nullptr)) return result;
  (void)relaxed_call([&] { return driver.cuMemPoolDestroy(*pool); });
  *pool = before;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Pools by place and kind of memory. The driver tells of no pool where it is but of a device's own,
// so this is the moment to learn it.
SLUICE_HOOK CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                            CUmemAllocationType type) {
  return pool_of_location(pool, location,
                          [&] { return driver.cuMemGetDefaultMemPool(pool, location, type); });
}

SLUICE_HOOK CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                     CUmemAllocationType type) {
  return pool_of_location(pool, location,
                          [&] { return driver.cuMemGetMemPool(pool, location, type); });
}

SLUICE_HOOK CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes) {
  return with_pool(pool, After::kLives, [&] { return driver.cuMemPoolTrimTo(pool, bytes); });
}

SLUICE_HOOK CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                           void* value) {
  return with_pool(pool, After::kLives,
                   [&] { return driver.cuMemPoolSetAttribute(pool, attribute, value); });
}

SLUICE_HOOK CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return with_pool(pool, After::kDestroyed, [&] { return driver.cuMemPoolDestroy(pool); });
}

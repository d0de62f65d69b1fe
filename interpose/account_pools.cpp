// Stream-ordered memory. A free gives memory back to its pool at once, but to the device only when
// the pool is trimmed or synchronised, so what counts is what the pool has reserved, read from the
// driver after every call that may change it. A pool grows in steps of its own, and its reserve
// lies in pieces: before a call the most that it may take is reserved, and whatever it took is
// judged behind the call. A tenant that is above its quota then keeps neither the allocation nor
// the step.
#include <string.h>

#include "interpose/account.h"
#include "interpose/captures.h"
#include "interpose/residual.h"
#include "interpose/say.h"
#include "interpose/slabs.h"

namespace sluice::interpose {

uint32_t pools_seen;

namespace {

constinit Slabs<Pool, 64> pools;
Lock lock;
const ThreadRecord* holder;  // of the lock, while that one is within a call on the pools
// Whether who has the lock only asks the driver, which is soon done; else it is within a call that
// may take long, or that of this very thread.
uint32_t reading;
// The devices, a bit each, that were to be read while the lock was taken. What the holder has read
// itself may be older than what they were to be read for.
uint64_t asked;
static_assert(kDevicesMax <= 64);

// A call on the pools is soon done, unless the driver waits for the GPU in it.
constexpr uint64_t kPatienceBeforeRefusalNs = 1'000'000'000;
constexpr uint64_t kReadingLookNs = 1'000'000;

// What pools take from the device is a multiple of this, as far as they have shown. It begins with
// the granularity of physical memory.
uint64_t growth_step = 2u << 20;
// A growth that only a larger step explains is no rounding: such a pool is judged behind the call.
constexpr uint64_t kGrowthStepMax = 64u << 20;
// What the pools of a device had idle when the last trim had given back all it could.
uint64_t idle_kept[kDevicesMax];

void pool_charge(Pool& pool, uint64_t bytes) {
  const int gpu = device_gpu(pool.device);
  if (gpu < 0 || bytes == pool.charged) return;
  const auto index = static_cast<uint32_t>(gpu);
  if (bytes > pool.charged) {
    process.ledger.hold_unasked(index, bytes - pool.charged);
  } else if (SLUICE_UNLIKELY(residual_is_shared())) {
    charge_pass(pool.device, pool.charged - bytes);
  } else {
    process.ledger.release(index, pool.charged - bytes);
  }
  pool.charged = bytes;
}

}  // namespace

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

static Pool* pool_known(CUmemoryPool handle) {
  for (uint32_t i = 0; i < pools_seen; ++i) {
    if (pools[i].handle == handle && !pools[i].gone) return &pools[i];
  }
  return nullptr;
}

// A handle that is known stood for a pool that ended, or for none when it was met.
Pool* pool_add(CUmemoryPool handle, int device) {
  Pool* place = pool_known(handle);
  if (place != nullptr) pool_charge(*place, 0);
  for (uint32_t i = 0; i < pools_seen && place == nullptr; ++i) {
    if (pools[i].gone && pools[i].charged == 0) place = &pools[i];
  }
  if (place == nullptr) {
    place = pools.next();
    if (place == nullptr) {
      unrecorded_say("a pool's record");
      return nullptr;
    }
    *place = Pool{handle, device, 0, false};
    pools.publish();
    store_relaxed(pools_seen, pools.count());
    return place;
  }
  *place = Pool{handle, device, 0, false};
  return place;
}

Pool* pool_find(CUmemoryPool handle) {
  Pool* known = pool_known(handle);
  return known != nullptr ? known : pool_add(handle, pool_device_ask(handle));
}

bool pool_place(CUmemoryPool handle, int device) {
  Pool* known = pool_known(handle);
  if (known == nullptr) return pool_add(handle, device) != nullptr;
  if (known->device < 0) known->device = device;  // nothing of it was charged
  return true;
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

namespace {

// What is allocated from a pool and not freed. The driver's own count is too large: it keeps what
// cuMemFree frees (580), a program's frees and those of refusals alike.
bool bytes_used(const Pool& pool, uint64_t* bytes) {
  cuuint64_t counted = 0;
  if (driver.cuMemPoolGetAttribute(pool.handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &counted) !=
      CUDA_SUCCESS) {
    return false;
  }
  const uint64_t live = process.records.bytes_of(RecordKind::kPooled, pool.handle);
  *bytes = live < counted ? live : counted;
  return true;
}

}  // namespace

void pool_settle(Pool& pool) {
  if (!pool.gone || pool.charged != 0) pool_charge(pool, bytes_reserved(pool));
}

namespace {

// A holder that only reads is waited for: what it has read may be from before the caller's wait or
// free, whose memory is then still counted when the caller goes on. One that is within a call is
// not: it may itself be waiting for the caller, who may have stopped the account.
bool lock_to_read(int device) {
  if (lock.try_acquire_briefly()) return true;
  while (load_acquire(reading) != 0) {
    if (lock.acquire_for(kReadingLookNs)) return true;
  }
  if (device < 0) return false;
  __atomic_fetch_or(&asked, uint64_t{1} << device, __ATOMIC_ACQ_REL);
  return lock.try_acquire();  // the holder may have gone before it could see the bit
}

PoolsRead pools_read_locked(int device) {
  bool smaller = false;
  for (uint32_t i = 0; i < pools_seen; ++i) {
    if (pools[i].device != device) continue;
    const uint64_t before = pools[i].charged;
    pool_settle(pools[i]);
    smaller |= pools[i].gone && pools[i].charged != before;
  }
  return smaller ? PoolsRead::kSmaller : PoolsRead::kRead;
}

// Behind a release. Who finds the lock taken again leaves it to the next release.
SLUICE_NOINLINE void asked_read() {
  while (load_acquire(asked) != 0 && lock.try_acquire()) {
    store_release(reading, 1u);
    const uint64_t devices = __atomic_exchange_n(&asked, uint64_t{0}, __ATOMIC_ACQ_REL);
    for (int device = 0; device < kDevicesMax; ++device) {
      if ((devices >> device & 1) != 0 && pools_read_locked(device) == PoolsRead::kSmaller &&
          !residual_defer(device, 0))
        residual_want();
    }
    store_release(reading, 0u);
    lock.release();
  }
}

}  // namespace

PoolsScope::PoolsScope() {
  lock.acquire();
  store_relaxed(holder, static_cast<const ThreadRecord*>(this_thread));
}

PoolsScope::~PoolsScope() {
  store_relaxed(holder, static_cast<const ThreadRecord*>(nullptr));
  lock.release();
  if (SLUICE_UNLIKELY(load_acquire(asked) != 0)) asked_read();
}

namespace {

// No other thread can find itself there.
bool is_holder() { return this_thread != nullptr && load_relaxed(holder) == this_thread; }

PoolsRead read_and_release(int device) {
  store_release(reading, 1u);
  const PoolsRead read = pools_read_locked(device);
  store_release(reading, 0u);
  lock.release();
  if (SLUICE_UNLIKELY(load_acquire(asked) != 0)) asked_read();
  return read;
}

}  // namespace

PoolsRead pools_read(int device) {
  if (is_holder()) return pools_read_locked(device);
  return lock_to_read(device) ? read_and_release(device) : PoolsRead::kBusy;
}

namespace {

bool is_trimmable(const Pool& pool, int device) {
  return pool.device == device && !pool.gone && pool.charged != 0;
}

// What the pools of the device have reserved and not in use.
uint64_t idle_on(int device) {
  uint64_t idle = 0;
  for (uint32_t i = 0; i < pools_seen; ++i) {
    uint64_t used = 0;
    if (is_trimmable(pools[i], device) && bytes_used(pools[i], &used) && used < pools[i].charged) {
      idle += pools[i].charged - used;
    }
  }
  return idle;
}

void pools_trim_locked(int device) {
  const RelaxedScope relaxed(RelaxedScope::When::kAlways);
  for (uint32_t i = 0; i < pools_seen; ++i) {
    if (is_trimmable(pools[i], device)) (void)driver.cuMemPoolTrimTo(pools[i].handle, 0);
  }
  (void)pools_read_locked(device);
  idle_kept[device] = idle_on(device);
}

// Whether `bytes` would fit if the device had `idle` bytes more.
bool suffices(uint32_t gpu, uint64_t idle, uint64_t bytes) {
  const uint64_t quota = process.memory_max(static_cast<int>(gpu));
  const uint64_t total = process.ledger.total(gpu);
  return total < idle + quota && bytes <= idle + quota - total;
}

// Whether a trim may make room for `bytes`. Pieces that the last one could not give back are no
// reason for another one.
bool trim_may_help(int device, uint32_t gpu, uint64_t bytes) {
  const uint64_t idle = idle_on(device);
  if (idle < idle_kept[device]) idle_kept[device] = idle;
  return idle >= idle_kept[device] + growth_step && suffices(gpu, idle, bytes);
}

uint64_t rounded_up(uint64_t bytes, uint64_t step) {
  uint64_t sum = 0;
  return __builtin_add_overflow(bytes, step - 1, &sum) ? ~uint64_t{0} : sum / step * step;
}

void growth_step_learn(uint64_t bytes, uint64_t grown) {
  uint64_t step = growth_step;
  while (step <= kGrowthStepMax && rounded_up(bytes, step) < grown) step *= 2;
  if (step <= kGrowthStepMax) growth_step = step;
}

}  // namespace

bool pools_idle_suffices(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  return gpu >= 0 && suffices(static_cast<uint32_t>(gpu), idle_on(device), bytes);
}

void pools_read_before_refusal(int device) {
  if (is_holder()) {
    (void)pools_read_locked(device);
  } else if (lock.acquire_for(kPatienceBeforeRefusalNs)) {
    (void)read_and_release(device);
  }
}

void pools_trim_before_refusal(int device) {
  if (is_holder()) {
    pools_trim_locked(device);
  } else if (lock.acquire_for(kPatienceBeforeRefusalNs)) {
    pools_trim_locked(device);
    (void)read_and_release(device);
  }
}

PoolGrowth::PoolGrowth(Pool& pool, uint64_t bytes)
    : pool_(pool), bytes_(bytes), most_(rounded_up(bytes, growth_step)), fits_(ask()) {}

// Far from the quota the most that the pool may take is reserved, without a question to the driver.
// Near it the pool may still have room inside for what is asked.
bool PoolGrowth::ask() {
  const int gpu = device_gpu(pool_.device);
  if (gpu < 0) return charge_room(pool_.device, most_);
  const auto index = static_cast<uint32_t>(gpu);
  const uint64_t quota = process.memory_max(gpu);
  const auto reserve = [&] {
    if (!charge_try_reserve(gpu, most_)) return false;
    reserved_ = most_;
    return true;
  };
  if (SLUICE_LIKELY(reserve())) return true;
  const ErrnoGuard guard;
  (void)pools_read_locked(pool_.device);
  if (reserve()) return true;
  if (trim_may_help(pool_.device, index, most_)) {
    pools_trim_locked(pool_.device);
    if (reserve()) return true;
  }
  const auto inside = [&] {
    return has_room_inside() && process.ledger.held_total(index) <= quota;
  };
  if (inside()) return true;
  if (!charge_room(pool_.device, most_)) return inside();
  reserved_ = most_;
  return true;
}

// Whether the pool has so much that is not in use, be it in pieces that are too small.
bool PoolGrowth::has_room_inside() const {
  cuuint64_t reserved = 0;
  uint64_t used = 0;
  return driver.cuMemPoolGetAttribute(pool_.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                      &reserved) == CUDA_SUCCESS &&
         bytes_used(pool_, &used) && used <= reserved && bytes_ <= reserved - used;
}

// What was reserved becomes what is held without being free in between: it may be another process's
// last bytes.
bool PoolGrowth::ended() {
  const int gpu = device_gpu(pool_.device);
  if (gpu < 0) return true;
  const auto index = static_cast<uint32_t>(gpu);
  const uint64_t now = bytes_reserved(pool_);
  const uint64_t grown = now > pool_.charged ? now - pool_.charged : 0;
  const uint64_t expected = grown < reserved_ ? grown : reserved_;
  const uint64_t more = grown - expected;
  grew_ = grown > 0;
  growth_step_learn(bytes_, grown);
  if (expected > 0) process.ledger.hold(index, expected);
  if (expected < reserved_) process.ledger.abort(index, reserved_ - expected);
  pool_.charged += expected;
  if (more > 0 && charge_try_reserve(gpu, more, true)) {
    process.ledger.hold(index, more);
    pool_.charged = now;
    return true;
  }
  pool_charge(pool_, now);
  return more == 0 || charge_within(pool_.device);
}

void PoolGrowth::undone() {
  (void)relaxed_call([&] { return driver.cuMemPoolTrimTo(pool_.handle, 0); });
  pool_settle(pool_);
}

void pool_destroyed(Pool& pool) {
  pool.gone = true;
  pool_settle(pool);
}

// With the pools' lock held. While no GPU was the process's, no device was asked whose a pool is.
void pools_place() {
  for (uint32_t i = 0; i < pools_seen; ++i) {
    Pool& pool = pools[i];
    if (!pool.gone && pool.device < 0) pool.device = pool_device_ask(pool.handle);
  }
}

void pools_sum(uint64_t* bytes_by_device) {
  for (uint32_t i = 0; i < pools_seen; ++i) {
    if (pools[i].device >= 0) bytes_by_device[pools[i].device] += pools[i].charged;
  }
}

void pools_reset_after_fork() {
  lock.reset_after_fork();
  store_relaxed(holder, static_cast<const ThreadRecord*>(nullptr));
  store_relaxed(reading, 0u);
  store_relaxed(asked, uint64_t{0});
  memset(idle_kept, 0, sizeof idle_kept);
  pools.clear();
  store_relaxed(pools_seen, 0u);
}

}  // namespace sluice::interpose

// See context_limits.h.
#include "interpose/memory/context_limits.h"

#include "interpose/account.h"
#include "interpose/captures.h"
#include "interpose/estimate.h"
#include "interpose/memory/least.h"
#include "interpose/memory/local_memory.h"
#include "interpose/place.h"
#include "interpose/residual.h"
#include "interpose/say.h"

namespace sluice::interpose {

const char limits_taken = 0;

namespace {

constexpr uint64_t kPage = protocol::kLimitPageBytes;
// As many pages as the claims page can tell, less one, so that rounding up stays within.
constexpr uint64_t kMostBytes = (uint64_t{UINT32_MAX} - 1) * kPage;

// Each limit has an address of its own, by which its records are known.
constexpr CUlimit kLimits[] = {CU_LIMIT_MALLOC_HEAP_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE};
const char limit_owners[] = {0, 0};
static_assert(sizeof limit_owners == sizeof kLimits / sizeof *kLimits);

uint32_t limits_seen;  // 1 = there is a record of a limit, or was
// Held while a limit is set or looked at, so that a look does not set a value that is out of date.
Lock limits_lock;
Lock at_once_lock;

uint64_t key_of(unsigned index, const void* context) {
  return key_in_context(&limit_owners[index], context);
}

unsigned index_of(CUlimit limit) { return limit == kLimits[0] ? 0 : 1; }

uint64_t pages_of(uint64_t value) {
  return value > kMostBytes ? kMostBytes : (value + kPage - 1) / kPage * kPage;
}

protocol::AtomicU32& pages_on(int gpu) {
  return process.claims->slots[process.slot].limits_pages[gpu];
}

// With limits_lock held. The sum over all limits of all contexts on the device.
void publish(int device, uint64_t before, uint64_t after) {
  const int gpu = device_gpu(device);
  if (gpu < 0) return;
  const uint64_t now = limits_reserved(gpu) - before + after;
  pages_on(gpu).store(static_cast<uint32_t>(now / kPage));
}

// Whether the driver has taken the limit, in the current context.
bool is_taken(CUlimit limit) {
  const RelaxedScope relaxed(RelaxedScope::When::kAlways);
  size_t value = 0;
  return driver.cuCtxGetLimit(&value, limit) == CUDA_SUCCESS &&
         driver.cuCtxSetLimit(limit, value) == CUDA_ERROR_INVALID_VALUE;
}

// With limits_lock held: what is reserved becomes `after` bytes. False without memory for the
// record.
bool record_change(unsigned index, const void* context, int device, uint64_t before,
                   uint64_t after) {
  Record record{key_of(index, context), after, context, RecordKind::kLimit, device};
  if (after == 0) {
    (void)process.records.remove(RecordKind::kLimit, record.key, &record);
  } else if (!process.records.insert(record)) {
    unrecorded_say("a limit's record");
    return false;
  }
  store_release(limits_seen, 1u);
  publish(device, before, after);
  return true;
}

// Takes the record of a limit out if the driver has taken it. Returns its bytes; 0 = it has not.
uint64_t take_out(unsigned index, const void* context, int device) {
  Record record;
  const uint64_t key = key_of(index, context);
  if (!process.records.find(RecordKind::kLimit, key, &record) || record.device != device) return 0;
  const CurrentScope current(static_cast<CUcontext>(const_cast<void*>(context)));
  if (current.result() != CUDA_SUCCESS || !is_taken(kLimits[index]) ||
      !process.records.remove(RecordKind::kLimit, key, &record))
    return 0;
  publish(device, record.bytes, 0);
  return record.bytes;
}

// In an AccountScope, with limits_lock held.
CUresult set_on(int device, const void* context, CUlimit limit, size_t value) {
  const auto call = [&] { return driver.cuCtxSetLimit(limit, value); };
  size_t now = 0;
  if (driver.cuCtxGetLimit(&now, limit) != CUDA_SUCCESS) return call();
  const unsigned index = index_of(limit);
  Record record;
  const bool known = process.records.find(RecordKind::kLimit, key_of(index, context), &record);
  const uint64_t before = known ? record.bytes : 0, after = pages_of(value);
  const uint64_t more = after > before ? after - before : 0;
  const auto undo = [&] { (void)relaxed_call([&] { return driver.cuCtxSetLimit(limit, now); }); };
  if (more != 0 && !charge_room(device, more))
    return charge_refuse(device, more, is_taken(limit), call, undo);
  const CUresult result = call();
  if (result != CUDA_SUCCESS || !record_change(index, context, device, before, after)) {
    charge_abort(device, more);
    if (result != CUDA_SUCCESS) return result;
    undo();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  charge_commit(device, more);
  if (after < before) charge_release(device, before - after);
  return result;
}

}  // namespace

bool limit_takes_later(CUlimit limit) { return limit == kLimits[0] || limit == kLimits[1]; }

CUresult limit_set_reserved(CUlimit limit, size_t value) {
  const AccountScope account;
  const int device = account.device();
  if (!account.active() || device < 0) return driver.cuCtxSetLimit(limit, value);
  const LockScope scope(limits_lock);
  return set_on(device, this_thread->context, limit, value);
}

// What is raised and does not fit is set back.
static CUresult set_at_once(CUlimit limit, size_t value, bool known, size_t before) {
  const Reach reach = reach_here();
  LeastCharge charged(reach.device, known && limit == CU_LIMIT_STACK_SIZE
                                        ? stack_bytes_least(reach.device, before, value)
                                        : 0);
  if (!charged.fits()) return CUDA_ERROR_OUT_OF_MEMORY;
  Estimate estimate(known);
  const CUresult result = driver.cuCtxSetLimit(limit, value);
  if (result != CUDA_SUCCESS) return result;
  charged.taken();
  const bool raised = known && value > before;
  if (!raised) residual_settle();
  if ((!raised || residual_settle_load(reach)) && estimate.charge(&limits_taken)) return result;
  if (estimate.active()) estimate.refuse();
  (void)relaxed_call([&] { return driver.cuCtxSetLimit(limit, before); });
  residual_settle();
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult limit_set_at_once(CUlimit limit, size_t value) {
  if (process_mode() != Mode::kActive) return driver.cuCtxSetLimit(limit, value);
  // What a raise takes is reckoned from the limit before it, which another thread may set
  // meanwhile.
  const LockScope scope(at_once_lock);
  size_t before = 0;
  const bool known = driver.cuCtxGetLimit(&before, limit) == CUDA_SUCCESS;
  const bool is_stack = limit == CU_LIMIT_STACK_SIZE;
  if (is_stack && value < before) stack_limit_falls();
  const CUresult result = set_at_once(limit, value, known, before);
  if (is_stack) stack_limit_set();
  return result;
}

uint64_t limits_reserved(int gpu) { return uint64_t{pages_on(gpu).load()} * kPage; }

void limits_look(int device) {
  const int gpu = device_gpu(device);
  if (load_acquire(limits_seen) == 0 || gpu < 0 || limits_reserved(gpu) == 0) return;
  // A thread that is setting a limit may wait for the GPU.
  if (!limits_lock.try_acquire()) return;
  constexpr uint64_t kMost = 64;  // what is not among them is found with a later reading
  Record records[kMost];
  const uint64_t count = process.records.list(RecordKind::kLimit, records, kMost);
  for (uint64_t i = 0; i < count && i < kMost; ++i) {
    const Record& record = records[i];
    const unsigned index = record.key == key_of(0, record.context) ? 0 : 1;
    const uint64_t bytes = take_out(index, record.context, device);
    if (bytes != 0) residual_take(gpu, bytes);
  }
  limits_lock.release();
}

uint64_t limits_estimated(const void* context, uint64_t taken) {
  if (load_acquire(limits_seen) == 0) return 0;
  const AccountScope account;
  const int device = account.device();
  if (device < 0) return 0;
  const LockScope scope(limits_lock);
  uint64_t sum = 0;
  for (unsigned index = 0; index < sizeof limit_owners; ++index) {
    const uint64_t bytes = take_out(index, context, device);
    if (bytes == 0) continue;
    sum += bytes;
    Record loaded{key_in_context(&limits_taken, context), 0, context, RecordKind::kLoaded, device};
    (void)process.records.find(RecordKind::kLoaded, loaded.key, &loaded);
    loaded.bytes += bytes;
    (void)process.records.insert(loaded);  // without memory it stays charged
  }
  return sum < taken ? sum : taken;
}

void limits_context_end(const void* context) {
  if (load_acquire(limits_seen) == 0) return;
  const LockScope scope(limits_lock);
  for (unsigned index = 0; index < sizeof limit_owners; ++index) {
    Record record;
    if (!process.records.remove(RecordKind::kLimit, key_of(index, context), &record)) continue;
    publish(record.device, record.bytes, 0);
    charge_release(record.device, record.bytes);
  }
}

void limits_restore(uint64_t* bytes_by_device) {
  uint64_t reserved[kDevicesMax] = {};
  process.records.sum(RecordKind::kLimit, reserved);
  for (int device = 0; device < kDevicesMax; ++device) {
    bytes_by_device[device] += reserved[device];
    const int gpu = device_gpu(device);
    if (gpu >= 0) pages_on(gpu).store(static_cast<uint32_t>(reserved[device] / kPage));
  }
}

void limits_reset_after_fork() {
  limits_lock.reset_after_fork();
  at_once_lock.reset_after_fork();
  store_release(limits_seen, 0u);
}

}  // namespace sluice::interpose

// See account.h.
#include "interpose/account.h"

#include <errno.h>
#include <string.h>

#include "interpose/account_uses.h"
#include "interpose/endings.h"
#include "interpose/estimate.h"
#include "interpose/family.h"
#include "interpose/memory/context_limits.h"
#include "interpose/memory/device_pages.h"
#include "interpose/memory/ended.h"
#include "interpose/memory/kept.h"
#include "interpose/memory/libraries.h"
#include "interpose/memory/others.h"
#include "interpose/residual.h"
#include "interpose/say.h"
#include "interpose/swap.h"
#include "interpose/touch.h"
#include "interpose/usage.h"

namespace sluice::interpose {
namespace {

uint32_t paused;  // how many keep scopes from beginning
Lock pausing;     // held while they are stopped
uint32_t asking;  // how many ask for that lock from within a scope
constexpr uint64_t kPauseAgainNs = 1'000'000;
RateLimit refusals_said;
uint64_t contexts_charged[kDevicesMax];      // how many
Shared<uint64_t> context_cost[kDevicesMax];  // bytes charged for each of them
uint64_t handles_changes;

void refusal_say(int gpu, uint64_t bytes) {
  uint64_t skipped = 0;
  if (!refusals_said.allow(clock_now_ns(), &skipped)) return;
  const uint64_t quota = process.memory_max(gpu);
  Line line;
  line.text("refused ").bytes(bytes).text(": you use ");
  line.bytes_in(process.ledger.total(static_cast<uint32_t>(gpu)), bytes_unit(quota))
      .text(" of your ");
  line.bytes(quota)
      .text(" on GPU ")
      .number(static_cast<uint64_t>(gpu))
      .text(". The program sees CUDA out of memory.");
  refusals_said.say(line, skipped);
}

// `outside`: the word's value while the account stands still.
SLUICE_ALWAYS_INLINE void accounting_raise(ThreadRecord& thread, uint32_t outside) {
  for (;;) {
    raise_word(thread.accounting, kAccounting);
    const uint32_t pauses = load_acquire(paused);
    if (SLUICE_LIKELY(pauses == 0)) return;
    store_release(thread.accounting, outside);
    const ErrnoGuard guard;
    futex_wait(&paused, pauses, 10'000'000, false);
  }
}

void scopes_stop() {
  __atomic_add_fetch(&paused, 1, __ATOMIC_SEQ_CST);
  threads_barrier();
}

void scopes_go() {
  if (__atomic_sub_fetch(&paused, 1, __ATOMIC_SEQ_CST) == 0) futex_wake_all(&paused, false);
}

// Whether all scopes have ended by then, but the calling thread's. `gives_way`: false as soon as
// one of them asks for the lock that the caller holds, for it cannot end before it has had it.
// `resting`: up to which word a thread does not count.
bool scopes_end(uint64_t until_ns, bool gives_way, uint32_t resting) {
  for (int i = 0; i < thread_count(); ++i) {
    if (thread_at(i) == this_thread) continue;
    while (load_acquire(thread_at(i)->accounting) > resting) {
      if (clock_now_ns() >= until_ns || (gives_way && load_acquire(asking) != 0)) return false;
      sleep_ns(20000);
    }
  }
  return true;
}

}  // namespace

AccountScope::AccountScope() {
  const Mode mode = process_begin(0);
  denied_ = mode == Mode::kDenied;
  if (mode != Mode::kActive && mode != Mode::kOffline) return;
  ThreadRecord* thread = thread_record();
  if (SLUICE_UNLIKELY(thread == nullptr)) {
    denied_ = unrecorded_ = true;
    unrecorded_say("a thread's record");
    return;
  }
  if (thread->depth != 0) return;
  touch_begin(*thread);
  accounting_raise(*thread, kNotAccounting);
  ++thread->depth;
  thread_ = thread;
  active_ = true;
}

AccountScope::~AccountScope() {
  if (thread_ == nullptr) return;
  --thread_->depth;
  store_release(thread_->accounting, 0u);
  touch_end(*thread_);
}

AccountMoment::AccountMoment(ThreadRecord& thread)
    : thread_(thread), held_(load_relaxed(thread.accounting) == 0) {
  if (!held_) return;
  raise_word(thread.accounting, kAccounting);
  if (load_acquire(paused) == 0 && process_mode() == Mode::kActive) return;
  store_release(thread.accounting, 0u);
  held_ = false;
}

AccountMoment::~AccountMoment() {
  if (held_) store_release(thread_.accounting, 0u);
}

AccountRest::AccountRest() {
  if (this_thread == nullptr || load_relaxed(this_thread->accounting) != kAccounting) return;
  thread_ = this_thread;
  store_release(thread_->accounting, kAccountingRests);
}

AccountRest::~AccountRest() {
  if (thread_ != nullptr) accounting_raise(*thread_, kAccountingRests);
}

int AccountScope::device() const {
  return thread_ != nullptr && thread_context(thread_) ? thread_->device : -1;
}

// What a scope waits for may be in another that is kept from beginning: not for ever.
bool accounts_pause(uint64_t patience_ns) {
  const uint64_t until_ns = clock_now_ns() + patience_ns;
  scopes_stop();
  do {
    pausing.acquire();
    if (scopes_end(until_ns, true, kNotAccounting)) return true;
    pausing.release();
    sleep_ns(kPauseAgainNs);  // the lock is not fair: it is for who asks
  } while (clock_now_ns() < until_ns);
  scopes_go();
  return false;
}

bool accounts_pause_for(uint64_t patience_ns) {
  const bool within = this_thread != nullptr && load_relaxed(this_thread->accounting) != 0;
  if (within) __atomic_add_fetch(&asking, 1, __ATOMIC_ACQ_REL);
  pausing.acquire();
  if (within) __atomic_sub_fetch(&asking, 1, __ATOMIC_ACQ_REL);
  scopes_stop();
  return scopes_end(clock_now_ns() + patience_ns, false, kAccountingRests);
}

void accounts_resume() {
  scopes_go();
  pausing.release();
}

namespace {

// False: it is none of the job's GPUs. Without a job every device may be used.
bool device_may_be_used(int device) {
  const bool any = load_acquire(process.alone) != 0 && !family_knows_tenant();
  return process_mode() != Mode::kActive || any || process.gpu_count == 0 ||
         device_gpu(device) >= 0 || device < 0 || device >= process.device_total;
}

// The driver's error where it names no devices: in a fork child of a process that used CUDA.
CUresult devices_fault() {
  int count = 0;
  if (load_acquire(process.devices_known) != 0) return CUDA_SUCCESS;
  const DepthScope depth(thread_record());
  return driver.cuDeviceGetCount(&count);
}

void foreign_say(int device, const char* what) {
  static uint32_t said;
  const uint32_t bit = 1u << (device % 32);
  if ((__atomic_fetch_or(&said, bit, __ATOMIC_RELAXED) & bit) != 0) return;
  Line line;
  line.text("device ").number(static_cast<uint64_t>(device));
  line.text(" is none of this job's GPUs, so the program gets no ").text(what);
  line.text(" there. The job has ");
  for (uint32_t i = 0; i < process.gpu_count; ++i) {
    char uuid[41];
    uuid_write(process.entry(static_cast<int>(i)).gpu, uuid);
    uuid[12] = '\0';  // CUDA_VISIBLE_DEVICES takes beginnings
    line.text(i == 0 ? "" : ",").text(uuid);
  }
  line.text(": set CUDA_VISIBLE_DEVICES to that, or ask for more GPUs (sluice run --gpus)").say();
}

}  // namespace

CUresult device_refuse(int device, const char* what) {
  if (device_may_be_used(device)) return CUDA_SUCCESS;
  const ErrnoGuard guard;
  if (const CUresult fault = devices_fault(); fault != CUDA_SUCCESS) return fault;
  foreign_say(device, what);
  return CUDA_ERROR_NOT_PERMITTED;
}

CUresult charge_refuse(int device, uint64_t bytes) {
  if (const CUresult refusal = device_refuse(device, "memory"); refusal != CUDA_SUCCESS)
    return refusal;
  charge_refused(device_gpu(device), bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

bool charge_reserve(int device, uint64_t bytes) {
  if (SLUICE_LIKELY(charge_room(device, bytes))) return true;
  (void)charge_refuse(device, bytes);
  return false;
}

namespace {

// How long is waited for memory that others have reserved and may not take. A driver that is asked
// answers within microseconds, unless it waits for the GPU; its thread may be stopped meanwhile.
constexpr uint64_t kReservedWaitNs = 1'000'000'000;
// How long is waited for memory that passes from one process to another.
constexpr uint64_t kPassingWaitNs = 20'000'000;
constexpr uint64_t kReservedLookNs = 50'000;
constexpr uint64_t kReservedLookShare = 64;
// How long is waited for readings of other processes, which their helpers make every 10 ms.
constexpr uint64_t kReadingsWaitNs = 100'000'000;
// How long a refusal waits for what is charged to processes that have ended, where the broker has
// seen their end or there is none.
constexpr uint64_t kEndedWaitNs = 100'000'000;
// How long it waits for a broker to see an end. The end wakes the broker, which a host that is
// short of processors lets run later; only a broker that hangs takes this long.
constexpr uint64_t kEndSeenWaitNs = 10'000'000'000;
// How often NVML is asked for that.
constexpr uint64_t kEndedLookNs = 1'000'000;

uint64_t sum_saturated(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? ~uint64_t{0} : sum;
}

// Whether the broker knows the slot's process by the number by which that calls itself. If it does
// so here, too, all three are of one pid namespace.
bool number_is_shared(const protocol::ClaimsSlot& slot) {
  return slot.pid.load() == slot.own_pid.load();
}

// Whether a broker has still to see the end of the slot's process.
bool end_is_unseen(const protocol::ClaimsSlot& slot) {
  return load_acquire(process.alone) == 0 && load_acquire(process.lost) == 0 &&
         slot.end_seen.load() == 0 && number_is_shared(slot) &&
         number_is_shared(process.claims->slots[process.slot]);
}

// How long to wait for what a process that has ended is still charged on the GPU; 0 = there is no
// such process. A broker empties its slot a moment after the kernel has told it. A process of
// another pid namespace may look like that, too.
uint64_t ended_wait_ns(uint32_t gpu) {
  uint64_t wait_ns = ended_are_charged(static_cast<int>(gpu)) ? kEndedWaitNs : 0;
  for (uint32_t i = 0; i < protocol::kTenantProcessesMax; ++i) {
    const protocol::ClaimsSlot& slot = process.claims->slots[i];
    const uint32_t pid = slot.own_pid.load();
    if (i == process.slot || pid == 0 || slot.gpus[gpu].held_bytes.load() == 0 ||
        !process_has_ended(pid))
      continue;
    if (end_is_unseen(slot)) return kEndSeenWaitNs;
    wait_ns = kEndedWaitNs;
  }
  return wait_ns;
}

// Asks `fits` again after everything that may have come back to the device without a call that we
// see, then without what this process's pools keep idle, and last while nothing but reservations of
// others stands in the way of `bytes` more.
template <class Fits>
bool fits_at_last(int device, uint32_t gpu, uint64_t bytes, Fits fits) {
  const ErrnoGuard guard;
  const bool has_pools = load_relaxed(pools_seen) != 0;
  if (has_pools) pools_read_before_refusal(device);
  graph_memory_settle(device);
  uses_settle();
  ended_sweep();
  residual_settle_deferred(device);
  if (residual_is_shared()) (void)kept_look(device, kPassingWaitNs);
  if (fits()) return true;
  if (has_pools) {
    pools_trim_before_refusal(device);
    if (fits()) return true;
  }
  const uint64_t quota = process.memory_max(static_cast<int>(gpu));
  const uint64_t begun_ns = clock_now_ns();
  // Another process of the tenant may keep a charge for memory that has just come back.
  const bool waits_for_others =
      residual_tenant_shares() && !residual_is_measured(static_cast<int>(gpu));
  if (waits_for_others) residual_others_look();
  const bool waits_for_readings = device_pages_others_read(device, bytes);
  uint64_t swept_ns = 0;
  for (;;) {
    const uint64_t waited_ns = clock_now_ns() - begun_ns;
    if (waited_ns - swept_ns >= kEndedLookNs && ended_are_charged(static_cast<int>(gpu))) {
      ended_sweep();
      swept_ns = waited_ns;
    }
    const bool is_reserved = sum_saturated(process.ledger.held_total(gpu), bytes) <= quota;
    const bool waits = (is_reserved && waited_ns < kReservedWaitNs) ||
                       (waits_for_others && waited_ns < kPassingWaitNs) ||
                       (waits_for_readings && waited_ns < kReadingsWaitNs) ||
                       waited_ns < ended_wait_ns(gpu);
    if (fits()) return true;
    if (!waits) return false;
    const AccountRest rest;
    const uint64_t look_ns = waited_ns / kReservedLookShare;
    sleep_ns(look_ns > kReservedLookNs ? look_ns : kReservedLookNs);
  }
}

}  // namespace

bool charge_try_reserve(int gpu, uint64_t bytes, bool is_taken) {
  const auto index = static_cast<uint32_t>(gpu);
  const uint64_t quota = process.memory_max(gpu);
  if (!process.ledger.reserve(index, bytes, quota)) return false;
  // Behind it: a process whose end made room was there before, or is gone here.
  const bool asks = quota != 0 && bytes != 0 && SLUICE_UNLIKELY(residual_tenant_shares());
  const uint64_t uncharged = asks ? tenant_uncharged(gpu, !is_taken) : 0;
  if (SLUICE_LIKELY(uncharged == 0) ||
      (uncharged < quota && process.ledger.total(index) <= quota - uncharged))
    return true;
  process.ledger.abort(index, bytes);
  return false;
}

SLUICE_NOINLINE static bool charge_room_at_last(int device, int gpu, uint64_t bytes) {
  if (gpu < 0) return device_may_be_used(device);
  return fits_at_last(device, static_cast<uint32_t>(gpu), bytes,
                      [&] { return charge_try_reserve(gpu, bytes); });
}

bool charge_room(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (SLUICE_LIKELY(gpu >= 0) && SLUICE_LIKELY(charge_try_reserve(gpu, bytes))) return true;
  return charge_room_at_last(device, gpu, bytes);
}

bool charge_has_room(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  const uint64_t quota = gpu < 0 ? 0 : process.memory_max(gpu);
  return quota == 0 ||
         sum_saturated(process.ledger.total(static_cast<uint32_t>(gpu)), bytes) <= quota;
}

bool charge_within(int device) {
  const int gpu = device_gpu(device);
  if (gpu < 0) return true;
  const auto within = [&] { return charge_has_room(device, 0); };
  return within() || fits_at_last(device, static_cast<uint32_t>(gpu), 0, within);
}

bool charge_fits(int gpu, uint64_t bytes) {
  if (charge_try_reserve(gpu, bytes, true)) return true;
  if (load_acquire(process.family_slot) == 0) return false;
  ended_sweep();
  return charge_try_reserve(gpu, bytes, true);
}

CUresult context_fault() {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  const CUresult result = driver.cuMemGetAddressRange_v2(&base, &bytes, 0);
  return result == CUDA_ERROR_NOT_FOUND || result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS
                                                                              : result;
}

void charge_refused(int gpu, uint64_t bytes) {
  const ErrnoGuard guard;
  process.account(gpu).refused.add(1);
  refusal_say(gpu, bytes);
}

void charge_commit(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (gpu >= 0) process.ledger.hold(static_cast<uint32_t>(gpu), bytes);
}

void charge_abort(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (gpu >= 0) process.ledger.abort(static_cast<uint32_t>(gpu), bytes);
}

void charge_release(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (gpu < 0) return;
  process.ledger.release(static_cast<uint32_t>(gpu), bytes);
  if (SLUICE_UNLIKELY(residual_is_shared())) residual_others_wake();
}

void charge_pass(int device, uint64_t bytes) {
  if (device_gpu(device) < 0) return;
  if (kept_add(device, bytes)) {
    (void)residual_defer(device, 0);
  } else if (!residual_defer(device, bytes)) {
    charge_release(device, bytes);
  }
  residual_others_wake();
}

bool charge_settle(int device, uint64_t reserved, uint64_t actual) {
  if (actual <= reserved) {
    charge_commit(device, actual);
    if (actual < reserved) charge_abort(device, reserved - actual);
    return true;
  }
  if (!charge_reserve(device, actual - reserved)) {
    charge_abort(device, reserved);
    return false;
  }
  charge_commit(device, actual);
  return true;
}

CUresult context_charge(int device) {
  if (device < 0 || device >= kDevicesMax) return CUDA_SUCCESS;  // the driver will say so
  if (const CUresult refusal = device_refuse(device, "context"); refusal != CUDA_SUCCESS)
    return refusal;
  const int gpu = device_gpu(device);
  const uint64_t bytes = gpu < 0 ? 0 : process.entry(gpu).context_bytes;
  if (bytes > 0) {
    if (!charge_room(device, bytes)) return charge_refuse(device, bytes);
    charge_commit(device, bytes);
    residual_take(gpu, bytes);
  }
  context_cost[device] = bytes;
  __atomic_add_fetch(&contexts_charged[device], 1, __ATOMIC_RELAXED);
  return CUDA_SUCCESS;
}

void context_discharge(int device) {
  if (device < 0 || device >= kDevicesMax) return;
  if (load_relaxed(contexts_charged[device]) == 0) return;
  __atomic_sub_fetch(&contexts_charged[device], 1, __ATOMIC_RELAXED);
  const int gpu = device_gpu(device);
  if (gpu >= 0) residual_give(gpu, context_cost[device]);
}

void context_cost_learn(int device, uint64_t bytes) { context_cost[device] = bytes; }

int contexts_on(int device) {
  return device < 0 || device >= kDevicesMax
             ? 0
             : static_cast<int>(load_relaxed(contexts_charged[device]));
}

uint64_t handles_round() { return load_acquire(handles_changes) + 1; }
void handles_changed() { __atomic_add_fetch(&handles_changes, 1, __ATOMIC_RELEASE); }

void context_drop(CUcontext context) {
  handles_changed();
  if (load_acquire(swap_used) != 0) swap_context_end(context);
  uses_context_end(context);
  limits_context_end(context);
  uint64_t bytes[kDevicesMax] = {};
  process.records.remove_context(context, bytes);
  for (int device = 0; device < kDevicesMax; ++device) {
    if (bytes[device] == 0) continue;
    if (SLUICE_UNLIKELY(residual_is_shared())) {
      charge_pass(device, bytes[device]);
    } else {
      charge_release(device, bytes[device]);
    }
  }
}

void account_restore() {
  uint64_t bytes[kDevicesMax] = {};
  (void)device_gpu(0);  // learns which devices are whose, if nobody has asked yet
  pools_place();
  process.records.sum(RecordKind::kPointer, bytes);
  process.records.sum(RecordKind::kArray, bytes);
  process.records.sum(RecordKind::kMipmap, bytes);
  process.records.sum(RecordKind::kLoaded, bytes);
  limits_restore(bytes);
  swap_account(bytes);
  vmm_sum(bytes);
  pools_sum(bytes);
  graph_memory_sum(bytes);
  kept_restore(bytes);
  bool restated[protocol::kTenantGpusMax] = {};
  for (int device = 0; device < kDevicesMax; ++device) {
    const int gpu = device_gpu(device);
    if (gpu < 0) continue;
    restated[gpu] = true;
    context_cost[device] = process.entry(gpu).context_bytes;
    const uint64_t untold = residual_restore(gpu, contexts_charged[device] * context_cost[device]);
    process.ledger.restate(static_cast<uint32_t>(gpu), bytes[device] + untold, untold);
    pools_settle(device);
  }
  for (uint32_t gpu = 0; gpu < protocol::kTenantGpusMax; ++gpu) {
    if (!restated[gpu]) process.ledger.restate(gpu, 0, 0);
  }
}

void account_reset_after_fork() {
  store_release(paused, 0u);
  store_release(asking, 0u);
  pausing.reset_after_fork();
  memset(contexts_charged, 0, sizeof contexts_charged);
  for (Shared<uint64_t>& cost : context_cost) cost = 0;
  process.records.reset_after_fork();
  swap_reset_after_fork();
  touch_reset_after_fork();
  pools_reset_after_fork();
  vmm_reset_after_fork();
  uses_reset_after_fork();
  graph_memory_reset_after_fork();
  residual_reset_after_fork();
  estimate_reset_after_fork();
  limits_reset_after_fork();
  libraries_reset_after_fork();
  local_reset_after_fork();
  kept_reset_after_fork();
  context_endings_reset_after_fork();
}

}  // namespace sluice::interpose

// See residual.h.
#include "interpose/residual.h"

#include <string.h>

#include "interpose/account.h"
#include "interpose/gate.h"
#include "interpose/memory/context_limits.h"
#include "interpose/memory/kept.h"
#include "interpose/memory/least.h"
#include "interpose/memory/others.h"
#include "interpose/touch.h"
#include "interpose/usage.h"

namespace sluice::interpose {

uint32_t residual_expected;
uint32_t launches_ungated;
uint32_t residual_deferred;
uint32_t residual_unread;
uint32_t managed_seen;

namespace {

// Others' calls that change the account take micro- to milliseconds; one that waits for a kernel is
// not waited for.
constexpr uint64_t kPatienceNs = 20'000'000;
constexpr int kTries = 8;
// How long memory may be charged to two processes, of which one has to look. A helper looks after
// milliseconds, and on a busy host when it gets the processor.
constexpr uint64_t kPassingNs = 1'000'000'000;
constexpr uint64_t kPatienceOfHelperNs = 2'000'000;
// A reading behind a wait, and each before a refusal. A thread may be stopped within its call, so
// the latter are made again for a while; in between the others go on.
constexpr uint64_t kPatienceOfWaitNs = 5'000'000;
constexpr uint64_t kPatienceBeforeRefusalNs = 2'000'000'000;
constexpr uint64_t kBetweenReadingsNs = 1'000'000;
// Memory that was freed in stream order is looked for at intervals that grow with the time since
// the last such free: first a quarter of that time, up to kLookMaxNs, in the end a 64th of it.
// Nothing says when all of it is back - on hardware a page that other pieces share stays - so the
// looks never end.
constexpr uint64_t kDeferredAgeParts = 4, kDeferredOldParts = 64;
constexpr int kReadings = 4;  // pools give memory back while they are looked at
// The helper looks this long after something changed, then at intervals that double while launches
// go on.
constexpr uint64_t kLookMinNs = 1'000'000;
constexpr uint64_t kLookMaxNs = 1'000'000'000;
// A reading stops allocations for about a millisecond. Programs that take and free small pieces all
// the time go on in between, and another process that finds no room waits longer than this.
constexpr uint64_t kLookUnreadNs = 10'000'000;
using protocol::kTenantGpusMax;

uint64_t charged[kTenantGpusMax];
uint32_t measured[kTenantGpusMax];  // `charged` comes from the driver
// When something was charged unasked, and the tenant was above its quota with it; 0 = never since
// it is within. Counted by `late_moments`.
uint64_t late_above[kTenantGpusMax];
uint64_t late_moments;
uint32_t late_unread;                  // a late load that could not be measured: the helper looks
uint64_t deferred_ns[kTenantGpusMax];  // the last free in stream order
uint64_t deferred_waited_ns[kTenantGpusMax];  // the last wait that looked for it
uint32_t wanted;
uint32_t shared;

// What becomes of a growth that the quota has no room for.
enum class Above : uint8_t {
  kCharged,   // it is there
  kWithheld,  // so it is, and who asked is not given what it is for
  kUndone,    // who asked takes it back: not charged
  kImported,  // it is there, and another process may have charged it until now
};

struct Look {
  uint64_t interval_ns;
  uint64_t due_ns;  // 0 = nothing to look for
  uint64_t launches;
  uint64_t others;
  uint64_t until_ns;  // looks go on: a process may have ended
};
Look look;

// What the driver tells of pools and graphs; false while another thread uses the pools.
bool known_settle(int device) {
  if (pools_settle(device) == PoolsRead::kBusy) return false;
  graph_memory_settle(device);
  return true;
}

// Managed memory that the figure has not, because it is elsewhere or because the figure never has
// it, is not to hide what contexts take: of that as much stays as there can be.
uint64_t residual_of(int device, uint64_t used, uint64_t known) {
  const uint64_t bytes = used > known ? used - known : 0;
  if (SLUICE_LIKELY(load_relaxed(managed_seen) == 0)) return bytes;
  uint64_t managed[kDevicesMax] = {};
  process.records.sum(RecordKind::kManaged, managed);
  if (managed[device] == 0) return bytes;
  const uint64_t contexts = contexts_bytes_least(device);
  const uint64_t others = known > managed[device] ? known - managed[device] : 0;
  const uint64_t most = used > others ? used - others : 0;
  const uint64_t least = contexts < most ? contexts : most;
  return bytes > least ? bytes : least;
}

uint64_t known_on(int gpu) {
  return process.ledger.held(static_cast<uint32_t>(gpu)) - load_relaxed(charged[gpu]) -
         limits_reserved(gpu) - kept_bytes(gpu);
}

// What the driver says and the known paths do not; false without a figure. `busy`: another time
// there may be one.
bool residual_read(int device, int gpu, uint64_t* bytes, bool* busy) {
  const auto index = static_cast<uint32_t>(gpu);
  for (int i = 0; i < kReadings; ++i) {
    // A caller that has reserved may have the memory already: not to be counted twice.
    if (!known_settle(device) || process.ledger.reserved(index) != 0) break;
    const uint64_t before = known_on(gpu);
    uint64_t used = 0;
    if (!usage_read(gpu, &used)) return false;
    // No process listed, as in a container, or a process that is checkpointed just now. One that
    // has never been listed may never be: without a context that is no figure either.
    if (used == 0 && (contexts_on(device) != 0 || load_relaxed(measured[gpu]) == 0)) return false;
    if (!known_settle(device)) break;
    const uint64_t known = known_on(gpu);
    if (known != before) continue;
    // What is in host memory is held, and not on the device.
    const uint64_t out = process.account(gpu).swapped_bytes.load();
    *bytes = residual_of(device, used, known - out);
    return true;
  }
  *busy = true;
  return false;
}

// The least that it can be while threads are within calls that change the account: what they have
// reserved may be taken already, and what they free may be gone. False as above.
bool residual_read_least(int device, int gpu, uint64_t* bytes) {
  const auto index = static_cast<uint32_t>(gpu);
  for (int i = 0; i < kReadings; ++i) {
    if (!known_settle(device)) return false;
    const uint32_t version = process.account(gpu).version.load();
    const uint64_t known = process.ledger.held(index) + process.ledger.reserved(index) -
                           load_relaxed(charged[gpu]) - limits_reserved(gpu) - kept_bytes(gpu) -
                           process.account(gpu).swapped_bytes.load();
    uint64_t used = 0;
    if (!usage_read(gpu, &used)) return false;
    if (process.account(gpu).version.load() != version) continue;
    *bytes = residual_of(device, used, known);
    return true;
  }
  return false;
}

// How far the tenant is above its quota.
uint64_t excess(int gpu) {
  const uint64_t quota = process.memory_max(gpu);
  const uint64_t total = process.ledger.total(static_cast<uint32_t>(gpu));
  return quota == 0 || total <= quota ? 0 : total - quota;
}

// False: what has grown is more than the quota has room for.
bool grow(int gpu, uint64_t more, Above above) {
  const auto index = static_cast<uint32_t>(gpu);
  const bool asks = above == Above::kWithheld || above == Above::kUndone;
  const bool fits = !asks || charge_fits(gpu, more);
  if (fits && asks) {
    process.ledger.hold(index, more);
  } else if (above != Above::kUndone) {
    process.ledger.hold_unasked(index, more);
    if (excess(gpu) != 0) residual_late_above(gpu);
  }
  if (!fits) charge_refused(gpu, more);
  if (fits || above != Above::kUndone) residual_take(gpu, more);
  return fits;
}

// What the figure has more was kept.
void found(int device, int gpu, uint64_t bytes) {
  const uint64_t was_kept = kept_found(device, bytes);
  if (was_kept != 0) residual_take(gpu, was_kept);
}

// What the figure has less may be shared memory that is still there.
void let_go(int device, int gpu, uint64_t bytes) {
  if (!residual_is_shared() || !kept_add(device, bytes)) return residual_give(gpu, bytes);
  __atomic_sub_fetch(&charged[gpu], bytes, __ATOMIC_RELAXED);
  process.ledger.context_sub(static_cast<uint32_t>(gpu), bytes);
}

// False: who asked undoes what he did, or withholds what he got. `least`: only that much is known.
bool charge_to(int device, int gpu, uint64_t bytes, Above above, bool least) {
  if (bytes != load_relaxed(charged[gpu])) limits_look(device);
  if (bytes > load_relaxed(charged[gpu])) found(device, gpu, bytes - load_relaxed(charged[gpu]));
  const uint64_t before = load_relaxed(charged[gpu]);
  bool fits = true;
  if (bytes > before) {
    fits = grow(gpu, bytes - before, above);
  } else if (bytes < before && !least) {
    let_go(device, gpu, before - bytes);
  }
  if (!least) {
    store_release(measured[gpu], 1u);
    process.account(gpu).measured.store(1);
  }
  return fits;
}

constexpr Reach kEverywhere{-1, true, 0};

bool reaches(const Reach& reach, int device) { return reach.wide || device == reach.device; }

// How far it is while something was charged unasked that may be the caller's. One that could not be
// read may have taken something there just now.
uint64_t excess_of(const Reach& reach, int device, int gpu, bool read) {
  const uint64_t moment = load_acquire(late_above[gpu]);
  if (moment == 0) return 0;
  const uint64_t bytes = excess(gpu);
  if (bytes == 0) store_release(late_above[gpu], uint64_t{0});
  return device == reach.device || !read || moment > reach.since ? bytes : 0;
}

struct Settled {
  bool too_much;
  bool busy;  // where the caller may have taken something
  // Busy, a figure that was larger than before, or memory that passes to another process. A driver
  // that gives memory of a pool back says so of the pool and of the process one after the other:
  // what was read in between must be read again.
  bool read_again;
};

void others_look_on(int gpu) {
  // A change of nothing, so that the others find this account changed and look.
  process.ledger.hold_unasked(static_cast<uint32_t>(gpu), 0);
  residual_others_wake();
}

Settled settle(int device, Above above, uint64_t patience_ns, const Reach& reach) {
  const int gpu = device_gpu(device);
  if (gpu < 0) return {};
  // What has grown out of the caller's reach is somebody else's: it is there.
  if (!reaches(reach, device)) above = Above::kCharged;
  const SystemGuard guard;
  bool too_much = false, busy = false, grown = false, passes = false;
  uint64_t bytes = 0;
  if (residual_tenant_shares()) others_remember(gpu);
  const bool alone = accounts_pause_for(patience_ns);
  if (alone) {
    if (residual_read(device, gpu, &bytes, &busy)) {
      grown = bytes > load_relaxed(charged[gpu]);
      too_much = !charge_to(device, gpu, bytes, above, false);
    }
    if (!busy) __atomic_fetch_and(&residual_unread, ~(1u << gpu), __ATOMIC_RELEASE);
  } else {
    busy = true;
    if (above != Above::kCharged && residual_read_least(device, gpu, &bytes))
      too_much = !charge_to(device, gpu, bytes, above, true);
  }
  // What is unasked may be the caller's: a reading for another thread, or the helper's, finds what
  // this one is just loading, so that its own finds nothing more.
  if (above != Above::kCharged && above != Above::kImported && !too_much) {
    const uint64_t unasked = excess_of(reach, device, gpu, !busy);
    too_much = unasked != 0;
    if (too_much) charge_refused(gpu, unasked);
  }
  accounts_resume();
  passes = residual_is_shared() && kept_look(device, 0);
  if (passes) others_look_on(gpu);
  return {too_much, busy && reaches(reach, device), busy || grown || passes};
}

// Calls from within another hook, and of processes whose memory is not accounted, do not settle.
ThreadRecord* settler() {
  if (process_mode() != Mode::kActive || load_acquire(process.devices_known) == 0) return nullptr;
  ThreadRecord* thread = thread_record();
  return thread != nullptr && thread->depth == 0 ? thread : nullptr;
}

// How far the tenant is above its quota once the others have looked. Memory that passes from one
// process to another is charged to both for a moment. No call waits when the figures alone are
// above the quota.
uint64_t excess_that_stays(int gpu) {
  const uint64_t until_ns = clock_now_ns() + kPassingNs;
  uint64_t bytes = 0;
  while ((bytes = excess(gpu)) != 0 && clock_now_ns() < until_ns &&
         tenant_used(gpu) <= process.memory_max(gpu)) {
    others_look_on(gpu);
    sleep_ns(kLookMinNs);
  }
  return bytes;
}

Settled settle_each(bool only_contexts, Above above, uint64_t patience_ns, const Reach& reach) {
  Settled all{};
  for (int device = 0; device < process.device_count; ++device) {
    if (process.device_gpu[device] < 0 || (only_contexts && contexts_on(device) == 0)) continue;
    const Settled one = settle(device, above, patience_ns, reach);
    all.too_much |= one.too_much;
    all.busy |= one.busy;
    all.read_again |= one.read_again;
  }
  return all;
}

// Who would undo or withhold what he got may keep it only when it was read, so he tries for longer.
// In between the others go on.
Settled settle_surely(bool only_contexts, Above above, const Reach& reach) {
  Settled all = settle_each(only_contexts, above, kPatienceNs, reach);
  for (int i = 1; i < kTries && above != Above::kCharged && all.busy && !all.too_much; ++i)
    all = settle_each(only_contexts, above, kPatienceNs, reach);
  return all;
}

Settled settle_contexts(Above above, const Reach& reach) {
  return settle_surely(true, above, reach);
}

// Returns how long after a look the next one is due for what was freed in stream order on `gpu`.
uint64_t deferred_interval_ns(int gpu, uint64_t now_ns) {
  const uint64_t freed_ns = load_acquire(deferred_ns[gpu]);
  const uint64_t age_ns = now_ns > freed_ns ? now_ns - freed_ns : 0;
  const uint64_t part_ns = age_ns / kDeferredAgeParts;
  const uint64_t soon_ns = part_ns < kLookMaxNs ? part_ns : kLookMaxNs;
  const uint64_t old_ns = age_ns / kDeferredOldParts;
  return soon_ns > old_ns ? soon_ns : old_ns;
}

// Returns how long the helper waits until it looks for what was freed in stream order.
uint64_t deferred_wait_ns(uint64_t now_ns) {
  const uint32_t deferred = load_acquire(residual_deferred);
  uint64_t wait_ns = ~uint64_t{0};
  for (int gpu = 0; gpu < static_cast<int>(kTenantGpusMax); ++gpu) {
    if ((deferred >> gpu & 1) == 0) continue;
    const uint64_t interval_ns = deferred_interval_ns(gpu, now_ns);
    if (interval_ns < wait_ns) wait_ns = interval_ns;
  }
  return wait_ns > kLookMinNs ? wait_ns : kLookMinNs;
}

// True for one of the threads that have waited since the last look is so long ago.
bool deferred_wait_looks(int gpu) {
  const uint64_t now_ns = clock_now_ns();
  uint64_t looked_ns = load_acquire(deferred_waited_ns[gpu]);
  return now_ns > looked_ns && now_ns - looked_ns >= deferred_interval_ns(gpu, now_ns) &&
         __atomic_compare_exchange_n(&deferred_waited_ns[gpu], &looked_ns, now_ns, false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

// No event tells that a descriptor was closed, so what is kept is looked for as long as it is kept.
bool anything_is_kept() {
  for (uint32_t gpu = 0; gpu < process.gpu_count; ++gpu)
    if (kept_bytes(static_cast<int>(gpu)) != 0) return true;
  return false;
}

uint64_t launches_sum() {
  uint64_t sum = load_acquire(launches_ungated);
  for (uint32_t gpu = 0; gpu < process.gpu_count; ++gpu)
    sum += process.account(static_cast<int>(gpu)).launches.load();
  return sum;
}

}  // namespace

void residual_take(int gpu, uint64_t bytes) {
  __atomic_add_fetch(&charged[gpu], bytes, __ATOMIC_RELAXED);
  process.ledger.context_add(static_cast<uint32_t>(gpu), bytes);
}

void residual_give(int gpu, uint64_t bytes) {
  const uint64_t now = load_relaxed(charged[gpu]);
  if (bytes > now) bytes = now;
  if (bytes == 0) return;
  __atomic_sub_fetch(&charged[gpu], bytes, __ATOMIC_RELAXED);
  process.ledger.release(static_cast<uint32_t>(gpu), bytes);
  process.ledger.context_sub(static_cast<uint32_t>(gpu), bytes);
}

Reach reach_here() {
  ThreadRecord* thread = settler();
  if (thread == nullptr) return reach_of(-1);
  const ErrnoGuard guard;
  return reach_of(thread_context(thread) ? thread->device : -1);
}

Reach reach_of(int device) { return {device, false, 0}; }

Reach reach_wide() { return {-1, true, load_acquire(late_moments)}; }

void residual_settle() {
  ThreadRecord* thread = settler();
  if (thread == nullptr) return;
  const DepthScope depth(thread);
  if (settle_contexts(Above::kCharged, kEverywhere).read_again) residual_want();
}

bool residual_settle_load(const Reach& reach) {
  ThreadRecord* thread = settler();
  if (thread == nullptr) return true;
  const DepthScope depth(thread);
  const Settled settled = settle_contexts(Above::kUndone, reach);
  if (settled.read_again) residual_want();
  return !settled.too_much;
}

bool residual_settle_import() {
  ThreadRecord* thread = settler();
  if (thread == nullptr) return true;
  const DepthScope depth(thread);
  if (settle_surely(false, Above::kImported, kEverywhere).read_again) residual_want();
  for (uint32_t gpu = 0; gpu < process.gpu_count; ++gpu) {
    const uint64_t bytes = excess_that_stays(static_cast<int>(gpu));
    if (bytes == 0) continue;
    charge_refused(static_cast<int>(gpu), bytes);
    return false;
  }
  return true;
}

bool residual_settle_late(const Reach& reach) {
  ThreadRecord* thread = settler();
  if (thread == nullptr) return true;
  const DepthScope depth(thread);
  const Settled settled = settle_contexts(Above::kWithheld, reach);
  if (settled.busy) store_release(late_unread, 1u);
  if (settled.read_again) residual_want();
  return !settled.too_much;
}

void residual_settle_device(int device) {
  ThreadRecord* thread = settler();
  if (thread == nullptr) return;
  const DepthScope depth(thread);
  if (settle(device, Above::kCharged, kPatienceNs, kEverywhere).read_again) residual_want();
}

bool residual_settle_context(int device) {
  ThreadRecord* thread = settler();
  if (thread == nullptr) return true;
  const DepthScope depth(thread);
  const Settled settled = settle(device, Above::kUndone, kPatienceNs, reach_of(device));
  if (settled.read_again) residual_want();
  return !settled.too_much;
}

void residual_late_above(int gpu) {
  store_release(late_above[gpu], __atomic_add_fetch(&late_moments, 1, __ATOMIC_ACQ_REL));
}

bool residual_is_measured(int gpu) { return load_acquire(measured[gpu]) != 0; }

uint64_t residual_charged(int gpu) { return load_relaxed(charged[gpu]); }

void residual_settle_all() {
  ThreadRecord* thread = settler();
  if (thread == nullptr) return;
  const DepthScope depth(thread);
  if (settle_each(false, Above::kCharged, kPatienceNs, kEverywhere).read_again) residual_want();
}

void residual_want() {
  const ErrnoGuard guard;
  store_release(wanted, 1u);
  helper_wake();
}

void residual_expect() {
  store_release(residual_expected, 1u);
  launches_look();
  residual_want();
}

void residual_launched() {
  if (__atomic_exchange_n(&residual_expected, 0, __ATOMIC_ACQ_REL) == 0) return;
  // Into a stream that may be another GPU's; nothing is withheld, but it is said.
  Reach reach = reach_wide();
  reach.device = reach_here().device;
  (void)residual_settle_late(reach);
}

bool residual_defer(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (gpu < 0 || load_acquire(measured[gpu]) == 0) return false;
  residual_take(gpu, bytes);
  store_release(deferred_ns[gpu], clock_now_ns());
  __atomic_fetch_or(&residual_deferred, 1u << gpu, __ATOMIC_RELEASE);
  residual_want();
  return true;
}

void residual_hold_unread(int gpu, uint64_t bytes) {
  residual_take(gpu, bytes);
  const uint32_t bit = 1u << gpu;
  if ((load_acquire(residual_unread) & bit) != 0) return;
  if ((__atomic_fetch_or(&residual_unread, bit, __ATOMIC_ACQ_REL) & bit) != 0) return;
  const ErrnoGuard guard;
  helper_wake();
}

void residual_look_deferred(int device, bool waited) {
  ThreadRecord* thread = thread_record();
  const int gpu = device_gpu(device);
  if (thread == nullptr || gpu < 0) return;
  const uint32_t bit = 1u << gpu;
  const bool is_unread = (load_acquire(residual_unread) & bit) != 0;
  const bool is_deferred = (load_acquire(residual_deferred) & bit) != 0;
  if (!is_unread && !(is_deferred && (!waited || deferred_wait_looks(gpu)))) return;
  const DepthScope depth(thread);
  const uint64_t until_ns = clock_now_ns() + (waited ? 0 : kPatienceBeforeRefusalNs);
  Settled settled{};
  for (;;) {
    const AccountRest rest;
    settled = settle(device, Above::kCharged, kPatienceOfWaitNs, kEverywhere);
    if (!settled.busy || clock_now_ns() >= until_ns) break;
    sleep_ns(kBetweenReadingsNs);
  }
  if (settled.read_again) residual_want();
}

void residual_imports_freed(bool in_stream_order) {
  const ErrnoGuard guard;
  if (!in_stream_order) return residual_settle_all();
  for (int device = 0; device < process.device_count; ++device) (void)residual_defer(device, 0);
}

void residual_shared() {
  // From now on the helper knows the others as they are and sees what they change.
  if (__atomic_exchange_n(&shared, 1, __ATOMIC_ACQ_REL) != 0) return;
  process.claims->shares.store(1);
  residual_want();
  residual_others_wake();
}
bool residual_is_shared() { return load_relaxed(shared) != 0; }
bool residual_tenant_shares() { return process.claims->shares.load() != 0; }

// Their helpers sleep on the leases' words, and find that this slot has changed.
void residual_others_wake() {
  const ErrnoGuard guard;
  const protocol::LeaseEntry& entry = process.entry(0);
  futex_wake_all(const_cast<uint32_t*>(&entry.lease.raw), true);
}

void residual_others_look() {
  for (uint32_t gpu = 0; gpu < process.gpu_count; ++gpu) others_look_on(static_cast<int>(gpu));
}

uint64_t residual_look(uint64_t now_ns) {
  if (load_acquire(process.devices_known) == 0) return kLookMaxNs;
  const bool is_wanted = __atomic_exchange_n(&wanted, 0, __ATOMIC_ACQ_REL) != 0;
  const uint64_t launches = launches_sum();
  const uint64_t others = residual_tenant_shares() ? others_changes() : look.others;
  if (is_wanted || others != look.others) look.interval_ns = kLookMinNs;
  if (others != look.others) look.until_ns = now_ns + kEndedForgottenNs;
  const bool changed = is_wanted || others != look.others || launches != look.launches;
  look.launches = launches;
  look.others = others;
  if (changed && (look.due_ns == 0 || is_wanted)) look.due_ns = now_ns + look.interval_ns;
  if (look.due_ns == 0 && anything_is_kept()) look.due_ns = now_ns + look.interval_ns;
  if (look.due_ns == 0 && load_acquire(residual_deferred) != 0)
    look.due_ns = now_ns + deferred_wait_ns(now_ns);
  if (look.due_ns == 0 && load_acquire(residual_unread) != 0) look.due_ns = now_ns + kLookUnreadNs;
  if (look.due_ns == 0) return kLookMaxNs;
  if (now_ns < look.due_ns) return look.due_ns - now_ns;
  look.interval_ns = look.interval_ns < kLookMaxNs / 2 ? look.interval_ns * 2 : kLookMaxNs;
  const bool late = __atomic_exchange_n(&late_unread, 0, __ATOMIC_ACQ_REL) != 0;
  const Above above = late ? Above::kWithheld : Above::kCharged;
  const Settled settled = settle_each(false, above, kPatienceOfHelperNs, kEverywhere);
  if (late && settled.busy) store_release(late_unread, 1u);
  const bool again = settled.read_again || now_ns < look.until_ns;
  look.due_ns = again ? now_ns + look.interval_ns : 0;
  return look.interval_ns;
}

uint64_t residual_restore(int gpu, uint64_t contexts_bytes) {
  if (load_relaxed(measured[gpu]) == 0) charged[gpu] = contexts_bytes;
  if (residual_is_shared()) process.claims->shares.store(1);
  usage_forget();
  residual_want();
  return charged[gpu];
}

void residual_reset_after_fork() {
  memset(charged, 0, sizeof charged);
  memset(measured, 0, sizeof measured);
  memset(late_above, 0, sizeof late_above);
  memset(deferred_ns, 0, sizeof deferred_ns);
  memset(deferred_waited_ns, 0, sizeof deferred_waited_ns);
  memset(&look, 0, sizeof look);
  others_reset_after_fork();
  wanted = shared = managed_seen = late_unread = residual_expected = residual_deferred =
      residual_unread = 0;
  usage_reset_after_fork();
}

}  // namespace sluice::interpose

// See process.h.
#include "interpose/process.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "broker/protocol/ordinal.h"
#include "interpose/account.h"
#include "interpose/alone.h"
#include "interpose/clock.h"
#include "interpose/gate.h"
#include "interpose/helper.h"
#include "interpose/link.h"
#include "interpose/memory/kept.h"
#include "interpose/pages.h"
#include "interpose/say.h"
#include "interpose/start.h"
#include "interpose/view.h"

namespace sluice::interpose {

constinit Process process;

namespace {

Lock start_lock;
Lock devices_lock;     // held while it is found out which device is which GPU
Mode registered_mode;  // what registration came to; the driver may not be resolved yet
uint32_t fork_handled;
uint32_t fork_wiped;   // the kernel does it, Linux 4.14
bool asks_for_broker;  // the helper tries again when there is none
bool undecided;        // what registration came to holds for one call, and the next one tries again
RateLimit blind_said;

void mode_set(Mode mode) { __atomic_store_n(&process.mode, mode, __ATOMIC_RELEASE); }

void fork_forget() {
  mode_set(Mode::kUnknown);
  registered_mode = Mode::kUnknown;
  process.lost_open = process.lost_refuse = process.lost = process.alone = process.together = 0;
  process.family_slot = 0;
  process.devices_known = 0;
  // The pages are the parent's. Without a broker the child gets none of its own, and whoever looks
  // at every GPU of the tenant must find none.
  process.gpu_count = process.swap_gpus = process.slot = 0;
  process.lease = nullptr;
  process.claims = nullptr;
  start_lock.reset_after_fork();
  clock_reset_after_fork();
  devices_lock.reset_after_fork();
  stderr_reset_after_fork();
  resolve_reset_after_fork();
  policy_reset_after_fork();
  primaries_reset_after_fork();
  view_reset_after_fork();
  link_reset_after_fork();
  pages_reset_after_fork();
  shares_reset();
  helper_reset_after_fork();
  threads_reset_after_fork();
  meter_reset_after_fork();
  gate_reset_after_fork();
  account_reset_after_fork();
}

enum Own : uint32_t { kParents, kOurs, kBeingReset };

void fork_child() {
  // Another library's handler may have used CUDA before ours is run.
  if (fork_wiped != 0 && process.own == kOurs) return;
  fork_forget();
  store_release(process.own, static_cast<uint32_t>(kOurs));
}

bool pages_are_sane() {
  return process.lease->magic == protocol::kLeasePageMagic &&
         process.lease->version == protocol::kVersion &&
         process.claims->magic == protocol::kClaimsPageMagic && process.lease->gpu_count >= 1 &&
         process.lease->gpu_count <= protocol::kTenantGpusMax;
}

// What is in place now is what counts.
void pages_take(uint32_t slot) {
  process.lease = pages_lease();
  process.claims = pages_claims();
  process.slot = slot;
  process.gpu_count = pages_are_sane() ? process.lease->gpu_count : 0u;
  process.ledger.attach(process.claims, slot);
  process_quotas_choose();
  process.claims->slots[slot].own_pid.store(static_cast<uint32_t>(getpid()));
  kept_slot_taken();
}

void refusal_say(const char* text) {
  Line line;
  line.text("this process may not use the GPU: ").text(text);
  line.say();
}

void unreachable_say(const char* consequence) {
  Line line;
  line.text("no broker answers at ").text(link_path()).text("; ").text(consequence);
  line.say();
}

void policy_name(Line* line, const char* word) {
  line->text(" (missing_broker = ").text(word).text(" in ").text(policy_path()).text(")");
}

Mode denied(const char* text) {
  refusal_say(text);
  return Mode::kDenied;
}

Mode broker_begin() {
  if (!link_pages_install()) {
    return denied(
        "the broker's pages cannot be mapped; the program has closed their descriptors, or has no "
        "address space left (ulimit -v)");
  }
  pages_take(link_slot());
  if (process.gpu_count == 0) {
    return denied(
        "the broker's pages are not of this version; use the libsluice.so that came with it");
  }
  alone_learn();
  const char* fault = nullptr;
  return shares_begin(&fault) ? Mode::kActive : denied(fault);
}

Mode alone_begin() {
  const char* fault = nullptr;
  if (!alone_enter(&fault)) return denied(fault);
  // The helper takes the slot that CUDA calls need; to look at the account none is needed.
  process.lease = pages_lease();
  process.claims = pages_claims();
  process.slot = 0;
  process.gpu_count = family_gpu_count();
  process.ledger.attach(process.claims, 0);
  process_quotas_choose();
  return Mode::kActive;
}

void forks_handle() {
  if (fork_handled != 0) return;
  store_release(process.own, static_cast<uint32_t>(kOurs));
  const bool wiped = madvise(&process, kPageBytes, MADV_WIPEONFORK) == 0;
  store_release(fork_wiped, wiped ? 1u : 0u);
  fork_handled = 1;
  pthread_atfork(nullptr, nullptr, fork_child);
}

void place_say(const LinkPlace& place) {
  Line line;
  const bool limited = place.reason == protocol::QueueReason::kUserLimit;
  line.text(limited ? "not yet" : "no room on the GPUs yet");
  if (place.text[0] != '\0') line.text(": ").text(place.text);
  line.text("; this program waits, ").number(place.position);
  line.text(protocol::ordinal_ending(place.position)).text(" in line");
  if (place.ahead[0] != '\0') line.text(" behind ").text(place.ahead);
  line.text(" (reason: ").text(protocol::queue_reason_name(place.reason));
  line.text("); sluice status shows the line").say();
}

// Waits in line for room. A broker that goes away takes the line along: the next one is asked anew,
// if it comes soon.
LinkResult line_wait() {
  forks_handle();  // now: another thread may fork meanwhile
  constexpr int kLookMs = 1000;
  constexpr uint64_t kAgainNs = 200'000'000;
  LinkPlace place{};
  if (link_in_line(&place)) place_say(place);
  for (;;) {
    LinkResult result = link_register_wait(kLookMs);
    const uint64_t lost_ns = clock_now_ns();
    while (result != LinkResult::kQueued && result != LinkResult::kPending) {
      if (result == LinkResult::kRegistered || link_refusal()[0] != '\0' ||
          clock_now_ns() - lost_ns >= kRegisterTimeoutNs)
        return result;
      sleep_ns(kAgainNs);
      result = link_register();
    }
  }
}

// Waits for a broker. `reason` stands in brackets behind the line.
LinkResult broker_wait(const char* reason) {
  forks_handle();  // now: another thread may fork meanwhile
  constexpr uint64_t kAgainNs = 200'000'000;
  const uint64_t hold_ns = policy().hold_ns;
  Line line;
  line.text("no broker answers at ").text(link_path()).text("; CUDA calls wait for one");
  if (hold_ns != 0) line.text(", at most ").number(hold_ns / 1'000'000'000).text(" s");
  if (reason == nullptr) {
    policy_name(&line, "hold");
  } else {
    line.text(" (").text(reason).text(")");
  }
  line.say();
  const uint64_t start_ns = clock_now_ns();
  LinkResult result = LinkResult::kNobody;
  while (result != LinkResult::kRegistered && result != LinkResult::kRefused) {
    if (hold_ns != 0 && clock_now_ns() - start_ns >= hold_ns) return LinkResult::kNobody;
    sleep_ns(kAgainNs);
    result = link_register_step();
    if (link_in_line(nullptr)) result = line_wait();
  }
  return result;
}

Mode hold_begin(const char* reason, LinkResult* result) {
  *result = broker_wait(reason);
  if (*result == LinkResult::kRegistered) return broker_begin();
  return denied(*result == LinkResult::kRefused
                    ? link_refusal()
                    : "no broker has answered; start sluiced, or ask whoever keeps this machine");
}

// A process of an announced tenant keeps the limits that its tenant was admitted with. Where they
// are not known it waits: it must not take more than its tenant may.
Mode keep_begin(LinkResult* result) {
  if (!alone_family_of_job()) {
    if (errno == EFBIG) return hold_begin(kFileTooSmall, result);
    return hold_begin(
        "what its job has taken cannot be seen from here: it was started with all "
        "descriptors closed, and those that started it have ended",
        result);
  }
  if (!family_knows_tenant()) {
    return hold_begin("nothing says what the job may take, and SLUICE_TENANT_LIMITS does not",
                      result);
  }
  const Limits& limits = family_limits();
  Line line;
  line.text("no broker answers at ").text(link_path());
  line.text("; until one does, the program keeps the limits of its job, ");
  if (limits.memory_bytes != 0) line.bytes(limits.memory_bytes).text(" and ");
  line.number(limits.sm_percent).text(" % of each GPU, by itself");
  line.say();
  return alone_begin();
}

Mode static_begin() {
  limits_set(limits_narrow(limits_own(), policy().limits));
  if (alone_family()) family_narrow(policy().limits);
  Line line;
  line.text("no broker answers at ").text(link_path());
  line.text("; until one does, the program runs under the limits of this machine");
  policy_name(&line, "static");
  line.say();
  return alone_begin();
}

// No broker took the process, and one should have.
Mode missing_begin(LinkResult* result) {
  switch (policy().missing) {
    case MissingBroker::kHold:
      return hold_begin(nullptr, result);
    case MissingBroker::kStatic:
      return static_begin();
    case MissingBroker::kKeep:
      if (link_has_tenant()) return keep_begin(result);
      break;
    case MissingBroker::kOpen:
      break;
  }
  if (alone_wanted()) {
    unreachable_say("until one does, the program runs under SLUICE_MEMORY and SLUICE_SM alone");
    return alone_begin();
  }
  unreachable_say("the program runs without limits until one does (start sluiced)");
  return Mode::kOffline;
}

// It cannot be said now whether the process is of a job, and it must not pass for one that is not.
SLUICE_NOINLINE Mode blind() {
  uint64_t skipped = 0;
  if (blind_said.allow(clock_now_ns(), &skipped)) {
    Line line;
    line.text(
        "this process may not use the GPU now: it has no descriptor left to find its job with; ");
    line.text("close some files, or raise the limit on open files (ulimit -n)");
    blind_said.say(line, skipped);
  }
  return Mode::kDenied;
}

SLUICE_NOINLINE void stranger_say(bool limited) {
  Line line;
  line.text(link_stranger()).text("; until then the program runs ");
  line.text(limited ? "under SLUICE_MEMORY and SLUICE_SM alone" : "without limits").say();
}

// A mistyped limit is none.
void unknown_variable_say() {
  static bool said;
  const char* const variable = said ? nullptr : link_unknown_variable();
  if (variable == nullptr) return;
  said = true;
  constexpr size_t kShownMax = 60;
  char name[kShownMax + 1] = {};
  for (size_t i = 0; i < kShownMax && variable[i] != '=' && variable[i] != '\0'; ++i)
    name[i] = variable[i] < ' ' || variable[i] > '~' ? '?' : variable[i];
  Line line;
  line.text("the variable ").text(name).text(" means nothing to Sluice; limits of a program are ");
  line.text(kMemoryVariable).text(" and ").text(kSmVariable).say();
}

Mode registration_begin(bool may_wait) {
  Limits limits;
  Line fault;
  if (!link_limits(&limits, &fault)) {
    fault.say();
    return Mode::kDenied;
  }
  limits_set(limits);
  unknown_variable_say();
  undecided = link_blind();
  if (undecided) return blind();
  LinkResult result = link_in_line(nullptr) ? link_register_wait(0) : link_register();
  // No broker answers that knows the job that a variable names.
  while (result == LinkResult::kNobody && link_tenant_leave()) result = link_register();
  if (result == LinkResult::kQueued && !may_wait) {
    undecided = true;
    return Mode::kInert;  // until its turn has come
  }
  if (result == LinkResult::kQueued) result = line_wait();
  asks_for_broker = true;
  if (result == LinkResult::kRegistered) return broker_begin();
  if (result == LinkResult::kRefused) return denied(link_refusal());
  if (result == LinkResult::kNobody) return missing_begin(&result);
  if (policy().broker_required) {
    return link_refusal()[0] != '\0' ? denied(link_refusal()) : missing_begin(&result);
  }
  asks_for_broker = false;
  const bool limited = alone_wanted();
  if (link_stranger() != nullptr) stranger_say(limited);
  return limited ? alone_begin() : Mode::kInert;
}

}  // namespace

void process_fork_notice() {
  if (load_acquire(fork_wiped) == 0) return;
  uint32_t found = load_acquire(process.own);
  if (found == kParents && __atomic_compare_exchange_n(&process.own, &found, kBeingReset, false,
                                                       __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
    const ErrnoGuard guard;
    fork_forget();
    store_release(process.own, static_cast<uint32_t>(kOurs));
  }
  while (load_acquire(process.own) == kBeingReset) sched_yield();
}

Mode registration_mode(bool may_wait) {
  process_fork_notice();
  const Mode known = __atomic_load_n(&registered_mode, __ATOMIC_ACQUIRE);
  if (SLUICE_LIKELY(known != Mode::kUnknown)) return known;
  const SystemGuard guard;
  const LockScope scope(start_lock);
  if (registered_mode != Mode::kUnknown) return registered_mode;
  threads_prepare();
  stderr_remember();
  undecided = false;
  const Mode mode = registration_begin(may_wait);
  if (undecided) return mode;
  if (mode != Mode::kInert) forks_handle();
  __atomic_store_n(&registered_mode, mode, __ATOMIC_RELEASE);
  return mode;
}

namespace {

// Whether the process is to register at its first context, which chooses its GPU: a program without
// `sluice run`. Where no broker answers, limits of its own hold from its first call.
bool begins_with_context() {
  Limits limits;
  Line ignored;
  return !link_has_tenant() && link_limits(&limits, &ignored) && (!limits.any() || link_answered());
}

int first_device;

// Where the first context is to be; none before cuInit.
protocol::GpuUuid wish() {
  CUuuid uuid{};
  protocol::GpuUuid gpu{};
  if (driver.cuDeviceGetUuid(&uuid, first_device) == CUDA_SUCCESS)
    memcpy(gpu.bytes, &uuid, sizeof uuid);
  return gpu;
}

Mode start() {
  const SystemGuard guard;
  // Without a driver every hook's real function is one that says so; the mode stays open for a
  // driver loaded later.
  if (!resolve_driver()) return Mode::kInert;
  const Mode mode = registration_mode(true);
  const LockScope scope(start_lock);
  if (process_mode() != Mode::kUnknown) return process_mode();
  if (registered_mode == Mode::kUnknown) return mode;
  const bool alone = load_acquire(process.alone) != 0;
  if (mode == Mode::kInert || mode == Mode::kDenied) {
    mode_set(mode);
    return mode;
  }
  const bool helped = helper_start(mode == Mode::kActive && !alone, asks_for_broker);
  // Without the helper nobody keeps the limits of a process that has no broker.
  mode_set(helped || !alone
               ? mode
               : denied("its limits need a thread and one of 128 places for processes, and there "
                        "is none; end other processes first"));
  return process_mode();
}

}  // namespace

Mode process_start() {
  const ErrnoGuard guard;
  process_fork_notice();
  if (link_blind()) return blind();  // before the driver is initialised, so that it makes nothing
  if (!begins_with_context()) return start();
  (void)resolve_driver();
  return Mode::kInert;  // until its first context
}

Mode process_start_on(int device) {
  const ErrnoGuard guard;
  process_fork_notice();
  if (link_blind()) return blind();  // before the driver is initialised, so that it makes nothing
  if (!begins_with_context()) return start();
  if (!resolve_driver()) return Mode::kInert;
  if (__atomic_load_n(&registered_mode, __ATOMIC_ACQUIRE) == Mode::kUnknown) {
    first_device = device;
    link_wish(wish);
  }
  (void)start();
  (void)process_init_done();
  return process_mode();
}

bool process_init_done() {
  if (load_acquire(process.alone) != 0 && process_mode() == Mode::kActive) {
    // Now, and not in the middle of an allocation: it may turn out that there are too many.
    (void)device_gpu_learn(0);
  }
  const Mode mode = process_mode();
  if (mode == Mode::kDenied) return false;
  static uint32_t done;
  if (mode < Mode::kOffline || __atomic_exchange_n(&done, 1, __ATOMIC_ACQ_REL) != 0) return true;
  // Registered after the driver's own handlers and so run before them.
  atexit(helper_stop);
  return true;
}

namespace {

void gates_reset() {
  store_release(process.lost, 0u);
  store_release(process.lost_open, 0u);
  store_release(process.lost_refuse, 0u);
}

// Stops whatever changes the account or ends a context. False: somebody is within such a call, who
// may wait for a kernel there.
bool account_stop(uint64_t patience_ns) {
  if (!accounts_pause(patience_ns)) return false;
  if (contexts_stay_for(patience_ns)) return true;
  accounts_resume();
  return false;
}

void account_go() {
  contexts_may_end();
  accounts_resume();
}

// From before the first of the new pages is in place until the whole account is in them.
struct LedgerPause {
  PoolsScope pools;
  GraphMemoryPause graphs;
};

void account_move(uint32_t slot) {
  {
    const LockScope scope(devices_lock);
    pages_take(slot);
    store_release(process.devices_known, 0u);
  }
  if (process.gpu_count == 0) return;
  // Which device is which GPU is only asked for a tenant's processes, and this may be the first
  // moment that this is one.
  registered_mode = Mode::kActive;
  mode_set(Mode::kActive);
  account_restore();
}

// The account moves to the pages that are in place now.
void pages_adopt(uint32_t slot) {
  const bool was_offline = process_mode() == Mode::kOffline;
  account_move(slot);
  if (process.gpu_count == 0) return;
  if (was_offline) contexts_meet();
  process_renumbered();
  gates_reset();
}

// Beside the broker's pages, the account is kept in the family's as well.
void family_account_begin() {
  if (process.family_slot == 0 || process.gpu_count == 0) return;
  int8_t gpus[protocol::kTenantGpusMax];
  for (uint32_t i = 0; i < protocol::kTenantGpusMax; ++i) {
    const bool used = i < process.gpu_count;
    gpus[i] = static_cast<int8_t>(used ? family_gpu(process.lease->gpus[i].gpu) : -1);
  }
  process.ledger.attach_second(family_claims(), process.family_slot - 1, gpus);
}

}  // namespace

void process_renumbered() {
  __atomic_add_fetch(&process.numbering, 1, __ATOMIC_SEQ_CST);
  // A thread that has found its GPU before sees the new number behind its stores, or they are here.
  threads_barrier();
  for (int i = 0, n = thread_count(); i < n; ++i) {
    ThreadRecord& thread = *thread_at(i);
    store_release(thread.renumbered, 1u);
    // In this order: what is known has its lease, which the thread stores last.
    store_release(thread.lease, static_cast<const uint32_t*>(nullptr));
    store_release(thread.context_known, 0u);
  }
}

bool process_adopt_pages(uint32_t slot, uint64_t patience_ns) {
  if (!account_stop(patience_ns)) return false;
  {
    const LedgerPause pause;
    if (!link_pages_install()) {
      account_go();
      return false;
    }
    store_release(process.alone, 0u);
    // What the policy said of the time without a broker is over.
    Limits asked;
    Line ignored;
    (void)link_limits(&asked, &ignored);
    limits_set(asked);
    pages_adopt(slot);
    family_account_begin();
  }
  alone_learn();
  const char* fault = nullptr;
  if (!shares_begin(&fault)) refusal_say(fault);
  account_go();
  return true;
}

namespace {

void gates_close(protocol::LeasePage* page) {
  for (protocol::LeaseEntry& entry : page->gpus) {
    const uint32_t epoch = protocol::lease_epoch(entry.lease.load());
    entry.lease.store(protocol::lease_word(protocol::lease_epoch_next(epoch), 0));
  }
}

// The window as under contention: a broker that comes back waits for what is in flight then. An
// exclusive tenant has the whole GPU, and no window.
void gates_open(protocol::LeasePage* page) {
  const bool exclusive = page->tenant_class == protocol::TenantClass::kExclusive;
  const uint32_t flags = protocol::kLeaseOpen | (exclusive ? protocol::kLeaseExclusive : 0);
  for (protocol::LeaseEntry& entry : page->gpus) {
    const uint32_t lease = protocol::lease_epoch(entry.lease.load());
    const uint32_t hold = protocol::hold_epoch(entry.hold.load());
    if (!exclusive && entry.window_ns.load() == 0) {
      entry.window_ns.store(share_window_ns(entry.sm_percent));
    }
    entry.hold.store(protocol::hold_word(protocol::hold_epoch_next(hold), 0));
    entry.lease.store(protocol::lease_word(protocol::lease_epoch_next(lease), flags));
  }
}

}  // namespace

bool process_detach() {
  if (policy().missing == MissingBroker::kStatic) {
    limits_set(limits_narrow(limits_own(), policy().limits));
    if (family_is_there()) family_narrow(policy().limits);
  }
  // In this order: with the gates open and no share, launches would pass.
  if (policy().missing != MissingBroker::kOpen) shares_detach();
  return pages_copy(gates_open);
}

bool process_slot_wanted() { return load_acquire(process.alone) != 0 || family_knows_tenant(); }

bool process_slot_take() {
  const int slot = family_slot_take();
  if (slot < 0) return false;
  process.family_slot = static_cast<uint32_t>(slot) + 1;
  if (load_acquire(process.alone) == 0) {
    family_account_begin();
    return true;
  }
  process.slot = static_cast<uint32_t>(slot);
  process.ledger.attach(process.claims, process.slot);
  kept_slot_taken();
  return true;
}

bool process_hold() { return pages_copy(gates_close); }

void process_refuse(bool refuse) { store_release(process.lost_refuse, refuse ? 1u : 0u); }

void process_quotas_choose() {
  uint32_t swap_gpus = 0;
  for (uint32_t i = 0; i < protocol::kTenantGpusMax; ++i) {
    if ((process.lease->gpus[i].flags & protocol::kEntrySwap) != 0) swap_gpus |= 1u << i;
    const uint64_t& given = process.lease->gpus[i].memory_max_bytes;
    // Less 1, none is the widest of all numbers.
    const bool own = process.memory_own - 1 < load_relaxed(given) - 1;
    store_release(process.quota[i], own ? &process.memory_own : &given);
  }
  store_release(process.swap_gpus, swap_gpus);
}

void process_set_lost_open(bool open) { store_release(process.lost_open, open ? 1u : 0u); }

int process_gpu_of(const protocol::GpuUuid& uuid) {
  if (load_acquire(process.alone) != 0) return family_gpu_find(uuid);
  for (uint32_t i = 0; i < process.gpu_count; ++i) {
    if (process.lease->gpus[i].gpu == uuid) return static_cast<int>(i);
  }
  return -1;
}

namespace {

// Returns the index of a GPU that CUDA shows to this process, -1 if it is none of the tenant's.
// Without a broker the tenant has it from then on. Precondition: devices_lock is held.
int gpu_learn(const protocol::GpuUuid& uuid) {
  if (load_acquire(process.alone) == 0 || family_knows_tenant()) return process_gpu_of(uuid);
  const int gpu = family_gpu(uuid);
  const uint32_t count = family_gpu_count();
  if (count > process.gpu_count) process.gpu_count = count;
  process_quotas_choose();
  return gpu;
}

bool devices_learn() {
  const DepthScope depth(thread_record());
  int count = 0;
  if (driver.cuDeviceGetCount(&count) != CUDA_SUCCESS) return false;
  process.device_total = count;
  bool too_many = count > kDevicesMax;
  if (too_many) count = kDevicesMax;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    int8_t gpu = -1;
    CUdevice device;
    CUuuid uuid;
    if (driver.cuDeviceGet(&device, ordinal) == CUDA_SUCCESS &&
        driver.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS) {
      protocol::GpuUuid name;
      memcpy(name.bytes, &uuid, sizeof uuid);
      gpu = static_cast<int8_t>(gpu_learn(name));
      too_many |= gpu < 0;
    }
    process.device_gpu[ordinal] = gpu;
  }
  if (too_many && load_acquire(process.alone) != 0 && !family_knows_tenant()) {
    mode_set(
        denied("it sees more GPUs than limits without a broker reach; name 8 of them in "
               "CUDA_VISIBLE_DEVICES"));
  }
  process.device_count = count;
  store_release(process.devices_known, 1u);
  return true;
}

}  // namespace

int device_gpu_learn(int device) {
  if (SLUICE_UNLIKELY(load_acquire(process.devices_known) == 0)) {
    const ErrnoGuard guard;
    const LockScope scope(devices_lock);
    const bool known = load_acquire(process.devices_known) != 0;
    if (!known && (process_mode() != Mode::kActive || !devices_learn())) return -1;
  }
  if (device < 0 || device >= process.device_count) return -1;
  return process.device_gpu[device];
}

}  // namespace sluice::interpose

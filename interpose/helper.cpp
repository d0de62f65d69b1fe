// See helper.h. A loop: look at every GPU's lease, do what it asks for, then sleep on all lease
// words at once (and on a word of our own) until something changes or the next look is due.
#include "interpose/helper.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/account_uses.h"
#include "interpose/alone.h"
#include "interpose/connection.h"
#include "interpose/gate.h"
#include "interpose/link.h"
#include "interpose/memory/ended.h"
#include "interpose/residual.h"
#include "interpose/room.h"
#include "interpose/say.h"
#include "interpose/swap.h"
#include "interpose/touch.h"

namespace sluice::interpose {
namespace {

using protocol::kTenantGpusMax;
using protocol::lease_epoch;
using protocol::MessageType;

constexpr uint64_t kLookWhileBusyNs = 1'000'000;     // trailing fences and counters
constexpr uint64_t kLookWhileContendedNs = 200'000;  // somebody waits for us to be idle
constexpr uint64_t kDrainLookMinNs = 20'000;         // a drain is looked at this often at first,
constexpr uint64_t kDrainLookMaxNs = 1'000'000;      // and this often when it takes long
constexpr uint64_t kSleepMaxNs =
    500'000'000;  // also how late a dead broker may be noticed when idle
constexpr uint64_t kSweepNs = 1'000'000'000;  // how late the death of others is noticed
constexpr size_t kStackBytes = 1 << 20;       // the driver runs on it

struct Watch {
  uint32_t barrier_epoch;  // + 1: threads_barrier() passed since this epoch was seen closed
  uint32_t drained_said;   // + 1
  uint32_t held_said;      // the hold epoch acknowledged last; 0 = none
  uint32_t open_epoch;     // + 1: the open epoch that idle_since_ns belongs to
  uint64_t drain_look_ns;
  uint32_t hold_seen;  // the hold epoch that hold_look_ns belongs to; 0 = none
  uint64_t hold_look_ns;
  uint64_t idle_since_ns;
  bool idle_said;
  uint32_t ordered;  // the hold word whose order was given last; 0 = none
  bool moved_said;
  SwapMoved moved;  // what became of it
  uint64_t moved_ns;
  bool end_said;
};
Watch watches[kTenantGpusMax];
uint32_t suspended_said;  // as told last
uint32_t idle_told;
uint32_t wake_word;
uint32_t running;   // the thread exists
uint32_t stopping;  // the process is exiting
uint32_t parked;    // the helper has seen `stopping` and touches the driver no more
uint64_t swept_ns;
// The answer of a helper that takes a slot first.
enum SlotAnswer : uint32_t { kNone, kTaken, kNoSlot };
uint32_t slot_answer;
bool slot_wanted;

struct WaitVector {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};
constexpr long kFutexWaitV = 449;  // Linux 5.16
constexpr uint32_t kFutex32 = 2;
constexpr uint32_t kFutexPrivate = 128;

uint64_t totals_publish(int gpu) {
  uint64_t launches = 0, graphs = 0;
  for (int device = 0; device < process.device_count; ++device) {
    if (process.device_gpu[device] != gpu) continue;
    launches += load_relaxed(device_totals[device].launches);
    graphs += load_relaxed(device_totals[device].graph_launches);
  }
  for (int i = 0, n = thread_count(); i < n; ++i)
    launches += load_relaxed(thread_at(i)->exclusive_launches[gpu]) -
                load_relaxed(thread_at(i)->exclusive_works[gpu]);
  protocol::ClaimsGpu& account = process.account(gpu);
  busy_publish(gpu);
  if (launches > account.launches.load()) account.launches.store(launches);  // only grows
  account.graph_launches.store(graphs);
  return account.busy_ns.load();
}

// Harvests the GPU's contexts and fences what was launched since the last look: a burst that has
// ended is charged until the look behind it. True while work is in flight. `is_last`: the process
// ends, and with it what is.
bool contexts_look(int gpu, bool is_last) {
  bool busy = false;
  for (int i = 0, n = context_count(); i < n; ++i) {
    ContextRecord& context = *context_at(i);
    if (load_acquire(context.life) == kContextFree || device_gpu(context.device) != gpu) continue;
    if (!context.lock.try_acquire_briefly()) {
      busy = true;
      continue;
    }
    if (!context.is_usable()) {
      busy = true;
      context.lock.release();
      continue;
    }
    // A green context that is current to a thread of the program's may not be another's: events
    // made meanwhile would be another context's. What the program's threads fence is seen.
    const bool is_current = driver.cuCtxSetCurrent(context.context) == CUDA_SUCCESS;
    const uint64_t begun_ns = clock_now_ns();
    for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
      const uint64_t launches = s->launches();
      // Of one that is being counted a part may be seen.
      const bool counted = s->owner == nullptr || load_acquire(s->owner->inside) == 0;
      // An event of the whole context keeps the thread from the short way, and waits for more.
      const bool ends = s->is_reachable() || launches == s->seen || is_last;
      if (is_current && counted && ends && launches != s->fenced.launches)
        fences_complete(context, s, Others::kFence);
      s->seen = launches;
    }
    // The process may have been stopped since.
    context.looked_ns = begun_ns;
    const uint64_t asked_ns = clock_now_ns();
    fences_harvest(context);
    stretches_charge(context, asked_ns);
    if (is_last) unfinished_charge(context);
    busy |= launches_in_flight(context) != 0;
    context.lock.release();
  }
  return busy;
}

// Tells the user why the process is about to be ended.
void end_look(int gpu) {
  const uint32_t delayed_ms = process.entry(gpu).delayed_ms.load();
  const bool is_new = delayed_ms != 0 && !watches[gpu].end_said;
  watches[gpu].end_said = delayed_ms != 0;
  if (!is_new) return;
  Line line;
  line.text("this job is being ended: others have waited ").number(delayed_ms / 1000);
  line.text(" s for the GPU while a kernel of it ran; a kernel cannot be interrupted; launch ");
  line.text("shorter kernels").say();
}

// Tells the user why the program stands still. Once, whatever number of GPUs the job has.
void suspended_look() {
  const uint32_t suspended = process.entry(0).suspended.load();
  const bool is_new = suspended != suspended_said;
  suspended_said = suspended;
  if (!is_new || suspended == protocol::kSuspendedNot) return;
  Line line;
  if (suspended == protocol::kSuspendedIdle) {
    line.text(
        "this job has used no GPU for long: its GPU memory is on the host, and its quota is ");
    line.text("free for others, until it wants its GPU again").say();
    return;
  }
  if (suspended == protocol::kSuspendedQueued) {
    line.text("this job waits in the queue to get its GPU back; `sluice status` says for what")
        .say();
    return;
  }
  line.text("this job is suspended: its GPU memory is on the host, and its CUDA calls wait until ");
  line.text("`sluice resume ").number(process.lease->tenant).text("`").say();
}

Line& duration(Line& line, uint32_t s) {
  constexpr uint32_t kMinute = 60, kHour = 3600;
  if (s < kMinute || s % kMinute != 0) return line.number(s).text(" s");
  return s % kHour != 0 ? line.number(s / kMinute).text(" min") : line.number(s / kHour).text(" h");
}

// Tells the user what becomes of a program that uses no GPU.
void idle_look() {
  const protocol::LeaseEntry& entry = process.entry(0);
  const uint32_t idle = entry.idle.load();
  const bool is_new = idle != idle_told;
  idle_told = idle;
  if (!is_new || idle == protocol::kIdleNot) return;
  Line line;
  duration(line.text("this job has used no GPU for "), entry.idle_s);
  if (idle == protocol::kIdleEnds) {
    line.text(" and is being ended (SIGTERM), as its class is set up").say();
    return;
  }
  if (entry.idle_release_s != 0) {
    duration(line.text("; after "), entry.idle_release_s);
    line.text(" in all its GPU memory is moved to the host and its quota is free for others");
  }
  if (entry.idle_end_s != 0) {
    duration(line.text("; after "), entry.idle_end_s);
    line.text(" in all it is ended");
  }
  line.text("; end it, or use its GPU").say();
}

uint64_t closed_look(int gpu, uint32_t epoch) {
  Watch& watch = watches[gpu];
  end_look(gpu);
  // Without a broker a launch may have been let through since (share_lets_through).
  const bool heard = load_acquire(process.alone) != 0;  // nobody to tell
  if (heard && process.account(gpu).in_flight.load() != 0) watch.drained_said = 0;
  if (watch.drained_said == epoch + 1) return kSleepMaxNs;
  if (watch.barrier_epoch != epoch + 1) {
    threads_barrier();
    watch.barrier_epoch = epoch + 1;
    watch.drain_look_ns = kDrainLookMinNs;
  }
  if (!drain_step(gpu)) {
    totals_publish(gpu);
    const uint64_t wait_ns = watch.drain_look_ns;
    if (watch.drain_look_ns < kDrainLookMaxNs) watch.drain_look_ns += watch.drain_look_ns / 16 + 1;
    return wait_ns;
  }
  const uint64_t busy_ns = totals_publish(gpu);
  protocol::ClaimsGpu& account = process.account(gpu);
  account.in_flight.store(0);
  account.drained_epoch.store(epoch);
  // A full socket is no reason to lose the note: say it again at the next look.
  if (!heard && !link_note(MessageType::kDrained, static_cast<uint32_t>(gpu), epoch, busy_ns))
    return kLookWhileBusyNs;
  watch.drained_said = epoch + 1;
  watch.idle_said = false;
  return kSleepMaxNs;
}

// Carries out the order of a hold that has been acknowledged, and says so.
uint64_t order_look(int gpu, uint32_t word) {
  Watch& watch = watches[gpu];
  const bool out = (word & protocol::kHoldOut) != 0;
  if (!out && (word & protocol::kHoldIn) == 0) {
    watch.ordered = 0;  // the next one is given anew
    return kSleepMaxNs;
  }
  if (watch.ordered != word) {
    const uint64_t start_ns = clock_now_ns();
    watch.moved = out ? swap_out(gpu, &stopping) : swap_in(gpu, &stopping);
    watch.moved_ns = clock_now_ns() - start_ns;
    watch.ordered = word;
    watch.moved_said = false;
    // Its copies are waited for, and with a wait a driver gives back what pools do not use any
    // more: read once the hold has ended.
    residual_want();
    if (watch.moved.result == CUDA_SUCCESS) process.account(gpu).moved_word.store(word);
  }
  if (watch.moved_said) return kSleepMaxNs;
  watch.moved_said = link_moved(static_cast<uint32_t>(gpu), word, watch.moved.result,
                                watch.moved.bytes, watch.moved_ns);
  return watch.moved_said ? kSleepMaxNs : kLookWhileBusyNs;
}

// A hold is acknowledged after the drain of the lease that was closed for it.
uint64_t hold_look(int gpu, uint32_t lease_word) {
  Watch& watch = watches[gpu];
  const protocol::LeaseEntry& entry = process.entry(gpu);
  const uint32_t word = entry.hold.load();
  const uint32_t epoch = protocol::hold_epoch(word);
  if ((word & protocol::kHoldSet) == 0) return kSleepMaxNs;
  if (watch.held_said == epoch) return order_look(gpu, word);
  if (watch.drained_said != lease_epoch(lease_word) + 1) return kSleepMaxNs;
  if (watch.hold_seen != epoch) {
    watch.hold_seen = epoch;
    watch.hold_look_ns = kDrainLookMinNs;
  }
  if (!hold_step(gpu, epoch)) {
    const uint64_t wait_ns = watch.hold_look_ns;
    if (watch.hold_look_ns < kDrainLookMaxNs) watch.hold_look_ns += watch.hold_look_ns / 16 + 1;
    return wait_ns;
  }
  // Nothing passed if the lease has not been opened meanwhile.
  if (entry.lease.load() != lease_word) return kDrainLookMinNs;
  protocol::ClaimsGpu& account = process.account(gpu);
  account.held_epoch.store(epoch);
  if (!link_note(MessageType::kHeld, static_cast<uint32_t>(gpu), epoch, account.busy_ns.load()))
    return kLookWhileBusyNs;
  watch.held_said = epoch;
  return order_look(gpu, entry.hold.load());
}

uint64_t open_look(int gpu, uint32_t word, uint64_t now_ns) {
  Watch& watch = watches[gpu];
  protocol::ClaimsGpu& account = process.account(gpu);
  if (watch.open_epoch != lease_epoch(word) + 1) {
    // Idleness under an earlier lease does not count: a thread that waited for this one is about to
    // launch.
    watch.open_epoch = lease_epoch(word) + 1;
    watch.idle_since_ns = 0;
    watch.idle_said = false;
  }
  if ((word & protocol::kLeaseExclusive) != 0) {
    totals_publish(gpu);
    return kSleepMaxNs;
  }
  // First "nothing in flight", then the look: a launch in between finds 0 and wakes us.
  account.in_flight.store(0);
  const bool busy = contexts_look(gpu, false);
  if (busy) account.in_flight.store(1);
  const uint64_t busy_ns = totals_publish(gpu);
  const bool contended = (word & protocol::kLeaseContended) != 0;
  if (busy) {
    watch.idle_since_ns = 0;
    watch.idle_said = false;
    return contended ? kLookWhileContendedNs : kLookWhileBusyNs;
  }
  if (watch.idle_since_ns == 0) watch.idle_since_ns = now_ns;
  if (!contended || watch.idle_said) return kSleepMaxNs;
  const uint64_t grace_ns = process.entry(gpu).idle_grace_ns.load();
  const uint64_t idle_ns = now_ns - watch.idle_since_ns;
  if (idle_ns < grace_ns) return grace_ns - idle_ns;
  watch.idle_said =
      link_note(MessageType::kGateIdle, static_cast<uint32_t>(gpu), lease_epoch(word), busy_ns);
  return kSleepMaxNs;
}

// What the short way asks for all GPUs together, before anything is done about a closed one.
void leases_read(uint32_t (&words)[kTenantGpusMax]) {
  bool owned = true;
  for (uint32_t i = 0; i < process.gpu_count; ++i) {
    words[i] = process.entry(static_cast<int>(i)).lease.load();
    owned &= (words[i] & kLeaseOwned) == kLeaseOwned;
  }
  store_release(process.together, owned ? kLeaseOwned : 0u);
}

// Another look was due only for `idle_said`; a launch since then makes the GPU idle anew.
uint64_t gpus_look(uint64_t now_ns) {
  uint64_t sleep_ns_min = kSleepMaxNs;
  uint32_t words[kTenantGpusMax];
  leases_read(words);
  if (process.gpu_count != 0) {
    suspended_look();
    idle_look();
  }
  for (uint32_t i = 0; i < process.gpu_count; ++i) {
    const int gpu = static_cast<int>(i);
    const uint32_t word = words[i];
    const bool open = (word & protocol::kLeaseOpen) != 0 || load_acquire(process.lost_open) != 0;
    const uint64_t wait_ns =
        open ? open_look(gpu, word, now_ns) : closed_look(gpu, lease_epoch(word));
    if (wait_ns < sleep_ns_min) sleep_ns_min = wait_ns;
    const uint64_t hold_ns = open ? kSleepMaxNs : hold_look(gpu, word);
    if (hold_ns < sleep_ns_min) sleep_ns_min = hold_ns;
    const uint64_t share_ns = shares_step(gpu, now_ns);
    if (share_ns < sleep_ns_min) sleep_ns_min = share_ns;
  }
  if (now_ns - swept_ns >= kSweepNs) {
    swept_ns = now_ns;
    ended_sweep();
  }
  return sleep_ns_min;
}

// What the helper looked at before it sleeps.
struct Words {
  uint32_t lease[kTenantGpusMax];
  uint32_t hold[kTenantGpusMax];
};

bool waits_on_one;  // the kernel, or whoever answers in its place, does not know futex_waitv

bool words_wait_all(uint32_t wake_seen, const Words& seen, uint64_t timeout_ns) {
  WaitVector vector[1 + 2 * kTenantGpusMax];
  unsigned count = 0;
  vector[count++] = {wake_seen, reinterpret_cast<uintptr_t>(&wake_word), kFutex32 | kFutexPrivate,
                     0};
  if (connection_is_up()) {
    for (uint32_t i = 0; i < process.gpu_count; ++i) {
      const protocol::LeaseEntry& entry = process.lease->gpus[i];
      vector[count++] = {seen.lease[i], reinterpret_cast<uintptr_t>(&entry.lease.raw), kFutex32, 0};
      vector[count++] = {seen.hold[i], reinterpret_cast<uintptr_t>(&entry.hold.raw), kFutex32, 0};
    }
  }
  const uint64_t end_ns = clock_now_ns() + timeout_ns;
  timespec end{static_cast<time_t>(end_ns / 1000000000u), static_cast<long>(end_ns % 1000000000u)};
  const long rc = syscall(kFutexWaitV, vector, count, 0, &end, CLOCK_MONOTONIC);
  waits_on_one = rc < 0 && (errno == ENOSYS || errno == EPERM);
  return rc >= 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT;
}

// An older kernel waits on one word only, and a container's filter may know no other call (and
// answer what it likes): sleep on ours, and look at the leases every few milliseconds.
void words_wait(uint32_t wake_seen, const Words& seen, uint64_t timeout_ns) {
  if (!waits_on_one && words_wait_all(wake_seen, seen, timeout_ns)) return;
  futex_wait(&wake_word, wake_seen, timeout_ns < 2000000 ? timeout_ns : 2000000, false);
}

// What this process has used up to its end.
void account_close() {
  for (uint32_t i = 0; i < process.gpu_count; ++i) {
    const int gpu = static_cast<int>(i);
    (void)contexts_look(gpu, true);
    totals_publish(gpu);
    (void)shares_step(gpu, clock_now_ns());
  }
}

void* helper_main(void*) {
  prctl(PR_SET_NAME, "sluice", 0, 0, 0);
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  ThreadRecord* thread = thread_record();
  if (thread != nullptr) ++thread->depth;
  if (slot_wanted) {
    const bool taken = process_slot_take();
    const bool needed = load_acquire(process.alone) != 0;
    store_release(slot_answer, static_cast<uint32_t>(taken ? kTaken : kNoSlot));
    futex_wake_all(&slot_answer, false);
    if (!taken && needed) return nullptr;
  }
  // No context belongs to this thread; the driver call needs none.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool relaxed = false;
  while (load_acquire(stopping) == 0) {
    const uint32_t wake_seen = load_acquire(wake_word);
    const uint64_t now_ns = clock_now_ns();
    if (connection_look(now_ns)) {
      memset(watches, 0, sizeof watches);
      suspended_said = idle_told = 0;
    }
    uint64_t wait_ns = connection_wait_max_ns(kSleepMaxNs);
    Words words{};
    if (process_mode() == Mode::kActive) {
      process_quotas_choose();
      for (uint32_t i = 0; i < process.gpu_count; ++i) {
        words.lease[i] = process.lease->gpus[i].lease.load();
        words.hold[i] = process.lease->gpus[i].hold.load();
      }
      if (!relaxed && load_acquire(process.devices_known) != 0) {
        relaxed = driver.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
      }
      const uint64_t look_ns = gpus_look(now_ns);
      if (look_ns < wait_ns) wait_ns = look_ns;
      if (!hold_is_set()) {
        const uint64_t residual_ns = residual_look(now_ns);
        if (residual_ns < wait_ns) wait_ns = residual_ns;
        uses_settle();
      }
      process.claims->slots[process.slot].unhooked_seen.store(unknown_seen());
    }
    if (load_acquire(stopping) == 0) words_wait(wake_seen, words, wait_ns);
  }
  if (process_mode() == Mode::kActive && !hold_is_set()) account_close();
  store_release(parked, 1u);
  futex_wake_all(&parked, false);
  // The slot is this process's until its end, and a slot whose thread has ended is free.
  while (load_acquire(process.family_slot) != 0) futex_wait(&parked, 1, UINT64_MAX / 4, false);
  return nullptr;
}

}  // namespace

void helper_wake() {
  __atomic_add_fetch(&wake_word, 1, __ATOMIC_RELEASE);
  futex_wake_all(&wake_word, false);
}

void gate_want_say(int gpu, uint32_t epoch) {
  const uint64_t busy_ns = process.account(gpu).busy_ns.load();
  link_note(MessageType::kGateWant, static_cast<uint32_t>(gpu), epoch, busy_ns);
}

void memory_want_say(int gpu, uint32_t room, uint64_t bytes) {
  (void)link_memory_want(static_cast<uint32_t>(gpu), room, bytes);
}

bool helper_start(bool is_connected, bool asks) {
  uint32_t expected = 0;
  if (!__atomic_compare_exchange_n(&running, &expected, 1, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_RELAXED))
    return true;
  connection_begin(is_connected, asks, &stopping);
  store_release(slot_answer, static_cast<uint32_t>(kNone));
  slot_wanted = process_slot_wanted();
  sigset_t all, before;
  sigfillset(&all);
  // The thread's own on Linux; pthread_sigmask is of a younger version of libc (lookup.cpp).
  sigprocmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const bool made = pthread_create(&thread, &attributes, helper_main, nullptr) == 0;
  if (!made) store_release(running, 0u);
  pthread_attr_destroy(&attributes);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (!slot_wanted) return made;
  while (made && load_acquire(slot_answer) == kNone) {
    futex_wait(&slot_answer, kNone, 1'000'000'000, false);
  }
  // Beside a broker the account is the broker's, too.
  return load_acquire(process.alone) != 0 ? load_acquire(slot_answer) == kTaken : made;
}

void helper_stop() {
  process_fork_notice();
  if (load_acquire(running) == 0 || load_acquire(stopping) != 0) return;
  const ErrnoGuard guard;
  // Who ends without this word was lost.
  if (process_mode() == Mode::kActive) process.claims->slots[process.slot].leaving.store(1);
  store_release(stopping, 1u);
  helper_wake();
  // The helper never waits in the driver for long; if it does, the process must still be able to
  // exit.
  for (int i = 0; i < 5 && load_acquire(parked) == 0; ++i)
    futex_wait(&parked, 0, 10'000'000, false);
  // Nobody acknowledges drains any more; what the program still launches while it exits is not held
  // back. Nobody brings memory back either: what needs it fails.
  if (swap_bytes_out() != 0) process_refuse(true);
  process_set_lost_open(true);
}

void helper_reset_after_fork() {
  store_release(running, 0u);
  store_release(stopping, 0u);
  store_release(parked, 0u);
  connection_reset_after_fork();
  memset(watches, 0, sizeof watches);
}

}  // namespace sluice::interpose

// The gate's uncommon side: first launches, closed leases, full windows, and the drain.
#include "interpose/gate.h"

#include "interpose/account.h"
#include "interpose/activity.h"
#include "interpose/alone.h"
#include "interpose/say.h"
#include "interpose/touch.h"

namespace sluice::interpose {
namespace {

using protocol::kLeaseExclusive;
using protocol::kLeaseOpen;

// How long a gate sleeps before it looks at the socket again.
constexpr uint64_t kGateSliceNs = 50'000'000;
// How often one that was let through looks whether the lease is open for all.
constexpr uint64_t kLetLookNs = 1'000'000;
// How often a launch looks again at a window that is full: at first as soon as others have had a
// turn, and then by a share of the time it has waited, so that it comes late by no more than that.
constexpr uint64_t kWindowYieldNs = 200'000;
constexpr uint64_t kWindowLookShare = 64;
constexpr uint64_t kWindowLookMaxNs = 100'000;
// So long before the end of what is in flight the next launch may go: what a thread needs to see an
// end, on a virtual machine.
constexpr double kWindowLeadNs = 100'000;
// A GateWant is said again after so many slices: a restarted broker knows nothing of the first.
constexpr int kWantAgainSlices = 20;

uint32_t want_said[protocol::kTenantGpusMax];  // epoch + 1 of the last GateWant
// Exclusive launches are counted but not fenced; the drain that ends an exclusive lease asks the
// contexts instead.
uint64_t exclusive_drained[protocol::kTenantGpusMax];
// No sum of theirs: the next drain asks the contexts.
constexpr uint64_t kNotDrained = UINT64_MAX;

void want_once(int gpu, uint32_t epoch, bool again) {
  const uint32_t said = epoch + 1;
  if (__atomic_exchange_n(&want_said[gpu], said, __ATOMIC_ACQ_REL) != said || again)
    gate_want_say(gpu, epoch);
}

// Sleeps until the lease is open (or the broker is lost for good, or other pages came, in which the
// GPU may have another number). Nobody may be inside. True: it is closed, and the thread may launch
// once all the same.
bool lease_wait(int gpu, uint32_t numbering) {
  const WaitScope told(protocol::WaitReason::kGate);
  const protocol::LeaseEntry& entry = process.entry(gpu);
  const uint64_t start_ns = clock_now_ns();
  bool let = false;
  for (int slices = 1;; ++slices) {
    const uint32_t word = entry.lease.load();
    if ((word & kLeaseOpen) != 0 || lease_is_void()) break;
    if (load_acquire(process.numbering) != numbering) return false;
    let = load_acquire(process.alone) != 0 && share_lets_through(ShareGate::kLease, gpu, word);
    if (let) break;
    want_once(gpu, protocol::lease_epoch(word), slices % kWantAgainSlices == 0);
    futex_wait(&entry.lease.raw, word, kGateSliceNs, true);
  }
  gate_wait_tell(gpu, clock_now_ns() - start_ns);
  return let;
}

// What a launch of the pass takes, as far as it is known.
void cost_look(LaunchPass& pass, const ContextRecord& context) {
  pass.alone = false;
  pass.graph = nullptr;
  pass.launch_ns = context.mean_ns;
  if (pass.kind != LaunchKind::kGraph) return;
  pass.graph = graph_cost(pass.exec);
  pass.launch_ns = pass.graph != nullptr ? graph_mean_ns(*pass.graph) : 0;
  pass.alone = pass.launch_ns <= 0;
  if (pass.alone || pass.graph->until_measured > 0) return;
  // Due; but a stretch of nothing else tells as well what one takes.
  const StreamRecord& stream = *pass.stream;
  const Work work = stream.submitted();
  const uint64_t graphs = work.graphs - stream.fenced.graphs;
  const bool pure = graphs == work.launches - stream.fenced.launches && !stream.graphs_differ &&
                    (graphs == 0 || stream.graph == pass.graph) && stream.owner == pass.thread;
  pass.alone = !pure;
  if (pure) pass.graph->until_measured = kGraphMeasureEvery;
}

// Whether what is in flight is one kernel that ends about now, by what kernels take and by when it
// began. While the thread waited for its end to show, the GPU would be idle: a host sees an end
// kWindowLeadNs late, which of kernels of a millisecond took 6 %.
bool flight_ends_now(const ContextRecord& context, const StreamRecord& stream) {
  if (launches_in_flight(context) != 1 || stream.launches() == stream.done.launches) return false;
  if (!stream.mark_known || context.host_ahead_ns == 0 || context.mean_ns <= 0) return false;
  const double begin_ns = stretch_begin(context, stream) + context.host_ahead_ns;
  const double left_ns = begin_ns + context.mean_ns - static_cast<double>(clock_now_ns());
  return left_ns <= kWindowLeadNs && left_ns >= -kWindowLeadNs;
}

// True when there is room in the window for the launch. One that is longer than the window needs it
// to itself.
bool window_has_room(const LaunchPass& pass, const ContextRecord& context, uint64_t window_ns) {
  if (window_ns == 0 || launches_in_flight(context) == 0) return true;
  if (pass.kind == LaunchKind::kKernel && flight_ends_now(context, *pass.stream)) return true;
  const double unmeasured_ns =
      pass.kind == LaunchKind::kGraph ? kUnmeasuredNs : kUnmeasuredKernelNs;
  const double launch_ns = pass.launch_ns > 0 ? pass.launch_ns : unmeasured_ns;
  return time_in_flight_ns(context, pass.stream, launch_ns) <= static_cast<double>(window_ns);
}

// Whether a launch into the stream, which finds the window full, waits for room; false = it goes.
bool window_keeps_out(ContextRecord& context, StreamRecord& stream) {
  Patience& patience = stream.window_patience;
  fences_complete(context, nullptr, Others::kFence);
  InFlight seen{};
  in_flight_add(context, patience.first, &seen);
  if (seen.launches == 0) return false;  // nothing that we would see the end of
  const uint64_t now_ns = clock_now_ns();
  // Where something passes, what is in flight does not wait for the launch.
  if (stream.window_passed != context.passed && patience.next_ns != 0)
    patience.next_ns = now_ns + patience.step_ns;
  stream.window_passed = context.passed;
  return !patience_ends(patience, seen, now_ns);
}

void window_wait(uint64_t since_ns) {
  const uint64_t waited_ns = clock_now_ns() - since_ns;
  if (waited_ns < kWindowYieldNs) {
    sched_yield();
    return;
  }
  const uint64_t look_ns = waited_ns / kWindowLookShare;
  sleep_ns(look_ns < kWindowLookMaxNs ? look_ns : kWindowLookMaxNs);
}

// True if all before has its end fence, and the program has done something else since: a driver may
// tell late that the fence has passed, and the time until the launch is idle. Leaves room for end
// fences. What the calls themselves take does not count: the fences make them longer.
bool launch_lies_apart(const StreamRecord& stream) {
  return stream.launches() == stream.fenced.launches && stream.fence_count < kFencesMax / 2 &&
         clock_now_ns() - stream.left_ns >= kBurstGapNs;
}

// Puts the fence that a launch needs before it: where a busy interval begins, or the work before
// one that is measured alone ends, or that which only an event of the context is behind; and where
// the stream has done something else meanwhile, or may have been idle.
void fence_before(LaunchPass& pass, ContextRecord& context) {
  StreamRecord& stream = *pass.stream;
  if (SLUICE_UNLIKELY(context.legacy_waits) && stream.is_legacy()) blocking_interrupt(context);
  stream.idle = false;
  pass.generation = stream.generation;
  if (stream.launches() == stream.done.launches && stream.fence_count == 0) {
    stream.mark_known = false;
    stream.start_late_ns = 0;
    stream.start_recorded_ns = clock_now_ns();
    stream.start_thread = pass.thread->number;
    if (context.frontier_ns == kNoFrontier) {
      store_release(context.frontier_ns, stream.start_recorded_ns);
      activity_wakes(context.device);
    }
    if (!fence_record(context, stream, true)) stream.start_recorded_ns = 0;
  } else {
    if (stream.awaits_context() || (pass.alone && stream.launches() != stream.fenced.launches))
      (void)fence_record(context, stream, false);
    if (stream.interrupted || launch_lies_apart(stream)) {
      stream.start_recorded_ns = clock_now_ns();
      stream.start_thread = pass.thread->number;
      (void)fence_record(context, stream, true);
      stream.start_recorded_ns = 0;  // the launch begins no later than its fence passes
    }
  }
  stream.interrupted = false;
}

// The stream's record, fenced. False = the window is full.
bool stream_prepare(LaunchPass& pass, uint64_t window_ns) {
  ContextRecord& context = *pass.place.context;
  const CurrentScope current(pass.place);
  const LockScope scope(context.lock);
  StreamRecord* stream = stream_record(context, pass.handle, pass.thread);
  pass.stream = stream;
  if (stream == nullptr) return true;
  fences_harvest(context, *stream);
  if (stream->launches() != stream->fenced.launches) (void)unseen_end(context, *stream);
  cost_look(pass, context);
  bool room = window_has_room(pass, context, window_ns);
  if (!room) {
    // What other streams have finished makes room.
    fences_harvest(context);
    cost_look(pass, context);
    room = window_has_room(pass, context, window_ns);
  }
  if (room) {
    stream->window_patience.next_ns = 0;
  } else if (window_keeps_out(context, *stream)) {
    return false;
  }
  fence_before(pass, context);
  return true;
}

// The leases that a broker gives a tenant with several GPUs open and close together. One that is
// open while another is closed lets members of a gang through, who wait for each other. (Without a
// broker each GPU's share is kept by itself.)
bool lease_lets_through() {
  if (load_acquire(process.alone) != 0) return false;
  bool open = false, closed = false;
  for (uint32_t i = 0; i < process.gpu_count; ++i) {
    const bool one = (process.entry(static_cast<int>(i)).lease.load() & kLeaseOpen) != 0;
    open |= one;
    closed |= !one;
  }
  return open && closed;
}

// Whether the thread may launch under this lease word. One launch for each time it is let through:
// it helps who waits for it to finish. With more it would only get ahead and wait in its turn, and
// the members would never all be empty together.
bool lease_admits(ThreadRecord& thread, int gpu, uint32_t word) {
  if (SLUICE_LIKELY(process.gpu_count == 1) || !lease_lets_through()) return true;
  const uint32_t epoch = word & ~protocol::kLeaseContended;
  if (thread.let_through[gpu] == epoch) return false;
  thread.let_through[gpu] = epoch;
  return true;
}

enum class Entered : uint8_t {
  kLeased,
  kUncounted,  // no lease binds anybody
  kMoved,      // not at all: pages came in which the GPU may have another number
};

// Raises `inside` under an open lease, waiting as long as it takes. `numbering`: by which the GPU
// is known.
SLUICE_ALWAYS_INLINE Entered lease_enter(ThreadRecord& thread, int gpu, uint32_t numbering,
                                         uint32_t* lease) {
  bool let = false;
  for (;;) {
    raise_word(thread.inside, static_cast<uint32_t>(gpu) + 1);
    const uint32_t word = process.entry(gpu).lease.load();
    const bool moved = load_acquire(process.numbering) != numbering;
    const bool open = (word & kLeaseOpen) != 0;
    *lease = word | kLeaseOpen;
    if (!moved && (open ? lease_admits(thread, gpu, word) : let)) return Entered::kLeased;
    if (!moved && lease_is_void()) return Entered::kUncounted;
    store_release(thread.inside, 0u);
    if (moved) return Entered::kMoved;
    if (open) {
      // The others may open as well, which does not change this word.
      futex_wait(&process.entry(gpu).lease.raw, word, kLetLookNs, true);
    } else {
      let = lease_wait(gpu, numbering);
    }
  }
}

void cache_fill(LaunchPass& pass, int32_t budget_ns) {
  // The short way asks for the lease of the thread's GPU.
  if (!pass.place.is_current && pass.place.gpu != pass.thread->gpu) return;
  StreamCache& cache = stream_cache_of(*pass.thread, pass.handle);
  if (cache.record != pass.stream || cache.graph == nullptr) cache.graph = &graph_none;
  cache.stream = pass.handle;
  cache.record = pass.stream;
  cache.generation = pass.generation;
  const bool alone = pass.stream->owner == pass.thread;
  if (process.gpu_count > 1 && lease_lets_through()) budget_ns = 0;
  cache.budget_ns = alone ? budget_ns : 0;
  cache.shared_budget_ns = alone ? 0 : budget_ns;
  cache.kernel_ns = budget_share(pass.stream->context->mean_ns);
  pass.thread->recent = &cache;
  if (pass.kind == LaunchKind::kKernel) {
    // Kernels not measured yet have no budget, whatever graphs have.
    if (pass.stream->context->mean_ns <= 0) cache.budget_ns = cache.shared_budget_ns = 0;
    return;
  }
  cache.graph_ns = budget_share(pass.launch_ns);
  if (alone) pass.stream->graphs_price(static_cast<uint32_t>(cache.graph_ns));
  // A graph that is not measured, or has no record, or may take memory, has no short way.
  const bool plain = pass.graph != nullptr && pass.launch_ns > 0 && !graph_memory_used();
  cache.graph = plain ? pass.graph : &graph_none;
}

// Counts the launch, with what it is expected to take. With the context's lock held.
void work_count(LaunchPass& pass) {
  StreamRecord& stream = *pass.stream;
  if (pass.kind == LaunchKind::kGraph) {
    const double learned_ns = pass.launch_ns > 0 ? pass.launch_ns : kUnmeasuredNs;
    const auto graph_ns =
        static_cast<uint64_t>(learned_ns < kLaunchNsMin ? kLaunchNsMin : learned_ns);
    if (stream.owner == pass.thread) {
      stream.priced_ns += graph_ns;
      ++stream.priced_graphs;
      store_relaxed(stream.owner_graphs, stream.owner_graphs + 1);
    } else {
      stream.foreign_graph_ns += graph_ns;
      ++stream.foreign_graphs;
    }
  }
  pass_count(pass);
}

// What no drain would see is not launched.
void unrecorded(LaunchPass& pass, const char* what) {
  pass.way = LaunchPass::Way::kRefused;
  unrecorded_say(what);
}

// What the meter learns from who launched what when. With the context's lock held.
void launch_note(LaunchPass& pass) {
  StreamRecord& stream = *pass.stream;
  if (pass.kind == LaunchKind::kGraph) {
    // What the stream's owner launches by the short way meanwhile is not seen here.
    const bool others = stream.submitted().graphs - stream.fenced.graphs > 1;
    const bool own = stream.owner == pass.thread;
    if (others ? !own || stream.graph != pass.graph : !own && !pass.alone)
      stream.graphs_differ = true;
    stream.graph = pass.graph;
    if (pass.alone && pass.graph != nullptr) pass.graph->until_measured = kGraphMeasureEvery;
  }
  // The first launch behind a start fence, and the only one: the stream was idle until it came.
  if (stream.start_recorded_ns != 0 && stream.launches() == stream.done.launches + 1) {
    stream.start_late_ns = static_cast<double>(pass.begin_ns - stream.start_recorded_ns);
    stream.start_given_ns = pass.begin_ns;
  }
  stream.start_recorded_ns = 0;
}

}  // namespace

void gate_wait_tell(int gpu, uint64_t waited_ns) {
  process.account(gpu).gate_waits.add(1);
  process.account(gpu).gate_wait_ns.add(waited_ns);
  size_t kind = 0;
  for (const uint64_t bound_ns : protocol::kGateWaitBounds_ns) kind += waited_ns > bound_ns ? 1 : 0;
  process.claims->slots[process.slot].gate_wait_counts[kind].add(1);
}

// A stream's context is asked for before the gate, which the stream chooses. False: the launch is
// not gated, as it is none of the tenant's GPUs' or captured.
SLUICE_ALWAYS_INLINE bool launch_place(ThreadRecord& thread, LaunchPass* pass) {
  touch_begin(thread);
  const bool found = stream_place(thread, pass->handle, &pass->place);
  touch_end(thread);
  if (!found || pass->place.gpu < 0 || stream_is_capturing(pass->handle)) return false;
  if (pass->place.context == nullptr) unrecorded(*pass, "a context's record");
  return true;
}

// By the pages that are in place now.
SLUICE_NOINLINE static bool launch_place_again(ThreadRecord& thread, LaunchPass* pass,
                                               uint32_t* numbering) {
  *numbering = load_acquire(process.numbering);
  return launch_place(thread, pass) && pass->place.context != nullptr;
}

// Passes a launch that no lease binds. A broker that comes meanwhile is told of no drain before it
// has returned.
SLUICE_NOINLINE static void pass_uncounted(LaunchPass& pass) {
  pass.way = LaunchPass::Way::kUncounted;
  if (load_acquire(process.lost_refuse) == 0) return;
  store_release(pass.thread->inside, 0u);
  pass.way = LaunchPass::Way::kRefused;
}

// With no broker yet. False: one has just come.
SLUICE_NOINLINE static bool launch_offline(LaunchPass& pass) {
  ThreadRecord* thread = pass.thread = thread_record();
  if (thread == nullptr) {
    unrecorded(pass, "a thread's record");
    return true;
  }
  if (thread->depth != 0 || thread->inside != 0) return true;
  raise_word(thread->inside, kInsideAnywhere);
  pass.way = LaunchPass::Way::kUncounted;
  if (SLUICE_LIKELY(process_mode() == Mode::kOffline)) return true;
  store_release(thread->inside, 0u);
  pass.way = LaunchPass::Way::kFree;
  return false;
}

void launch_admit(LaunchPass& pass) {
  const ErrnoGuard guard;
  pass.way = LaunchPass::Way::kFree;
  const Mode mode = process_begin(0);
  if (mode == Mode::kDenied) pass.way = LaunchPass::Way::kRefused;
  if (mode == Mode::kOffline && launch_offline(pass)) return;
  if (mode != Mode::kActive && mode != Mode::kOffline) return;
  ThreadRecord* thread = pass.thread = thread_record();
  if (thread == nullptr) return unrecorded(pass, "a thread's record");
  if (thread->depth != 0 || thread->inside != 0) return;
  const DepthScope depth(thread);
  uint32_t numbering = load_acquire(process.numbering);
  if (!launch_place(*thread, &pass) || pass.place.context == nullptr) return;
  uint64_t window_since_ns = 0;
  for (;;) {
    const int gpu = pass.place.gpu;
    if (load_acquire(own_share) != nullptr) own_share_wait(gpu);
    uint32_t word = 0;
    const Entered entered = lease_enter(*thread, gpu, numbering, &word);
    if (entered == Entered::kUncounted) return pass_uncounted(pass);
    if (entered == Entered::kMoved) {
      if (!launch_place_again(*thread, &pass, &numbering)) return;
      continue;
    }
    if ((word & kLeaseExclusive) != 0) {
      pass.way = LaunchPass::Way::kExclusive;
      return;
    }
    if (stream_prepare(pass, process.entry(gpu).window_ns.load())) break;
    store_release(thread->inside, 0u);
    if (window_since_ns == 0) window_since_ns = clock_now_ns();
    window_wait(window_since_ns);
  }
  if (pass.stream == nullptr) {
    store_release(thread->inside, 0u);
    return unrecorded(pass, "a stream's record");
  }
  pass.way = LaunchPass::Way::kLooked;
  pass.begin_ns = clock_now_ns();
}

// By pages that came since the gate. Of one that is not the tenant's any more nothing is read that
// matters.
SLUICE_NOINLINE static int gpu_now(const ContextRecord& context) {
  const int gpu = device_gpu(context.device);
  return gpu < 0 ? 0 : gpu;
}

void launch_look(LaunchPass& pass, bool submitted) {
  const ErrnoGuard guard;
  const DepthScope depth(pass.thread);
  ContextRecord& context = *pass.stream->context;
  const bool moved = load_relaxed(pass.thread->renumbered) != 0;
  const int gpu = SLUICE_UNLIKELY(moved) ? gpu_now(context) : pass.place.gpu;
  const uint64_t window_ns = process.entry(gpu).window_ns.load();
  {
    const CurrentScope current(pass.place);
    const LockScope scope(context.lock);
    if (submitted) {
      work_count(pass);
      launch_note(pass);
    }
    const Look look{window_ns, pass.begin_ns, pass.launch_ns, pass.alone};
    const bool over = SLUICE_UNLIKELY(pass.waits) && work_is_seen_over(context, *pass.stream);
    const int32_t budget = over ? 0 : launch_budget(context, *pass.stream, look);
    // A share of its own is asked for at every launch.
    cache_fill(pass, load_acquire(own_share) != nullptr ? 0 : budget);
    pass.thread->last_stream = pass.stream;
    pass.stream->left_ns = clock_now_ns();
  }
  if (process.account(gpu).in_flight.load() == 0) {
    process.account(gpu).in_flight.store(1);
    helper_wake();
  }
  store_release(pass.thread->inside, 0u);
}

namespace {

// `anywhere`: whatever GPU they are inside for.
bool somebody_inside(int gpu, bool anywhere) {
  for (int i = 0, n = thread_count(); i < n; ++i) {
    const ThreadRecord& thread = *thread_at(i);
    const uint32_t inside = load_acquire(thread.inside);
    if (inside == static_cast<uint32_t>(gpu) + 1 || inside == kInsideAnywhere) return true;
    if (anywhere && inside != 0) return true;
    // By the numbers of pages that were it may be the GPU.
    if (inside != 0 && load_acquire(thread.renumbered) != 0) return true;
  }
  return false;
}

// Tells the questions of context_passed apart: of a drain, by the launches so far, and of a hold,
// by its epoch.
constexpr uint64_t kExclusiveQuestion = 1ull << 63;

// Of all GPUs: one that is counted for the thread's may have gone into another one's stream.
uint64_t exclusive_launches() {
  uint64_t sum = 0;
  for (int i = 0, n = thread_count(); i < n; ++i) {
    for (const uint64_t& launches : thread_at(i)->exclusive_launches) sum += load_relaxed(launches);
  }
  return sum;
}

}  // namespace

// Under exclusive leases a launch is inside for its thread's GPU, wherever its stream is.
static bool gpus_are_mixed() {
  return process.gpu_count > 1 &&
         (process.lease->tenant_class == protocol::TenantClass::kExclusive ||
          exclusive_launches() != 0);
}

bool drain_step(int gpu) {
  if (somebody_inside(gpu, gpus_are_mixed())) return false;
  const uint64_t exclusive = exclusive_launches();
  const bool wait_context = exclusive != exclusive_drained[gpu];
  bool drained = true;
  for (int i = 0, n = context_count(); i < n; ++i) {
    ContextRecord& context = *context_at(i);
    if (load_acquire(context.life) == kContextFree || device_gpu(context.device) != gpu) continue;
    const LockScope scope(context.lock);
    // The driver is ending it, and waits for its work.
    if (!context.is_usable()) return false;
    driver.cuCtxSetCurrent(context.context);
    if (wait_context) drained &= context_passed(context, kExclusiveQuestion | exclusive);
    const uint64_t begun_ns = clock_now_ns();
    fences_complete(context, nullptr, Others::kFence);
    context.looked_ns = begun_ns;
    const uint64_t asked_ns = clock_now_ns();
    fences_harvest(context);
    stretches_charge(context, asked_ns);
    drained &= launches_in_flight(context) == 0;
  }
  if (drained) exclusive_drained[gpu] = exclusive;
  return drained;
}

namespace {

bool somebody_touches() {
  for (int i = 0, n = thread_count(); i < n; ++i) {
    if (load_acquire(thread_at(i)->touching) != 0) return true;
  }
  return false;
}

}  // namespace

bool hold_step(int gpu, uint32_t epoch) {
  // The order matters: a thread that found a capture in progress passes the gate, so first there is
  // no capture any more, and then nobody who passed is left inside. One of those may have begun
  // another.
  if (load_acquire(captures_active) != 0) return false;
  threads_barrier();
  if (somebody_touches() || load_acquire(captures_active) != 0) return false;
  bool passed = true;
  for (int i = 0, n = context_count(); i < n; ++i) {
    ContextRecord& context = *context_at(i);
    if (load_acquire(context.life) == kContextFree || device_gpu(context.device) != gpu) continue;
    const LockScope scope(context.lock);
    if (!context.is_usable()) return false;
    passed &= context_passed(context, epoch);
  }
  return passed;
}

void gate_adopted() {
  // What was launched meanwhile, while nobody bound anything, was not counted.
  for (uint64_t& count : exclusive_drained) count = kNotDrained;
  for (uint32_t& said : want_said) store_release(said, 0u);
  questions_forget();
}

void gate_reset_after_fork() {
  for (uint32_t& said : want_said) store_release(said, 0u);
  for (uint64_t& count : exclusive_drained) count = 0;
}

}  // namespace sluice::interpose

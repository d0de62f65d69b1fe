// The gate's uncommon side: first launches, closed leases, full windows, and the drain.
#include "interpose/gate.h"

#include "interpose/account.h"
#include "interpose/alone.h"

namespace sluice::interpose {
namespace {

using protocol::kLeaseExclusive;
using protocol::kLeaseOpen;

// How long a gate sleeps before it looks at the socket again.
constexpr uint64_t kGateSliceNs = 50'000'000;
// A GateWant is said again after so many slices: a restarted broker knows nothing of the first.
constexpr int kWantAgainSlices = 20;

uint32_t want_said[protocol::kTenantGpusMax];  // epoch + 1 of the last GateWant
// Exclusive launches are counted but not fenced; the drain that ends an exclusive lease waits for
// the contexts instead.
uint64_t exclusive_drained[protocol::kTenantGpusMax];

void want_once(int gpu, uint32_t epoch, bool again) {
  const uint32_t said = epoch + 1;
  if (__atomic_exchange_n(&want_said[gpu], said, __ATOMIC_ACQ_REL) != said || again)
    gate_want_say(gpu, epoch);
}

// Nobody will open it, and launches do not wait: they pass, or are refused.
bool lease_is_void() {
  return (load_acquire(process.lost_open) | load_acquire(process.lost_refuse)) != 0;
}

// Sleeps until the lease is open (or the broker is lost for good). Nobody may be inside.
void lease_wait(int gpu) {
  const protocol::LeaseEntry& entry = process.entry(gpu);
  const uint64_t start_ns = clock_now_ns();
  for (int slices = 1;; ++slices) {
    const uint32_t word = entry.lease.load();
    if ((word & kLeaseOpen) != 0 || lease_is_void()) break;
    want_once(gpu, protocol::lease_epoch(word), slices % kWantAgainSlices == 0);
    futex_wait(&entry.lease.raw, word, kGateSliceNs, true);
  }
  process.account(gpu).gate_waits.add(1);
  process.account(gpu).gate_wait_ns.add(clock_now_ns() - start_ns);
}

// True when there is room in the window; otherwise *wait_for is the fence to wait for (nullptr:
// none to be had).
bool window_has_room(ContextRecord& context, uint64_t window_ns, CUevent* wait_for) {
  *wait_for = nullptr;
  if (window_ns == 0) return true;
  const uint64_t in_flight = launches_in_flight(context);
  if (in_flight == 0) return true;
  // Not measured yet: one launch fills the window.
  if (context.mean_ns > 0 &&
      static_cast<double>(in_flight) * context.mean_ns < static_cast<double>(window_ns)) {
    return true;
  }
  fences_complete(context, nullptr, false);
  *wait_for = fence_oldest(context);
  return *wait_for == nullptr;
}

// The stream's record with a start fence where the stream is idle. False = the window is full, wait
// for *wait_for.
bool stream_prepare(LaunchPass& pass, uint64_t window_ns, CUevent* wait_for) {
  ContextRecord& context = *pass.thread->context_record;
  const LockScope scope(context.lock);
  StreamRecord* stream = stream_record(context, pass.handle, pass.thread);
  pass.stream = stream;
  *wait_for = nullptr;
  if (stream == nullptr) return true;
  fences_harvest(context);
  if (!window_has_room(context, window_ns, wait_for)) return false;
  store_release(stream->attention, 0u);
  if (stream->launches() == stream->done && stream->fence_count == 0) {
    stream->mark_known = false;
    (void)fence_record(context, *stream, true);
  }
  return true;
}

// Raises `inside` under an open lease, waiting as long as it takes. Returns the lease word; 0 =
// pass without a lease.
uint32_t lease_enter(ThreadRecord& thread, int gpu) {
  for (;;) {
    raise_word(thread.inside, static_cast<uint32_t>(gpu) + 1);
    const uint32_t word = process.entry(gpu).lease.load();
    if ((word & kLeaseOpen) != 0) return word;
    if (lease_is_void()) return 0;
    store_release(thread.inside, 0u);
    lease_wait(gpu);
  }
}

void cache_fill(LaunchPass& pass, int budget) {
  StreamCache& cache = stream_cache_of(*pass.thread, pass.handle);
  cache.stream = pass.handle;
  cache.record = pass.stream;
  cache.generation = load_acquire(stream_generation);
  const bool alone = pass.stream->owner == pass.thread;
  cache.budget = alone ? budget : 0;
  cache.shared_budget = alone ? 0 : budget;
}

}  // namespace

void launch_admit(LaunchPass& pass) {
  const ErrnoGuard guard;
  pass.way = LaunchPass::Way::kFree;
  const Mode mode = process_enter();
  if (mode == Mode::kDenied) pass.way = LaunchPass::Way::kRefused;
  if (mode != Mode::kActive) return;
  ThreadRecord* thread = pass.thread = thread_record();
  if (thread == nullptr || thread->depth != 0 || thread->inside != 0) return;
  const DepthScope depth(thread);
  if (!thread_context(thread) || thread->gpu < 0 || thread->context_record == nullptr) return;
  if (stream_is_capturing(pass.handle)) return;
  const int gpu = thread->gpu;
  for (;;) {
    hold_wait(gpu);
    if (load_acquire(own_share) != nullptr) own_share_wait(gpu);
    const uint32_t word = lease_enter(*thread, gpu);
    if (word == 0) {
      store_release(thread->inside, 0u);
      if (load_acquire(process.lost_refuse) != 0) pass.way = LaunchPass::Way::kRefused;
      return;
    }
    if ((word & kLeaseExclusive) != 0) {
      pass.way = LaunchPass::Way::kExclusive;
      return;
    }
    CUevent wait_for;
    if (stream_prepare(pass, process.entry(gpu).window_ns.load(), &wait_for)) break;
    store_release(thread->inside, 0u);
    const RelaxedScope relaxed;
    driver.cuEventSynchronize(wait_for);
  }
  pass.way = pass.stream != nullptr ? LaunchPass::Way::kLooked : LaunchPass::Way::kFree;
  if (pass.stream == nullptr) store_release(thread->inside, 0u);
}

void launch_look(LaunchPass& pass, bool submitted) {
  const ErrnoGuard guard;
  const DepthScope depth(pass.thread);
  const int gpu = pass.thread->gpu;
  if (submitted) launch_count(*pass.stream, pass.thread);
  {
    ContextRecord& context = *pass.stream->context;
    const LockScope scope(context.lock);
    const bool graph = pass.kind == LaunchKind::kGraph;
    if (graph && submitted)
      __atomic_add_fetch(&device_totals[context.device].graph_launches, 1, __ATOMIC_RELAXED);
    const int budget = launch_budget(context, *pass.stream, process.entry(gpu).window_ns.load(),
                                     clock_now_ns(), graph);
    // A share of its own is asked for at every launch.
    cache_fill(pass, load_acquire(own_share) != nullptr ? 0 : budget);
    pass.thread->last_stream = pass.stream;
  }
  if (process.account(gpu).in_flight.load() == 0) {
    process.account(gpu).in_flight.store(1);
    helper_wake();
  }
  store_release(pass.thread->inside, 0u);
}

void hold_wait(int gpu) {
  const protocol::LeaseEntry& entry = process.entry(gpu);
  uint32_t word = entry.hold.load();
  while (SLUICE_UNLIKELY((word & protocol::kHoldSet) != 0 && !lease_is_void())) {
    const ErrnoGuard guard;
    futex_wait(&entry.hold.raw, word, kGateSliceNs, true);
    // The broker that set the hold may be gone, and its successor wait for this thread.
    account_step_aside();
    word = entry.hold.load();
  }
}

bool gpu_is_busy(int gpu) {
  bool busy = false;
  for (int i = 0; i < kContextsMax; ++i) {
    ContextRecord& context = *context_at(i);
    if (load_acquire(context.alive) == 0 || device_gpu(context.device) != gpu) continue;
    const LockScope scope(context.lock);
    busy |= launches_in_flight(context) != 0;
  }
  return busy;
}

namespace {

bool somebody_inside(int gpu) {
  for (int i = 0, n = thread_count(); i < n; ++i) {
    if (load_acquire(thread_at(i)->inside) == static_cast<uint32_t>(gpu) + 1) return true;
  }
  return false;
}

uint64_t exclusive_launches(int gpu) {
  uint64_t sum = 0;
  for (int i = 0, n = thread_count(); i < n; ++i)
    sum += load_relaxed(thread_at(i)->exclusive_launches[gpu]);
  return sum;
}

}  // namespace

bool drain_step(int gpu) {
  if (somebody_inside(gpu)) return false;
  const uint64_t exclusive = exclusive_launches(gpu);
  const bool wait_context = exclusive != exclusive_drained[gpu];
  bool drained = true;
  for (int i = 0; i < kContextsMax; ++i) {
    ContextRecord& context = *context_at(i);
    if (load_acquire(context.alive) == 0 || device_gpu(context.device) != gpu) continue;
    const LockScope scope(context.lock);
    driver.cuCtxSetCurrent(context.context);
    // The lock keeps captures from beginning; a wait on a context that is being captured would
    // break the capture.
    if (wait_context &&
        (load_acquire(captures_active) != 0 || driver.cuCtxSynchronize() != CUDA_SUCCESS)) {
      drained = load_acquire(captures_active) == 0 && drained;
    }
    fences_complete(context, nullptr, true);
    fences_harvest(context);
    drained &= launches_in_flight(context) == 0;
  }
  if (drained) exclusive_drained[gpu] = exclusive;
  return drained;
}

void gate_reset_after_fork() {
  for (uint32_t& said : want_said) store_release(said, 0u);
  for (uint64_t& count : exclusive_drained) count = 0;
}

}  // namespace sluice::interpose

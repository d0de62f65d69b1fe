// See touch.h.
#include "interpose/touch.h"

#include "interpose/account.h"
#include "interpose/activity.h"
#include "interpose/residual.h"
#include "interpose/say.h"
#include "interpose/swap.h"

namespace sluice::interpose {
namespace {

// How long a gate sleeps before it looks again; see gate.cpp.
constexpr uint64_t kHoldSliceNs = 50'000'000;
constexpr int kWantAgainSlices = 20;

uint32_t want_said[protocol::kTenantGpusMax];  // the hold whose end somebody was said to wait for

// The broker is to know who wants its memory back.
void want_once(int gpu, uint32_t hold, bool again) {
  const uint32_t said = protocol::hold_epoch(hold);
  if (__atomic_exchange_n(&want_said[gpu], said, __ATOMIC_ACQ_REL) != said || again)
    gate_want_say(gpu, protocol::lease_epoch(process.entry(gpu).lease.load()));
}

// The calling thread's record when the call is the program's own and under a tenant. `unrecorded`:
// it would be, if there were one.
ThreadRecord* caller(bool* unrecorded = nullptr) {
  if (process_enter() != Mode::kActive) return nullptr;
  ThreadRecord* thread = thread_record();
  if (SLUICE_UNLIKELY(thread == nullptr)) {
    if (unrecorded != nullptr) *unrecorded = true;
    return nullptr;
  }
  return thread->depth != 0 ? nullptr : thread;
}

// The same, when it is on one of the tenant's GPUs.
ThreadRecord* caller_on_gpu() {
  ThreadRecord* thread = caller();
  return thread != nullptr && thread_context(thread) && thread->gpu >= 0 ? thread : nullptr;
}

// The GPU whose hold stops calls; -1 = none.
int hold_find() {
  if (load_acquire(captures_active) != 0 || lease_is_void()) return -1;
  for (uint32_t i = 0; i < process.gpu_count; ++i) {
    const int gpu = static_cast<int>(i);
    if ((process.entry(gpu).hold.load() & protocol::kHoldSet) != 0) return gpu;
  }
  return -1;
}

// A wait is where memory comes back to the device; it may have been for a stream or an event of
// another GPU than the current one, also of one that has a pool and no context of this process.
void memory_look(int current) {
  for (int device = 0; device < process.device_count; ++device) {
    if (device != current && device_gpu(device) < 0) continue;
    pools_settle(device);
    residual_settle_waited(device);
  }
}

}  // namespace

void touch_reset_after_fork() {
  for (uint32_t& said : want_said) store_release(said, 0u);
}

void touch_wait(ThreadRecord& thread) {
  const ErrnoGuard guard;
  const uint64_t start_ns = clock_now_ns();
  int held = -1, slices = 0;
  const WaitScope told(swap_bytes_out() != 0 ? protocol::WaitReason::kMemory
                                             : protocol::WaitReason::kGate);
  for (int gpu = hold_find(); gpu >= 0; gpu = hold_find()) {
    held = gpu;
    const protocol::LeaseEntry& entry = process.entry(gpu);
    store_release(thread.touching, 0u);
    const uint32_t word = entry.hold.load();
    if ((word & protocol::kHoldSet) != 0) {
      want_once(gpu, word, ++slices % kWantAgainSlices == 0);
      futex_wait(&entry.hold.raw, word, kHoldSliceNs, true);
    }
    raise_word(thread.touching, 1);
  }
  if (held < 0) return;
  gate_wait_tell(held, clock_now_ns() - start_ns);
}

// The short way is for threads whose context is known: `lease` is set for no others, and cleared
// whenever that may have changed.
TouchScope::TouchScope() {
  ThreadRecord* thread = this_thread;
  if (SLUICE_LIKELY(thread != nullptr && load_relaxed(thread->lease) != nullptr &&
                    thread->depth == 0)) {
    thread_ = thread;
    touch_begin(*thread);
  } else if (process_mode() != Mode::kInert) {
    begin_long();
  }
}

// A broker that comes meanwhile with a hold is told of none before the call has returned. False:
// one has just come.
bool TouchScope::begin_offline() {
  ThreadRecord* thread = thread_record();
  unrecorded_ = thread == nullptr;
  if (thread == nullptr || thread->depth != 0) return true;
  raise_word(thread->touching, thread->touching + 1);
  offline_ = process_mode() == Mode::kOffline;
  if (!offline_) touch_end(*thread);
  return offline_;
}

void TouchScope::begin_long() {
  const bool offline = process_enter() == Mode::kOffline && begin_offline();
  if (!offline) thread_ = caller(&unrecorded_);
  if (SLUICE_UNLIKELY(unrecorded_)) unrecorded_say("a thread's record");
  if (thread_ == nullptr) return;
  // A context that only copies is known to the meter as well: its copies are waited for.
  if (thread_context(thread_) && thread_->gpu >= 0 &&
      SLUICE_UNLIKELY(thread_->context_record == nullptr)) {
    unrecorded_ = true;
    unrecorded_say("a context's record");
  }
  touch_begin(*thread_);
}

TouchScope::~TouchScope() {
  if (thread_ != nullptr) {
    touch_end(*thread_);
  } else if (SLUICE_UNLIKELY(offline_)) {
    touch_end(*this_thread);
  }
}

BlockingScope::BlockingScope() {
  const ThreadRecord* thread = touch_.thread();
  if (thread != nullptr && thread->last_stream != nullptr) wait_prepare(nullptr, Fenced::kContext);
}

static void place_fence(ThreadRecord& thread, CUstream only, Fenced fenced) {
  const bool all = fenced != Fenced::kStream;
  const Others others = fenced == Fenced::kThreads ? Others::kFence : Others::kLeave;
  StreamPlace place;
  if (!stream_place(thread, all ? nullptr : only, &place) || place.context == nullptr) return;
  ContextRecord& context = *place.context;
  const CurrentScope current(place);
  const LockScope scope(context.lock);
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (all || s->stream == only) fences_complete(context, s, others);
  }
}

// False: the meter knows no such stream in the context, so that nothing was launched into it.
static bool stream_interrupt_in(ContextRecord& context, CUstream stream, bool is_current) {
  if (load_acquire(context.streams) == nullptr) return false;
  const LockScope scope(context.lock);
  bool known = stream_is_special(stream);
  for (const StreamRecord* s = context.streams; s != nullptr && !known; s = s->next)
    known = s->stream == stream && !s->destroyed;
  if (!known) return false;
  const CurrentScope current(StreamPlace{&context, -1, is_current});
  if (current.result() == CUDA_SUCCESS) stream_interrupt(context, stream);
  return true;
}

// In the context in which it was launched into the stream.
static void stream_interrupt_known(ThreadRecord& thread, CUstream stream) {
  const bool current = thread_context(&thread) && thread.context_record != nullptr;
  if (current && stream_interrupt_in(*thread.context_record, stream, true)) return;
  if (stream_is_special(stream)) return;
  for (int i = 0, n = context_count(); i < n; ++i) {
    ContextRecord& context = *context_at(i);
    if ((current && &context == thread.context_record) || !context.is_usable()) continue;
    if (stream_interrupt_in(context, stream, false)) return;
  }
}

// Launches into the legacy stream wait for what is in streams that block, also in those into which
// nothing is launched.
static void legacy_work(const ThreadRecord& thread, CUstream stream) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return;
  bool asked = false;
  CUcontext of_stream = nullptr;
  for (int i = 0, n = context_count(); i < n; ++i) {
    ContextRecord& context = *context_at(i);
    if (SLUICE_LIKELY(!context.legacy_used) || !context.is_usable()) continue;
    if (!asked && stream_blocks(stream) != StreamRecord::Blocks::kYes) return;
    if (!asked) of_stream = stream_context(stream);
    asked = true;
    if (of_stream != context.context) continue;
    const LockScope scope(context.lock);
    const bool is_current =
        load_relaxed(thread.context_known) != 0 && thread.context_record == &context;
    const CurrentScope current(StreamPlace{&context, -1, is_current});
    if (current.result() == CUDA_SUCCESS) legacy_interrupt(context);
  }
}

void stream_work_long(ThreadRecord& thread, CUstream stream) {
  const ErrnoGuard guard;
  const DepthScope depth(&thread);
  stream_interrupt_known(thread, stream);
  legacy_work(thread, stream);
}

void wait_prepare(CUstream only, Fenced fenced) {
  ThreadRecord* thread = caller();
  if (thread == nullptr) return;
  const ErrnoGuard guard;
  const DepthScope depth(thread);
  // Not every wait waits for the end of a hold, and before it everything was fenced.
  raise_word(thread->touching, thread->touching + 1);
  if (!hold_is_set()) place_fence(*thread, only, fenced);
  touch_end(*thread);
}

// Waits go on under a hold, this look not: the helper makes up for it.
static void memory_look_unheld(ThreadRecord& thread, int current) {
  raise_word(thread.touching, thread.touching + 1);
  if (!hold_is_set())
    memory_look(current);
  else
    residual_want();
  touch_end(thread);
}

// What the wait has shown; false: nothing was launched there.
static bool wait_harvest(ThreadRecord& thread) {
  const DepthScope depth(&thread);
  memory_look_unheld(thread, thread.device);
  ContextRecord& context = *thread.context_record;
  const LockScope scope(context.lock);
  if (context.streams == nullptr) return false;
  fences_harvest(context);
  return true;
}

// Streams and events have handles: who waits for one needs no context.
void wait_failed() {
  ThreadRecord* thread = caller();
  if (thread == nullptr) return;
  const ErrnoGuard guard;
  const DepthScope depth(thread);
  memory_look_unheld(*thread, -1);
}

void wait_done() {
  ThreadRecord* thread = caller_on_gpu();
  if (thread == nullptr || thread->context_record == nullptr) return wait_failed();
  const ErrnoGuard guard;
  if (!wait_harvest(*thread)) return;
  // Who is killed now owes no more than what it launches from here on.
  const AccountMoment moment(*thread);
  if (moment.held()) busy_publish(thread->gpu);
}

}  // namespace sluice::interpose

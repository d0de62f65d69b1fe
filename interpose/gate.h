// The gate: where a launch waits for its lease, for room in the in-flight window, and tells the
// meter that it happened. The common case (lease open, budget left) is launch_begin; what waits is
// launch_admit in gate.cpp. Holds are waited for in touch.h; a launch knows of them by its lease,
// which is closed while there is one.
//
// A launch raises its thread's `inside`, then reads the lease: see threads.h for why that is
// enough. It lowers it after the driver has taken the work, so that a drain that saw nobody inside
// sees every launch in the counters.
#pragma once

#include "interpose/memory/libraries.h"
#include "interpose/place.h"
#include "interpose/residual.h"

namespace sluice::interpose {

inline constexpr uint32_t kLeaseOwned = protocol::kLeaseOpen | protocol::kLeaseExclusive;

/// The broker is gone for longer than its grace: leases and holds bind nobody any more.
inline bool lease_is_void() {
  return (load_acquire(process.lost_open) | load_acquire(process.lost_refuse)) != 0;
}

enum class LaunchKind : uint8_t { kKernel, kGraph };

struct LaunchPass {
  // Set by the caller.
  CUstream handle;
  CUgraphExec exec;  // nullptr for kernels
  LaunchKind kind;
  bool is_work = false;  // no launch (work.h)
  bool waits = false;    // the driver may return from the call when its work is over
  enum class Way : uint8_t {
    kFree,       // not ours to gate: no tenant, capturing, or a call from within
    kUncounted,  // no lease binds anybody: inside all the same, for one may come meanwhile
    kExclusive,  // the whole GPU is the tenant's
    kFast,       // counted
    kLooked,     // counted, and the meter looks behind it
    kRefused,
  };
  ThreadRecord* thread;
  StreamPlace place;  // but on the short ways, which lead to the thread's own context
  StreamRecord* stream;
  GraphCost* graph;     // of `exec`; nullptr = unknown
  double launch_ns;     // learned time of the launch; 0 = not measured yet
  bool alone;           // between two fences of its own
  uint32_t generation;  // of the stream's record when the pass was given
  uint64_t begin_ns;    // when the driver was about to be called
  Way way;
};

/// The stream a `_ptsz` entry point means by a null handle.
inline CUstream stream_per_thread(CUstream stream) {
  return stream == nullptr ? CU_STREAM_PER_THREAD : stream;
}

SLUICE_NOINLINE void launch_admit(LaunchPass& pass);
SLUICE_NOINLINE void launch_look(LaunchPass& pass, bool submitted);

inline StreamCache& stream_cache_of(ThreadRecord& thread, CUstream stream) {
  const auto bits = reinterpret_cast<uintptr_t>(stream);
  return thread.cache[(bits ^ (bits >> 6)) % kStreamCacheSize];
}

/// Whether the entry, which was filled once, speaks of the stream and nobody wants to look at it.
SLUICE_ALWAYS_INLINE bool stream_cache_holds(const StreamCache& cache, CUstream stream) {
  return cache.stream == stream && load_relaxed(cache.record->generation) == cache.generation;
}

/// The short way of a launch: the lease is open, the stream is known and counted by this thread
/// alone, and the meter need not look. Leaves the thread inside and returns what to count the
/// launch in; nullptr when the launch must go the long way. Written so that the arguments of the
/// launch stay where the caller put them.
SLUICE_ALWAYS_INLINE uint64_t* launch_begin(ThreadRecord* thread, CUstream stream) {
  if (SLUICE_UNLIKELY(thread == nullptr || thread->inside != 0)) return nullptr;
  const uint32_t* lease = load_relaxed(thread->lease);
  if (SLUICE_UNLIKELY(lease == nullptr)) return nullptr;
  store_relaxed(thread->inside, thread->raised);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);  // see threads.h
  const uint32_t word = load_acquire(*lease) & kLeaseOwned;
  if (word == kLeaseOwned) return thread->exclusive_count;
  StreamCache& cache = *thread->recent;
  if (SLUICE_LIKELY(word == protocol::kLeaseOpen && stream_cache_holds(cache, stream) &&
                    (cache.budget_ns -= cache.kernel_ns) >= 0)) {
    return &cache.record->owner_launches;
  }
  store_release(thread->inside, 0u);
  return nullptr;
}

/// The same for a graph from where the thread is inside and has read the lease's word (launch.S).
/// It must be the graph that this thread launched into the stream before, not due to be measured,
/// and the lease none that is exclusive. With nullptr the thread is not inside any more.
SLUICE_ALWAYS_INLINE StreamRecord* graph_begin(ThreadRecord* thread, CUstream stream,
                                               CUgraphExec exec, uint32_t word) {
  StreamCache& cache = *thread->recent;
  if (SLUICE_LIKELY((word & kLeaseOwned) == protocol::kLeaseOpen &&
                    stream_cache_holds(cache, stream) && load_relaxed(cache.graph->exec) == exec &&
                    --cache.graph->until_measured >= 0 &&
                    (cache.budget_ns -= cache.graph_ns) >= 0)) {
    StreamRecord* record = cache.record;
    if (record == nullptr) __builtin_unreachable();  // its generation was read
    return record;
  }
  store_release(thread->inside, 0u);
  return nullptr;
}

SLUICE_ALWAYS_INLINE void graph_end(ThreadRecord* thread, StreamRecord* record, CUresult result) {
  // Not before the call: a fence behind what came before it must not have it among its graphs.
  if (SLUICE_LIKELY(result == CUDA_SUCCESS)) {
    count_up(record->owner_graphs);
    store_release(record->owner_launches, record->owner_launches + 1);
  }
  store_release(thread->inside, 0u);
}

SLUICE_ALWAYS_INLINE void launch_end(ThreadRecord* thread, uint64_t* count, CUresult result) {
  if (SLUICE_LIKELY(result == CUDA_SUCCESS)) store_release(*count, *count + 1);
  store_release(thread->inside, 0u);
}

/// Everything that launch_begin() and graph_begin() refuse, up to and including the wait for a
/// lease.
inline void launch_enter(LaunchPass& pass) {
  const CUstream stream = pass.handle;
  ThreadRecord* thread = this_thread;
  pass.thread = thread;
  if (SLUICE_LIKELY(thread != nullptr && (thread->depth | thread->inside) == 0 &&
                    load_relaxed(thread->context_known) != 0 && thread->gpu >= 0)) {
    raise_word(thread->inside, static_cast<uint32_t>(thread->gpu) + 1);
    // Other pages may have come: what is known now is by their numbers, or is not known.
    const bool known = load_relaxed(thread->context_known) != 0;
    const uint32_t word = known ? load_acquire(process.entry(thread->gpu).lease.raw) : 0;
    if ((word & kLeaseOwned) == kLeaseOwned &&
        (!process.leases_go_together() || load_acquire(process.together) != 0)) {
      pass.place.gpu = thread->gpu;
      pass.way = LaunchPass::Way::kExclusive;
      return;
    }
    StreamCache& cache = stream_cache_of(*thread, stream);
    int32_t& budget = cache.shared_budget_ns > 0 ? cache.shared_budget_ns : cache.budget_ns;
    if (SLUICE_LIKELY((word & protocol::kLeaseOpen) != 0 && pass.kind == LaunchKind::kKernel &&
                      budget >= cache.kernel_ns && cache.record != nullptr &&
                      stream_cache_holds(cache, stream))) {
      budget -= cache.kernel_ns;
      thread->recent = &cache;
      pass.stream = cache.record;
      pass.way = LaunchPass::Way::kFast;
      return;
    }
    store_release(thread->inside, 0u);
  }
  launch_admit(pass);
}

inline void launch_count(StreamRecord& stream, const ThreadRecord* thread) {
  if (SLUICE_LIKELY(stream.owner == thread)) {
    store_release(stream.owner_launches, stream.owner_launches + 1);
  } else {
    __atomic_add_fetch(&stream.foreign_launches, 1, __ATOMIC_RELEASE);
  }
}

inline void pass_count(LaunchPass& pass) {
  launch_count(*pass.stream, pass.thread);
  if (pass.is_work) __atomic_add_fetch(&pass.stream->works, 1, __ATOMIC_RELEASE);
}

inline void launch_leave(LaunchPass& pass, CUresult result) {
  switch (pass.way) {
    case LaunchPass::Way::kFast:
      if (SLUICE_LIKELY(result == CUDA_SUCCESS)) pass_count(pass);
      store_release(pass.thread->inside, 0u);
      return;
    case LaunchPass::Way::kExclusive:
      if (result == CUDA_SUCCESS) {
        count_up(pass.thread->exclusive_launches[pass.place.gpu]);
        if (pass.is_work) count_up(pass.thread->exclusive_works[pass.place.gpu]);
      }
      store_release(pass.thread->inside, 0u);
      return;
    case LaunchPass::Way::kLooked:
      launch_look(pass, result == CUDA_SUCCESS);
      // Code that was loaded with it; under an exclusive lease the helper looks.
      if (SLUICE_UNLIKELY(load_relaxed(residual_expected) != 0)) residual_launched();
      return;
    case LaunchPass::Way::kUncounted:
      store_release(pass.thread->inside, 0u);
      return;
    case LaunchPass::Way::kFree:
      // Captured, or refused because of a capture: code may have been loaded with it all the same.
      if (pass.thread != nullptr) __atomic_add_fetch(&launches_ungated, 1, __ATOMIC_RELEASE);
      return;
    case LaunchPass::Way::kRefused:
      return;
  }
}

/// The arguments of cuLaunchKernel that the caller put on the stack (System V ABI for x86-64: those
/// behind the sixth, eight bytes each). Taken and passed on as one value they are copied once;
/// taken one by one, the compiler keeps each in a register across the gate and pays for saving it.
struct StackArguments {
  uint64_t block_z, shared_bytes;
  CUstream stream;
  void** params;
  void** extra;
};

// The stream that the arguments of a launch name.
inline CUstream stream_of(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                          const StackArguments& stack) {
  return stack.stream;
}
inline CUstream stream_of(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, CUstream stream, void**) {
  return stream;
}
inline CUstream stream_of(const CUlaunchConfig* config, CUfunction, void**, void**) {
  return config != nullptr ? config->hStream : nullptr;
}
inline CUstream stream_of(CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned) {
  return launches != nullptr && count > 0 ? launches[0].hStream : nullptr;
}
inline CUstream stream_of(CUfunction) { return nullptr; }
inline CUstream stream_of(CUfunction, int, int) { return nullptr; }
inline CUstream stream_of(CUfunction, int, int, CUstream stream) { return stream; }
inline CUstream stream_of(CUmemDecompressParams*, size_t, unsigned, size_t*, CUstream stream) {
  return stream;
}
inline CUstream stream_of(CUgraphExec, CUstream stream) { return stream; }

// The function that the arguments of a launch name; nullptr = none.
template <class... A>
CUfunction function_of(CUfunction function, const A&...) {
  return function;
}
template <class... A>
CUfunction function_of(const CUlaunchConfig*, CUfunction function, const A&...) {
  return function;
}
inline CUfunction function_of(CUmemDecompressParams*, size_t, unsigned, size_t*, CUstream) {
  return nullptr;
}

inline CUgraphExec exec_of(CUgraphExec exec, CUstream) { return exec; }
template <class... A>
CUgraphExec exec_of(const A&...) {
  return nullptr;
}

template <auto Real, class... A>
SLUICE_ALWAYS_INLINE CUresult real_call(const A&... arguments) {
  // By way of a pointer that fits all functions, which the compiler does not compare shapes with.
  return reinterpret_cast<CUresult (*)(A...)>(reinterpret_cast<void (*)()>(driver.*Real))(
      arguments...);
}

enum class NullStream : bool { kLegacy, kPerThread };

template <class Call>
SLUICE_ALWAYS_INLINE CUresult pass_through(LaunchPass& pass, Call call) {
  launch_enter(pass);
  if (SLUICE_UNLIKELY(pass.way == LaunchPass::Way::kRefused)) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult result = call();
  launch_leave(pass, result);
  return result;
}

template <class Call>
SLUICE_ALWAYS_INLINE CUresult launch_gated(CUstream stream, CUgraphExec exec, LaunchKind kind,
                                           Call call) {
  LaunchPass pass;
  pass.handle = stream;
  pass.exec = exec;
  pass.kind = kind;
  return pass_through(pass, call);
}

template <auto Real, LaunchKind Kind, NullStream Null, class... A>
__attribute__((noinline)) CUresult launch_long(A... arguments) {
  const CUstream stream = stream_of(arguments...);
  if constexpr (Kind == LaunchKind::kKernel) {
    if (SLUICE_UNLIKELY(kernels_need())) {
      const CUresult loaded = kernel_load_for(function_of(arguments...), stream);
      if (SLUICE_UNLIKELY(loaded != CUDA_SUCCESS)) return loaded;
    }
  }
  return launch_gated(Null == NullStream::kPerThread ? stream_per_thread(stream) : stream,
                      exec_of(arguments...), Kind, [&] { return real_call<Real>(arguments...); });
}

/// One launch of a kernel by the real function `Real`: gate, call, account.
template <auto Real, NullStream Null, class... A>
SLUICE_ALWAYS_INLINE CUresult launch_kernel_through(const A&... arguments) {
  ThreadRecord* thread = this_thread;
  const CUstream named = stream_of(arguments...);
  const CUstream stream = Null == NullStream::kPerThread ? stream_per_thread(named) : named;
  if (uint64_t* count = launch_begin(thread, stream); SLUICE_LIKELY(count != nullptr)) {
    const CUresult result = real_call<Real>(arguments...);
    launch_end(thread, count, result);
    return result;
  }
  if (process_mode() == Mode::kInert) return real_call<Real>(arguments...);
  return launch_long<Real, LaunchKind::kKernel, Null, A...>(arguments...);
}

/// One step towards the acknowledgement of hold `epoch`, driven by the helper once the lease is
/// closed and drained: true when no capture is in progress, nobody touches the device and
/// everything in this process's contexts on the GPU has passed.
bool hold_step(int gpu, uint32_t epoch);

/// Drain of one GPU, driven by the helper after the lease word closed and threads_barrier() passed:
/// true once nobody is inside and every launch of this process on it has finished.
bool drain_step(int gpu);

// What the gate asks of the helper (helper.cpp): to tell the broker that a thread waits for the
// GPU, and to look now.
void gate_want_say(int gpu, uint32_t epoch);
void helper_wake();
/// Writes a wait at the gate of `gpu` into this process's account: its length, and which of the
/// kinds it was.
void gate_wait_tell(int gpu, uint64_t waited_ns);

/// After the pages of another broker were taken, or of the same one anew: what the gates were told
/// and found out before is void. For the helper.
void gate_adopted();
void gate_reset_after_fork();

}  // namespace sluice::interpose

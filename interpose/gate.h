// The gate: where a launch waits for its lease, for room in the in-flight window, and tells the
// meter that it happened. The common case (lease open, budget left) is inline; everything else is
// launch_admit in gate.cpp.
//
// A launch raises its thread's `inside`, then reads the lease: see threads.h for why that is
// enough. It lowers it after the driver has taken the work, so that a drain that saw nobody inside
// sees every launch in the counters.
#pragma once

#include "interpose/meter.h"
#include "interpose/process.h"

namespace sluice::interpose {

enum class LaunchKind : uint8_t { kKernel, kGraph };

struct LaunchPass {
  enum class Way : uint8_t {
    kFree,       // not ours to gate: no tenant, capturing, or a call from within
    kExclusive,  // the whole GPU is the tenant's
    kFast,       // counted
    kLooked,     // counted, and the meter looks behind it
    kRefused,
  };
  ThreadRecord* thread;
  StreamRecord* stream;
  StreamCache* cache;
  CUstream handle;
  Way way;
  LaunchKind kind;
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

SLUICE_ALWAYS_INLINE void launch_enter(LaunchPass& pass, CUstream stream, LaunchKind kind) {
  pass.handle = stream;
  pass.kind = kind;
  ThreadRecord* thread = this_thread;
  pass.thread = thread;
  if (SLUICE_LIKELY(process_mode() == Mode::kActive && thread != nullptr &&
                    (thread->depth | thread->inside) == 0 && thread->context_known != 0 &&
                    thread->gpu >= 0)) {
    raise_word(thread->inside, static_cast<uint32_t>(thread->gpu) + 1);
    const uint32_t word = load_acquire(process.entry(thread->gpu).lease.raw);
    constexpr uint32_t kOwned = protocol::kLeaseOpen | protocol::kLeaseExclusive;
    if ((word & kOwned) == kOwned) {
      pass.way = LaunchPass::Way::kExclusive;
      return;
    }
    StreamCache& cache = stream_cache_of(*thread, stream);
    if (SLUICE_LIKELY((word & protocol::kLeaseOpen) != 0 && cache.stream == stream &&
                      cache.generation == load_relaxed(stream_generation) && cache.budget > 0 &&
                      load_relaxed(cache.record->attention) == 0 && kind == LaunchKind::kKernel)) {
      --cache.budget;
      pass.stream = cache.record;
      pass.way = LaunchPass::Way::kFast;
      return;
    }
    store_release(thread->inside, 0u);
  }
  launch_admit(pass);
}

SLUICE_ALWAYS_INLINE void launch_count(StreamRecord& stream, const ThreadRecord* thread) {
  if (SLUICE_LIKELY(stream.owner == thread)) {
    store_release(stream.owner_launches, stream.owner_launches + 1);
  } else {
    __atomic_add_fetch(&stream.foreign_launches, 1, __ATOMIC_RELEASE);
  }
}

SLUICE_ALWAYS_INLINE void launch_leave(LaunchPass& pass, CUresult result) {
  switch (pass.way) {
    case LaunchPass::Way::kFast:
      if (SLUICE_LIKELY(result == CUDA_SUCCESS)) launch_count(*pass.stream, pass.thread);
      store_release(pass.thread->inside, 0u);
      return;
    case LaunchPass::Way::kExclusive:
      ++pass.thread->exclusive_launches[pass.thread->gpu];
      store_release(pass.thread->inside, 0u);
      return;
    case LaunchPass::Way::kLooked:
      launch_look(pass, result == CUDA_SUCCESS);
      return;
    case LaunchPass::Way::kFree:
    case LaunchPass::Way::kRefused:
      return;
  }
}

/// One launch: gate, the real call, account.
template <class Call>
SLUICE_ALWAYS_INLINE CUresult launch_through(CUstream stream, LaunchKind kind, Call call) {
  if (process_mode() == Mode::kInert) return call();
  LaunchPass pass;
  launch_enter(pass, stream, kind);
  if (SLUICE_UNLIKELY(pass.way == LaunchPass::Way::kRefused)) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult result = call();
  launch_leave(pass, result);
  return result;
}

/// Waits while the GPU's hold word is set. What touches device memory calls it.
void hold_wait(int gpu);

/// Drain of one GPU, driven by the helper after the lease word closed and threads_barrier() passed:
/// true once nobody is inside and every launch of this process on it has finished.
bool drain_step(int gpu);
/// In flight on the GPU right now, as far as the fences tell.
bool gpu_is_busy(int gpu);

// Said by the gate to the broker; the link implements them (tests replace the link).
void gate_want_say(int gpu, uint32_t epoch);
void helper_wake();

void gate_reset_after_fork();

}  // namespace sluice::interpose

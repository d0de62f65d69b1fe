// The gate of holds, and scopes for the hooks of one pattern (generated and hand-written): whatever
// touches device memory or handles waits for the end of a hold; whatever blocks its caller lets the
// meter put a fence behind the caller's work first.
//
// A hold on any GPU of the tenant stops the calls for all of them: by unified addressing a call
// under one context may touch the memory of another. While a capture is in progress a hold stops
// nothing but the beginning of further captures and is not acknowledged: a capture that waited in
// the middle could keep another thread's from ending.
#pragma once

#include "interpose/activity.h"
#include "interpose/gate.h"

namespace sluice::interpose {

SLUICE_ALWAYS_INLINE bool hold_is_set() {
  uint32_t words = 0;
  // Pages may just have come, the first ones: who sees how many GPUs there are sees where they are.
  const uint32_t count = process.gpu_count;
  for (uint32_t i = 0; i < count; ++i) words |= load_acquire(process.lease->gpus[i].hold.raw);
  return (words & protocol::kHoldSet) != 0;
}

/// Waits out the hold, if it stops the thread, whose `touching` is raised.
SLUICE_NOINLINE void touch_wait(ThreadRecord& thread);

/// Before a call that touches device memory or handles. Calls may be nested, also in a launch that
/// has passed its gate: the drain that comes before a hold waits for it, so it must not wait here.
SLUICE_ALWAYS_INLINE void touch_begin(ThreadRecord& thread) {
  const uint32_t depth = thread.touching;
  raise_word(thread.touching, depth + 1);
  if (SLUICE_UNLIKELY(hold_is_set()) && (depth | thread.inside) == 0) touch_wait(thread);
}
SLUICE_ALWAYS_INLINE void touch_end(ThreadRecord& thread) {
  store_release(thread.touching, thread.touching - 1);
}

class TouchScope {
 public:
  TouchScope();
  ~TouchScope();
  TouchScope(const TouchScope&) = delete;
  TouchScope& operator=(const TouchScope&) = delete;
  /// The caller's record, when the call is the program's own and under a tenant.
  ThreadRecord* thread() const { return thread_; }
  /// There is no record for the thread or its context, so that no hold would wait for the call: it
  /// must not be made. The sentence was said.
  bool unrecorded() const { return unrecorded_; }

 private:
  SLUICE_NOINLINE void begin_long();
  bool begin_offline();

  ThreadRecord* thread_ = nullptr;
  bool unrecorded_ = false;
  bool offline_ = false;  // the thread's `touching` is raised, though there is no tenant yet
};

class BlockingScope {
 public:
  BlockingScope();
  bool unrecorded() const { return touch_.unrecorded(); }

 private:
  TouchScope touch_;
  WaitScope told_{protocol::WaitReason::kSync};
};

/// What takes the GPU less than this to copy or to set is as good as part of what lies around it.
inline constexpr uint64_t kWorkBytesMin = 256u << 10;
inline constexpr uint64_t kWorkUnknown = UINT64_MAX;
SLUICE_NOINLINE void stream_work_long(ThreadRecord& thread, CUstream stream);
/// Before something else than a launch is put into a stream, for which what is launched behind it
/// has to wait: a copy of so many bytes, a host function, a wait.
inline void stream_work(const TouchScope& touch, CUstream stream, uint64_t bytes) {
  if (touch.thread() != nullptr && bytes >= kWorkBytesMin)
    stream_work_long(*touch.thread(), stream);
}

void touch_reset_after_fork();

/// What is fenced of the calling thread's context before a wait: one stream's work, that of all
/// streams that the thread can reach, or also that in other threads' default streams, which costs
/// more and is for calls that wait and do not ask only.
enum class Fenced : uint8_t { kStream, kContext, kThreads };
void wait_prepare(CUstream only, Fenced fenced);
/// After a wait that succeeded: counts what has finished.
void wait_done();
/// After one that did not: memory may have come back to the device all the same.
SLUICE_NOINLINE void wait_failed();

}  // namespace sluice::interpose

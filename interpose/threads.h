// What each thread of the program keeps for the shim: whether it is inside a launch, whether a
// driver call comes from us, and what was looked up last. Records live in slabs, are found
// by a thread-local pointer, and are visited by the helper thread. What the gate and the shares
// note of the thread is here, too; what it means is theirs.
//
// The asymmetric protocol: a thread raises `inside` with a plain store and then reads the lease.
// Whoever must know that nobody is inside first makes the lease closed, then calls
// threads_barrier() (membarrier: every running thread passes a full barrier), then reads the words.
// So the common side pays no fence. `touching` and holds go by the same protocol.
#pragma once

#include "interpose/cuda_api.h"
#include "interpose/patience.h"
#include "interpose/types.h"

namespace sluice::interpose {

struct StreamRecord;
struct ContextRecord;
struct GraphCost;

struct StreamCache {
  CUstream stream;
  StreamRecord* record;  // nullptr = empty
  uint32_t generation;   // of the record when filled
  // GPU time that may pass before the meter wants to look again: on a stream this thread counts
  // for alone, or on one that several threads launch into. The other is 0.
  int32_t budget_ns;
  int32_t shared_budget_ns;
  int32_t kernel_ns;  // what a kernel takes from it
  // The executable graph launched into the stream last.
  int32_t graph_ns;
  GraphCost* graph;
};

inline constexpr unsigned kStreamCacheSize = 4;

/// Of `inside`: a launch that no lease let through. It counts for every GPU, whatever number its
/// own has in pages that come meanwhile.
inline constexpr uint32_t kInsideAnywhere = UINT32_MAX;

/// Of `accounting`: the thread is outside of calls that change the account; within one, and waits,
/// with nothing of it under way (AccountRest); within one.
inline constexpr uint32_t kNotAccounting = 0;
inline constexpr uint32_t kAccountingRests = 1;
inline constexpr uint32_t kAccounting = 2;

struct alignas(64) ThreadRecord {
  // gpu + 1 (or kInsideAnywhere) while a launch is between its gate and its return.
  uint32_t inside;
  uint32_t depth;  // > 0: the call comes from one of our hooks or from our own use of the driver
  // The lease word of `gpu`, or the word that stands for those of all GPUs (process.h), while
  // launches may take the short way: the context is known, its GPU is the tenant's, and words are
  // raised without a fence. nullptr otherwise.
  const uint32_t* lease;
  uint32_t raised;      // what `inside` becomes: gpu + 1
  uint32_t touching;    // > 0 while in calls that touch device memory or handles (touch.h)
  StreamCache* recent;  // the entry of `cache` that the last launch used; else &stream_cache_none
  uint64_t* exclusive_count;  // &exclusive_launches[gpu], as long as `lease` is known
  // Of a launch under way that took the short way: where it returns to, and that caller's %rbx
  // (launch.S).
  void* caller;
  uint64_t caller_rbx;
  StreamCache cache[kStreamCacheSize];
  uint32_t accounting;  // kAccounting while an allocation or free is between claim and result
  uint32_t context_known;
  CUcontext context;  // current to the thread, valid while context_known
  ContextRecord* context_record;
  int32_t device;
  int32_t gpu;
  uint32_t taken;  // belongs to a living thread
  StreamRecord* last_stream;
  uint64_t exclusive_launches[8];
  uint64_t exclusive_works[8];  // those of them that were none (work.h)
  uint32_t let_through[8];      // the lease word, one for each GPU, under which it was (gate.cpp)
  // At gates that a share has closed (alone.cpp): the lease's, and that of a share of its own.
  Patience gate_patience[2];
  uint64_t gate_word[2];  // under which: gpu and word
  uint32_t number;        // of the thread, as this process sees it
  uint32_t index;         // of this record
  uint32_t waiting;       // 1 while in a wait that is told (activity.h)
  // 1 = pages came since the thread last looked at its context: `gpu`, and `inside` with it, may be
  // by the numbers of those before.
  uint32_t renumbered;
};

/// Speaks of no stream.
extern StreamCache stream_cache_none;
extern __thread ThreadRecord* this_thread __attribute__((tls_model("initial-exec")));
/// Set where membarrier is missing: every raise of a word is followed by a full fence.
extern uint32_t strict_fences;

/// The calling thread's record, made on first use. nullptr when there is no memory for it, or no
/// key for its thread-local storage left; what such a thread asks for is refused, for neither a
/// drain nor a hold would see it.
SLUICE_NOINLINE ThreadRecord* thread_record_make();
inline ThreadRecord* thread_record() {
  ThreadRecord* record = this_thread;
  return SLUICE_LIKELY(record != nullptr) ? record : thread_record_make();
}
ThreadRecord* thread_at(int index);
int thread_count();
/// Registers membarrier; to be called once before the first use of the protocol.
void threads_prepare();
/// After this, every store that a thread made before it is visible here, and every load a thread
/// makes later sees what was stored before the call.
void threads_barrier();
/// Every thread looks again whether it may take the short way. `now`: none takes it from here on
/// until it has looked.
void threads_look_again(bool now);
void threads_reset_after_fork();

/// Between a thread's store and its load of what is changed before threads_barrier().
inline void fence_raised() {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  if (SLUICE_UNLIKELY(load_relaxed(strict_fences) != 0)) __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

inline void raise_word(uint32_t& word, uint32_t value) {
  store_relaxed(word, value);
  fence_raised();
}

/// Marks driver calls made by the shim itself: hooks that they reach pass straight through.
class DepthScope {
 public:
  explicit DepthScope(ThreadRecord* thread) : thread_(thread) {
    if (thread_ != nullptr) ++thread_->depth;
  }
  ~DepthScope() {
    if (thread_ != nullptr) --thread_->depth;
  }
  DepthScope(const DepthScope&) = delete;
  DepthScope& operator=(const DepthScope&) = delete;

 private:
  ThreadRecord* thread_;
};

}  // namespace sluice::interpose

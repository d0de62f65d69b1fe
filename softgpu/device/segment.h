// The layout of one software GPU in shared memory: every process that uses the GPU maps this and
// advances it under its lock; there is no daemon. Only plain numbers, no pointers. Everything that
// a death can tear is either stored in one word or computed from other words when needed (used
// memory is the sum of the clients', never a stored total), so the survivor that finds the lock's
// owner dead repairs by looking again. Processes are known by their lives (life.h), never by pid:
// they may be of several pid namespaces.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "softgpu/device/idle.h"
#include "softgpu/device/settings.h"

namespace softgpu::device {

inline constexpr std::uint64_t kSegmentMagic = 0x5550475446f5ULL;
inline constexpr std::uint32_t kSegmentVersion = 14;
inline constexpr std::uint32_t kClientsMax =
    256;  // processes that have something on one device at a time
// Queues and shared objects lie in parts, one for each place of a client. A process fills no part
// but its own, so that it takes nothing from the others.
inline constexpr std::uint32_t kQueuesEach = 128;  // streams of a process with work on the device
inline constexpr std::uint32_t kQueuesMax = kClientsMax * kQueuesEach;
inline constexpr std::uint32_t kQueueDepth =
    32;  // how many operations of a stream may be ahead of modelled time
inline constexpr std::uint32_t kEndedMax = 4096;  // accounts kept of processes that have ended
inline constexpr std::uint32_t kSharedEach =
    1024;  // memory objects that a process makes for others
inline constexpr std::uint32_t kSharedMax = kClientsMax * kSharedEach;
inline constexpr std::uint32_t kNone = ~0U;
inline constexpr std::uint32_t kLifeMask = 0x7fffffff;   // the bits of a life's number
inline constexpr std::uint32_t kLockWaiters = 1U << 31;  // beside it in the lock's word
inline constexpr std::uint32_t kWindows = 64;  // utilization history, one entry per kWindowNs
inline constexpr std::uint64_t kWindowNs = 100'000'000;
inline constexpr std::uint32_t kFaultsMax = 32;  // faults set at a time
inline constexpr std::uint32_t kXidsMax = 64;    // Xid events remembered

/// What people call a process: a pid, which means something in its pid namespace only.
struct ProcessName {
  std::int32_t pid = 0;
  std::uint64_t space = 0;  // the namespace: the inode of /proc/<pid>/ns/pid; 0 = not known
};

/// The process of a life, as it calls itself.
struct LifeName {
  std::uint32_t life = 0;  // 0 = none
  std::int32_t pid = 0;
  std::uint64_t space = 0;        // ProcessName::space
  std::uint64_t start_ticks = 0;  // of /proc/<pid>/stat; 0 = not known
};

/// What one process has been given by this device since it opened its first context.
struct Account {
  std::uint32_t life = 0;         // 0 = the place is free
  std::int32_t pid = 0;           // in the process's own pid namespace
  std::uint64_t space = 0;        // ProcessName::space
  std::uint64_t start_ticks = 0;  // of /proc/<pid>/stat, for people
  char name[32] = {};
  std::uint64_t memory_bytes = 0;  // without shared objects
  std::uint64_t memory_peak_bytes = 0;
  std::uint64_t suspended_bytes = 0;  // given back by a checkpoint, to be taken again
  std::uint32_t suspended = 0;
  std::uint32_t contexts = 0;
  std::uint32_t xid = 0;        // the last one that was meant for this process
  std::uint32_t xid_alarm = 0;  // Segment::alarm when it came
  std::uint64_t launches = 0;
  double weight = 1;     // its slices are this much longer
  double busy_ns = 0;    // some kernel of this process was on the device
  double sm_ns = 0;      // the same, times the SMs it had
  double lag_ns = 0;     // a kernel took longer to execute here than its model says
  double copy_ns = 0;    // a copy engine or link was at work
  double opened_ns = 0;  // when it registered
  double needed_ns = 0;  // when it last said that it was about to take something
  double ended_ns = 0;   // when it was found to have ended
};

/// What can be made to go wrong (`softgpu-ctl inject`).
enum class FaultKind : std::uint32_t { kFree, kAllocation, kSlowCopy, kHang };

struct Fault {
  FaultKind kind = FaultKind::kFree;  // kFree: no fault
  std::int32_t pid = 0;               // 0 = every process
  std::uint64_t space = 0;            // ProcessName::space
  std::uint64_t after = 1;            // kAllocation: the request that fails, counted from 1
  std::uint64_t times = 1;            // kAllocation: how many fail from then on
  double factor = 1;                  // kSlowCopy: copies take so much longer
};

/// One entry of the event history that the management library reads.
struct Xid {
  std::uint32_t number = 0;
  double at_ns = 0;
};

enum class WorkKind : std::uint32_t { kCompute, kCopyIn, kCopyOut, kCopyInside, kLink };
enum class WorkState : std::uint32_t { kOpen, kClosed, kDone };

/// One operation: device time received against cost known so far. Compute counts in SM x ns, the
/// others in ns.
/// Trivial, as are Queue and Shared: a new segment is a file without blocks, and their tables, most
/// of which no process ever uses, must not become memory when it is made.
struct Work {
  WorkKind kind;
  WorkState state;
  std::int32_t priority;  // smaller goes first among the kernels of one process
  double cost;
  double received;
  double width;      // SMs it can use
  Span alone;        // it had its engine to itself, from its first service on
  double finish_ns;  // until it is done: the earliest moment at which it can have begun
};

/// The operations of one stream, in order; only the one at `head` is served.
struct Queue {
  std::uint64_t head, tail;
  double finish_ns;    // of the last finished operation
  double rate;         // of the model's present step: SMs for compute, share of the engine else
  std::uint32_t hung;  // in this step: by a fault it occupies its SMs and comes no further
  Work ring[kQueueDepth];
};

/// A memory object that outlives its creator: charged to `owner`, and to another holder when that
/// one has let go of it.
struct Shared {
  std::uint64_t inode;  // 0 = free
  std::uint64_t bytes;
  std::uint64_t suspended_bytes;            // while its only holder is checkpointed
  std::uint64_t holders[kClientsMax / 64];  // a bit for each client
  std::uint32_t owner;                      // a client
  std::uint32_t given;  // programs have been given descriptors of it, which hold it too
};

/// What begins the file in every version.
struct SegmentHead {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t bytes = 0;
  std::uint32_t index = 0;
  std::uint32_t count = 0;
};

struct Segment : SegmentHead {
  unsigned char uuid[16] = {};
  // The settings of the first process.
  std::uint32_t sm_count = 0;
  std::uint32_t pacing = 1;
  std::uint64_t memory_bytes = 0;
  std::uint64_t context_bytes = 0;
  std::uint64_t page_bytes = 0;
  std::uint64_t slice_ns = 0;
  double rate = 0;
  double copy_rate = 0;
  double switch_ns = 0;
  double launch_ns = 0;
  double rates[kDevicesMax] = {};  // Settings::rates, for whoever makes the other segments
  std::uint32_t timed_count = 0;
  TimedRule timed[kTimedMax];

  std::uint32_t lives = 0;  // the last number given to a process
  // The lock: the life of its holder, 0 = free, with kLockWaiters while others may sleep. A futex.
  std::uint32_t lock = 0;
  std::uint32_t stop_again = 0;  // a life that was stopped within the lock and had to go on
  LifeName holder;               // the last one that had the lock, as soon as it has written it
  double created_ns = 0;
  double now_ns = 0;  // modelled up to here
  Idle idle[5];       // of the engine of each WorkKind; a link has one of its own
  double slice_end_ns = 0;
  double stall_end_ns = 0;  // a context switch is going on until here
  std::uint32_t current = kNone;
  std::uint64_t memory_peak_bytes = 0;  // the most that all processes ever held together
  std::uint64_t ended_count = 0;        // ever; the next one's place in `ended`
  // What fell out of `ended`, summed up: forgotten[forgotten_count % 2] holds the first
  // forgotten_count accounts, so that one store replaces the sum.
  Account forgotten[2];
  std::uint64_t forgotten_count = 0;
  std::uint32_t alarm = 0;  // counts Xids and losses; a context looks closer when it has changed
  std::uint32_t lost = 0;   // the device has fallen off the bus
  std::uint32_t lost_alarm = 0;  // `alarm` when it last did
  std::uint32_t fault_count = 0;
  Fault faults[kFaultsMax];
  std::uint32_t xid_count = 0;  // ever; a futex
  Xid xids[kXidsMax];
  double window_busy_ns[kWindows] = {};
  double window_copy_ns[kWindows] = {};
  std::uint64_t window_number[kWindows] = {};
  double window_client_ns[kWindows][kClientsMax] = {};
  std::uint64_t taken[kQueuesMax / 64] = {};            // queues that streams have
  std::uint64_t active[kQueuesMax / 64] = {};           // queues with work
  std::uint64_t active_clients[kClientsMax / 64] = {};  // clients with such queues
  std::uint32_t shared_ends[kClientsMax] = {};  // of each part: no object is there or behind
  Account clients[kClientsMax];
  Account ended[kEndedMax];
  Queue queues[kQueuesMax];
  Shared shared[kSharedMax];
};

inline bool bit_get(const std::uint64_t* words, std::uint32_t bit) {
  return (words[bit / 64] >> (bit % 64) & 1) != 0;
}
inline void bit_set(std::uint64_t* words, std::uint32_t bit) {
  words[bit / 64] |= 1ULL << (bit % 64);
}
inline void bit_clear(std::uint64_t* words, std::uint32_t bit) {
  words[bit / 64] &= ~(1ULL << (bit % 64));
}
/// Calls `visit` with the number of each bit that is set, in order; it may clear that bit.
template <typename Visit>
void bits_each(const std::uint64_t* words, std::uint32_t count, Visit visit) {
  for (std::uint32_t word = 0; word < count; ++word)
    for (std::uint64_t bits = words[word]; bits != 0; bits &= bits - 1)
      visit(word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)));
}

inline std::uint32_t queue_client(std::uint32_t queue) { return queue / kQueuesEach; }
inline bool queue_taken(const Segment& segment, std::uint32_t queue) {
  return bit_get(segment.taken, queue);
}
/// Whether the model serves the queue.
inline void queue_active(Segment& segment, std::uint32_t queue, bool active) {
  constexpr std::uint32_t kWords = kQueuesEach / 64;
  const std::uint32_t client = queue_client(queue);
  if (active) {
    bit_set(segment.active, queue);
    bit_set(segment.active_clients, client);
    return;
  }
  bit_clear(segment.active, queue);
  const std::uint64_t* const own = segment.active + client * kWords;
  if (std::all_of(own, own + kWords, [](std::uint64_t word) { return word == 0; }))
    bit_clear(segment.active_clients, client);
}
/// Calls `visit(queue)` for each queue that the model serves, in order.
template <typename Visit>
void active_each(const Segment& segment, Visit visit) {
  constexpr std::uint32_t kWords = kQueuesEach / 64;
  bits_each(segment.active_clients, kClientsMax / 64, [&](std::uint32_t client) {
    bits_each(segment.active + client * kWords, kWords,
              [&](std::uint32_t bit) { visit(client * kQueuesEach + bit); });
  });
}
/// Calls `visit(object)` for each shared object there is.
template <typename S, typename Visit>
void shared_each(S& segment, Visit visit) {
  for (std::uint32_t client = 0; client < kClientsMax; ++client) {
    auto* const part = segment.shared + client * kSharedEach;
    for (std::uint32_t i = 0; i < std::min(segment.shared_ends[client], kSharedEach); ++i)
      if (part[i].inode != 0) visit(part[i]);
  }
}

}  // namespace softgpu::device

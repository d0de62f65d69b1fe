// GPU-busy time of this process by sparse fences, and what is still in flight. A fence is a timing
// event recorded behind work; when it has passed, everything before it is done, and its timestamp
// bounds a busy interval. Busy time is the union of those intervals over the streams of a context.
//
// A start fence is recorded into a stream known to be idle, before its next launch: a busy interval
// begins there. An end fence is recorded behind launches: every N of them, when the program is
// about to wait, or by the helper thread when launches have stopped.
//
// Rules: a capturing stream is never touched; no call here waits for the GPU unless its name says
// so, but context_passed on drivers without cuCtxRecordEvent (before 12.5); events are queried
// under a RELAXED capture mode. One lock per context guards its streams' fences; stream-destroy and
// begin-capture take it. Knows the driver's table and the threads; nothing of leases or the broker
// (covered.h knows of other processes).
#pragma once

#include "interpose/captures.h"
#include "interpose/graphs.h"
#include "interpose/intervals.h"
#include "interpose/patience.h"
#include "interpose/resolve.h"

namespace sluice::interpose {

inline constexpr unsigned kFencesMax = 128;  // per stream, recorded and not yet passed
inline constexpr unsigned kEventPoolMax = 256;
/// Launches closer together than this are a burst and measured together; others are measured one by
/// one.
inline constexpr uint64_t kBurstGapNs = 20000;
/// End fences of a burst are about this far apart in GPU time.
inline constexpr double kFenceSpacingNs = 500000.0;
/// And no more launches apart than this: what one takes from the budget, at least.
inline constexpr int kFenceEveryMax = 256;
inline constexpr double kLaunchNsMin = kFenceSpacingNs / kFenceEveryMax;
/// A stretch this long is charged while it goes on, up to so long ago: clocks are compared that
/// well.
inline constexpr double kStretchLongNs = 20'000'000.0;
inline constexpr double kStretchMarginNs = 2'000'000.0;
/// Who looks no more for so long was stopped with its process, or got no processor: the end of what
/// ended meanwhile is not known, and taken to be when it was expected, and so much later.
inline constexpr uint64_t kUnseenNs = 100'000'000;
inline constexpr double kUnseenMarginNs = 20'000'000.0;
/// The overlap of streams is learned from this much busy time: a program that fills one stream
/// after the other is held to few streams until more have been seen side by side.
inline constexpr double kOverlapMemoryNs = 5'000'000.0;
/// Nothing is in flight.
inline constexpr uint64_t kNoFrontier = UINT64_MAX;
/// What launches of unknown length count for while they are in flight. A graph may be long: no
/// window has room beside it. Of kernels, two go into the default window of 20 ms. Into that of a
/// tenant alone on its GPU, 500 ms by default, go two for each of the 32 hardware queues and some
/// more: it learns by them how long kernels take and whether they run side by side.
inline constexpr double kUnmeasuredNs = 1e12;
inline constexpr double kUnmeasuredKernelNs = 7'000'000.0;

/// What a stream was given so far, or up to a fence.
struct Work {
  uint64_t launches;  // kernels and graphs
  uint64_t graphs;
  uint64_t graph_ns;  // learned time of those graphs, when they were launched
};

struct Fence {
  CUevent event;
  Work work;
  // All graphs since the fence before were this one; nullptr if they differ or there are none.
  GraphCost* graph;
  uint32_t graph_serial;
  bool is_start;
  bool of_context;       // recorded for the whole context, whose other streams it waits for as well
  uint32_t thread;       // of a start fence: for whose launch
  uint64_t recorded_ns;  // of a start fence: when, by the host's clock
};

/// How many streams of a context have work side by side: what each stretch of a stream took, over
/// the time in which any had work. Both are of the last kOverlapMemoryNs of that time or so.
struct Overlap {
  double each_ns;
  double any_ns;

  void learn(double stretch_ns, double grown_ns) {
    // Stretches that ended together grow the time once: what is old is halved before the first.
    if (grown_ns > 0 && any_ns >= kOverlapMemoryNs) {
      each_ns /= 2;
      any_ns /= 2;
    }
    each_ns += stretch_ns;
    any_ns += grown_ns;
  }
  /// At least 1, and no more than `streams`, those that have work; one or more.
  double of(unsigned streams) const {
    const double learned = each_ns > any_ns && any_ns > 0 ? each_ns / any_ns : 1;
    return learned < streams ? learned : streams;
  }
};

struct StreamRecord {
  CUstream stream;
  ContextRecord* context;
  const ThreadRecord* owner;  // counts without an atomic add; other threads use foreign_launches
  uint64_t owner_launches;
  uint64_t owner_graphs;
  uint64_t priced_ns;  // learned time of the first of them (priced_graphs)
  uint64_t foreign_launches;
  uint64_t foreign_graphs;
  uint64_t foreign_graph_ns;
  // Another one whenever the next launch shall look: the stream may be idle or capture, or its
  // handle may come to mean another stream. What threads remember of it is void then.
  uint32_t generation;
  bool idle;  // seen, so that the generation changes once
  // Something else than a launch is behind its launches: the next one begins an interval of its
  // own.
  bool interrupted;
  bool per_thread;  // the per-thread default stream of `owner`: only that thread can record into it
  // The legacy stream and it wait for each other (stream_blocks).
  enum class Blocks : uint8_t { kUnknown, kYes, kNo } blocks;
  uint32_t owner_number;  // a record of threads.h may become another thread's
  bool destroyed;         // by the program; stays until its fences have passed
  // What the owner launches by the short way is all one graph, from one long way to the next.
  uint64_t priced_graphs;
  uint32_t graph_each_ns;
  Work fenced;              // has a fence behind it
  Work done;                // a fence behind it has passed
  uint64_t works;           // of all launches, those that were none (work.h)
  uint64_t seen;            // launches at the helper's last visit
  uint64_t counted;         // in device_totals: launches,
  uint64_t counted_graphs;  // and graphs
  GraphCost* graph;         // launched last
  bool graphs_differ;       // among those that have no fence behind them
  uint64_t looked_ns;
  uint64_t looked_launches;
  uint64_t left_ns;   // when the last launch that was looked at returned
  double mark_ns;     // device time from which the stream has been busy
  double stretch_ns;  // up to where the stretch that goes on is charged; 0 = not at all
  bool mark_known;
  // How long after the start fence was recorded the first launch behind it was given to the driver,
  // and when, by the host's clock: until then the stream was idle. Counts once (stretch_begin).
  double start_late_ns;
  uint64_t start_given_ns;
  uint64_t start_recorded_ns;  // when that fence was
  uint32_t start_thread;       // for whose launch
  uint32_t mark_thread;        // the same, of the stretch that goes on
  // What has passed of a stretch that goes on and was not told yet (activity.h), in device time.
  bool untold;
  double untold_begin_ns;
  double untold_end_ns;
  Fence fences[kFencesMax];
  unsigned fence_first;
  unsigned fence_count;
  Patience window_patience;  // of a launch that finds the window full
  uint64_t window_passed;    // the context's `passed`, as it saw it last
  StreamRecord* next;

  uint64_t launches() const {
    return load_acquire(owner_launches) + load_acquire(foreign_launches);
  }
  Work submitted() const {
    // Launches last by who counts, so first here: the graphs among them are counted.
    const uint64_t total = launches();
    const uint64_t own = load_relaxed(owner_graphs);
    return Work{total, own + load_relaxed(foreign_graphs),
                own_graph_ns(own) + load_relaxed(foreign_graph_ns)};
  }
  /// Whether the calling thread can record into it, unless it captures.
  bool is_reachable() const {
    if (destroyed) return false;
    return !per_thread ||
           (this_thread != nullptr && owner == this_thread && owner_number == this_thread->number);
  }
  /// Whether work is in flight, which ends at its first fence, and it is known when it began.
  bool stretch_is_known() const {
    return fence_count > 0 && mark_known && !fences[fence_first].is_start;
  }
  bool is_legacy() const { return stream == nullptr || stream == CU_STREAM_LEGACY; }
  /// Whether the fence behind its work waits for the whole context.
  bool awaits_context() const {
    return fence_count > 0 && fences[(fence_first + fence_count - 1) % kFencesMax].of_context;
  }
  uint64_t own_graph_ns(uint64_t graphs) const {
    return priced_ns + (graphs - priced_graphs) * graph_each_ns;
  }
  /// The owner's graphs from now on take so long each. With the context's lock held, by the owner.
  void graphs_price(uint32_t each_ns) {
    priced_ns = own_graph_ns(owner_graphs);
    priced_graphs = owner_graphs;
    graph_each_ns = each_ns;
  }
};

/// Whether the legacy stream and this one wait for each other. kUnknown: it is captured.
StreamRecord::Blocks stream_blocks(CUstream stream);

/// Whether what other threads have in their default streams can be fenced (cuCtxRecordEvent).
enum class Tails : uint8_t { kUnknown, kCan, kCannot };

/// Of a record.
inline constexpr uint32_t kContextFree = 0;
inline constexpr uint32_t kContextAlive = 1;
/// The driver may be destroying it: nothing of it may be named, whatever it has in flight.
inline constexpr uint32_t kContextEnding = 2;

struct ContextRecord {
  CUcontext context;
  Shared<int> device;
  uint32_t life;  // changes to kContextEnding with the lock held
  Lock lock;
  StreamRecord* streams;
  StreamRecord* spare;
  CUevent base;    // a passed event; timestamps are relative to it
  double base_ns;  // its device time
  // What device times must be added to to be the host's clock, as far as is known: a start fence
  // passes when it is recorded, or later. 0 = unknown.
  double host_ahead_ns;
  double host_known_ns;  // device time of the fence that said so
  Intervals intervals;
  CUevent pool[kEventPoolMax];
  unsigned pool_count;
  uint64_t looked_ns;    // the helper's last visit
  uint64_t passed;       // end fences so far
  double busy_ns;        // union of the intervals so far
  uint64_t frontier_ns;  // host's clock: nothing unknown began before; kNoFrontier = all is known
  uint64_t busy_counted_ns;  // the part of it in device_totals
  double mean_ns;            // learned GPU time of one kernel; 0 = not measured yet
  Overlap overlap;
  uint64_t asked;     // the question that all_event answers (context_passed); 0 = none
  CUevent all_event;  // behind everything in the context; nullptr once it has passed
  Tails tails;
  uint32_t libraries;        // how many of libraries_watched it has (memory/libraries.h)
  uint32_t stack_bytes;      // its stack limit, as far as it is known (memory/local_memory.h)
  Shared<bool> legacy_used;  // launches go into the legacy stream
  bool legacy_waits;  // the next one waits for something else than launches (legacy_interrupt)

  bool is_usable() const { return load_acquire(life) == kContextAlive; }
};

/// Device time at which the stretch that goes on began: when the fence before it passed, or, where
/// that passed in an idle stream, when the launch behind it was given to the driver. A fence that
/// had to wait itself, for another stream's event or the legacy stream, may have passed later than
/// that.
double stretch_begin(const ContextRecord& context, const StreamRecord& stream);

/// What this process has used of a device since it began; only grows.
struct DeviceTotals {
  uint64_t busy_ns;
  uint64_t launches;
  uint64_t graph_launches;
};
extern DeviceTotals device_totals[kDevicesMax];
/// Into this process's account, which others read, and what is left of it if the process is killed.
void busy_publish(int gpu);
/// More than one context of this process has been on the device at the same time.
extern uint32_t contexts_beside[kDevicesMax];

/// The record of a context, made on first sight; nullptr when there is no memory for it. Records
/// stay where they are, and an ended context's becomes another's.
ContextRecord* context_record(CUcontext context, int device);
ContextRecord* context_at(int index);
int context_count();
/// The earliest frontier of the device's contexts.
uint64_t device_frontier(int device);
/// Before the driver is asked to end the context, or what may be the last reference to it: counts
/// what has passed, and keeps others away. nullptr: the meter does not know it.
ContextRecord* context_ending(CUcontext context);
/// What the driver said. `ended`: its work is over, its events are gone; whoever has it by
/// thread_context looks again.
void context_ended(CUcontext context, ContextRecord* record, bool ended);

// All of the following need the context's lock held.
StreamRecord* stream_record(ContextRecord& context, CUstream stream, ThreadRecord* thread);
/// Records a fence behind what is in the stream, which is reachable. False when it may not
/// (capturing) or cannot.
bool fence_record(ContextRecord& context, StreamRecord& stream, bool is_start);
/// Looks which fences have passed and counts their time.
void fences_harvest(ContextRecord& context);
/// Looks at the fences of one stream alone, which with many streams takes far less time.
void fences_harvest(ContextRecord& context, StreamRecord& stream);
/// Charges what has gone by of long stretches that go on: a kernel that runs for seconds, or for
/// ever, is not charged at its end only. `asked_ns`: before the fences were harvested.
void stretches_charge(ContextRecord& context, uint64_t asked_ns);
/// What becomes of per-thread default streams of other threads: only an event of the whole context
/// is behind their work.
enum class Others : uint8_t {
  kLeave,
  kFence,               // unless something of the context captures: it would break that
  kFenceBeforeCapture,  // the one capture that there is has not begun yet
};
/// Puts end fences behind whatever has none. `only`: just that stream.
void fences_complete(ContextRecord& context, StreamRecord* only, Others others);
/// Work without a fence behind it while nobody looked (kUnseenNs): an event put behind it now would
/// tell when the process came back. Charges it as far as is known. True: it is over.
bool unseen_end(ContextRecord& context, StreamRecord& stream);
/// Behind a call that may have waited for its own work. True: the stream is empty, and what was in
/// it is charged until now. A fence would make the stream answer that it is not.
bool work_is_seen_over(ContextRecord& context, StreamRecord& stream);
/// Launches submitted and not known to be finished, and what they take, by what was learned.
uint64_t launches_in_flight(const ContextRecord& context);
/// Until all is done that is in flight, and `more_ns` more into the stream.
double time_in_flight_ns(const ContextRecord& context, const StreamRecord* stream, double more_ns);
double time_in_flight_ns(const ContextRecord& context, const StreamRecord& stream);
/// Adds what is in flight in the context. Of several streams, the one of `before`, if it has not
/// moved since.
void in_flight_add(const ContextRecord& context, const InFlight& before, InFlight* sum);
/// What the meter is told of the launch it looks behind.
struct Look {
  uint64_t window_ns;
  uint64_t now_ns;   // about when it was given to the driver
  double launch_ns;  // learned time of such a launch; 0 = not measured yet
  bool fence_now;
};
/// How much GPU time may pass before the meter looks again; decides whether to fence now.
int32_t launch_budget(ContextRecord& context, StreamRecord& stream, const Look& look);
/// What a launch of this learned time takes from the budget.
int32_t budget_share(double launch_ns);
/// Before the driver is asked to destroy the stream, under its context; and when it said no.
void stream_forget(ContextRecord& context, CUstream stream);
void stream_unforget(ContextRecord& context, CUstream stream);
/// Before something else than a launch is put into the stream (the legacy one: and so between the
/// launches of all others), for which the GPU may have to wait: what was launched ends here.
void stream_interrupt(ContextRecord& context, CUstream stream);
/// Before the same in a stream that blocks, whether or not anything was launched there: the legacy
/// stream's next launch waits for it.
void legacy_interrupt(ContextRecord& context);
/// Before that launch: by way of it all streams that block wait.
void blocking_interrupt(ContextRecord& context);
/// Charges what is in flight up to now. For a context whose events can be asked no more.
void unfinished_charge(ContextRecord& context);
/// Asks once whether the driver has events for contexts of this kind. With the context current, and
/// nothing of it in a capture.
bool tails_can_be_fenced(ContextRecord& context);
/// The next launch into the stream, or any of the context, shall look.
void stream_changed(StreamRecord& stream);
void streams_changed(ContextRecord& context);
/// Whether everything that is in the context, not only launches, has passed. `question` names the
/// moment: the first call with another one than before records an event behind all streams, as soon
/// as no capture under the context forbids it.
bool context_passed(ContextRecord& context, uint64_t question);

void meter_reset_after_fork();

/// The next launch into each stream goes the long way.
void launches_look();

/// Questions to contexts (context_passed) of another broker's leases and holds are not this one's.
void questions_forget();

}  // namespace sluice::interpose

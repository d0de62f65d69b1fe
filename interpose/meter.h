// GPU-busy time of this process by sparse fences, and what is still in flight. A fence is a timing
// event recorded behind work; when it has passed, everything before it is done, and its timestamp
// bounds a busy interval. Busy time is the union of those intervals over the streams of a context.
//
//   start fence   recorded into a stream known to be idle, before its next launch: where a busy
//   interval begins end fence     recorded behind launches: every N of them, when the program is
//   about to wait, or by the helper thread
//                 when launches have stopped
//
// Rules: a capturing stream is never touched; no call here waits for the GPU unless its name says
// so; events are queried under a RELAXED capture mode. One lock per context guards its streams'
// fences; stream-destroy and begin-capture take it. Knows the driver's table and the threads;
// nothing of leases, pages or the broker.
#pragma once

#include "interpose/resolve.h"
#include "interpose/threads.h"

namespace sluice::interpose {

inline constexpr unsigned kFencesMax = 32;     // per stream, recorded and not yet passed
inline constexpr unsigned kIntervalsMax = 16;  // disjoint busy intervals remembered for the union
inline constexpr unsigned kEventPoolMax = 256;
inline constexpr int kContextsMax = 64;
/// Launches closer together than this are a burst and measured together; others are measured one by
/// one.
inline constexpr uint64_t kBurstGapNs = 20000;
/// End fences of a burst are about this far apart in GPU time.
inline constexpr double kFenceSpacingNs = 500000.0;
inline constexpr int kFenceEveryMax = 256;

struct Fence {
  CUevent event;
  uint64_t launches;  // of its stream, up to here
  bool is_start;
};

struct StreamRecord {
  CUstream stream;
  ContextRecord* context;
  const ThreadRecord* owner;  // counts without an atomic add; other threads use foreign_launches
  uint64_t owner_launches;
  uint64_t foreign_launches;
  uint32_t attention;  // the next launch shall look: the stream may be idle
  bool per_thread;  // the per-thread default stream of `owner`: only that thread can record into it
  bool destroyed;   // by the program; stays until its fences have passed
  bool burst;
  uint64_t fenced;   // launches that have a fence behind them
  uint64_t done;     // launches behind which a fence has passed
  uint64_t seen;     // launches at the helper's last visit
  uint64_t counted;  // launches in device_totals
  uint64_t looked_ns;
  uint64_t looked_launches;
  double mark_ns;  // device time from which the stream has been busy
  bool mark_known;
  Fence fences[kFencesMax];
  unsigned fence_first;
  unsigned fence_count;
  StreamRecord* next;

  uint64_t launches() const {
    return load_acquire(owner_launches) + load_acquire(foreign_launches);
  }
};

/// The union of busy intervals that arrive almost in order.
class Intervals {
 public:
  /// Adds [begin, end] and returns by how much the union grew.
  double add(double begin_ns, double end_ns);

 private:
  struct Span {
    double begin, end;
  };
  Span spans_[kIntervalsMax + 1] = {};
  unsigned count_ = 0;
  bool has_floor_ = false;
  double floor_ns_ = 0;  // what lies before was forgotten: not counted again
};

struct ContextRecord {
  CUcontext context;
  int device;
  uint32_t alive;
  Lock lock;
  StreamRecord* streams;
  StreamRecord* spare;
  CUevent base;    // a passed event; timestamps are relative to it
  double base_ns;  // its device time
  Intervals intervals;
  CUevent pool[kEventPoolMax];
  unsigned pool_count;
  double busy_ns;            // union of the intervals so far
  uint64_t busy_counted_ns;  // the part of it in device_totals
  double mean_ns;            // learned GPU time of one launch; 0 = not measured yet
};

/// What this process has used of a device since it began; only grows.
struct DeviceTotals {
  uint64_t busy_ns;
  uint64_t launches;
  uint64_t graph_launches;
};
extern DeviceTotals device_totals[kDevicesMax];

/// Streams being captured in this process. While it is not zero, streams are asked before they are
/// touched.
extern uint32_t captures_active;
bool stream_is_capturing(CUstream stream);

/// Lets this thread query events while any thread captures.
class RelaxedScope {
 public:
  RelaxedScope();
  ~RelaxedScope();
  RelaxedScope(const RelaxedScope&) = delete;
  RelaxedScope& operator=(const RelaxedScope&) = delete;

 private:
  bool changed_;
  CUstreamCaptureMode mode_;
};

/// The record of a context, made on first sight; nullptr when there are too many.
ContextRecord* context_record(CUcontext context, int device);
ContextRecord* context_at(int index);
/// Forgets a context that the program destroyed: its work is over, its events are gone.
void context_forget(CUcontext context);

// All of the following need the context's lock held.
StreamRecord* stream_record(ContextRecord& context, CUstream stream, ThreadRecord* thread);
/// Records a fence behind what is in the stream. False when it may not (capturing) or cannot.
bool fence_record(ContextRecord& context, StreamRecord& stream, bool is_start);
/// Looks which fences have passed and counts their time.
void fences_harvest(ContextRecord& context);
/// Puts end fences behind whatever has none. `only`: just that stream. `by_helper`: not this
/// program's thread.
void fences_complete(ContextRecord& context, StreamRecord* only, bool by_helper);
/// Launches submitted and not known to be finished.
uint64_t launches_in_flight(const ContextRecord& context);
/// The oldest fence that has not passed; nullptr if none.
CUevent fence_oldest(const ContextRecord& context);
/// How many further launches may pass before the meter looks again; decides whether to fence now.
int launch_budget(ContextRecord& context, StreamRecord& stream, uint64_t window_ns, uint64_t now_ns,
                  bool fence_now);
void stream_forget(ContextRecord& context, CUstream stream);

void meter_reset_after_fork();

}  // namespace sluice::interpose

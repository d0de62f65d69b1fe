// See meter.h. The sequence of a burst: launch_admit (gate.cpp) finds the stream idle and records a
// start fence; launches pass on their budget; every N an end fence; the program waits, an end fence
// is recorded just before; fences_harvest turns pairs of neighbouring fences into busy intervals.
#include "interpose/meter.h"

#include <string.h>

#include "interpose/activity.h"
#include "interpose/covered.h"

namespace sluice::interpose {

DeviceTotals device_totals[kDevicesMax];

double stretch_begin(const ContextRecord& context, const StreamRecord& stream) {
  double late_ns = stream.start_late_ns;
  if (late_ns != 0 && context.host_ahead_ns != 0) {
    const double passed_ns = stream.mark_ns + context.host_ahead_ns;
    const double after_ns = static_cast<double>(stream.start_given_ns) - passed_ns;
    if (after_ns < late_ns) late_ns = after_ns < 0 ? 0 : after_ns;
  }
  return stream.mark_ns + late_ns;
}

namespace {

// A base older than this is replaced: cuEventElapsedTime answers in float milliseconds, 0.1 us
// steps at 2 s.
constexpr double kBaseAgeMaxNs = 2e9;
// How far the device's clock and the host's part, at most, per time.
constexpr double kClockDriftMax = 200e-6;

CUevent event_take(ContextRecord& context) {
  if (context.pool_count > 0) return context.pool[--context.pool_count];
  CUevent event = nullptr;
  const RelaxedScope relaxed;
  return driver.cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC) == CUDA_SUCCESS ? event : nullptr;
}

void event_give(ContextRecord& context, CUevent event) {
  if (context.pool_count < kEventPoolMax) {
    context.pool[context.pool_count++] = event;
  } else {
    driver.cuEventDestroy_v2(event);
  }
}

// Device time of a passed event. Takes the event over: it becomes the new base or returns to the
// pool.
bool event_time(ContextRecord& context, CUevent event, double* out_ns) {
  if (context.base == nullptr) {
    context.base = event;
    context.base_ns = 0;
    *out_ns = 0;
    return true;
  }
  float ms = 0;
  if (driver.cuEventElapsedTime(&ms, context.base, event) != CUDA_SUCCESS) {
    event_give(context, event);
    return false;
  }
  const double since_ns = static_cast<double>(ms) * 1e6;
  *out_ns = context.base_ns + since_ns;
  if (since_ns > kBaseAgeMaxNs) {
    event_give(context, context.base);
    context.base = event;
    context.base_ns = *out_ns;
  } else {
    event_give(context, event);
  }
  return true;
}

// The same of an event for the whole context. Its time is believed if it can be true; else, and
// where such events have none, the work has ended by now.
bool context_event_time(ContextRecord& context, const StreamRecord& stream, CUevent event,
                        double* out_ns) {
  float ms = 0;
  bool timed = context.base != nullptr &&
               driver.cuEventElapsedTime(&ms, context.base, event) == CUDA_SUCCESS;
  event_give(context, event);
  const double time_ns = context.base_ns + static_cast<double>(ms) * 1e6;
  if (context.host_ahead_ns == 0) {
    *out_ns = time_ns;
    return timed;
  }
  const double now_ns = static_cast<double>(clock_now_ns()) - context.host_ahead_ns;
  timed = timed && time_ns >= stream.mark_ns && time_ns <= now_ns + kStretchMarginNs;
  *out_ns = timed ? time_ns : now_ns;
  return true;
}

// A stretch between two fences teaches what it is made of. Kernels and graphs together: what the
// graphs were expected to take is theirs, the rest the kernels'.
void interval_learn(ContextRecord& context, const StreamRecord& stream, const Fence& fence,
                    double length_ns) {
  const uint64_t graphs = fence.work.graphs - stream.done.graphs;
  const uint64_t launches = fence.work.launches - stream.done.launches;
  if (graphs >= launches) {
    if (graphs == launches && graphs > 0 && fence.graph != nullptr)
      graph_learn(*fence.graph, fence.graph_serial, length_ns / static_cast<double>(graphs));
    return;
  }
  const double kernels_ns =
      length_ns - static_cast<double>(fence.work.graph_ns - stream.done.graph_ns);
  // Graphs that took less than was expected leave nothing, which says nothing of the kernels.
  if (kernels_ns > 0 || graphs == 0) {
    context.mean_ns =
        mean_learned(context.mean_ns, kernels_ns / static_cast<double>(launches - graphs));
  }
}

// The fence that passed soonest after it was recorded tells the clocks' difference best; what it
// said fades, because clocks drift.
void clocks_compare(ContextRecord& context, const Fence& fence, double device_ns) {
  const double ahead_ns = static_cast<double>(fence.recorded_ns) - device_ns;
  const double faded_ns =
      context.host_ahead_ns - (device_ns - context.host_known_ns) * kClockDriftMax;
  if (context.host_ahead_ns != 0 && ahead_ns < faded_ns) return;
  context.host_ahead_ns = ahead_ns;
  context.host_known_ns = device_ns;
}

// A stretch is told as a whole, or in long pieces: who reads it wants its ends.
void stretch_note(StreamRecord& stream, double begin_ns, double end_ns) {
  if (!stream.untold) stream.untold_begin_ns = begin_ns;
  stream.untold = true;
  stream.untold_end_ns = end_ns;
}

void stretch_tell(const ContextRecord& context, StreamRecord& stream) {
  stream.untold = false;
  if (context.host_ahead_ns == 0) return;
  activity_busy(
      context.device, static_cast<uint64_t>(stream.untold_begin_ns + context.host_ahead_ns),
      static_cast<uint64_t>(stream.untold_end_ns + context.host_ahead_ns), stream.mark_thread);
}

// Counts [begin, end] of device time as busy, as far as it is not counted yet; returns how much.
double interval_charge(ContextRecord& context, double begin_ns, double end_ns) {
  const double ahead_ns = context.host_ahead_ns;
  return context.intervals.add(begin_ns, end_ns, [&](double from_ns, double to_ns) {
    context.busy_ns +=
        covered_charge(context.device, ahead_ns == 0 ? 0 : to_ns + ahead_ns, to_ns - from_ns);
  });
}

// Before intervals are forgotten, of which what began earlier and goes on would then be charged
// less: it is charged up to `until_ns`, when something has passed, and has become one with them.
void stretches_settle(ContextRecord& context, double until_ns) {
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    // An event of the whole context does not say that this stream still goes on.
    if (!s->stretch_is_known() || s->fences[s->fence_first].of_context) continue;
    const CUevent end = s->fences[s->fence_first].event;
    double end_ns = until_ns;
    if (driver.cuEventQuery(end) != CUDA_ERROR_NOT_READY) {
      float ms = 0;
      if (driver.cuEventElapsedTime(&ms, context.base, end) != CUDA_SUCCESS) continue;
      end_ns = context.base_ns + static_cast<double>(ms) * 1e6;
    }
    interval_charge(context, stretch_begin(context, *s), end_ns);
  }
}

// A stretch of the stream has ended, or gone on so far.
void stretch_count(ContextRecord& context, StreamRecord& stream, double begin_ns, double end_ns) {
  if (SLUICE_UNLIKELY(context.intervals.is_full())) stretches_settle(context, end_ns);
  const double grown_ns = interval_charge(context, begin_ns, end_ns);
  context.overlap.learn(end_ns - begin_ns, grown_ns);
  if (stream.untold && begin_ns > stream.untold_end_ns) stretch_tell(context, stream);
  stretch_note(stream, begin_ns, end_ns);
}

// From when on the stream may have been busy with what is in flight; `unknown_ns` where nothing
// tells.
uint64_t stream_frontier(const ContextRecord& context, const StreamRecord& stream,
                         uint64_t unknown_ns) {
  if (stream.launches() == stream.done.launches) return kNoFrontier;
  if (stream.fence_count > 0 && stream.fences[stream.fence_first].is_start) {
    const uint64_t recorded_ns = stream.fences[stream.fence_first].recorded_ns;
    return recorded_ns != 0 ? recorded_ns : unknown_ns;
  }
  if (context.host_ahead_ns == 0 || !(stream.untold || stream.mark_known)) return unknown_ns;
  const double begin_ns = stream.untold ? stream.untold_begin_ns : stretch_begin(context, stream);
  return static_cast<uint64_t>(begin_ns + context.host_ahead_ns);
}

void frontier_update(ContextRecord& context) {
  uint64_t earliest = kNoFrontier;
  for (const StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    // Never further than before: what was unknown then has not become known.
    const uint64_t one = stream_frontier(context, *s, context.frontier_ns);
    if (one < earliest) earliest = one;
  }
  store_release(context.frontier_ns, earliest);
}

// The context has failed, and with it the work of the stream, which was there until now as far as
// anybody knows.
void stretch_cut(ContextRecord& context, StreamRecord& stream) {
  if (!stream.mark_known || context.host_ahead_ns == 0) return;
  const double now_ns = static_cast<double>(clock_now_ns()) - context.host_ahead_ns;
  const double begin_ns = stretch_begin(context, stream);
  if (begin_ns < now_ns) stretch_count(context, stream, begin_ns, now_ns);
}

void fence_passed(ContextRecord& context, StreamRecord& stream, const Fence& fence, bool in_order) {
  double now_ns = 0;
  const bool timed =
      in_order && (fence.of_context ? context_event_time(context, stream, fence.event, &now_ns)
                                    : event_time(context, fence.event, &now_ns));
  if (fence.is_start) {
    stream.mark_known = timed;
    stream.mark_ns = now_ns;
    stream.mark_thread = fence.thread;
    if (timed && fence.recorded_ns != 0) clocks_compare(context, fence, now_ns);
    if (!in_order && fence.recorded_ns != 0) {
      stream.mark_known = true;
      stream.mark_ns = static_cast<double>(fence.recorded_ns) - context.host_ahead_ns;
    }
    return;
  }
  if (!in_order) stretch_cut(context, stream);
  if (timed && stream.mark_known) {
    // Later than its end is no beginning: somebody else's launch came first.
    const double known_ns = stretch_begin(context, stream);
    const double begin_ns = known_ns < now_ns ? known_ns : stream.mark_ns;
    stretch_count(context, stream, begin_ns, now_ns);
    if (!fence.of_context) interval_learn(context, stream, fence, now_ns - begin_ns);
  }
  ++context.passed;
  stream.stretch_ns = 0;
  stream.start_late_ns = 0;
  stream.mark_known = timed;
  stream.mark_ns = now_ns;
  stream.done = fence.work;
}

void totals_count(ContextRecord& context, StreamRecord& stream) {
  DeviceTotals& totals = device_totals[context.device];
  // A launch is counted before it is known to be none: the sum may become less by that.
  const Work now = stream.submitted();
  const uint64_t launches = now.launches - load_acquire(stream.works);
  if (launches != stream.counted || now.graphs != stream.counted_graphs) {
    __atomic_add_fetch(&totals.launches, launches - stream.counted, __ATOMIC_RELAXED);
    __atomic_add_fetch(&totals.graph_launches, now.graphs - stream.counted_graphs,
                       __ATOMIC_RELAXED);
    stream.counted = launches;
    stream.counted_graphs = now.graphs;
  }
  const uint64_t busy_ns = static_cast<uint64_t>(context.busy_ns);
  if (busy_ns != context.busy_counted_ns) {
    __atomic_add_fetch(&totals.busy_ns, busy_ns - context.busy_counted_ns, __ATOMIC_RELAXED);
    context.busy_counted_ns = busy_ns;
  }
}

Fence& fence_at(StreamRecord& stream, unsigned index) {
  return stream.fences[(stream.fence_first + index) % kFencesMax];
}

// The first fence is the whole context's and waits for others: one behind it that is the stream's
// own tells as much. False: none has passed.
bool fence_of_context_drop(ContextRecord& context, StreamRecord& stream) {
  const Fence first = fence_at(stream, 0);
  if (!first.of_context) return false;
  for (unsigned i = 1; i < stream.fence_count; ++i) {
    const Fence& own = fence_at(stream, i);
    if (own.is_start) return false;  // it does not say when what is before it ended
    if (own.of_context) continue;
    if (driver.cuEventQuery(own.event) == CUDA_ERROR_NOT_READY) return false;
    Fence& next = fence_at(stream, 1);
    if (next.graph != first.graph || next.graph_serial != first.graph_serial) next.graph = nullptr;
    event_give(context, first.event);
    stream.fence_first = (stream.fence_first + 1) % kFencesMax;
    --stream.fence_count;
    return true;
  }
  return false;
}

void stream_harvest(ContextRecord& context, StreamRecord& stream) {
  while (stream.fence_count > 0) {
    const Fence& fence = fence_at(stream, 0);
    const CUresult result = driver.cuEventQuery(fence.event);
    if (result == CUDA_ERROR_NOT_READY) {
      if (!fence_of_context_drop(context, stream)) break;
      continue;
    }
    stream.fence_first = (stream.fence_first + 1) % kFencesMax;
    --stream.fence_count;
    // Any other error is the context's (a failed kernel): its work is over.
    fence_passed(context, stream, fence, result == CUDA_SUCCESS);
  }
  totals_count(context, stream);
  const bool finished = stream.launches() == stream.done.launches;
  if (!stream.idle && finished) {
    stream.idle = true;
    stream_changed(stream);
  }
  if (stream.untold &&
      (finished || stream.untold_end_ns - stream.untold_begin_ns > kStretchLongNs)) {
    stretch_tell(context, stream);
  }
}

// A per-thread default stream whose thread has ended: nothing will come into it any more.
bool owner_has_ended(const StreamRecord& stream) {
  return stream.per_thread && (load_acquire(stream.owner->taken) == 0 ||
                               load_relaxed(stream.owner->number) != stream.owner_number);
}

CUresult event_record(ContextRecord& context, const StreamRecord& stream, CUevent event,
                      bool of_context) {
  if (SLUICE_LIKELY(!of_context)) return driver.cuEventRecord(event, stream.stream);
  const RelaxedScope relaxed;
  return driver.cuCtxRecordEvent(context.context, event);
}

}  // namespace

// Asks once whether the driver has events for contexts of this kind. With the context current, and
// nothing of it in a capture.
bool tails_can_be_fenced(ContextRecord& context) {
  if (context.tails == Tails::kUnknown) {
    CUevent event = event_take(context);
    if (event == nullptr) return false;
    const bool can = driver.cuCtxRecordEvent(context.context, event) == CUDA_SUCCESS;
    event_give(context, event);
    context.tails = can ? Tails::kCan : Tails::kCannot;
  }
  return context.tails == Tails::kCan;
}

// What has just got a fence behind it.
static void fence_covers(StreamRecord& stream, Fence& fence, const Work& work) {
  fence.work = work;
  fence.graph = stream.graphs_differ ? nullptr : stream.graph;
  fence.graph_serial = fence.graph != nullptr ? uint32_t{fence.graph->serial} : 0;
  if (fence.is_start) return;
  stream.fenced = work;
  stream.graphs_differ = false;
}

// With no room for another fence, the newest one moves behind the launches after it. Not to be able
// to fence a launch would be worse than to measure two together: no drain would ever end.
static bool fence_move(ContextRecord& context, StreamRecord& stream, const Work& work,
                       bool of_context) {
  Fence& newest = fence_at(stream, stream.fence_count - 1);
  if (newest.is_start || event_record(context, stream, newest.event, of_context) != CUDA_SUCCESS)
    return false;
  newest.of_context = of_context;
  stream.graphs_differ = true;
  fence_covers(stream, newest, work);
  return true;
}

// With its time unknown. Fences that have not passed would say that less is done.
static void work_is_over(ContextRecord& context, StreamRecord& stream, const Work& work) {
  for (; stream.fence_count > 0; --stream.fence_count)
    event_give(context, fence_at(stream, stream.fence_count - 1).event);
  stream.fenced = stream.done = work;
  stream.mark_known = false;
}

// Records a fence into the stream or for the whole context.
static bool fence_put(ContextRecord& context, StreamRecord& stream, bool is_start,
                      bool of_context) {
  const Work work = stream.submitted();
  if (stream.fence_count == kFencesMax) {
    const RelaxedScope relaxed;
    stream_harvest(context, stream);
  }
  if (stream.fence_count == kFencesMax)
    return !is_start && fence_move(context, stream, work, of_context);
  CUevent event = event_take(context);
  if (event == nullptr) return false;
  const CUresult result = event_record(context, stream, event, of_context);
  if (result != CUDA_SUCCESS) {
    event_give(context, event);
    // Not a capture that began meanwhile, nor want of memory, but a broken context or stream.
    const bool may_go_on = (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                            result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) ||
                           result == CUDA_ERROR_OUT_OF_MEMORY;
    if (!may_go_on) {
      if (work.launches != stream.done.launches) stretch_cut(context, stream);
      work_is_over(context, stream, work);
    }
    return false;
  }
  Fence& fence = fence_at(stream, stream.fence_count);
  fence.event = event;
  fence.is_start = is_start;
  fence.of_context = of_context;
  fence.recorded_ns = is_start ? stream.start_recorded_ns : 0;
  fence.thread = is_start ? stream.start_thread : 0;
  fence_covers(stream, fence, work);
  ++stream.fence_count;
  return true;
}

bool fence_record(ContextRecord& context, StreamRecord& stream, bool is_start) {
  if (stream.destroyed || stream_is_capturing(stream.stream)) return false;
  return fence_put(context, stream, is_start, false);
}

void fences_harvest(ContextRecord& context) {
  const RelaxedScope relaxed;
  StreamRecord** link = &context.streams;
  while (*link != nullptr) {
    StreamRecord* stream = *link;
    stream_harvest(context, *stream);
    const bool ended = stream->destroyed || owner_has_ended(*stream);
    if (ended && stream->fence_count == 0 && stream->launches() == stream->done.launches) {
      store_release(*link, stream->next);
      stream->next = context.spare;
      context.spare = stream;
    } else {
      link = &stream->next;
    }
  }
  frontier_update(context);
  activity_settle(context.device);
}

void fences_harvest(ContextRecord& context, StreamRecord& stream) {
  const RelaxedScope relaxed;
  stream_harvest(context, stream);
  frontier_update(context);
  activity_settle(context.device);
}

void stretches_charge(ContextRecord& context, uint64_t asked_ns) {
  if (context.host_ahead_ns == 0) return;
  const double until_ns = static_cast<double>(asked_ns) - context.host_ahead_ns - kStretchMarginNs;
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (!s->stretch_is_known()) continue;
    const double begin_ns = stretch_begin(context, *s);
    const double charged_ns = s->stretch_ns > begin_ns ? s->stretch_ns : begin_ns;
    if (until_ns - charged_ns < kStretchLongNs) continue;
    s->stretch_ns = until_ns;
    // The whole stretch is added again at its end: what was charged here is not charged twice.
    stretch_count(context, *s, begin_ns, until_ns);
    stretch_tell(context, *s);
    totals_count(context, *s);
  }
  activity_settle(context.device);
}

bool unseen_end(ContextRecord& context, StreamRecord& stream) {
  if (stream.launches() == stream.fenced.launches) return false;
  const uint64_t now_ns = clock_now_ns();
  const uint64_t seen_ns =
      context.looked_ns > stream.looked_ns ? context.looked_ns : stream.looked_ns;
  if (now_ns < seen_ns + kUnseenNs || seen_ns == 0) return false;
  if (context.mean_ns <= 0) return false;  // how long it takes is not known
  if (context.host_ahead_ns == 0 || !stream.is_reachable()) return false;
  if (stream_is_capturing(stream.stream)) return false;
  const RelaxedScope relaxed;
  // Before the question: what other threads launch meanwhile is not answered for.
  const Work work = stream.submitted();
  const bool is_over = driver.cuStreamQuery(stream.stream) == CUDA_SUCCESS;
  stream_harvest(context, stream);
  // Nothing tells, or what was there then is there yet.
  if (!stream.mark_known || stream.fence_count > 0) return false;
  if (!is_over && stream.launches() == stream.seen) return false;
  const double begin_ns = stretch_begin(context, stream);
  const double device_now_ns = static_cast<double>(now_ns) - context.host_ahead_ns;
  double end_ns = static_cast<double>(seen_ns) - context.host_ahead_ns;
  if (end_ns < begin_ns) end_ns = begin_ns;
  end_ns += 2 * time_in_flight_ns(context, stream) + kUnseenMarginNs;
  if (end_ns >= device_now_ns) return false;
  stretch_count(context, stream, begin_ns, end_ns);
  if (is_over) {
    work_is_over(context, stream, work);
    stream_harvest(context, stream);  // nothing else is in flight
  } else {
    stream.mark_ns = device_now_ns;
    stream.start_late_ns = stream.stretch_ns = 0;
  }
  return is_over;
}

bool work_is_seen_over(ContextRecord& context, StreamRecord& stream) {
  if (!stream.is_reachable() || stream_is_capturing(stream.stream)) return false;
  const RelaxedScope relaxed;
  const Work work = stream.submitted();
  if (driver.cuStreamQuery(stream.stream) != CUDA_SUCCESS) return false;
  const double now_ns = static_cast<double>(clock_now_ns());
  stream_harvest(context, stream);
  if (!stream.mark_known || stream.fence_count > 0 || context.host_ahead_ns == 0) return false;
  const double begin_ns = stretch_begin(context, stream);
  const double end_ns = now_ns - context.host_ahead_ns;
  if (end_ns > begin_ns) stretch_count(context, stream, begin_ns, end_ns);
  work_is_over(context, stream, work);
  stream_harvest(context, stream);  // nothing else is in flight
  return true;
}

void fences_complete(ContextRecord& context, StreamRecord* only, Others others) {
  const uint32_t captures_allowed = others == Others::kFenceBeforeCapture ? 1 : 0;
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (only != nullptr && s != only) continue;
    if (s->launches() == s->fenced.launches) continue;
    if (s->is_reachable()) {
      if (!unseen_end(context, *s)) (void)fence_record(context, *s, false);
    } else if (s->destroyed && context.tails == Tails::kCannot) {
      work_is_over(context, *s, s->submitted());  // nobody will ever tell
    } else if (others != Others::kLeave && context.tails == Tails::kCan &&
               captures_of(context.context) <= captures_allowed &&
               fence_put(context, *s, false, true)) {
      // The next launch into it puts a fence of its own before it.
      stream_changed(*s);
    }
  }
}

void stream_forget(ContextRecord& context, CUstream stream) {
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->stream != stream || s->destroyed) continue;
    if (s->launches() != s->fenced.launches && !fence_record(context, *s, false) &&
        captures_of(context.context) == 0) {
      (void)tails_can_be_fenced(context);  // an event of the context will have to do
    }
    s->destroyed = true;
    stream_changed(*s);
  }
}

void stream_unforget(ContextRecord& context, CUstream stream) {
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->stream != stream || !s->destroyed) continue;
    s->destroyed = false;
    if (!s->per_thread) return;  // the newest; others had the handle before it
  }
}

// From when on, by the host's clock, the stream was busy with what is in flight; 0 = not known.
static double unfinished_since(const ContextRecord& context, const StreamRecord& stream) {
  const bool starts = stream.fence_count > 0 && stream.fences[stream.fence_first].is_start;
  if (starts) return static_cast<double>(stream.fences[stream.fence_first].recorded_ns);
  if (!stream.mark_known || context.host_ahead_ns == 0) return 0;
  return stretch_begin(context, stream) + context.host_ahead_ns;
}

void unfinished_charge(ContextRecord& context) {
  const auto now_ns = static_cast<double>(clock_now_ns());
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->launches() == s->done.launches) continue;
    const double since_ns = unfinished_since(context, *s);
    if (since_ns == 0 || since_ns >= now_ns) continue;
    interval_charge(context, since_ns - context.host_ahead_ns, now_ns - context.host_ahead_ns);
    totals_count(context, *s);
  }
}

bool context_passed(ContextRecord& context, uint64_t question) {
  driver.cuCtxSetCurrent(context.context);
  if (context.asked != question) {
    // Both ways of asking break a capture of the context; the lock keeps one from beginning.
    if (captures_of(context.context) != 0) return false;
    if (context.all_event == nullptr) context.all_event = event_take(context);
    context.asked = question;
    if (context.all_event == nullptr ||
        driver.cuCtxRecordEvent(context.context, context.all_event) != CUDA_SUCCESS) {
      // A driver before 12.5, or a broken context, whose work is over.
      driver.cuCtxSynchronize();
      if (context.all_event != nullptr) event_give(context, context.all_event);
      context.all_event = nullptr;
    }
  }
  if (context.all_event == nullptr) return true;
  if (driver.cuEventQuery(context.all_event) == CUDA_ERROR_NOT_READY) return false;
  event_give(context, context.all_event);
  context.all_event = nullptr;
  return true;
}

}  // namespace sluice::interpose

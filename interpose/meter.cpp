// See meter.h. The sequence of a burst: launch_admit (gate.cpp) finds the stream idle and records a
// start fence; launches pass on their budget; every N an end fence; the program waits, an end fence
// is recorded just before; fences_harvest turns pairs of neighbouring fences into busy intervals.
#include "interpose/meter.h"

#include <string.h>

namespace sluice::interpose {

uint32_t captures_active;
DeviceTotals device_totals[kDevicesMax];

namespace {

constinit ContextRecord contexts[kContextsMax];
constinit Lock contexts_lock;

// A base older than this is replaced: cuEventElapsedTime answers in float milliseconds, 0.1 us
// steps at 2 s.
constexpr double kBaseAgeMaxNs = 2e9;

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

void mean_learn(ContextRecord& context, double sample_ns) {
  // Up at once, down slowly: a window filled by an estimate that is too small cannot be taken back.
  if (sample_ns >= context.mean_ns) {
    context.mean_ns = sample_ns;
  } else {
    context.mean_ns += (sample_ns - context.mean_ns) / 8;
  }
}

void fence_passed(ContextRecord& context, StreamRecord& stream, const Fence& fence, bool in_order) {
  double now_ns = 0;
  const bool timed = in_order && event_time(context, fence.event, &now_ns);
  if (fence.is_start) {
    stream.mark_known = timed;
    stream.mark_ns = now_ns;
    return;
  }
  if (timed && stream.mark_known) {
    context.busy_ns += context.intervals.add(stream.mark_ns, now_ns);
    const uint64_t count = fence.launches - stream.done;
    if (count > 0) mean_learn(context, (now_ns - stream.mark_ns) / static_cast<double>(count));
  }
  stream.mark_known = timed;
  stream.mark_ns = now_ns;
  stream.done = fence.launches;
}

void totals_count(ContextRecord& context, StreamRecord& stream) {
  DeviceTotals& totals = device_totals[context.device];
  const uint64_t launches = stream.launches();
  if (launches != stream.counted) {
    __atomic_add_fetch(&totals.launches, launches - stream.counted, __ATOMIC_RELAXED);
    stream.counted = launches;
  }
  const uint64_t busy_ns = static_cast<uint64_t>(context.busy_ns);
  if (busy_ns != context.busy_counted_ns) {
    __atomic_add_fetch(&totals.busy_ns, busy_ns - context.busy_counted_ns, __ATOMIC_RELAXED);
    context.busy_counted_ns = busy_ns;
  }
}

void stream_harvest(ContextRecord& context, StreamRecord& stream) {
  while (stream.fence_count > 0) {
    const Fence fence = stream.fences[stream.fence_first];
    const CUresult result = driver.cuEventQuery(fence.event);
    if (result == CUDA_ERROR_NOT_READY) break;
    stream.fence_first = (stream.fence_first + 1) % kFencesMax;
    --stream.fence_count;
    // Any other error is the context's (a failed kernel): its work is over, its time unknown.
    fence_passed(context, stream, fence, result == CUDA_SUCCESS);
  }
  totals_count(context, stream);
  if (stream.launches() == stream.done) store_release(stream.attention, 1u);
}

bool is_per_thread(CUstream stream) { return stream == CU_STREAM_PER_THREAD; }

}  // namespace

double Intervals::add(double begin_ns, double end_ns) {
  if (has_floor_ && begin_ns < floor_ns_) begin_ns = floor_ns_;
  if (end_ns <= begin_ns) return 0;
  // Everything that touches [begin, end] becomes one span; what it covered already is not counted
  // again.
  double covered = 0;
  unsigned kept = 0, at = 0;
  Span merged{begin_ns, end_ns};
  for (unsigned i = 0; i < count_; ++i) {
    const Span s = spans_[i];
    if (s.end < begin_ns || s.begin > end_ns) {
      if (s.end < begin_ns) at = kept + 1;
      spans_[kept++] = s;
      continue;
    }
    const double low = s.begin > begin_ns ? s.begin : begin_ns;
    const double high = s.end < end_ns ? s.end : end_ns;
    covered += high - low;
    if (s.begin < merged.begin) merged.begin = s.begin;
    if (s.end > merged.end) merged.end = s.end;
  }
  for (unsigned i = kept; i > at; --i) spans_[i] = spans_[i - 1];
  spans_[at] = merged;
  count_ = kept + 1;
  if (count_ > kIntervalsMax) {
    has_floor_ = true;
    floor_ns_ = spans_[0].end;
    for (unsigned i = 1; i < count_; ++i) spans_[i - 1] = spans_[i];
    --count_;
  }
  return end_ns - begin_ns - covered;
}

RelaxedScope::RelaxedScope()
    : changed_(load_acquire(captures_active) != 0), mode_(CU_STREAM_CAPTURE_MODE_RELAXED) {
  if (SLUICE_UNLIKELY(changed_)) {
    changed_ = driver.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
}

RelaxedScope::~RelaxedScope() {
  if (SLUICE_UNLIKELY(changed_)) driver.cuThreadExchangeStreamCaptureMode(&mode_);
}

bool stream_is_capturing(CUstream stream) {
  if (SLUICE_LIKELY(load_acquire(captures_active) == 0)) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // The legacy stream answers with an error while a blocking stream captures: hands off as well.
  return driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

ContextRecord* context_record(CUcontext context, int device) {
  const LockScope scope(contexts_lock);
  ContextRecord* free_one = nullptr;
  for (ContextRecord& record : contexts) {
    if (record.alive != 0 && record.context == context) return &record;
    if (record.alive == 0 && free_one == nullptr) free_one = &record;
  }
  if (free_one == nullptr) return nullptr;
  free_one->context = context;
  free_one->device = device;
  store_release(free_one->alive, 1u);
  return free_one;
}

ContextRecord* context_at(int index) { return &contexts[index]; }

void context_forget(CUcontext context) {
  const LockScope scope(contexts_lock);
  for (ContextRecord& record : contexts) {
    if (record.alive == 0 || record.context != context) continue;
    const LockScope inner(record.lock);
    __atomic_add_fetch(&stream_generation, 1, __ATOMIC_RELEASE);
    while (record.streams != nullptr) {
      StreamRecord* stream = record.streams;
      record.streams = stream->next;
      stream->next = record.spare;
      record.spare = stream;
    }
    record.base = nullptr;
    record.pool_count = 0;
    record.mean_ns = 0;
    record.intervals = Intervals();
    store_release(record.alive, 0u);
  }
}

StreamRecord* stream_record(ContextRecord& context, CUstream stream, ThreadRecord* thread) {
  const bool per_thread = is_per_thread(stream);
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->stream == stream && !s->destroyed && (!per_thread || s->owner == thread)) return s;
  }
  StreamRecord* made = context.spare;
  if (made != nullptr) {
    context.spare = made->next;
  } else {
    constexpr size_t kBatch = 8;
    auto* batch = static_cast<StreamRecord*>(pages_allocate(kBatch * sizeof(StreamRecord)));
    if (batch == nullptr) return nullptr;
    for (size_t i = 1; i < kBatch; ++i) {
      batch[i].next = context.spare;
      context.spare = &batch[i];
    }
    made = batch;
  }
  memset(static_cast<void*>(made), 0, sizeof *made);
  made->stream = stream;
  made->context = &context;
  made->owner = thread;
  made->per_thread = per_thread;
  made->next = context.streams;
  context.streams = made;
  return made;
}

bool fence_record(ContextRecord& context, StreamRecord& stream, bool is_start) {
  if (stream.destroyed || stream_is_capturing(stream.stream)) return false;
  const uint64_t launches = stream.launches();
  if (stream.fence_count == kFencesMax) {
    stream_harvest(context, stream);
    if (stream.fence_count == kFencesMax) return false;
  }
  CUevent event = event_take(context);
  if (event == nullptr) return false;
  const CUresult result = driver.cuEventRecord(event, stream.stream);
  if (result != CUDA_SUCCESS) {
    event_give(context, event);
    // Not a capture that began meanwhile but a broken context or stream: its work is over, its time
    // unknown.
    if (result < CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
        result > CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) {
      stream.fenced = stream.done = launches;
      stream.mark_known = false;
    }
    return false;
  }
  stream.fences[(stream.fence_first + stream.fence_count) % kFencesMax] =
      Fence{event, launches, is_start};
  ++stream.fence_count;
  if (!is_start) stream.fenced = launches;
  return true;
}

void fences_harvest(ContextRecord& context) {
  const RelaxedScope relaxed;
  StreamRecord** link = &context.streams;
  while (*link != nullptr) {
    StreamRecord* stream = *link;
    stream_harvest(context, *stream);
    if (stream->destroyed && stream->fence_count == 0) {
      *link = stream->next;
      stream->next = context.spare;
      context.spare = stream;
    } else {
      link = &stream->next;
    }
  }
}

void fences_complete(ContextRecord& context, StreamRecord* only, bool by_helper) {
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (only != nullptr && s != only) continue;
    if (s->launches() == s->fenced) continue;
    if (s->per_thread && (by_helper || s->owner != this_thread)) continue;
    (void)fence_record(context, *s, false);
  }
}

uint64_t launches_in_flight(const ContextRecord& context) {
  uint64_t sum = 0;
  for (const StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    sum += s->destroyed ? s->fence_count : s->launches() - s->done;
  }
  return sum;
}

CUevent fence_oldest(const ContextRecord& context) {
  const StreamRecord* best = nullptr;
  for (const StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->fence_count == 0) continue;
    // Most launches outstanding: the one whose fence frees most of the window.
    if (best == nullptr || s->launches() - s->done > best->launches() - best->done) best = s;
  }
  return best == nullptr ? nullptr : best->fences[best->fence_first].event;
}

int launch_budget(ContextRecord& context, StreamRecord& stream, uint64_t window_ns, uint64_t now_ns,
                  bool fence_now) {
  const uint64_t launches = stream.launches();
  const uint64_t since = launches - stream.looked_launches;
  const bool burst = since > 0 && (now_ns - stream.looked_ns) / since < kBurstGapNs;
  stream.looked_ns = now_ns;
  stream.looked_launches = launches;
  stream.burst = burst;

  // How many launches may go between two looks: about half a millisecond of GPU time, and never
  // past the window.
  int every = 1;
  if (burst && context.mean_ns > 0) {
    const double wanted = kFenceSpacingNs / context.mean_ns;
    every = wanted >= kFenceEveryMax ? kFenceEveryMax : wanted < 1 ? 1 : static_cast<int>(wanted);
  }
  if (window_ns > 0) {
    const double room = context.mean_ns > 0 ? static_cast<double>(window_ns) / context.mean_ns -
                                                  static_cast<double>(launches_in_flight(context))
                                            : 0;
    if (room < every) every = room < 1 ? 1 : static_cast<int>(room);
  }
  const uint64_t unfenced = launches - stream.fenced;
  if (fence_now || stream.per_thread || !burst || every == 1 ||
      unfenced >= static_cast<uint64_t>(every)) {
    (void)fence_record(context, stream, false);
  }
  return stream.per_thread ? 0 : every - 1;
}

void stream_forget(ContextRecord& context, CUstream stream) {
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->stream != stream || s->destroyed) continue;
    if (s->launches() != s->fenced) (void)fence_record(context, *s, false);
    s->destroyed = true;
  }
  __atomic_add_fetch(&stream_generation, 1, __ATOMIC_RELEASE);
}

void meter_reset_after_fork() {
  contexts_lock.reset_after_fork();
  memset(static_cast<void*>(contexts), 0, sizeof contexts);
  store_release(captures_active, 0u);
  __atomic_add_fetch(&stream_generation, 1, __ATOMIC_RELEASE);
}

}  // namespace sluice::interpose

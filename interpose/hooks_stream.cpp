// Streams: their end, their capture into graphs, and the calls by which a program waits. A wait is
// the meter's best moment: the fence recorded just before it marks the exact end of the work, and
// its return shows what has finished.
#include "interpose/touch.h"

using namespace sluice::interpose;

namespace {

template <class Call>
CUresult waiting(CUstream stream, Fenced fenced, Call call) {
  if (process_enter() != Mode::kActive) return call();
  wait_prepare(stream, fenced);
  const CUresult result = [&] {
    const WaitScope told(sluice::protocol::WaitReason::kSync);
    return call();
  }();
  if (result == CUDA_SUCCESS)
    wait_done();
  else
    wait_failed();
  return result;
}

/// Waits out a hold first: a process that the driver has in a checkpoint must not meet it with a
/// synchronisation of a context or a stream (series 580 and 595 end it with SIGSEGV when that is
/// its first call after the restore; events, launches and copies are safe). A wait that is under
/// way is over before the hold is acknowledged, and would be anyway.
template <class Call>
CUresult waiting_in(CUstream stream, Fenced fenced, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  return waiting(stream, fenced, call);
}

// Where the program's own call finds the stream. False: not on a GPU of the tenant's.
bool place_of(CUstream stream, StreamPlace* place) {
  ThreadRecord* thread = process_enter() == Mode::kActive ? thread_record() : nullptr;
  if (thread == nullptr || thread->depth != 0) return false;
  const DepthScope depth(thread);
  return stream_place(*thread, stream, place) && place->context != nullptr;
}

// A broker may come in the middle of a capture, which must be known by then.
template <class Call>
CUresult capture_begin_offline(CUstream stream, Call call) {
  const Mode mode = process_mode();
  const bool is_known = mode == Mode::kOffline || mode == Mode::kActive;
  const CUcontext context = is_known ? stream_context(stream) : nullptr;
  if (context == nullptr) return call();
  if (!capture_begins(context, stream)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) capture_ended(stream);
  return result;
}

// The context's lock keeps the helper from recording a fence while the capture begins: into this
// stream, or into the legacy stream, which may not be used from then on. The locks of the others,
// each for a moment: whoever asks events there without the RELAXED mode, because there was no
// capture, has then finished.
template <class Call>
CUresult capture_begin(CUstream stream, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  StreamPlace place;
  if (!place_of(stream, &place)) return capture_begin_offline(stream, call);
  ContextRecord* context = place.context;
  const DepthScope depth(this_thread);
  CUresult result;
  {
    const LockScope scope(context->lock);
    if (!capture_begins(context->context, stream)) return CUDA_ERROR_OUT_OF_MEMORY;
    // Launches that no other thread could fence any more shall be fenced by their own.
    streams_changed(*context);
  }
  for (int i = 0, n = context_count(); i < n; ++i) {
    ContextRecord& other = *context_at(i);
    if (&other == context || !other.is_usable()) continue;
    const LockScope scope(other.lock);
    streams_changed(other);
  }
  {
    const LockScope scope(context->lock);
    {
      // What is in the streams now can be fenced no more once they capture.
      const CurrentScope current(place);
      fences_complete(*context, nullptr, Others::kFenceBeforeCapture);
    }
    streams_changed(*context);
    result = call();
  }
  if (result != CUDA_SUCCESS) capture_ended(stream);
  return result;
}

// After the driver refused to end a capture: it may be over all the same. A thread without a
// context is told neither, and has ended nothing.
bool capture_goes_on(CUstream stream) {
  bool captured = false;
  if (stream_capture_status(stream, &captured)) return captured;
  CUdevice device;
  return driver.cuCtxGetDevice(&device) != CUDA_SUCCESS;
}

// Runs what may end the capture that the stream began, and counts it if it did (also a failed one).
template <class Call>
CUresult capture_end(CUstream stream, Call call) {
  process_enter();
  if (!capture_is_origin(stream)) return call();
  const CUresult result = call();
  if (result == CUDA_SUCCESS || !capture_goes_on(stream)) capture_ended(stream);
  return result;
}

bool stream_is_in(const ContextRecord& context, CUstream stream) {
  for (const StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->stream == stream && !s->destroyed) return true;
  }
  return false;
}

template <class Call>
CUresult destroy(CUstream stream, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  for (int i = 0, n = touch.thread() == nullptr ? 0 : context_count(); i < n; ++i) {
    ContextRecord& context = *context_at(i);
    if (!context.is_usable()) continue;
    const ErrnoGuard guard;
    const DepthScope depth(this_thread);
    const LockScope scope(context.lock);
    if (!stream_is_in(context, stream)) continue;
    const CurrentScope current(context.context);
    stream_forget(context, stream);
  }
  const CUresult result = call();
  for (int i = 0, n = result == CUDA_SUCCESS || touch.thread() == nullptr ? 0 : context_count();
       i < n; ++i) {
    ContextRecord& context = *context_at(i);
    const LockScope scope(context.lock);
    stream_unforget(context, stream);
  }
  // Its end is the end of the capture that it began.
  if (result == CUDA_SUCCESS && capture_is_origin(stream)) capture_ended(stream);
  return result;
}

// Waiting for a captured event draws a stream into the capture.
template <class Call>
CUresult wait_event(CUstream stream, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  stream_work(touch, stream, kWorkUnknown);
  if (load_acquire(captures_active) == 0) return call();
  StreamPlace place;
  if (!place_of(stream, &place)) {
    const CUresult result = call();
    if (stream_is_capturing(stream)) captures_spread();
    return result;
  }
  ContextRecord& context = *place.context;
  const DepthScope depth(this_thread);
  const LockScope scope(context.lock);
  {
    const CurrentScope current(place);
    for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
      if (s->stream == stream) fences_complete(context, s, Others::kLeave);
    }
  }
  streams_changed(context);
  const CUresult result = call();
  // It may be another context's capture, unless there is none.
  if (captures_of(context.context) != load_acquire(captures_active) && stream_is_capturing(stream))
    captures_spread();
  return result;
}

}  // namespace

SLUICE_HOOK CUresult cuStreamSynchronize(CUstream stream) {
  return waiting_in(stream, Fenced::kStream, [&] { return driver.cuStreamSynchronize(stream); });
}

SLUICE_HOOK CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  return waiting_in(stream_per_thread(stream), Fenced::kStream,
                    [&] { return driver.cuStreamSynchronize_ptsz(stream); });
}

SLUICE_HOOK CUresult cuStreamQuery(CUstream stream) {
  return waiting(stream, Fenced::kStream, [&] { return driver.cuStreamQuery(stream); });
}

SLUICE_HOOK CUresult cuStreamQuery_ptsz(CUstream stream) {
  return waiting(stream_per_thread(stream), Fenced::kStream,
                 [&] { return driver.cuStreamQuery_ptsz(stream); });
}

SLUICE_HOOK CUresult cuEventSynchronize(CUevent event) {
  return waiting(nullptr, Fenced::kThreads, [&] { return driver.cuEventSynchronize(event); });
}

SLUICE_HOOK CUresult cuEventQuery(CUevent event) {
  return waiting(nullptr, Fenced::kContext, [&] { return driver.cuEventQuery(event); });
}

SLUICE_HOOK CUresult cuCtxSynchronize() {
  return waiting_in(nullptr, Fenced::kThreads, [] { return driver.cuCtxSynchronize(); });
}

SLUICE_HOOK CUresult cuCtxSynchronize_v2(CUcontext context) {
  return waiting_in(nullptr, Fenced::kThreads, [&] { return driver.cuCtxSynchronize_v2(context); });
}

SLUICE_HOOK CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return wait_event(stream, [&] { return driver.cuStreamWaitEvent(stream, event, flags); });
}

SLUICE_HOOK CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
  return wait_event(stream_per_thread(stream),
                    [&] { return driver.cuStreamWaitEvent_ptsz(stream, event, flags); });
}

SLUICE_HOOK CUresult cuStreamDestroy(CUstream stream) {
  return destroy(stream, [&] { return driver.cuStreamDestroy(stream); });
}

SLUICE_HOOK CUresult cuStreamDestroy_v2(CUstream stream) {
  return destroy(stream, [&] { return driver.cuStreamDestroy_v2(stream); });
}

SLUICE_HOOK CUresult cuStreamBeginCapture(CUstream stream) {
  return capture_begin(stream, [&] { return driver.cuStreamBeginCapture(stream); });
}

SLUICE_HOOK CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return capture_begin(stream_per_thread(stream),
                       [&] { return driver.cuStreamBeginCapture_ptsz(stream); });
}

SLUICE_HOOK CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return capture_begin(stream, [&] { return driver.cuStreamBeginCapture_v2(stream, mode); });
}

SLUICE_HOOK CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return capture_begin(stream_per_thread(stream),
                       [&] { return driver.cuStreamBeginCapture_v2_ptsz(stream, mode); });
}

SLUICE_HOOK CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                                 const CUgraphNode* dependencies,
                                                 const CUgraphEdgeData* edges, size_t count,
                                                 CUstreamCaptureMode mode) {
  return capture_begin(stream, [&] {
    return driver.cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode);
  });
}

SLUICE_HOOK CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                      const CUgraphNode* dependencies,
                                                      const CUgraphEdgeData* edges, size_t count,
                                                      CUstreamCaptureMode mode) {
  return capture_begin(stream_per_thread(stream), [&] {
    return driver.cuStreamBeginCaptureToGraph_ptsz(stream, graph, dependencies, edges, count, mode);
  });
}

SLUICE_HOOK CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return capture_end(stream, [&] { return driver.cuStreamEndCapture(stream, graph); });
}

SLUICE_HOOK CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return capture_end(stream_per_thread(stream),
                     [&] { return driver.cuStreamEndCapture_ptsz(stream, graph); });
}

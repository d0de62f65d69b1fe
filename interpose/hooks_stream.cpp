// Streams: their end, their capture into graphs, and the calls by which a program waits. A wait is
// the meter's best moment: the fence recorded just before it marks the exact end of the work, and
// its return shows what has finished.
#include "interpose/touch.h"

using namespace sluice::interpose;

namespace {

template <class Call>
CUresult waiting(CUstream stream, bool all, Call call) {
  if (process_enter() != Mode::kActive) return call();
  wait_prepare(stream, all);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) wait_done();
  return result;
}

bool is_capturing_now(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

ContextRecord* current_context() {
  ThreadRecord* thread = process_enter() == Mode::kActive ? thread_record() : nullptr;
  if (thread == nullptr || thread->depth != 0 || !thread_context(thread)) return nullptr;
  return thread->context_record;
}

// The context's lock keeps the helper from recording a fence while the capture begins: into this
// stream, or into the legacy stream, which may not be used from then on.
template <class Call>
CUresult capture_begin(CUstream stream, Call call) {
  ContextRecord* context = current_context();
  if (context == nullptr) return call();
  const DepthScope depth(this_thread);
  const LockScope scope(context->lock);
  for (StreamRecord* s = context->streams; s != nullptr; s = s->next) {
    if (s->stream == stream) fences_complete(*context, s, false);
  }
  __atomic_add_fetch(&captures_active, 1, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&stream_generation, 1, __ATOMIC_SEQ_CST);
  const CUresult result = call();
  if (result != CUDA_SUCCESS) __atomic_sub_fetch(&captures_active, 1, __ATOMIC_SEQ_CST);
  return result;
}

// Runs what may end a capture of the stream, and counts it if it did (also a failed one).
template <class Call>
CUresult capture_end(CUstream stream, Call call) {
  const bool before = current_context() != nullptr && load_acquire(captures_active) != 0 &&
                      is_capturing_now(stream);
  const CUresult result = call();
  if (before && !is_capturing_now(stream))
    __atomic_sub_fetch(&captures_active, 1, __ATOMIC_SEQ_CST);
  return result;
}

template <class Call>
CUresult destroy(CUstream stream, Call call) {
  if (process_enter() != Mode::kActive || thread_record() == nullptr || this_thread->depth != 0)
    return call();
  const bool captured = load_acquire(captures_active) != 0 &&
                        is_capturing_now(stream);  // its end is its capture's end
  for (int i = 0; i < kContextsMax; ++i) {
    ContextRecord& context = *context_at(i);
    if (load_acquire(context.alive) == 0) continue;
    const ErrnoGuard guard;
    const DepthScope depth(this_thread);
    const LockScope scope(context.lock);
    stream_forget(context, stream);
  }
  const CUresult result = call();
  if (captured && result == CUDA_SUCCESS) __atomic_sub_fetch(&captures_active, 1, __ATOMIC_SEQ_CST);
  return result;
}

// Waiting for a captured event draws a stream into the capture.
template <class Call>
CUresult wait_event(Call call) {
  if (process_enter() != Mode::kActive || load_acquire(captures_active) == 0) return call();
  ContextRecord* context = current_context();
  if (context == nullptr) return call();
  const LockScope scope(context->lock);
  __atomic_add_fetch(&stream_generation, 1, __ATOMIC_SEQ_CST);
  return call();
}

}  // namespace

SLUICE_HOOK CUresult cuStreamSynchronize(CUstream stream) {
  return waiting(stream, false, [&] { return driver.cuStreamSynchronize(stream); });
}

SLUICE_HOOK CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  return waiting(stream_per_thread(stream), false,
                 [&] { return driver.cuStreamSynchronize_ptsz(stream); });
}

SLUICE_HOOK CUresult cuStreamQuery(CUstream stream) {
  return waiting(stream, false, [&] { return driver.cuStreamQuery(stream); });
}

SLUICE_HOOK CUresult cuStreamQuery_ptsz(CUstream stream) {
  return waiting(stream_per_thread(stream), false,
                 [&] { return driver.cuStreamQuery_ptsz(stream); });
}

SLUICE_HOOK CUresult cuEventSynchronize(CUevent event) {
  return waiting(nullptr, true, [&] { return driver.cuEventSynchronize(event); });
}

SLUICE_HOOK CUresult cuEventQuery(CUevent event) {
  return waiting(nullptr, true, [&] { return driver.cuEventQuery(event); });
}

SLUICE_HOOK CUresult cuCtxSynchronize() {
  return waiting(nullptr, true, [] { return driver.cuCtxSynchronize(); });
}

SLUICE_HOOK CUresult cuCtxSynchronize_v2(CUcontext context) {
  return waiting(nullptr, true, [&] { return driver.cuCtxSynchronize_v2(context); });
}

SLUICE_HOOK CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return wait_event([&] { return driver.cuStreamWaitEvent(stream, event, flags); });
}

SLUICE_HOOK CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
  return wait_event([&] { return driver.cuStreamWaitEvent_ptsz(stream, event, flags); });
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

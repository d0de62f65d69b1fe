// Entry points: events - recording, waiting, asking, and the time between two of them.
#include <algorithm>

#include "softgpu/driver/api_stream.h"
#include "softgpu/driver/command.h"
#include "softgpu/driver/ipc_event.h"
#include "softgpu/driver/pool.h"

using namespace softgpu::driver;

namespace {

CUresult record(CUevent handle, CUstream stream_handle, unsigned flags, const char* name) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = stream_enter(stream_handle, context, stream, name);
  if (result != CUDA_SUCCESS) return result;
  const EventRef event = event_find(handle);
  if (event == nullptr || event->context != stream->owner().id) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~CU_EVENT_RECORD_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
  bool captured = false;
  const CUresult marked =
      capture_record(*stream, event, (flags & CU_EVENT_RECORD_EXTERNAL) != 0, captured);
  if (marked != CUDA_SUCCESS || captured) return marked;
  if (event->shared != nullptr) {
    event->record(event->shared->record(stream));
    return CUDA_SUCCESS;
  }
  OpRef op;
  const CUresult submitted = command_submit(stream, EmptyCommand{}, &op);
  if (submitted == CUDA_SUCCESS) event->record(op);
  return submitted;
}

CUresult elapsed(float* milliseconds, CUevent start_handle, CUevent end_handle, const char* name) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const EventRef start = event_find(start_handle), end = event_find(end_handle);
  if (start == nullptr || end == nullptr || !start->timed() || !end->timed())
    return CUDA_ERROR_INVALID_HANDLE;
  if (start->captured || end->captured) return CUDA_ERROR_INVALID_VALUE;
  const OpRef first = start->op(), second = end->op();
  if (first == nullptr || second == nullptr || &start->gpu != &end->gpu)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!Stream::ready(first) || !Stream::ready(second)) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>((second->finish_ns - first->finish_ns) / 1e6);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned int flags) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = stream_enter(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  const EventRef event = event_find(event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~CU_EVENT_WAIT_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
  bool captured = false;
  const CUresult joined =
      capture_wait(*stream, event, (flags & CU_EVENT_WAIT_EXTERNAL) != 0, captured);
  if (joined != CUDA_SUCCESS || captured) return joined;
  if (event->shared != nullptr && event->shared->recorded_elsewhere()) {
    event->shared->hold(stream);
    return CUDA_SUCCESS;
  }
  const OpRef op = event->op();
  // Without pacing what is done may still lie ahead of the clock.
  if (op != nullptr && (!op->done() || op->finish_ns > context->gpu.now_ns()))
    stream->submit(std::make_shared<CommandOp>(EmptyCommand{}), {op});
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* out, unsigned int flags) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || (flags & ~7U) != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool shared = (flags & CU_EVENT_INTERPROCESS) != 0;
  if (shared && (flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto event = std::make_shared<Event>(*context, flags);
  if (shared) event->shared = IpcEvent::create(context->gpu);
  if (shared && event->shared == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Registry<Event>::all().add(event);
  *out = event->handle();
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  return Registry<Event>::all().take(handle) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return record(event, stream, 0, __func__);
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  return record(event, stream, flags, __func__);
}

CUresult cuEventQuery(CUevent handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const EventRef event = event_find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult refused = capture_event_check(*event); refused != CUDA_SUCCESS) return refused;
  const OpRef op = event->op();
  if (event->shared != nullptr && event->shared->recorded_elsewhere())
    return event->shared->reached(event->shared->target()) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  if (op == nullptr) return CUDA_SUCCESS;
  if (!Stream::ready(op)) return CUDA_ERROR_NOT_READY;
  return op->stream->owner().status();
}

CUresult cuEventSynchronize(CUevent handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const EventRef event = event_find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult refused = capture_event_check(*event); refused != CUDA_SUCCESS) return refused;
  if (event->shared != nullptr && event->shared->recorded_elsewhere()) {
    static const std::atomic<bool> never{false};
    event->shared->wait(event->shared->target(), never);
    return CUDA_SUCCESS;
  }
  const OpRef op = event->op();
  const CUresult waited = Stream::wait(op);
  if (op != nullptr) {
    op->stream->owner().print_flush();
    Pool::synchronized(*op->stream);
  }
  return waited;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end, __func__);
}
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end, __func__);
}

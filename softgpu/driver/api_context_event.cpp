// Entry points: events that stand for a whole context, and contexts that wait for an event.
#include "softgpu/driver/api_stream.h"

namespace softgpu::driver {
namespace {

struct Target {
  ContextRef context;
  EventRef event;

  CUresult find(CUcontext context_handle, CUevent event_handle, const char* name) {
    CUresult result = enter_any(name);
    if (result == CUDA_SUCCESS) result = context_find(context_handle, context);
    if (result != CUDA_SUCCESS) return result;
    event = event_find(event_handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    result = context->status();
    return result == CUDA_SUCCESS ? capture_context_check(*context) : result;
  }
};

std::vector<StreamRef> streams_of(Context& context) {
  const std::lock_guard lock(context.order);
  std::vector<StreamRef> streams = context.streams;
  if (context.legacy != nullptr) streams.push_back(context.legacy);
  return streams;
}

/// The stream in which events of the whole context are recorded: nothing else runs in it.
CUresult marker_need(const ContextRef& context, StreamRef& marker) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  if (context->marker == nullptr) {
    StreamRef made;
    const CUresult result =
        stream_create(context, Stream::kCreated, CU_STREAM_NON_BLOCKING, 0, made);
    if (result != CUDA_SUCCESS) return result;
    const std::lock_guard order(context->order);
    context->marker = made;
  }
  marker = context->marker;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace softgpu::driver

using namespace softgpu::driver;

CUresult cuCtxRecordEvent(CUcontext context_handle, CUevent event_handle) {
  Target target;
  CUresult result = target.find(context_handle, event_handle, __func__);
  if (result != CUDA_SUCCESS) return result;
  if (target.event->context != target.context->id) return CUDA_ERROR_INVALID_HANDLE;
  StreamRef marker;
  result = marker_need(target.context, marker);
  if (result != CUDA_SUCCESS) return result;
  std::vector<OpRef> before;
  for (const StreamRef& stream : streams_of(*target.context)) before.push_back(stream->last());
  target.event->record(marker->submit([](Stream&, Op&) {}, std::move(before)));
  return CUDA_SUCCESS;
}

CUresult cuCtxWaitEvent(CUcontext context_handle, CUevent event_handle) {
  Target target;
  CUresult result = target.find(context_handle, event_handle, __func__);
  if (result == CUDA_SUCCESS) result = capture_event_use(*target.event);
  if (result != CUDA_SUCCESS) return result;
  const OpRef op = target.event->op();
  if (op == nullptr || op->done()) return CUDA_SUCCESS;
  for (const StreamRef& stream : streams_of(*target.context))
    stream->submit([](Stream&, Op&) {}, {op});
  const std::lock_guard lock(target.context->order);
  std::erase_if(target.context->awaited, [](const OpRef& other) { return other->done(); });
  target.context->awaited.push_back(op);
  return CUDA_SUCCESS;
}

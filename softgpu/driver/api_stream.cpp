// Entry points: streams, events, host functions, memory operations in stream order, and the link
// delay.
#include <algorithm>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/command.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/pool.h"

using namespace softgpu::driver;

namespace {

CUresult find(CUstream handle, ContextRef& context, StreamRef& stream,
              const char* name = __builtin_FUNCTION()) {
  const CUresult result = enter(context, name);
  return result == CUDA_SUCCESS ? stream_find(handle, context, stream) : result;
}

CUresult create(CUstream* out, unsigned flags, int priority, const char* name) {
  ContextRef context;
  const CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  const CUresult created =
      stream_create(context, Stream::kCreated, flags, std::clamp(priority, -5, 0), stream);
  if (created == CUDA_SUCCESS) *out = stream->handle();
  return created;
}

EventRef event_find(CUevent handle) { return Registry<Event>::all().find(handle); }

/// A stream or event that a capture has in hand may not be waited for; trying spoils the capture.
CUresult captured_refuses(Capture* capture) {
  if (capture == nullptr) return CUDA_SUCCESS;
  capture->invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult captured_refuses(const StreamRef& stream) {
  const std::lock_guard lock(capture_mutex());
  return captured_refuses(stream->capture.get());
}

CUresult record(CUevent handle, CUstream stream_handle, unsigned flags, const char* name) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = find(stream_handle, context, stream, name);
  if (result != CUDA_SUCCESS) return result;
  const EventRef event = event_find(handle);
  if (event == nullptr || &event->gpu != &stream->owner().gpu) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~CU_EVENT_RECORD_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
  {
    const std::lock_guard lock(capture_mutex());
    if (stream->capture != nullptr && (flags & CU_EVENT_RECORD_EXTERNAL) == 0) {
      if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      event->capture = stream->capture;
      event->captured_after = stream->capture->ends[stream.get()];
      return CUDA_SUCCESS;
    }
    if (stream->capture != nullptr) {
      capture_add(*stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, RecordCommand{event});
      return CUDA_SUCCESS;
    }
  }
  OpRef op;
  const CUresult submitted = command_submit(stream, EmptyCommand{}, &op);
  if (submitted == CUDA_SUCCESS) event->record(op);
  return submitted;
}

/// cuStreamWaitEvent on an event of a capture brings the stream into it.
CUresult wait_captured(const StreamRef& stream, const EventRef& event,
                       const std::shared_ptr<Capture>& capture) {
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->capture != nullptr && stream->capture != capture) {
    capture->invalid = stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream->kind == Stream::kLegacy) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  stream->capture = capture;
  auto& ends = capture->ends[stream.get()];
  for (Node* node : event->captured_after)
    if (std::find(ends.begin(), ends.end(), node) == ends.end()) ends.push_back(node);
  return CUDA_SUCCESS;
}

CUresult elapsed(float* milliseconds, CUevent start_handle, CUevent end_handle, const char* name) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const EventRef start = event_find(start_handle), end = event_find(end_handle);
  if (start == nullptr || end == nullptr || !start->timed() || !end->timed())
    return CUDA_ERROR_INVALID_HANDLE;
  const OpRef first = start->op(), second = end->op();
  if (first == nullptr || second == nullptr || &start->gpu != &end->gpu)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!Stream::ready(first) || !Stream::ready(second)) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>((second->finish_ns - first->finish_ns) / 1e6);
  return CUDA_SUCCESS;
}

CUresult word(CUstream stream_handle, const WordCommand& command, const char* name) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = find(stream_handle, context, stream, name);
  if (result != CUDA_SUCCESS) return result;
  if (command.address % command.bytes != 0 ||
      !MemoryMap::get().covers(command.address, command.bytes))
    return CUDA_ERROR_INVALID_VALUE;
  return command_submit(stream, command);
}

}  // namespace

CUresult cuStreamCreate(CUstream* out, unsigned int flags) {
  return create(out, flags, 0, __func__);
}
CUresult cuStreamCreateWithPriority(CUstream* out, unsigned int flags, int priority) {
  return create(out, flags, priority, __func__);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  ContextRef context;
  const CUresult result = enter_failed(context);
  if (result != CUDA_SUCCESS) return result;
  const StreamRef stream = Registry<Stream>::all().find(handle);
  if (stream == nullptr || stream->kind != Stream::kCreated) return CUDA_ERROR_INVALID_HANDLE;
  {
    const std::lock_guard lock(capture_mutex());
    if (stream->capture != nullptr) stream->capture->invalid = true;
  }
  Registry<Stream>::all().take(handle);
  stream->retire();
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  ContextRef context;
  StreamRef stream;
  CUresult result = find(handle, context, stream);
  if (result == CUDA_SUCCESS) result = captured_refuses(stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->kind == Stream::kLegacy && (result = capture_refuses(context)) != CUDA_SUCCESS)
    return result;
  result = stream->synchronize();
  Pool::trim_all();
  return result;
}

CUresult cuStreamQuery(CUstream handle) {
  ContextRef context;
  StreamRef stream;
  CUresult result = find(handle, context, stream);
  if (result == CUDA_SUCCESS) result = captured_refuses(stream);
  return result == CUDA_SUCCESS ? stream->query() : result;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned int flags) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = find(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  const EventRef event = event_find(event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~CU_EVENT_WAIT_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
  {
    const std::lock_guard lock(capture_mutex());
    if (const auto capture = event->capture.lock()) return wait_captured(stream, event, capture);
    if (stream->capture != nullptr) {
      if ((flags & CU_EVENT_WAIT_EXTERNAL) == 0) {
        stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
      }
      capture_add(*stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, WaitCommand{event});
      return CUDA_SUCCESS;
    }
  }
  const OpRef op = event->op();
  if (op != nullptr && !op->done()) stream->submit([](Stream&, Op&) {}, {op});
  return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data,
                             unsigned int flags) {
  ContextRef context;
  StreamRef stream;
  CUresult result = find(handle, context, stream);
  if (result == CUDA_SUCCESS) result = captured_refuses(stream);
  if (result != CUDA_SUCCESS) return result;
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  HostCommand host;
  host.call = [=, weak = std::weak_ptr<Context>(context)] {
    const ContextRef alive = weak.lock();
    callback(handle, alive == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : alive->status(), data);
  };
  return command_submit(stream, std::move(host));
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = find(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return command_submit(stream, HostCommand{[=] { function(data); }, function, data});
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = find(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = find(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = find(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* out) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = find(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = stream->owner().handle();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* out, CUgreenCtx* green) {
  if (green != nullptr) *green = nullptr;
  return cuStreamGetCtx(handle, out);
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = find(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = stream->owner().gpu.ordinal;
  return CUDA_SUCCESS;
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, std::size_t, unsigned int) {
  ContextRef context;
  StreamRef stream;
  CUresult result = find(handle, context, stream);
  if (result == CUDA_SUCCESS) result = captured_refuses(stream);
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = MemoryMap::get().find(address);
  return allocation && allocation->kind == MemoryKind::kManaged ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = find(to, context, stream);
  return result == CUDA_SUCCESS ? stream_find(from, context, stream) : result;
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags) {
  return word(stream, {address, value, 4, flags, false}, __func__);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned int flags) {
  return word(stream, {address, value, 8, flags, false}, __func__);
}
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                unsigned int flags) {
  return word(stream, {address, value, 4, flags, true}, __func__);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                unsigned int flags) {
  return word(stream, {address, value, 8, flags, true}, __func__);
}

CUresult cuEventCreate(CUevent* out, unsigned int flags) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || (flags & ~7U) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  const auto event = std::make_shared<Event>(context->gpu, flags);
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
  {
    const std::lock_guard lock(capture_mutex());
    if (event->capture.lock() != nullptr) {
      (void)captured_refuses(event->capture.lock().get());
      return CUDA_ERROR_CAPTURED_EVENT;
    }
  }
  const OpRef op = event->op();
  if (op == nullptr) return capture_refuses(nullptr);
  if (const CUresult refused = capture_refuses(nullptr); refused != CUDA_SUCCESS) return refused;
  if (!Stream::ready(op)) return CUDA_ERROR_NOT_READY;
  return op->stream->owner().status();
}

CUresult cuEventSynchronize(CUevent handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const EventRef event = event_find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  {
    const std::lock_guard lock(capture_mutex());
    if (event->capture.lock() != nullptr) {
      (void)captured_refuses(event->capture.lock().get());
      return CUDA_ERROR_CAPTURED_EVENT;
    }
  }
  if (const CUresult refused = capture_refuses(nullptr); refused != CUDA_SUCCESS) return refused;
  const OpRef op = event->op();
  const CUresult waited = Stream::wait(op);
  if (op != nullptr) op->stream->owner().print_flush();
  Pool::trim_all();
  return waited;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end, __func__);
}
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end, __func__);
}

CUresult softgpuStreamDelay(CUstream handle, unsigned long long ns) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = find(handle, context, stream);
  return result == CUDA_SUCCESS ? command_submit(stream, DelayCommand{static_cast<double>(ns)})
                                : result;
}

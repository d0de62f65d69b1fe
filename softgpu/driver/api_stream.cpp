// Entry points: streams as objects - making, asking, waiting, destroying - and the link delay.
// Events are in api_event.cpp, host functions, attributes and memory operations in
// api_stream_*.cpp.
#include "softgpu/driver/api_stream.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/command.h"
#include "softgpu/driver/launch_attribute.h"
#include "softgpu/driver/pool.h"

namespace softgpu::driver {

CUresult stream_enter(CUstream handle, ContextRef& context, StreamRef& stream, const char* name) {
  const CUresult result = enter(context, name);
  return result == CUDA_SUCCESS ? stream_find(handle, context, stream) : result;
}

}  // namespace softgpu::driver

using namespace softgpu::driver;

namespace {

CUresult create(CUstream* out, unsigned flags, int priority, const char* name) {
  ContextRef context;
  const CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  const CUresult created =
      stream_create(context, Stream::kCreated, flags, priority_clamp(priority), stream);
  if (created == CUDA_SUCCESS) *out = stream->handle();
  return created;
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
  const StreamRef stream = Registry<Stream>::all().find(handle);
  const bool created = stream != nullptr && stream->kind == Stream::kCreated;
  // Like a module, a stream says whose it is.
  if (result != CUDA_SUCCESS && (result != CUDA_ERROR_INVALID_CONTEXT || !created)) return result;
  if (!created) return CUDA_ERROR_INVALID_HANDLE;
  capture_leave(*stream);
  Registry<Stream>::all().take(handle);
  stream->retire();
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  ContextRef context;
  StreamRef stream;
  CUresult result = stream_enter(handle, context, stream);
  if (result == CUDA_SUCCESS) result = capture_stream_check(*stream);
  if (result != CUDA_SUCCESS) return result;
  result = stream->synchronize();
  Pool::synchronized(*stream);
  return result;
}

CUresult cuStreamQuery(CUstream handle) {
  ContextRef context;
  StreamRef stream;
  CUresult result = stream_enter(handle, context, stream);
  if (result == CUDA_SUCCESS) result = capture_stream_check(*stream);
  return result == CUDA_SUCCESS ? stream->query() : result;
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = stream_enter(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  ContextRef context;
  StreamRef stream;
  CUresult result = stream_enter(handle, context, stream);
  if (result == CUDA_SUCCESS) result = capture_stream_check(*stream);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  ContextRef context;
  StreamRef stream;
  CUresult result = stream_enter(handle, context, stream);
  if (result == CUDA_SUCCESS) result = capture_stream_check(*stream);
  if (result != CUDA_SUCCESS) return result;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* out) {
  ContextRef context;
  StreamRef stream;
  CUresult result = stream_enter(handle, context, stream);
  if (result == CUDA_SUCCESS) result = capture_order_check(*stream);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = stream->owner().handle();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* out, CUgreenCtx* green) {
  if (green != nullptr) *green = nullptr;
  return cuStreamGetCtx(handle, out);
}

CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* green) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = stream_enter(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *green = nullptr;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  ContextRef context;
  StreamRef stream;
  CUresult result = stream_enter(handle, context, stream);
  if (result == CUDA_SUCCESS) result = capture_stream_check(*stream);
  if (result != CUDA_SUCCESS) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = stream->owner().gpu.ordinal;
  return CUDA_SUCCESS;
}

CUresult softgpuStreamGoOn(CUstream handle) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = stream_enter(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  return stream->go_on() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult softgpuStreamDelay(CUstream handle, unsigned long long ns) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = stream_enter(handle, context, stream);
  return result == CUDA_SUCCESS ? command_submit(stream, DelayCommand{static_cast<double>(ns)})
                                : result;
}

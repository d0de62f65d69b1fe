// Entry points: host functions and callbacks in stream order.
#include "softgpu/driver/api_stream.h"
#include "softgpu/driver/command.h"

using namespace softgpu::driver;

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data,
                             unsigned int flags) {
  ContextRef context;
  StreamRef stream;
  CUresult result = stream_enter(handle, context, stream);
  if (result == CUDA_SUCCESS) result = capture_stream_check(*stream);
  if (result != CUDA_SUCCESS) return result;
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  HostCommand host;
  host.always = true;
  // It runs as an operation of the stream, which keeps its context.
  host.call = [=, owner = &stream->owner()] {
    const CUresult status = owner->status();
    callback(handle,
             status == CUDA_SUCCESS && owner->stop ? CUDA_ERROR_CONTEXT_IS_DESTROYED : status,
             data);
  };
  return command_submit(stream, std::move(host));
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = stream_enter(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return command_submit(stream, HostCommand{[=] { function(data); }, function, data});
}

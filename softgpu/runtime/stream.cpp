// Streams and capture into graphs. Stream handles are the driver's own, the special ones (null,
// legacy, per-thread) too.
#include "softgpu/runtime/call.h"

using namespace softgpu::runtime;

static_assert(sizeof(cudaLaunchAttributeValue) == sizeof(CUlaunchAttributeValue) &&
                  sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData),
              "one layout in both headers");

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return in_context([&](const Driver& api) { return api.StreamCreate(stream, flags); });
}

cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags,
                                                   int priority) {
  return in_context(
      [&](const Driver& api) { return api.StreamCreateWithPriority(stream, flags, priority); });
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : api.StreamDestroy(stream);
  });
}

cudaError_t CUDARTAPI cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return in_context([&](const Driver& api) { return api.StreamGetPriority(stream, priority); });
}

cudaError_t CUDARTAPI cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags) {
  return in_context([&](const Driver& api) { return api.StreamGetFlags(stream, flags); });
}

cudaError_t CUDARTAPI cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return in_context([&](const Driver& api) { return api.StreamGetId(stream, id); });
}

cudaError_t CUDARTAPI cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return in_context([&](const Driver& api) {
    CUdevice found = 0;
    if (device == nullptr) return cudaErrorInvalidValue;
    const CUresult result = api.StreamGetDevice(stream, &found);
    if (result == CUDA_SUCCESS) *device = found;
    return to_error(result);
  });
}

cudaError_t CUDARTAPI cudaStreamCopyAttributes(cudaStream_t target, cudaStream_t source) {
  return in_context([&](const Driver& api) { return api.StreamCopyAttributes(target, source); });
}

cudaError_t CUDARTAPI cudaStreamGetAttribute(cudaStream_t stream, cudaStreamAttrID attribute,
                                             cudaStreamAttrValue* value) {
  return in_context([&](const Driver& api) {
    return api.StreamGetAttribute(stream, static_cast<CUstreamAttrID>(attribute),
                                  reinterpret_cast<CUstreamAttrValue*>(value));
  });
}

cudaError_t CUDARTAPI cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID attribute,
                                             const cudaStreamAttrValue* value) {
  return in_context([&](const Driver& api) {
    return api.StreamSetAttribute(stream, static_cast<CUstreamAttrID>(attribute),
                                  reinterpret_cast<const CUstreamAttrValue*>(value));
  });
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                          unsigned int flags) {
  return in_context([&](const Driver& api) { return api.StreamWaitEvent(stream, event, flags); });
}

cudaError_t CUDARTAPI cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback,
                                            void* user_data, unsigned int flags) {
  // The two callback types differ only in the name of the error enumeration, which shares its
  // numbers.
  const auto driver_callback =
      reinterpret_cast<CUstreamCallback>(reinterpret_cast<void (*)()>(callback));
  return in_context([&](const Driver& api) {
    return api.StreamAddCallback(stream, driver_callback, user_data, flags);
  });
}

cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
  return in_context([&](const Driver& api) { return api.StreamSynchronize(stream); });
}

cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t stream) {
  return in_context([&](const Driver& api) { return api.StreamQuery(stream); });
}

cudaError_t CUDARTAPI cudaStreamAttachMemAsync(cudaStream_t stream, void* pointer,
                                               size_t size_bytes, unsigned int flags) {
  return in_context([&](const Driver& api) {
    return api.StreamAttachMemAsync(stream, to_address(pointer), size_bytes, flags);
  });
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  return in_context([&](const Driver& api) {
    return api.StreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode));
  });
}

cudaError_t CUDARTAPI cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                    const cudaGraphNode_t* dependencies,
                                                    const cudaGraphEdgeData* edges,
                                                    size_t dependency_count,
                                                    enum cudaStreamCaptureMode mode) {
  return in_context([&](const Driver& api) {
    return api.StreamBeginCaptureToGraph(stream, graph, dependencies,
                                         reinterpret_cast<const CUgraphEdgeData*>(edges),
                                         dependency_count, static_cast<CUstreamCaptureMode>(mode));
  });
}

cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) {
  return in_context([&](const Driver& api) {
    return api.ThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode));
  });
}

cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return in_context([&](const Driver& api) { return api.StreamEndCapture(stream, graph); });
}

cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream,
                                            enum cudaStreamCaptureStatus* status) {
  return in_context([&](const Driver& api) {
    return api.StreamIsCapturing(stream, reinterpret_cast<CUstreamCaptureStatus*>(status));
  });
}

cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t stream,
                                               enum cudaStreamCaptureStatus* status,
                                               unsigned long long* id, cudaGraph_t* graph,
                                               const cudaGraphNode_t** dependencies,
                                               const cudaGraphEdgeData** edges,
                                               size_t* dependency_count) {
  return in_context([&](const Driver& api) {
    cuuint64_t found_id = 0;
    const CUresult result = api.StreamGetCaptureInfo(
        stream, reinterpret_cast<CUstreamCaptureStatus*>(status), &found_id, graph, dependencies,
        reinterpret_cast<const CUgraphEdgeData**>(edges), dependency_count);
    if (result == CUDA_SUCCESS && id != nullptr) *id = found_id;
    return result;
  });
}

cudaError_t CUDARTAPI cudaStreamUpdateCaptureDependencies(cudaStream_t stream,
                                                          cudaGraphNode_t* dependencies,
                                                          const cudaGraphEdgeData* edges,
                                                          size_t dependency_count,
                                                          unsigned int flags) {
  return in_context([&](const Driver& api) {
    return api.StreamUpdateCaptureDependencies(stream, dependencies,
                                               reinterpret_cast<const CUgraphEdgeData*>(edges),
                                               dependency_count, flags);
  });
}

// Events: creation, recording, waiting, the time between two of them, and sharing with other
// processes.
#include "softgpu/runtime/call.h"

using namespace softgpu::runtime;

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return in_context([&](const Driver& api) { return api.EventCreate(event, flags); });
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return in_context([&](const Driver& api) { return api.EventRecord(event, stream); });
}

cudaError_t CUDARTAPI cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                               unsigned int flags) {
  return in_context(
      [&](const Driver& api) { return api.EventRecordWithFlags(event, stream, flags); });
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) {
  return in_context([&](const Driver& api) { return api.EventQuery(event); });
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) {
  return in_context([&](const Driver& api) { return api.EventSynchronize(event); });
}

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
  return in_context([&](const Driver& api) { return api.EventDestroy(event); });
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float* elapsed_ms, cudaEvent_t start, cudaEvent_t end) {
  return in_context(
      [&](const Driver& api) { return api.EventElapsedTime(elapsed_ms, start, end); });
}

cudaError_t CUDARTAPI cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle));
  return in_context([&](const Driver& api) {
    return api.IpcGetEventHandle(reinterpret_cast<CUipcEventHandle*>(handle), event);
  });
}

cudaError_t CUDARTAPI cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  return in_context([&](const Driver& api) {
    return api.IpcOpenEventHandle(event, reinterpret_cast<const CUipcEventHandle&>(handle));
  });
}

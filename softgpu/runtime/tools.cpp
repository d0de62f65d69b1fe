// What libraries and tools ask a runtime for: driver entry points by name, the profiler's start and
// stop, and the answer of everything that this runtime does not provide.
#include "softgpu/runtime/call.h"

using namespace softgpu::runtime;

extern "C" int softgpu_runtime_not_supported() { return record_error(cudaErrorNotSupported); }

cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char* symbol, void** function,
                                              unsigned long long flags,
                                              enum cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned int version, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult* status) {
  return with_driver([&](const Driver& api) {
    if (symbol == nullptr || function == nullptr) return cudaErrorInvalidValue;
    if (flags == cudaEnableDefault && per_thread_default_stream())
      flags = cudaEnablePerThreadDefaultStream;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult result =
        api.GetProcAddress(symbol, function, static_cast<int>(version), flags, &found);
    if (status == nullptr) return to_error(result);
    *status = static_cast<cudaDriverEntryPointQueryResult>(found);
    // With a status to look at, a name that is not there is an answer and no failure.
    return result == CUDA_ERROR_NOT_FOUND ? cudaSuccess : to_error(result);
  });
}

struct cudaChannelFormatDesc CUDARTAPI cudaCreateChannelDesc(int x, int y, int z, int w,
                                                             enum cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}

cudaError_t CUDARTAPI cudaProfilerStart(void) {
  return in_context([](const Driver& api) { return api.ProfilerStart(); });
}

cudaError_t CUDARTAPI cudaProfilerStop(void) {
  return in_context([](const Driver& api) { return api.ProfilerStop(); });
}

// Calls that take many ranges at once. Both headers lay the structures out alike.
#include "softgpu/runtime/call.h"

using namespace softgpu::runtime;

static_assert(sizeof(cudaMemcpyAttributes) == sizeof(CUmemcpyAttributes) &&
                  sizeof(cudaMemLocation) == sizeof(CUmemLocation) &&
                  sizeof(void*) == sizeof(CUdeviceptr),
              "one layout in both headers");

namespace {

/// Ranges are read only, which the driver's declarations do not say.
CUdeviceptr* addresses(const void* const* pointers) {
  return reinterpret_cast<CUdeviceptr*>(const_cast<const void**>(pointers));
}

}  // namespace

cudaError_t CUDARTAPI cudaMemcpyBatchAsync(void* const* targets, const void* const* sources,
                                           const size_t* sizes, size_t count,
                                           struct cudaMemcpyAttributes* attributes,
                                           size_t* attribute_starts, size_t attribute_count,
                                           cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    return api.MemcpyBatchAsync(addresses(targets), addresses(sources), const_cast<size_t*>(sizes),
                                count, reinterpret_cast<CUmemcpyAttributes*>(attributes),
                                attribute_starts, attribute_count, stream);
  });
}

cudaError_t CUDARTAPI cudaMemPrefetchBatchAsync(void** pointers, size_t* sizes, size_t count,
                                                struct cudaMemLocation* locations,
                                                size_t* location_starts, size_t location_count,
                                                unsigned long long flags, cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    return api.MemPrefetchBatchAsync(addresses(pointers), sizes, count,
                                     reinterpret_cast<CUmemLocation*>(locations), location_starts,
                                     location_count, flags, stream);
  });
}

cudaError_t CUDARTAPI cudaMemDiscardBatchAsync(void** pointers, size_t* sizes, size_t count,
                                               unsigned long long flags, cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    return api.MemDiscardBatchAsync(addresses(pointers), sizes, count, flags, stream);
  });
}

cudaError_t CUDARTAPI cudaMemDiscardAndPrefetchBatchAsync(
    void** pointers, size_t* sizes, size_t count, struct cudaMemLocation* locations,
    size_t* location_starts, size_t location_count, unsigned long long flags, cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    return api.MemDiscardAndPrefetchBatchAsync(addresses(pointers), sizes, count,
                                               reinterpret_cast<CUmemLocation*>(locations),
                                               location_starts, location_count, flags, stream);
  });
}

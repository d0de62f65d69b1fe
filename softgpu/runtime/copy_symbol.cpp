// Copies to and from device variables, which are named by their host address.
#include "softgpu/runtime/copy.h"
#include "softgpu/runtime/registry.h"

namespace softgpu::runtime {

cudaError_t symbol_place(const void* symbol, size_t offset, size_t size_bytes, void** place) {
  CUdeviceptr address = 0;
  size_t variable_bytes = 0;
  const cudaError_t error = Registry::get().find_variable(symbol, &address, &variable_bytes);
  if (error != cudaSuccess) return error;
  if (offset > variable_bytes || size_bytes > variable_bytes - offset) return cudaErrorInvalidValue;
  *place = to_pointer(address + offset);
  return cudaSuccess;
}

}  // namespace softgpu::runtime

using namespace softgpu::runtime;

cudaError_t CUDARTAPI cudaMemcpyToSymbol(const void* symbol, const void* source, size_t size_bytes,
                                         size_t offset, enum cudaMemcpyKind kind) {
  return in_context([&](const Driver& api) {
    void* place = nullptr;
    const cudaError_t error = symbol_place(symbol, offset, size_bytes, &place);
    return error != cudaSuccess ? error : to_error(copy_now(api, place, source, size_bytes, kind));
  });
}

cudaError_t CUDARTAPI cudaMemcpyFromSymbol(void* target, const void* symbol, size_t size_bytes,
                                           size_t offset, enum cudaMemcpyKind kind) {
  return in_context([&](const Driver& api) {
    void* place = nullptr;
    const cudaError_t error = symbol_place(symbol, offset, size_bytes, &place);
    return error != cudaSuccess ? error : to_error(copy_now(api, target, place, size_bytes, kind));
  });
}

cudaError_t CUDARTAPI cudaMemcpyToSymbolAsync(const void* symbol, const void* source,
                                              size_t size_bytes, size_t offset,
                                              enum cudaMemcpyKind kind, cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    void* place = nullptr;
    const cudaError_t error = symbol_place(symbol, offset, size_bytes, &place);
    return error != cudaSuccess
               ? error
               : to_error(copy_in_stream(api, place, source, size_bytes, kind, stream));
  });
}

cudaError_t CUDARTAPI cudaMemcpyFromSymbolAsync(void* target, const void* symbol, size_t size_bytes,
                                                size_t offset, enum cudaMemcpyKind kind,
                                                cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    void* place = nullptr;
    const cudaError_t error = symbol_place(symbol, offset, size_bytes, &place);
    return error != cudaSuccess
               ? error
               : to_error(copy_in_stream(api, target, place, size_bytes, kind, stream));
  });
}

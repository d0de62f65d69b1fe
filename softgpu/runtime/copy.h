// Copy descriptions of the runtime API as the driver wants them; shared by copies and by copy nodes
// of graphs.
#pragma once

#include "softgpu/runtime/call.h"

namespace softgpu::runtime {

/// Fills `out` from the runtime's description.
[[nodiscard]] cudaError_t to_driver(const cudaMemcpy3DParms& parameters, CUDA_MEMCPY3D* out);

/// A linear copy as a one-row 3D copy, for graph nodes.
[[nodiscard]] cudaError_t linear_copy(void* target, const void* source, size_t size_bytes,
                                      cudaMemcpyKind kind, CUDA_MEMCPY3D* out);

/// Describes a linear copy, then runs `body(driver, copy, context)`.
template <class Body>
cudaError_t with_linear(void* target, const void* source, size_t size_bytes, cudaMemcpyKind kind,
                        Body&& body) {
  return in_context([&](const Driver& api) {
    CUDA_MEMCPY3D copy;
    CUcontext context = nullptr;
    const cudaError_t error = linear_copy(target, source, size_bytes, kind, &copy);
    if (error != cudaSuccess) return error;
    if (const CUresult result = api.CtxGetCurrent(&context); result != CUDA_SUCCESS)
      return to_error(result);
    return to_error(body(api, copy, context));
  });
}

/// A linear copy, waiting or in a stream. `kind` is one that exists.
[[nodiscard]] CUresult copy_now(const Driver& api, void* target, const void* source,
                                size_t size_bytes, cudaMemcpyKind kind);
[[nodiscard]] CUresult copy_in_stream(const Driver& api, void* target, const void* source,
                                      size_t size_bytes, cudaMemcpyKind kind, cudaStream_t stream);

/// The address `offset` bytes into a device variable, for a copy of `size_bytes` that must stay
/// inside it.
[[nodiscard]] cudaError_t symbol_place(const void* symbol, size_t offset, size_t size_bytes,
                                       void** place);

/// Memory types on both sides of a copy of this kind; false for a kind that does not exist.
[[nodiscard]] bool copy_sides(cudaMemcpyKind kind, CUmemorytype* source, CUmemorytype* target);

}  // namespace softgpu::runtime

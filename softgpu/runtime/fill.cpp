// Fills (cudaMemset and its 2D and 3D forms). A 3D fill is one 2D fill per slice, or one in all
// when slices touch.
#include "softgpu/runtime/call.h"

using namespace softgpu::runtime;

namespace {

CUresult fill_rows(const Driver& api, CUdeviceptr address, size_t pitch, int value, size_t width,
                   size_t height, const cudaStream_t* stream) {
  const auto byte = static_cast<unsigned char>(value);
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  return stream == nullptr ? api.MemsetD2D8(address, pitch, byte, width, height)
                           : api.MemsetD2D8Async(address, pitch, byte, width, height, *stream);
}

CUresult fill_slices(const Driver& api, const cudaPitchedPtr& target, int value,
                     const cudaExtent& extent, const cudaStream_t* stream) {
  const CUdeviceptr address = to_address(target.ptr);
  if (extent.height == target.ysize || extent.depth <= 1) {
    return fill_rows(api, address, target.pitch, value, extent.width, extent.height * extent.depth,
                     stream);
  }
  for (size_t slice = 0; slice < extent.depth; ++slice) {
    const CUdeviceptr start = address + slice * target.pitch * target.ysize;
    const CUresult result =
        fill_rows(api, start, target.pitch, value, extent.width, extent.height, stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

cudaError_t CUDARTAPI cudaMemset(void* pointer, int value, size_t size_bytes) {
  return in_context([&](const Driver& api) {
    const auto byte = static_cast<unsigned char>(value);
    return size_bytes == 0 ? CUDA_SUCCESS : api.MemsetD8(to_address(pointer), byte, size_bytes);
  });
}

cudaError_t CUDARTAPI cudaMemsetAsync(void* pointer, int value, size_t size_bytes,
                                      cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    const auto byte = static_cast<unsigned char>(value);
    return size_bytes == 0 ? CUDA_SUCCESS
                           : api.MemsetD8Async(to_address(pointer), byte, size_bytes, stream);
  });
}

cudaError_t CUDARTAPI cudaMemset2D(void* pointer, size_t pitch, int value, size_t width,
                                   size_t height) {
  return in_context([&](const Driver& api) {
    return fill_rows(api, to_address(pointer), pitch, value, width, height, nullptr);
  });
}

cudaError_t CUDARTAPI cudaMemset2DAsync(void* pointer, size_t pitch, int value, size_t width,
                                        size_t height, cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    return fill_rows(api, to_address(pointer), pitch, value, width, height, &stream);
  });
}

cudaError_t CUDARTAPI cudaMemset3D(struct cudaPitchedPtr target, int value,
                                   struct cudaExtent extent) {
  return in_context(
      [&](const Driver& api) { return fill_slices(api, target, value, extent, nullptr); });
}

cudaError_t CUDARTAPI cudaMemset3DAsync(struct cudaPitchedPtr target, int value,
                                        struct cudaExtent extent, cudaStream_t stream) {
  return in_context(
      [&](const Driver& api) { return fill_slices(api, target, value, extent, &stream); });
}

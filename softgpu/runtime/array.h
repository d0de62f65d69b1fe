// Arrays of the runtime API: handles are the driver's own, formats are told as bits per channel.
#pragma once

#include "softgpu/runtime/call.h"

namespace softgpu::runtime {

inline CUarray to_array(cudaArray_const_t array) {
  return reinterpret_cast<CUarray>(const_cast<cudaArray_t>(array));
}

/// The bytes of one element; widths and positions in arrays are counted in elements.
[[nodiscard]] cudaError_t element_bytes(cudaArray_const_t array, size_t* bytes);

}  // namespace softgpu::runtime

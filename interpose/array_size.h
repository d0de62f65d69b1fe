// What the elements of an array take, by its descriptor: enough to ask the quota before the driver
// is asked. What the driver takes (cuArrayGetMemoryRequirements) is charged afterwards. Pure.
#pragma once

#include "interpose/cuda_api.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// Elements per direction; 0 = the array does not have this direction.
struct ArrayShape {
  uint64_t width, height, depth;
  CUarray_format format;
  unsigned channels;
  unsigned flags;  // CUDA_ARRAY3D_*
};

/// Whether creating it takes memory. The memory of sparse arrays and of those that are mapped later
/// comes from cuMemCreate.
inline bool array_takes_memory(unsigned flags) {
  return (flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
}
/// Bytes of `levels` levels (1 for an array that is not mipmapped). 0 where it takes no memory, and
/// where the shape is none that a driver accepts: the driver shall say so.
uint64_t array_bytes(const ArrayShape& shape, unsigned levels);

}  // namespace sluice::interpose

// Copies between memory and arrays, and between arrays. Offsets and widths are bytes, heights rows.
#include <algorithm>

#include "softgpu/runtime/array.h"
#include "softgpu/runtime/copy.h"

using namespace softgpu::runtime;

// The forms that span rows are old, and still exported.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

/// One side of a copy: an array, or memory.
struct Side {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  cudaArray_const_t array = nullptr;
  const void* memory = nullptr;
  size_t pitch = 0;
  size_t x_bytes = 0, y = 0;
};

CUDA_MEMCPY2D copy_of(const Side& from, const Side& to, size_t width, size_t height) {
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = from.type;
  copy.srcArray = to_array(from.array);
  copy.srcHost = from.memory;
  copy.srcDevice = to_address(from.memory);
  copy.srcPitch = from.pitch;
  copy.srcXInBytes = from.x_bytes;
  copy.srcY = from.y;
  copy.dstMemoryType = to.type;
  copy.dstArray = to_array(to.array);
  copy.dstHost = const_cast<void*>(to.memory);
  copy.dstDevice = to_address(to.memory);
  copy.dstPitch = to.pitch;
  copy.dstXInBytes = to.x_bytes;
  copy.dstY = to.y;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

Side array_side(cudaArray_const_t array, size_t x_bytes, size_t y) {
  return {CU_MEMORYTYPE_ARRAY, array, nullptr, 0, x_bytes, y};
}

/// Now, or in a stream.
struct When {
  bool in_stream = false;
  cudaStream_t stream = nullptr;
};

cudaError_t copy_run(const Driver& api, const Side& from, const Side& to, size_t width,
                     size_t height, When when) {
  if (width == 0 || height == 0) return cudaSuccess;
  const CUDA_MEMCPY2D copy = copy_of(from, to, width, height);
  return to_error(when.in_stream ? api.Memcpy2DAsync(&copy, when.stream)
                                 : api.Memcpy2DUnaligned(&copy));
}

cudaError_t to_array_rows(cudaArray_t target, size_t x, size_t y, const void* source, size_t pitch,
                          size_t width, size_t height, cudaMemcpyKind kind, When when) {
  return in_context([&](const Driver& api) {
    Side from{CU_MEMORYTYPE_UNIFIED, nullptr, source, pitch, 0, 0};
    CUmemorytype array_type = CU_MEMORYTYPE_UNIFIED;
    if (!copy_sides(kind, &from.type, &array_type) || array_type == CU_MEMORYTYPE_HOST)
      return cudaErrorInvalidMemcpyDirection;
    if (height > 0 && pitch < width) return cudaErrorInvalidPitchValue;
    return copy_run(api, from, array_side(target, x, y), width, height, when);
  });
}

cudaError_t from_array_rows(void* target, size_t pitch, cudaArray_const_t source, size_t x,
                            size_t y, size_t width, size_t height, cudaMemcpyKind kind, When when) {
  return in_context([&](const Driver& api) {
    Side to{CU_MEMORYTYPE_UNIFIED, nullptr, target, pitch, 0, 0};
    CUmemorytype array_type = CU_MEMORYTYPE_UNIFIED;
    if (!copy_sides(kind, &array_type, &to.type) || array_type == CU_MEMORYTYPE_HOST)
      return cudaErrorInvalidMemcpyDirection;
    if (height > 0 && pitch < width) return cudaErrorInvalidPitchValue;
    return copy_run(api, array_side(source, x, y), to, width, height, when);
  });
}

/// Calls `part(x, y, done, bytes)` for every row that `count` bytes from (x, y) touch.
template <class Part>
cudaError_t each_row(cudaArray_const_t array, size_t x, size_t y, size_t count, Part&& part) {
  size_t element = 0;
  cudaExtent extent = {};
  cudaError_t error = cudaArrayGetInfo(nullptr, &extent, nullptr, const_cast<cudaArray_t>(array));
  if (error == cudaSuccess) error = element_bytes(array, &element);
  const size_t row_bytes = extent.width * element;
  if (error == cudaSuccess && x >= row_bytes) error = cudaErrorInvalidValue;
  for (size_t done = 0; error == cudaSuccess && done < count; x = 0, ++y) {
    const size_t bytes = std::min(row_bytes - x, count - done);
    error = part(x, y, done, bytes);
    done += bytes;
  }
  return record_error(error);
}

cudaError_t to_array_span(cudaArray_t target, size_t x, size_t y, const void* source, size_t count,
                          cudaMemcpyKind kind, When when) {
  return each_row(target, x, y, count, [&](size_t at, size_t row, size_t done, size_t bytes) {
    return to_array_rows(target, at, row, static_cast<const char*>(source) + done, bytes, bytes, 1,
                         kind, when);
  });
}

cudaError_t from_array_span(void* target, cudaArray_const_t source, size_t x, size_t y,
                            size_t count, cudaMemcpyKind kind, When when) {
  return each_row(source, x, y, count, [&](size_t at, size_t row, size_t done, size_t bytes) {
    return from_array_rows(static_cast<char*>(target) + done, bytes, source, at, row, bytes, 1,
                           kind, when);
  });
}

}  // namespace

cudaError_t CUDARTAPI cudaMemcpy2DToArray(cudaArray_t target, size_t x, size_t y,
                                          const void* source, size_t pitch, size_t width,
                                          size_t height, enum cudaMemcpyKind kind) {
  return to_array_rows(target, x, y, source, pitch, width, height, kind, {});
}

cudaError_t CUDARTAPI cudaMemcpy2DToArrayAsync(cudaArray_t target, size_t x, size_t y,
                                               const void* source, size_t pitch, size_t width,
                                               size_t height, enum cudaMemcpyKind kind,
                                               cudaStream_t stream) {
  return to_array_rows(target, x, y, source, pitch, width, height, kind, {true, stream});
}

cudaError_t CUDARTAPI cudaMemcpy2DFromArray(void* target, size_t pitch, cudaArray_const_t source,
                                            size_t x, size_t y, size_t width, size_t height,
                                            enum cudaMemcpyKind kind) {
  return from_array_rows(target, pitch, source, x, y, width, height, kind, {});
}

cudaError_t CUDARTAPI cudaMemcpy2DFromArrayAsync(void* target, size_t pitch,
                                                 cudaArray_const_t source, size_t x, size_t y,
                                                 size_t width, size_t height,
                                                 enum cudaMemcpyKind kind, cudaStream_t stream) {
  return from_array_rows(target, pitch, source, x, y, width, height, kind, {true, stream});
}

cudaError_t CUDARTAPI cudaMemcpy2DArrayToArray(cudaArray_t target, size_t target_x, size_t target_y,
                                               cudaArray_const_t source, size_t source_x,
                                               size_t source_y, size_t width, size_t height,
                                               enum cudaMemcpyKind kind) {
  return in_context([&](const Driver& api) {
    if (kind != cudaMemcpyDeviceToDevice && kind != cudaMemcpyDefault)
      return cudaErrorInvalidMemcpyDirection;
    return copy_run(api, array_side(source, source_x, source_y),
                    array_side(target, target_x, target_y), width, height, {});
  });
}

cudaError_t CUDARTAPI cudaMemcpyToArray(cudaArray_t target, size_t x, size_t y, const void* source,
                                        size_t count, enum cudaMemcpyKind kind) {
  return to_array_span(target, x, y, source, count, kind, {});
}

cudaError_t CUDARTAPI cudaMemcpyToArrayAsync(cudaArray_t target, size_t x, size_t y,
                                             const void* source, size_t count,
                                             enum cudaMemcpyKind kind, cudaStream_t stream) {
  return to_array_span(target, x, y, source, count, kind, {true, stream});
}

cudaError_t CUDARTAPI cudaMemcpyFromArray(void* target, cudaArray_const_t source, size_t x,
                                          size_t y, size_t count, enum cudaMemcpyKind kind) {
  return from_array_span(target, source, x, y, count, kind, {});
}

cudaError_t CUDARTAPI cudaMemcpyFromArrayAsync(void* target, cudaArray_const_t source, size_t x,
                                               size_t y, size_t count, enum cudaMemcpyKind kind,
                                               cudaStream_t stream) {
  return from_array_span(target, source, x, y, count, kind, {true, stream});
}

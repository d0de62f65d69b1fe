// CUDA arrays: device memory with a shape. Their layout is opaque to programs, here it is plain
// rows without padding, so that an array takes exactly the bytes of its elements. Textures and
// surfaces, which are what arrays are for, are in image.h.
#pragma once

#include "softgpu/driver/state.h"

namespace softgpu::driver {

/// Largest extents, as the device attributes tell them (those of compute capability 8.0 and 9.0).
inline constexpr std::size_t kArray1dWidth = 131072;
inline constexpr std::size_t kArray1dMipmappedWidth = 32768;
inline constexpr std::size_t kArray1dLayeredWidth = 32768;
inline constexpr std::size_t kArray2dWidth = 131072;
inline constexpr std::size_t kArray2dHeight = 65536;
inline constexpr std::size_t kArray2dMipmapped = 32768;
inline constexpr std::size_t kArray2dLayered = 32768;
inline constexpr std::size_t kArray2dGather = 32768;
inline constexpr std::size_t kArrayLayers = 2048;
inline constexpr std::size_t kArray3d = 16384;
inline constexpr std::size_t kArray3dAlternateWidth = 8192;
inline constexpr std::size_t kArray3dAlternateDepth = 32768;
inline constexpr std::size_t kArrayCubemap = 32768;
inline constexpr std::size_t kArrayCubemapLayers = 2046;
/// The one limit that is smaller for arrays that surfaces may be bound to.
inline constexpr std::size_t kArraySurface1dWidth = 32768;

/// How the elements of a format lie in memory.
struct ArrayElement {
  std::size_t bytes = 0;  // of an element, or of a block of a compressed format
  unsigned block = 1;     // width and height of a block in elements
};

/// One plane of a format: its size is that of the array divided by these.
struct ArrayPlane {
  CUarray_format format = CU_AD_FORMAT_UNSIGNED_INT8;
  unsigned channels = 1;
  unsigned divide_width = 1, divide_height = 1;
};

class Array : public std::enable_shared_from_this<Array> {
 public:
  Array(const ContextRef& context, const CUDA_ARRAY3D_DESCRIPTOR& shape);
  /// Checks the shape, takes the memory and registers the array. NOT_SUPPORTED for those whose
  /// memory would be mapped later (sparse, deferred).
  static CUresult create(const ContextRef& context, const CUDA_ARRAY3D_DESCRIPTOR& shape,
                         std::shared_ptr<Array>& array);
  /// INVALID_HANDLE, or CONTEXT_IS_DESTROYED when its context is gone.
  static CUresult find(CUarray handle, std::shared_ptr<Array>& array);
  /// Registers a part of `parent` (a plane, a mipmap level) that starts at `address`.
  static std::shared_ptr<Array> part(const std::shared_ptr<Context>& context,
                                     const CUDA_ARRAY3D_DESCRIPTOR& shape, std::uintptr_t address);
  void release();
  CUresult plane(unsigned index, std::shared_ptr<Array>& plane);

  CUarray handle() { return reinterpret_cast<CUarray>(this); }
  std::shared_ptr<Context> context() const { return context_.lock(); }
  std::size_t row_bytes() const;  // distance between rows
  std::size_t rows() const;
  std::size_t slices() const { return shape.Depth == 0 ? 1 : shape.Depth; }
  std::size_t bytes() const;
  ArrayElement element() const;

  const CUDA_ARRAY3D_DESCRIPTOR shape;
  std::atomic<std::uintptr_t> address{0};  // 0: its memory is gone
  bool is_part = false;                    // of another array, which owns the memory

 private:
  std::weak_ptr<Context> context_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Array>> planes_;
};
using ArrayRef = std::shared_ptr<Array>;

class MipmappedArray {
 public:
  static CUresult create(const ContextRef& context, const CUDA_ARRAY3D_DESCRIPTOR& shape,
                         unsigned levels, std::shared_ptr<MipmappedArray>& array);
  static CUresult find(CUmipmappedArray handle, std::shared_ptr<MipmappedArray>& array);
  void release();
  CUmipmappedArray handle() { return reinterpret_cast<CUmipmappedArray>(this); }
  std::shared_ptr<Context> context() const { return context_.lock(); }

  std::vector<ArrayRef> levels;

 private:
  std::weak_ptr<Context> context_;
  std::uintptr_t address_ = 0;
};

/// Of a format with that many channels; bytes 0: no such format.
ArrayElement array_element(CUarray_format format, unsigned channels);
/// The planes of a planar format; empty for all others.
std::vector<ArrayPlane> array_planes(CUarray_format format);
/// INVALID_VALUE unless the shape is one of those that cuArray3DCreate (cuMipmappedArrayCreate)
/// lists; NOT_SUPPORTED when its memory would be mapped later.
CUresult array_shape_check(const CUDA_ARRAY3D_DESCRIPTOR& shape, bool mipmapped);
/// A limit of array extents as device attribute; 0: it is none.
int array_limit(int attribute);

}  // namespace softgpu::driver

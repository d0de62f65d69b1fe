// Entry points: arrays and mipmapped arrays, made, described and destroyed. Copies that touch them
// are in api_copy*.cpp.
#include "softgpu/driver/array.h"
#include "softgpu/driver/command.h"
#include "softgpu/driver/copy.h"

using namespace softgpu::driver;

namespace {

/// The shape with a 1-D or 2-D description's missing fields.
template <typename D>
CUDA_ARRAY3D_DESCRIPTOR shape_2d(const D& d) {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = d.Width;
  shape.Height = d.Height;
  shape.Format = d.Format;
  shape.NumChannels = d.NumChannels;
  return shape;
}

template <typename D>
CUDA_ARRAY3D_DESCRIPTOR shape_3d(const D& d) {
  CUDA_ARRAY3D_DESCRIPTOR shape = shape_2d(d);
  shape.Depth = d.Depth;
  shape.Flags = d.Flags;
  return shape;
}

CUresult create(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& shape, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ArrayRef array;
  result = Array::create(context, shape, array);
  if (result == CUDA_SUCCESS) *out = array->handle();
  return result;
}

CUresult find(CUarray handle, ArrayRef& array, const char* name = __builtin_FUNCTION()) {
  ContextRef context;
  const CUresult result = enter(context, name);
  return result == CUDA_SUCCESS ? Array::find(handle, array) : result;
}

CUresult find(CUmipmappedArray handle, std::shared_ptr<MipmappedArray>& array,
              const char* name = __builtin_FUNCTION()) {
  ContextRef context;
  const CUresult result = enter(context, name);
  return result == CUDA_SUCCESS ? MipmappedArray::find(handle, array) : result;
}

template <typename D>
void describe_2d(const CUDA_ARRAY3D_DESCRIPTOR& shape, D& out) {
  using Extent = decltype(out.Width);  // the first version of these structures is narrower
  out.Width = static_cast<Extent>(shape.Width);
  out.Height = static_cast<Extent>(shape.Height);
  out.Format = shape.Format;
  out.NumChannels = shape.NumChannels;
}

template <typename D>
void describe_3d(const CUDA_ARRAY3D_DESCRIPTOR& shape, D& out) {
  describe_2d(shape, out);
  out.Depth = static_cast<decltype(out.Depth)>(shape.Depth);
  out.Flags = shape.Flags;
}

/// No array here has its memory mapped later, be it sparse or deferred: creating one is refused.
template <typename Kind, typename Handle>
CUresult mapped_later_only(Handle handle, const char* name) {
  std::shared_ptr<Kind> array;
  const CUresult result = find(handle, array, name);
  return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
}

/// Tells of an array's shape by `describe(shape)`, which writes to `out`.
template <typename Describe>
CUresult shape_give(CUarray handle, const void* out, Describe describe, const char* name) {
  ArrayRef array;
  const CUresult result = find(handle, array, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  describe(array->shape);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* d) {
  return d == nullptr ? CUDA_ERROR_INVALID_VALUE : create(out, shape_2d(*d), __func__);
}
CUresult cuArrayCreate(CUarray* out, const CUDA_ARRAY_DESCRIPTOR_v1* d) {
  return d == nullptr ? CUDA_ERROR_INVALID_VALUE : create(out, shape_2d(*d), __func__);
}
CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  return d == nullptr ? CUDA_ERROR_INVALID_VALUE : create(out, shape_3d(*d), __func__);
}
CUresult cuArray3DCreate(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR_v1* d) {
  return d == nullptr ? CUDA_ERROR_INVALID_VALUE : create(out, shape_3d(*d), __func__);
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* out, CUarray handle) {
  return shape_give(
      handle, out, [out](const auto& shape) { describe_2d(shape, *out); }, __func__);
}
CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1* out, CUarray handle) {
  return shape_give(
      handle, out, [out](const auto& shape) { describe_2d(shape, *out); }, __func__);
}
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray handle) {
  return shape_give(
      handle, out, [out](const auto& shape) { describe_3d(shape, *out); }, __func__);
}
CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1* out, CUarray handle) {
  return shape_give(
      handle, out, [out](const auto& shape) { describe_3d(shape, *out); }, __func__);
}

CUresult cuArrayDestroy(CUarray handle) {
  ArrayRef array;
  CUresult result = find(handle, array);
  if (result != CUDA_SUCCESS) return result;
  if (array->is_part) return CUDA_ERROR_INVALID_HANDLE;  // goes with what it is part of
  context_idle(array->context());
  array->release();
  return CUDA_SUCCESS;
}

CUresult cuArrayGetPlane(CUarray* out, CUarray handle, unsigned int index) {
  ArrayRef array, plane;
  CUresult result = find(handle, array);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  result = array->plane(index, plane);
  if (result == CUDA_SUCCESS) *out = plane->handle();
  return result;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS*, CUarray handle, CUdevice) {
  return mapped_later_only<Array>(handle, __func__);
}
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS*,
                                               CUmipmappedArray handle, CUdevice) {
  return mapped_later_only<MipmappedArray>(handle, __func__);
}
CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES*, CUarray handle) {
  return mapped_later_only<Array>(handle, __func__);
}
CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES*,
                                             CUmipmappedArray handle) {
  return mapped_later_only<MipmappedArray>(handle, __func__);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* d,
                                unsigned int levels) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || d == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<MipmappedArray> array;
  result = MipmappedArray::create(context, *d, levels, array);
  if (result == CUDA_SUCCESS) *out = array->handle();
  return result;
}

CUresult cuMipmappedArrayGetLevel(CUarray* out, CUmipmappedArray handle, unsigned int level) {
  std::shared_ptr<MipmappedArray> array;
  const CUresult result = find(handle, array);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || level >= array->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *out = array->levels[level]->handle();
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  std::shared_ptr<MipmappedArray> array;
  CUresult result = find(handle, array);
  if (result != CUDA_SUCCESS) return result;
  context_idle(array->context());
  array->release();
  return CUDA_SUCCESS;
}

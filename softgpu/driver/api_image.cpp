// Entry points: texture and surface objects.
#include <algorithm>
#include <iterator>

#include "softgpu/driver/image.h"

using namespace softgpu::driver;

namespace {

CUresult object_find(std::uint64_t handle, bool surface, ImageRef& object,
                     const char* name = __builtin_FUNCTION()) {
  ContextRef context;
  const CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  object = ImageTable::get().find(handle);
  return object != nullptr && object->image.surface == surface ? CUDA_SUCCESS
                                                               : CUDA_ERROR_INVALID_VALUE;
}

CUresult object_destroy(std::uint64_t handle, bool surface,
                        const char* name = __builtin_FUNCTION()) {
  ContextRef context;
  const CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  const ImageRef object = ImageTable::get().find(handle);
  if (object != nullptr && object->image.surface != surface) return CUDA_ERROR_INVALID_VALUE;
  ImageTable::get().destroy(handle);
  return CUDA_SUCCESS;
}

CUresult resource_give(CUDA_RESOURCE_DESC* out, std::uint64_t handle, bool surface,
                       const char* name = __builtin_FUNCTION()) {
  ImageRef object;
  const CUresult result = object_find(handle, surface, object, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = object->resource;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuTexObjectCreate(CUtexObject* out, const CUDA_RESOURCE_DESC* resource,
                           const CUDA_TEXTURE_DESC* sampling, const CUDA_RESOURCE_VIEW_DESC* view) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || resource == nullptr || sampling == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto object = std::make_shared<ImageObject>();
  object->resource = *resource;
  object->sampling = *sampling;
  if (view != nullptr) object->view = *view;
  object->context = context->id;
  result = image_of_texture(*object);
  if (result == CUDA_SUCCESS) *out = ImageTable::get().add(object);
  return result;
}

CUresult cuTexObjectDestroy(CUtexObject texture) { return object_destroy(texture, false); }

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUtexObject texture) {
  return resource_give(out, texture, false);
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* out, CUtexObject texture) {
  ImageRef object;
  const CUresult result = object_find(texture, false, object);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Hardware tells no colour: what is there stays.
  CUDA_TEXTURE_DESC told = object->sampling;
  std::copy(std::begin(out->borderColor), std::end(out->borderColor), std::begin(told.borderColor));
  *out = told;
  return CUDA_SUCCESS;
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* out, CUtexObject texture) {
  ImageRef object;
  const CUresult result = object_find(texture, false, object);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // What an array without a view, and plain memory with one, would tell is left as it is.
  if (object->view.has_value() && object->resource.resType == CU_RESOURCE_TYPE_ARRAY)
    *out = *object->view;
  return CUDA_SUCCESS;
}

CUresult cuSurfObjectCreate(CUsurfObject* out, const CUDA_RESOURCE_DESC* resource) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto object = std::make_shared<ImageObject>();
  object->resource = *resource;
  object->context = context->id;
  result = image_of_surface(*object);
  if (result == CUDA_SUCCESS) *out = ImageTable::get().add(object);
  return result;
}

CUresult cuSurfObjectDestroy(CUsurfObject surface) { return object_destroy(surface, true); }

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUsurfObject surface) {
  return resource_give(out, surface, true);
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(std::size_t* out, CUarray_format format,
                                            unsigned int channels, CUdevice device) {
  Gpu* gpu = nullptr;
  const CUresult result = enter_gpu(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || !image_format(format, channels).has_value())
    return CUDA_ERROR_INVALID_VALUE;
  *out = kTextureLinearWidth;
  return CUDA_SUCCESS;
}

// Arrays and mipmapped arrays as objects: their memory, their parts, their end. See array.h.
#include "softgpu/driver/array.h"

#include <algorithm>
#include <bit>

#include "softgpu/driver/memory.h"

namespace softgpu::driver {
namespace {

/// Level `level` of a mipmapped array: half of each extent a level, layers stay.
CUDA_ARRAY3D_DESCRIPTOR level_shape(CUDA_ARRAY3D_DESCRIPTOR shape, unsigned level) {
  const auto half = [level](std::size_t extent) {
    return extent == 0 ? 0 : std::max<std::size_t>(extent >> level, 1);
  };
  shape.Width = half(shape.Width);
  shape.Height = half(shape.Height);
  const bool layers = (shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  if (!layers) shape.Depth = half(shape.Depth);
  return shape;
}

unsigned levels_most(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  const bool layers = (shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  const std::size_t longest =
      std::max({shape.Width, shape.Height, layers ? std::size_t{1} : shape.Depth});
  return static_cast<unsigned>(std::bit_width(longest));
}

CUresult memory_take(Context& context, std::size_t bytes, std::uintptr_t& address) {
  CUdeviceptr at = 0;
  const CUresult result = memory_allocate(context, bytes, MemoryKind::kArray, at);
  address = at;
  return result;
}

void memory_return(std::uintptr_t address) {
  const auto allocation = MemoryMap::get().take(address);  // gone with the context, perhaps
  if (allocation) memory_release(*allocation);
}

}  // namespace

Array::Array(const ContextRef& context, const CUDA_ARRAY3D_DESCRIPTOR& of_shape)
    : shape(of_shape), context_(context) {}

CUresult Array::create(const ContextRef& context, const CUDA_ARRAY3D_DESCRIPTOR& shape,
                       ArrayRef& array) {
  CUresult result = array_shape_check(shape, false);
  if (result != CUDA_SUCCESS) return result;
  auto made = std::make_shared<Array>(context, shape);
  std::uintptr_t address = 0;
  result = memory_take(*context, made->bytes(), address);
  if (result != CUDA_SUCCESS) return result;
  made->address = address;
  Registry<Array>::all().add(made);
  array = std::move(made);
  return CUDA_SUCCESS;
}

ArrayRef Array::part(const ContextRef& context, const CUDA_ARRAY3D_DESCRIPTOR& shape,
                     std::uintptr_t address) {
  auto part = std::make_shared<Array>(context, shape);
  part->address = address;
  part->is_part = true;
  Registry<Array>::all().add(part);
  return part;
}

CUresult Array::find(CUarray handle, ArrayRef& array) {
  array = Registry<Array>::all().find(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const ContextRef context = array->context();
  if (context != nullptr && !context->closed) return CUDA_SUCCESS;
  array->address = 0;  // went with the context, and may be somebody else's by now
  array->release();
  return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void Array::release() {
  {
    const std::lock_guard lock(mutex_);
    for (const ArrayRef& plane : planes_) Registry<Array>::all().take(plane.get());
  }
  Registry<Array>::all().take(this);
  const std::uintptr_t memory = address.exchange(0);
  if (!is_part && memory != 0) memory_return(memory);
}

ArrayElement Array::element() const { return array_element(shape.Format, shape.NumChannels); }

std::size_t Array::row_bytes() const {
  const ArrayElement e = element();
  return (shape.Width + e.block - 1) / e.block * e.bytes;
}

std::size_t Array::rows() const {
  const unsigned block = element().block;
  return shape.Height == 0 ? 1 : (shape.Height + block - 1) / block;
}

std::size_t Array::bytes() const {
  const std::vector<ArrayPlane> planes = array_planes(shape.Format);
  if (planes.empty()) return row_bytes() * rows() * slices();
  std::size_t sum = 0;
  for (const ArrayPlane& plane : planes)
    sum += shape.Width / plane.divide_width * (shape.Height / plane.divide_height) *
           array_element(plane.format, plane.channels).bytes;
  return sum;
}

CUresult Array::plane(unsigned index, ArrayRef& plane) {
  const std::vector<ArrayPlane> planes = array_planes(shape.Format);
  if (index >= planes.size()) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  if (planes_.empty()) {
    std::uintptr_t at = address;
    for (const ArrayPlane& p : planes) {
      CUDA_ARRAY3D_DESCRIPTOR s = shape;
      s.Width /= p.divide_width;
      s.Height /= p.divide_height;
      s.Format = p.format;
      s.NumChannels = p.channels;
      planes_.push_back(part(context(), s, at));
      at += planes_.back()->bytes();
    }
  }
  plane = planes_[index];
  return CUDA_SUCCESS;
}

CUresult MipmappedArray::create(const ContextRef& context, const CUDA_ARRAY3D_DESCRIPTOR& shape,
                                unsigned levels, std::shared_ptr<MipmappedArray>& array) {
  CUresult result = array_shape_check(shape, true);
  if (result != CUDA_SUCCESS) return result;
  auto made = std::make_shared<MipmappedArray>();
  made->context_ = context;
  const unsigned count = std::clamp(levels, 1U, levels_most(shape));
  std::size_t bytes = 0;
  for (unsigned level = 0; level < count; ++level)
    bytes += Array(context, level_shape(shape, level)).bytes();
  result = memory_take(*context, bytes, made->address_);
  if (result != CUDA_SUCCESS) return result;
  std::uintptr_t at = made->address_;
  for (unsigned level = 0; level < count; ++level) {
    made->levels.push_back(Array::part(context, level_shape(shape, level), at));
    at += made->levels.back()->bytes();
  }
  Registry<MipmappedArray>::all().add(made);
  array = std::move(made);
  return CUDA_SUCCESS;
}

CUresult MipmappedArray::find(CUmipmappedArray handle, std::shared_ptr<MipmappedArray>& array) {
  array = Registry<MipmappedArray>::all().find(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const ContextRef context = array->context();
  if (context != nullptr && !context->closed) return CUDA_SUCCESS;
  array->address_ = 0;
  array->release();
  return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void MipmappedArray::release() {
  for (const ArrayRef& level : levels) level->release();
  Registry<MipmappedArray>::all().take(this);
  if (address_ != 0) memory_return(address_);
  address_ = 0;
}

}  // namespace softgpu::driver

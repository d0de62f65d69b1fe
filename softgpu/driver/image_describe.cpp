// From the descriptors of a texture or surface object to what kernels see. See image.h; the rules
// are those of cuda.h, cuTexObjectCreate and cuSurfObjectCreate.
#include <algorithm>
#include <bit>
#include <cmath>

#include "softgpu/driver/image.h"
#include "softgpu/driver/memory.h"

namespace softgpu::driver {
namespace {

constexpr unsigned kTextureFlags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES |
                                   CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION |
                                   CU_TRSF_SEAMLESS_CUBEMAP;

/// A refusal that says what of the call is not there.
CUresult without(const char* what) { return not_implemented(what); }

void format_set(ptx::Image& image, const ImageFormat& format, std::size_t texel_bytes) {
  image.channel = format.channel;
  image.channels = static_cast<std::uint8_t>(format.channels);
  image.channel_bytes = static_cast<std::uint8_t>(format.bytes);
  image.texel_bytes = static_cast<std::uint32_t>(texel_bytes);
}

/// The format of plain memory, which the driver cannot know otherwise.
CUresult memory_format(CUarray_format format, unsigned channels, ptx::Image& image) {
  const std::optional<ImageFormat> found = image_format(format, channels);
  if (!found.has_value()) return CUDA_ERROR_INVALID_VALUE;
  format_set(image, *found, array_element(format, channels).bytes);
  return CUDA_SUCCESS;
}

bool memory_there(CUdeviceptr address, std::size_t bytes) {
  return address != 0 && address % kTextureAlign == 0 && MemoryMap::get().covers(address, bytes);
}

CUresult linear_set(const CUDA_RESOURCE_DESC& resource, ptx::Image& image) {
  const auto& linear = resource.res.linear;
  const CUresult result = memory_format(linear.format, linear.numChannels, image);
  if (result != CUDA_SUCCESS) return result;
  const std::size_t texels = linear.sizeInBytes / image.texel_bytes;
  if (texels == 0 || texels > kTextureLinearWidth) return CUDA_ERROR_INVALID_VALUE;
  if (!memory_there(linear.devPtr, linear.sizeInBytes)) return CUDA_ERROR_INVALID_VALUE;
  image.base = pointer_of(linear.devPtr);
  image.extent = {static_cast<std::uint32_t>(texels), 1, 1};
  image.memory = true;
  return CUDA_SUCCESS;
}

CUresult pitched_set(const CUDA_RESOURCE_DESC& resource, ptx::Image& image) {
  const auto& plane = resource.res.pitch2D;
  const CUresult result = memory_format(plane.format, plane.numChannels, image);
  if (result != CUDA_SUCCESS) return result;
  const std::size_t row = plane.width * image.texel_bytes;
  if (plane.width == 0 || plane.width > kTexturePitchedWidth || plane.height == 0 ||
      plane.height > kTexturePitchedHeight || plane.pitchInBytes % kTexturePitchAlign != 0 ||
      plane.pitchInBytes > kTexturePitchMax || plane.pitchInBytes < row)
    return CUDA_ERROR_INVALID_VALUE;
  if (!memory_there(plane.devPtr, (plane.height - 1) * plane.pitchInBytes + row))
    return CUDA_ERROR_INVALID_VALUE;
  image.base = pointer_of(plane.devPtr);
  image.extent = {static_cast<std::uint32_t>(plane.width), static_cast<std::uint32_t>(plane.height),
                  1};
  image.row_bytes = plane.pitchInBytes;
  return CUDA_SUCCESS;
}

CUresult array_set(CUarray handle, ptx::Image& image) {
  ArrayRef array;
  if (Array::find(handle, array) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR& shape = array->shape;
  if ((shape.Flags & CUDA_ARRAY3D_CUBEMAP) != 0)
    return without("a texture or surface of a cubemap");
  const std::optional<ImageFormat> format = image_format(shape.Format, shape.NumChannels);
  if (!format.has_value()) return without("a texture or surface of a compressed or video format");
  format_set(image, *format, array->element().bytes);
  image.base = pointer_of(array->address.load());
  const bool layered = (shape.Flags & CUDA_ARRAY3D_LAYERED) != 0;
  const auto extent = [](std::size_t n) {
    return static_cast<std::uint32_t>(std::max<std::size_t>(n, 1));
  };
  image.extent = {extent(shape.Width), extent(shape.Height), layered ? 1 : extent(shape.Depth)};
  image.layers = layered ? extent(shape.Depth) : 0;
  image.row_bytes = array->row_bytes();
  image.slice_bytes = array->row_bytes() * array->rows();
  return CUDA_SUCCESS;
}

CUresult resource_set(const CUDA_RESOURCE_DESC& resource, ptx::Image& image) {
  if (resource.flags != 0) return CUDA_ERROR_INVALID_VALUE;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      return array_set(resource.res.array.hArray, image);
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      std::shared_ptr<MipmappedArray> array;
      return MipmappedArray::find(resource.res.mipmap.hMipmappedArray, array) == CUDA_SUCCESS
                 ? without("a texture of a mipmapped array")
                 : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_RESOURCE_TYPE_LINEAR:
      return linear_set(resource, image);
    case CU_RESOURCE_TYPE_PITCH2D:
      return pitched_set(resource, image);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

/// Another format of the same size, and some of the layers. Plain memory takes any view and has no
/// use for it.
CUresult view_set(const CUDA_RESOURCE_DESC& resource, const CUDA_RESOURCE_VIEW_DESC& view,
                  ptx::Image& image) {
  if (resource.resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_SUCCESS;
  if (view.format >= CU_RES_VIEW_FORMAT_UNSIGNED_BC1 &&
      view.format <= CU_RES_VIEW_FORMAT_UNSIGNED_BC7)
    return without("a compressed view of an array");
  ArrayRef array;
  if (Array::find(resource.res.array.hArray, array) != CUDA_SUCCESS)
    return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR& shape = array->shape;
  if (view.width != shape.Width || view.height != shape.Height || view.depth != shape.Depth ||
      view.firstMipmapLevel != 0 || view.lastMipmapLevel != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (view.firstLayer > view.lastLayer || view.lastLayer >= std::max(image.layers, 1U))
    return CUDA_ERROR_INVALID_VALUE;
  if (image.layers != 0) {
    image.base += view.firstLayer * image.slice_bytes;
    image.layers = view.lastLayer - view.firstLayer + 1;
  }
  if (view.format == CU_RES_VIEW_FORMAT_NONE) return CUDA_SUCCESS;
  const std::optional<ImageFormat> format = image_format(view.format);
  if (!format.has_value() || format->bytes * format->channels != image.texel_bytes)
    return CUDA_ERROR_INVALID_VALUE;
  format_set(image, *format, image.texel_bytes);
  return CUDA_SUCCESS;
}

bool sampling_valid(const CUDA_TEXTURE_DESC& sampling, bool linear_memory) {
  const auto filter = [](CUfilter_mode mode) {
    return mode == CU_TR_FILTER_MODE_POINT || mode == CU_TR_FILTER_MODE_LINEAR;
  };
  // What linear memory ignores is not looked at.
  for (const CUaddress_mode mode : sampling.addressMode) {
    if (!linear_memory && (mode < CU_TR_ADDRESS_MODE_WRAP || mode > CU_TR_ADDRESS_MODE_BORDER))
      return false;
  }
  // Seamless filtering is of cubemaps, and there are none.
  return (linear_memory || filter(sampling.filterMode)) && filter(sampling.mipmapFilterMode) &&
         (sampling.flags & ~kTextureFlags) == 0 && (sampling.flags & CU_TRSF_SEAMLESS_CUBEMAP) == 0;
}

void sampling_set(const CUDA_TEXTURE_DESC& sampling, ptx::Image& image) {
  image.normalized = (sampling.flags & CU_TRSF_NORMALIZED_COORDINATES) != 0 && !image.memory;
  image.linear = sampling.filterMode == CU_TR_FILTER_MODE_LINEAR && !image.memory;
  for (std::size_t k = 0; k < image.outside.size(); ++k) {
    const CUaddress_mode mode = sampling.addressMode[k];
    const bool turns = mode == CU_TR_ADDRESS_MODE_WRAP || mode == CU_TR_ADDRESS_MODE_MIRROR;
    // These two need normalized coordinates and are clamping without (cuda_runtime_api.h,
    // cudaCreateTextureObject).
    image.outside[k] =
        turns && !image.normalized ? ptx::Outside::kClamp : static_cast<ptx::Outside>(mode);
    if (image.memory) image.outside[k] = ptx::Outside::kBorder;
  }
  // Integers of 8 and 16 bits become real numbers unless the flag says otherwise; those of 32
  // never.
  if ((sampling.flags & CU_TRSF_READ_AS_INTEGER) == 0 && image.channel_bytes < 4) {
    if (image.channel == ptx::Channel::kUnsigned) image.channel = ptx::Channel::kUnsignedNormalized;
    if (image.channel == ptx::Channel::kSigned) image.channel = ptx::Channel::kSignedNormalized;
  }
  for (std::size_t c = 0; c < image.border.size() && !image.memory; ++c)
    image.border[c] = std::bit_cast<std::uint32_t>(sampling.borderColor[c]);
}

}  // namespace

static_assert(static_cast<int>(ptx::Outside::kWrap) == CU_TR_ADDRESS_MODE_WRAP &&
              static_cast<int>(ptx::Outside::kClamp) == CU_TR_ADDRESS_MODE_CLAMP &&
              static_cast<int>(ptx::Outside::kMirror) == CU_TR_ADDRESS_MODE_MIRROR &&
              static_cast<int>(ptx::Outside::kBorder) == CU_TR_ADDRESS_MODE_BORDER);

CUresult image_of_texture(ImageObject& object) {
  const bool linear_memory = object.resource.resType == CU_RESOURCE_TYPE_LINEAR;
  if (!sampling_valid(object.sampling, linear_memory)) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = resource_set(object.resource, object.image);
  if (result == CUDA_SUCCESS && object.view.has_value())
    result = view_set(object.resource, *object.view, object.image);
  if (result != CUDA_SUCCESS) return result;
  if ((object.sampling.flags & CU_TRSF_SRGB) != 0) return without("a texture of sRGB colours");
  sampling_set(object.sampling, object.image);
  return CUDA_SUCCESS;
}

CUresult image_of_surface(ImageObject& object) {
  if (object.resource.resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  // cuda.h says that an array needs CUDA_ARRAY3D_SURFACE_LDST for this; hardware does not look.
  object.image.surface = true;
  return resource_set(object.resource, object.image);
}

}  // namespace softgpu::driver

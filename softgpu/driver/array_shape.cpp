// The shapes of arrays that the driver API allows, and the device attributes that tell their
// limits. See array.h. The rules are those of cuda.h, cuArray3DCreate and cuMipmappedArrayCreate.
#include <algorithm>
#include <array>

#include "softgpu/driver/array.h"

namespace softgpu::driver {
namespace {

struct Limit {
  CUdevice_attribute attribute;
  std::size_t value;
};

constexpr auto kLimits = std::to_array<Limit>({
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, kArray1dWidth},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH, kArray1dMipmappedWidth},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, kArray1dLayeredWidth},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS, kArrayLayers},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, kArray2dWidth},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, kArray2dHeight},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH, kArray2dMipmapped},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT, kArray2dMipmapped},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, kArray2dLayered},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, kArray2dLayered},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, kArrayLayers},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH, kArray2dGather},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT, kArray2dGather},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, kArray3d},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, kArray3d},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, kArray3d},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE, kArray3dAlternateWidth},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE, kArray3dAlternateWidth},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE, kArray3dAlternateDepth},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH, kArrayCubemap},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH, kArrayCubemap},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS, kArrayCubemapLayers},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH, kArraySurface1dWidth},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH, kArray1dLayeredWidth},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS, kArrayLayers},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, kArray2dWidth},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT, kArray2dHeight},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH, kArray2dLayered},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT, kArray2dLayered},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS, kArrayLayers},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH, kArray3d},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT, kArray3d},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH, kArray3d},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH, kArrayCubemap},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH, kArrayCubemap},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS, kArrayCubemapLayers},
});

bool within(std::size_t value, std::size_t most) { return value >= 1 && value <= most; }

bool cubemap_valid(const CUDA_ARRAY3D_DESCRIPTOR& s) {
  const bool layered = (s.Flags & CUDA_ARRAY3D_LAYERED) != 0;
  if (s.Width != s.Height || !within(s.Width, kArrayCubemap)) return false;
  if (!layered) return s.Depth == 6;
  return s.Depth != 0 && s.Depth % 6 == 0 && s.Depth <= kArrayCubemapLayers;
}

bool layered_valid(const CUDA_ARRAY3D_DESCRIPTOR& s) {
  if (!within(s.Depth, kArrayLayers)) return false;
  if (s.Height == 0) return within(s.Width, kArray1dLayeredWidth);
  return within(s.Width, kArray2dLayered) && within(s.Height, kArray2dLayered);
}

bool plain_valid(const CUDA_ARRAY3D_DESCRIPTOR& s, bool mipmapped) {
  if (s.Height == 0) {
    const bool surface = (s.Flags & CUDA_ARRAY3D_SURFACE_LDST) != 0;
    const std::size_t most = surface     ? kArraySurface1dWidth
                             : mipmapped ? kArray1dMipmappedWidth
                                         : kArray1dWidth;
    return s.Depth == 0 && within(s.Width, most);
  }
  if (s.Depth == 0) {
    if ((s.Flags & CUDA_ARRAY3D_TEXTURE_GATHER) != 0)
      return within(s.Width, kArray2dGather) && within(s.Height, kArray2dGather);
    return within(s.Width, mipmapped ? kArray2dMipmapped : kArray2dWidth) &&
           within(s.Height, mipmapped ? kArray2dMipmapped : kArray2dHeight);
  }
  return (within(s.Width, kArray3d) && within(s.Height, kArray3d) && within(s.Depth, kArray3d)) ||
         (within(s.Width, kArray3dAlternateWidth) && within(s.Height, kArray3dAlternateWidth) &&
          within(s.Depth, kArray3dAlternateDepth));
}

bool shape_valid(const CUDA_ARRAY3D_DESCRIPTOR& s, bool mipmapped) {
  const std::vector<ArrayPlane> planes = array_planes(s.Format);
  if (!planes.empty()) {
    // Planar images are two-dimensional and their parts must come out even.
    const bool even =
        s.Width % planes.back().divide_width == 0 && s.Height % planes.back().divide_height == 0;
    if (s.NumChannels != 3 || s.Height == 0 || s.Depth != 0 || mipmapped || !even) return false;
    if ((s.Flags & CUDA_ARRAY3D_VIDEO_ENCODE_DECODE) == 0) return false;
  } else if (array_element(s.Format, s.NumChannels).bytes == 0) {
    return false;
  }
  constexpr unsigned kKnown =
      CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
      CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT |
      CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE;
  if ((s.Flags & ~kKnown) != 0) return false;
  const bool gather = (s.Flags & CUDA_ARRAY3D_TEXTURE_GATHER) != 0;
  if (gather && (s.Height == 0 || s.Depth != 0)) return false;  // only 2-D
  if ((s.Flags & CUDA_ARRAY3D_CUBEMAP) != 0) return cubemap_valid(s);
  if ((s.Flags & CUDA_ARRAY3D_LAYERED) != 0) return layered_valid(s);
  return plain_valid(s, mipmapped);
}

}  // namespace

CUresult array_shape_check(const CUDA_ARRAY3D_DESCRIPTOR& shape, bool mipmapped) {
  if (!shape_valid(shape, mipmapped)) return CUDA_ERROR_INVALID_VALUE;
  const bool later = (shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
  return later ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

int array_limit(int attribute) {
  const auto found = std::find_if(kLimits.begin(), kLimits.end(), [attribute](const Limit& limit) {
    return limit.attribute == attribute;
  });
  return found == kLimits.end() ? 0 : static_cast<int>(found->value);
}

}  // namespace softgpu::driver

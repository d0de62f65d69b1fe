// The formats of arrays: bytes of an element, compressed blocks, planes. See array.h. The rules are
// those of cuda.h, CUarray_format.
#include "softgpu/driver/array.h"

namespace softgpu::driver {
namespace {

/// Formats whose number of channels is part of the format.
struct FixedFormat {
  CUarray_format format;
  unsigned channels;
  std::size_t bytes;
  unsigned block;
};

constexpr FixedFormat kFixed[] = {
    {CU_AD_FORMAT_UNORM_INT8X1, 1, 1, 1},
    {CU_AD_FORMAT_UNORM_INT8X2, 2, 2, 1},
    {CU_AD_FORMAT_UNORM_INT8X4, 4, 4, 1},
    {CU_AD_FORMAT_UNORM_INT16X1, 1, 2, 1},
    {CU_AD_FORMAT_UNORM_INT16X2, 2, 4, 1},
    {CU_AD_FORMAT_UNORM_INT16X4, 4, 8, 1},
    {CU_AD_FORMAT_SNORM_INT8X1, 1, 1, 1},
    {CU_AD_FORMAT_SNORM_INT8X2, 2, 2, 1},
    {CU_AD_FORMAT_SNORM_INT8X4, 4, 4, 1},
    {CU_AD_FORMAT_SNORM_INT16X1, 1, 2, 1},
    {CU_AD_FORMAT_SNORM_INT16X2, 2, 4, 1},
    {CU_AD_FORMAT_SNORM_INT16X4, 4, 8, 1},
    {CU_AD_FORMAT_BC1_UNORM, 4, 8, 4},
    {CU_AD_FORMAT_BC1_UNORM_SRGB, 4, 8, 4},
    {CU_AD_FORMAT_BC2_UNORM, 4, 16, 4},
    {CU_AD_FORMAT_BC2_UNORM_SRGB, 4, 16, 4},
    {CU_AD_FORMAT_BC3_UNORM, 4, 16, 4},
    {CU_AD_FORMAT_BC3_UNORM_SRGB, 4, 16, 4},
    {CU_AD_FORMAT_BC4_UNORM, 1, 8, 4},
    {CU_AD_FORMAT_BC4_SNORM, 1, 8, 4},
    {CU_AD_FORMAT_BC5_UNORM, 2, 16, 4},
    {CU_AD_FORMAT_BC5_SNORM, 2, 16, 4},
    {CU_AD_FORMAT_BC6H_UF16, 3, 16, 4},
    {CU_AD_FORMAT_BC6H_SF16, 3, 16, 4},
    {CU_AD_FORMAT_BC7_UNORM, 4, 16, 4},
    {CU_AD_FORMAT_BC7_UNORM_SRGB, 4, 16, 4},
    {CU_AD_FORMAT_YUY2, 2, 2, 1},
    {CU_AD_FORMAT_Y210, 2, 4, 1},
    {CU_AD_FORMAT_Y216, 2, 4, 1},
    {CU_AD_FORMAT_AYUV, 4, 4, 1},
    {CU_AD_FORMAT_Y410, 4, 4, 1},
    {CU_AD_FORMAT_Y416, 4, 8, 1},
    {CU_AD_FORMAT_UNORM_INT_101010_2, 4, 4, 1},
};

std::size_t channel_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

}  // namespace

ArrayElement array_element(CUarray_format format, unsigned channels) {
  const std::size_t bytes = channel_bytes(format);
  if (bytes != 0) {
    const bool fits = channels == 1 || channels == 2 || channels == 4;
    return {fits ? bytes * channels : 0, 1};
  }
  for (const FixedFormat& fixed : kFixed)
    if (fixed.format == format) return {channels == fixed.channels ? fixed.bytes : 0, fixed.block};
  return {};
}

std::vector<ArrayPlane> array_planes(CUarray_format format) {
  constexpr auto k8 = CU_AD_FORMAT_UNSIGNED_INT8;
  constexpr auto k16 = CU_AD_FORMAT_UNSIGNED_INT16;
  switch (format) {
    case CU_AD_FORMAT_NV12:  // 4:2:0
      return {{k8, 1, 1, 1}, {k8, 2, 2, 2}};
    case CU_AD_FORMAT_P010:
    case CU_AD_FORMAT_P016:
      return {{k16, 1, 1, 1}, {k16, 2, 2, 2}};
    case CU_AD_FORMAT_NV16:  // 4:2:2
      return {{k8, 1, 1, 1}, {k8, 2, 2, 1}};
    case CU_AD_FORMAT_P210:
    case CU_AD_FORMAT_P216:
      return {{k16, 1, 1, 1}, {k16, 2, 2, 1}};
    case CU_AD_FORMAT_Y444_PLANAR8:
      return {{k8, 1, 1, 1}, {k8, 1, 1, 1}, {k8, 1, 1, 1}};
    case CU_AD_FORMAT_Y444_PLANAR10:
      return {{k16, 1, 1, 1}, {k16, 1, 1, 1}, {k16, 1, 1, 1}};
    case CU_AD_FORMAT_YUV444_8bit_SemiPlanar:
      return {{k8, 1, 1, 1}, {k8, 2, 1, 1}};
    case CU_AD_FORMAT_YUV444_16bit_SemiPlanar:
      return {{k16, 1, 1, 1}, {k16, 2, 1, 1}};
    default:
      return {};
  }
}

}  // namespace softgpu::driver

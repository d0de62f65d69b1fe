// See array_size.h. Bits by format: cuda.h, CUarray_format.
#include "interpose/array_size.h"

namespace sluice::interpose {
namespace {

struct Texel {
  unsigned bits;    // of one element, or of one of its channels
  bool channelled;  // times the number of channels
  bool blocks;      // stored in blocks of 4 x 4
};

Texel texel(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return {8, true, false};
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return {16, true, false};
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return {32, true, false};
    // From here on the format says how many channels there are.
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1:
      return {8, false, false};
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1:
      return {16, false, false};
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X4:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT_101010_2:
      return {32, false, false};
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4:
      return {64, false, false};
    case CU_AD_FORMAT_BC1_UNORM:
    case CU_AD_FORMAT_BC1_UNORM_SRGB:
    case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM:
      return {4, false, true};
    case CU_AD_FORMAT_BC2_UNORM:
    case CU_AD_FORMAT_BC2_UNORM_SRGB:
    case CU_AD_FORMAT_BC3_UNORM:
    case CU_AD_FORMAT_BC3_UNORM_SRGB:
    case CU_AD_FORMAT_BC5_UNORM:
    case CU_AD_FORMAT_BC5_SNORM:
    case CU_AD_FORMAT_BC6H_UF16:
    case CU_AD_FORMAT_BC6H_SF16:
    case CU_AD_FORMAT_BC7_UNORM:
    case CU_AD_FORMAT_BC7_UNORM_SRGB:
      return {8, false, true};
    // A plane of brightness and planes of colour: 4:2:0 has a quarter of each colour, 4:2:2 half.
    case CU_AD_FORMAT_NV12:
      return {12, false, false};
    case CU_AD_FORMAT_P010:
    case CU_AD_FORMAT_P016:
    case CU_AD_FORMAT_Y444_PLANAR8:
    case CU_AD_FORMAT_YUV444_8bit_SemiPlanar:
      return {24, false, false};
    case CU_AD_FORMAT_NV16:
    case CU_AD_FORMAT_YUY2:
      return {16, false, false};
    case CU_AD_FORMAT_P210:
    case CU_AD_FORMAT_P216:
    case CU_AD_FORMAT_Y210:
    case CU_AD_FORMAT_Y216:
    case CU_AD_FORMAT_AYUV:
    case CU_AD_FORMAT_Y410:
      return {32, false, false};
    case CU_AD_FORMAT_Y416:
      return {64, false, false};
    case CU_AD_FORMAT_Y444_PLANAR10:
    case CU_AD_FORMAT_YUV444_16bit_SemiPlanar:
      return {48, false, false};
    default:
      return {0, false, false};
  }
}

uint64_t blocks_of(uint64_t elements) { return (elements + 3) / 4 * 4; }
uint64_t at_least_one(uint64_t elements) { return elements > 0 ? elements : 1; }

// False when the product is more than an address can say.
bool level_bytes(const ArrayShape& shape, unsigned level, const Texel& t, uint64_t* bytes) {
  // Layers, and a cube's six faces, stay as many on every level.
  const bool layered = (shape.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  uint64_t width = at_least_one(shape.width >> level);
  uint64_t height = at_least_one(shape.height >> level);
  const uint64_t depth = at_least_one(layered ? shape.depth : shape.depth >> level);
  if (t.blocks) {
    width = blocks_of(width);
    height = blocks_of(height);
  }
  const uint64_t channels = t.channelled ? shape.channels : 1;
  uint64_t bits = t.bits * channels;
  if (__builtin_mul_overflow(bits, width, &bits) || __builtin_mul_overflow(bits, height, &bits) ||
      __builtin_mul_overflow(bits, depth, &bits)) {
    return false;
  }
  *bytes = bits / 8 + (bits % 8 != 0 ? 1 : 0);
  return true;
}

// Formats with channels of their own come with one, two or four of them (cuda.h), planar ones with
// three.
bool channels_are_some(const ArrayShape& shape, const Texel& t) {
  return shape.channels != 0 && shape.channels <= 4 && !(t.channelled && shape.channels == 3);
}

// As many as there are until all directions have one element, whatever is asked for; at least one.
unsigned levels_of(const ArrayShape& shape, unsigned asked) {
  const bool layered = (shape.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  const uint64_t sides = shape.width | shape.height | (layered ? 0 : shape.depth);
  const unsigned most = 64 - static_cast<unsigned>(__builtin_clzll(sides));
  return asked == 0 ? 1 : asked < most ? asked : most;
}

}  // namespace

uint64_t array_bytes(const ArrayShape& shape, unsigned levels) {
  if (!array_takes_memory(shape.flags)) return 0;
  const Texel t = texel(shape.format);
  if (shape.width == 0 || !channels_are_some(shape, t)) return 0;
  uint64_t sum = 0;
  for (unsigned level = 0; level < levels_of(shape, levels); ++level) {
    uint64_t bytes = 0;
    if (!level_bytes(shape, level, t, &bytes) || __builtin_add_overflow(sum, bytes, &sum)) return 0;
  }
  return sum;
}

}  // namespace sluice::interpose

// The formats of textures and surfaces: what a channel of them is. See image.h; the rules are those
// of cuda.h, CUarray_format and CUresourceViewFormat.
#include "softgpu/driver/image.h"

namespace softgpu::driver {
namespace {

using ptx::Channel;

/// Formats whose number of channels is part of the format.
struct Named {
  CUarray_format format;
  ImageFormat is;
};

constexpr Named kNamed[] = {
    {CU_AD_FORMAT_UNORM_INT8X1, {Channel::kUnsignedNormalized, 1, 1}},
    {CU_AD_FORMAT_UNORM_INT8X2, {Channel::kUnsignedNormalized, 2, 1}},
    {CU_AD_FORMAT_UNORM_INT8X4, {Channel::kUnsignedNormalized, 4, 1}},
    {CU_AD_FORMAT_UNORM_INT16X1, {Channel::kUnsignedNormalized, 1, 2}},
    {CU_AD_FORMAT_UNORM_INT16X2, {Channel::kUnsignedNormalized, 2, 2}},
    {CU_AD_FORMAT_UNORM_INT16X4, {Channel::kUnsignedNormalized, 4, 2}},
    {CU_AD_FORMAT_SNORM_INT8X1, {Channel::kSignedNormalized, 1, 1}},
    {CU_AD_FORMAT_SNORM_INT8X2, {Channel::kSignedNormalized, 2, 1}},
    {CU_AD_FORMAT_SNORM_INT8X4, {Channel::kSignedNormalized, 4, 1}},
    {CU_AD_FORMAT_SNORM_INT16X1, {Channel::kSignedNormalized, 1, 2}},
    {CU_AD_FORMAT_SNORM_INT16X2, {Channel::kSignedNormalized, 2, 2}},
    {CU_AD_FORMAT_SNORM_INT16X4, {Channel::kSignedNormalized, 4, 2}},
    {CU_AD_FORMAT_UNORM_INT_101010_2, {Channel::kPacked1010102, 4, 1}},
};

std::optional<ImageFormat> plain(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
      return ImageFormat{Channel::kUnsigned, 1, 1};
    case CU_AD_FORMAT_UNSIGNED_INT16:
      return ImageFormat{Channel::kUnsigned, 1, 2};
    case CU_AD_FORMAT_UNSIGNED_INT32:
      return ImageFormat{Channel::kUnsigned, 1, 4};
    case CU_AD_FORMAT_SIGNED_INT8:
      return ImageFormat{Channel::kSigned, 1, 1};
    case CU_AD_FORMAT_SIGNED_INT16:
      return ImageFormat{Channel::kSigned, 1, 2};
    case CU_AD_FORMAT_SIGNED_INT32:
      return ImageFormat{Channel::kSigned, 1, 4};
    case CU_AD_FORMAT_HALF:
      return ImageFormat{Channel::kHalf, 1, 2};
    case CU_AD_FORMAT_FLOAT:
      return ImageFormat{Channel::kFloat, 1, 4};
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<ImageFormat> image_format(CUarray_format format, unsigned channels) {
  for (const Named& named : kNamed) {
    if (named.format == format)
      return channels == named.is.channels ? std::optional(named.is) : std::nullopt;
  }
  std::optional<ImageFormat> found = plain(format);
  if (channels != 1 && channels != 2 && channels != 4) return std::nullopt;
  if (found.has_value()) found->channels = channels;
  return found;
}

/// The views of plain formats come in threes: of one, two and four channels.
std::optional<ImageFormat> image_format(CUresourceViewFormat format) {
  static constexpr CUarray_format kThrees[] = {
      CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_SIGNED_INT8,    CU_AD_FORMAT_UNSIGNED_INT16,
      CU_AD_FORMAT_SIGNED_INT16,  CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32,
      CU_AD_FORMAT_HALF,          CU_AD_FORMAT_FLOAT};
  if (format < CU_RES_VIEW_FORMAT_UINT_1X8 || format > CU_RES_VIEW_FORMAT_FLOAT_4X32)
    return std::nullopt;
  const unsigned number = static_cast<unsigned>(format) - CU_RES_VIEW_FORMAT_UINT_1X8;
  return image_format(kThrees[number / 3], 1U << number % 3);
}

}  // namespace softgpu::driver

// What a texture or surface object is to a kernel: an image in memory and how it is sampled. The
// driver makes one of these of each object and gives it to the interpreter by its handle
// (Host::image); neither knows the other's other types.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace softgpu::ptx {

/// What the channels of a texel are in memory, and what a fetch makes of them: integers as they
/// are, real numbers as f32, the normalized ones by division by their largest value.
enum class Channel : std::uint8_t {
  kUnsigned,
  kSigned,
  kHalf,
  kFloat,
  kUnsignedNormalized,
  kSignedNormalized,
  kPacked1010102,  // four unsigned normalized channels in one word
};
constexpr bool channel_is_real(Channel c) {
  return c != Channel::kUnsigned && c != Channel::kSigned;
}

/// What a coordinate outside the image means.
enum class Outside : std::uint8_t { kWrap, kClamp, kMirror, kBorder };

struct Image {
  const std::byte* base = nullptr;
  std::array<std::uint32_t, 3> extent{1, 1, 1};  // texels; 1 in dimensions that it has not
  std::uint32_t layers = 0;                      // 0: it is not layered
  std::uint64_t row_bytes = 0, slice_bytes = 0;  // to the next row; the next slice or layer
  std::uint32_t texel_bytes = 0;
  std::uint8_t channels = 1;
  std::uint8_t channel_bytes = 1;
  Channel channel = Channel::kUnsigned;
  bool surface = false;  // written and read by surface instructions, and by nothing else

  // Of textures.
  bool normalized = false;  // coordinates in [0, 1) span the image
  bool linear = false;      // real results are interpolated
  bool memory = false;      // plain memory: fetched by index, outside of it is zero
  std::array<Outside, 3> outside{Outside::kClamp, Outside::kClamp, Outside::kClamp};
  std::array<std::uint32_t, 4> border{};  // bits of what a texel outside is
};

}  // namespace softgpu::ptx

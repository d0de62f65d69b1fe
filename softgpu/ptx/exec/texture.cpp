// Fetches from textures: PTX ISA, sections 9.7.9 (tex, tld4), and the formulas of the CUDA C++
// Programming Guide, "Texture Fetching". The guide leaves open how the weights of an interpolation
// are rounded to their eight bits and in what precision the sum is made: here to the nearest, and
// in double, rounded once at the end. See image.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "softgpu/ptx/exec/image.h"

namespace softgpu::ptx {
namespace {

constexpr s64 kNowhere = -1;  // the border
constexpr double kWeightOne = 256;
/// Beyond every image, and small enough to count in.
constexpr double kFar = 1e12;

template <class T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float half_value(u32 half) {
  const u32 sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent != 0)
    return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | fraction << 13);
  const float small = static_cast<float>(fraction) * 0x1p-24f;
  return sign == 0 ? small : -small;
}

s32 signed_at(const std::byte* at, u32 bytes) {
  return bytes == 1 ? read<std::int8_t>(at) : bytes == 2 ? read<s16>(at) : read<s32>(at);
}
u32 unsigned_at(const std::byte* at, u32 bytes) {
  return bytes == 1 ? read<u8>(at) : bytes == 2 ? read<u16>(at) : read<u32>(at);
}

u32 channel_at(const Image& image, const std::byte* at) {
  const u32 bytes = image.channel_bytes;
  switch (image.channel) {
    case Channel::kSigned:
      return static_cast<u32>(signed_at(at, bytes));
    case Channel::kHalf:
      return std::bit_cast<u32>(half_value(read<u16>(at)));
    case Channel::kUnsignedNormalized:
      return std::bit_cast<u32>(static_cast<float>(unsigned_at(at, bytes)) /
                                (bytes == 1 ? 255.0f : 65535.0f));
    case Channel::kSignedNormalized:
      return std::bit_cast<u32>(std::max(
          static_cast<float>(signed_at(at, bytes)) / (bytes == 1 ? 127.0f : 32767.0f), -1.0f));
    default:
      return unsigned_at(at, bytes);
  }
}

/// Three channels of ten bits and one of two.
void packed_at(const std::byte* at, u32* texel) {
  const u32 word = read<u32>(at);
  for (u32 c = 0; c < 3; ++c)
    texel[c] = std::bit_cast<u32>(static_cast<float>(word >> 10 * c & 1023) / 1023.0f);
  texel[3] = std::bit_cast<u32>(static_cast<float>(word >> 30) / 3.0f);
}

/// Channels that the texture lacks are zero.
void texel_at(const Image& image, const s64* at, u32* texel) {
  if (at[0] == kNowhere || at[1] == kNowhere || at[2] == kNowhere) {
    for (u32 c = 0; c < 4; ++c) texel[c] = c < image.channels ? image.border[c] : 0;
    return;
  }
  const std::byte* p = image.base + static_cast<u64>(at[2]) * image.slice_bytes +
                       static_cast<u64>(at[1]) * image.row_bytes +
                       static_cast<u64>(at[0]) * image.texel_bytes;
  if (image.channel == Channel::kPacked1010102) return packed_at(p, texel);
  for (u32 c = 0; c < 4; ++c)
    texel[c] = c < image.channels ? channel_at(image, p + c * image.channel_bytes) : 0;
}

/// The texel that an index along one dimension means.
s64 resolved(s64 index, s64 count, Outside outside) {
  if (index >= 0 && index < count) return index;
  switch (outside) {
    case Outside::kClamp:
      return index < 0 ? 0 : count - 1;
    case Outside::kWrap:
      return (index % count + count) % count;
    case Outside::kMirror: {
      const s64 turn = 2 * count, there = (index % turn + turn) % turn;
      return there < count ? there : turn - 1 - there;
    }
    case Outside::kBorder:
      break;
  }
  return kNowhere;
}

/// A coordinate in texels.
double position(const Image& image, std::size_t dimension, float coordinate) {
  double x = std::isnan(coordinate) ? 0 : double{coordinate};
  if (image.normalized) {
    const Outside outside = image.outside[dimension];
    const bool turns = outside == Outside::kWrap || outside == Outside::kMirror;
    if (turns) {
      if (std::isinf(x)) x = 0;
      const double whole = std::floor(x), part = x - whole;
      const bool back = outside == Outside::kMirror && std::fmod(whole, 2) != 0;
      x = back ? 1 - part : part;
    }
    x *= image.extent[dimension];
  }
  return std::clamp(x, -kFar, kFar);
}

/// One dimension of a fetch: the texels that take part, and the weight of the second.
struct Axis {
  s64 texels[2] = {0, 0};
  double weight = 0;
  int count = 1;
};

Axis axis_by_index(const Image& image, std::size_t dimension, s32 index) {
  Axis axis;
  axis.texels[0] = resolved(index, image.extent[dimension], image.outside[dimension]);
  return axis;
}

Axis axis_by_position(const Image& image, std::size_t dimension, float coordinate, bool pair) {
  const double x = position(image, dimension, coordinate) - (pair ? 0.5 : 0.0);
  const double whole = std::floor(x);
  Axis axis;
  axis.count = pair ? 2 : 1;
  axis.weight = std::floor((x - whole) * kWeightOne + 0.5) / kWeightOne;
  for (int k = 0; k < axis.count; ++k) {
    axis.texels[k] =
        resolved(static_cast<s64>(whole) + k, image.extent[dimension], image.outside[dimension]);
  }
  return axis;
}

double nearest(double x) { return std::floor(x + 0.5); }

/// Normalized integers of either width are interpolated as integers of 16 bits, whose largest
/// stands for 1. 0: the channel is none.
float steps_of(Channel channel) {
  switch (channel) {
    case Channel::kUnsignedNormalized:
      return 65535;
    case Channel::kSignedNormalized:
      return 32767;
    default:
      return 0;
  }
}

/// What of the channels of a texel is summed up.
void terms_at(const Image& image, float steps, const s64* at, double* terms) {
  u32 texel[4];
  const bool nowhere = at[0] == kNowhere || at[1] == kNowhere || at[2] == kNowhere;
  if (steps == 0 || nowhere) {
    texel_at(image, at, texel);
    for (int c = 0; c < 4; ++c)
      terms[c] = double{std::bit_cast<float>(texel[c])} * (steps == 0 ? 1 : steps);
    return;
  }
  const bool is_signed = image.channel == Channel::kSignedNormalized;
  Image raw = image;
  raw.channel = is_signed ? Channel::kSigned : Channel::kUnsigned;
  texel_at(raw, at, texel);
  const double largest = image.channel_bytes == 2 ? double{steps} : is_signed ? 127 : 255;
  const double scale = double{steps} / largest;
  for (int c = 0; c < 4; ++c)
    terms[c] =
        static_cast<double>(is_signed ? s64{static_cast<s32>(texel[c])} : s64{texel[c]}) * scale;
}

/// Of a texture of halves the sum is one.
float half_nearest(double sum) {
  int exponent = 0;
  std::frexp(sum, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent, -13) - 11);
  return static_cast<float>(std::nearbyint(sum / unit) * unit);
}

float total_of(Channel channel, float steps, double sum) {
  if (steps != 0) return std::max(static_cast<float>(nearest(sum)) / steps, -1.0f);
  return channel == Channel::kHalf && std::isfinite(sum) ? half_nearest(sum)
                                                         : static_cast<float>(sum);
}

/// The weights of the four texels of a plane, as hardware rounds them: to 256ths that sum up to 1.
struct PlaneWeights {
  double of[2][2];  // row, column

  PlaneWeights(const Axis& x, const Axis& y) {
    const double a = x.count == 2 ? x.weight : 0, b = y.count == 2 ? y.weight : 0;
    const double both = nearest(a * b * kWeightOne) / kWeightOne;
    of[1][1] = both;
    of[1][0] = b - both;
    of[0][1] = a - both;
    of[0][0] = 1 - a - b + both;
  }
};

void interpolated(const Image& image, const Axis* axes, u32* result) {
  const float steps = steps_of(image.channel);
  const PlaneWeights plane(axes[0], axes[1]);
  double sums[4] = {-0.0, -0.0, -0.0, -0.0};  // to which adding anything gives just that
  for (int z = 0; z < axes[2].count; ++z) {
    const double depth = axes[2].count == 1 ? 1 : z == 1 ? axes[2].weight : 1 - axes[2].weight;
    for (int y = 0; y < axes[1].count; ++y) {
      for (int x = 0; x < axes[0].count; ++x) {
        const s64 at[3] = {axes[0].texels[x], axes[1].texels[y], axes[2].texels[z]};
        double terms[4];
        terms_at(image, steps, at, terms);
        for (int c = 0; c < 4; ++c) sums[c] += plane.of[y][x] * depth * terms[c];
      }
    }
  }
  for (int c = 0; c < 4; ++c) {
    result[c] =
        c < image.channels ? std::bit_cast<u32>(total_of(image.channel, steps, sums[c])) : 0;
  }
}

/// The four texels of an interpolation, counterclockwise from the lower left.
void gathered(const Image& image, const Axis* axes, int component, u32* result) {
  static constexpr int kOrder[4][2] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
  for (int k = 0; k < 4; ++k) {
    const s64 at[3] = {axes[0].texels[kOrder[k][0]], axes[1].texels[kOrder[k][1]],
                       axes[2].texels[0]};
    u32 texel[4];
    texel_at(image, at, texel);
    result[k] = texel[component];
  }
}

void fetch(const Warp& w, const ImageSite& site, const Image& image, int l, u32* result) {
  const bool gather = site.component >= 0;
  const bool linear =
      image.linear && !image.memory && !site.integral && !gather && channel_is_real(image.channel);
  Axis axes[3];
  for (int k = 0; k < site.coordinates; ++k) {
    const std::byte* cell = reinterpret_cast<const std::byte*>(w.rf + site.c[k]) + 4 * l;
    const std::size_t dimension = static_cast<std::size_t>(k);
    axes[k] = site.integral
                  ? axis_by_index(image, dimension, read<s32>(cell))
                  : axis_by_position(image, dimension, read<float>(cell), linear || gather);
  }
  if (site.layered) {
    const u32 layer = reinterpret_cast<const u32*>(w.rf + site.layer)[l];
    axes[2].texels[0] = std::min<s64>(layer, std::max<s64>(image.layers, 1) - 1);
  }
  // A line is the first row of a plane, and a fetch from it one at 0, the upper edge of that row.
  if (linear && site.coordinates == 1 && !site.layered)
    axes[1] = axis_by_position(image, 1, 0, true);
  if (gather) return gathered(image, axes, site.component, result);
  if (linear) return interpolated(image, axes, result);
  const s64 at[3] = {axes[0].texels[0], axes[1].texels[0], axes[2].texels[0]};
  texel_at(image, at, result);
}

}  // namespace

const Inst* run_texture(Warp& w, const Inst* i) {
  w.at = i;
  w.cta->program->leave_handlers();
  const ImageSite& site = image_site(i);
  const u64* handles = reinterpret_cast<const u64*>(w.rf + i->a);
  const Image* image = nullptr;
  u64 handle = 0;
  for (u32 rest = w.mask; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    if (image == nullptr || handles[l] != handle) {
      handle = handles[l];
      image = &image_found(w, handle, false);
    }
    u32 result[4];
    fetch(w, site, *image, l, result);
    for (int k = 0; k < 4; ++k) reinterpret_cast<u32*>(w.rf + site.d[k])[l] = result[k];
  }
  return i + 1;
}

}  // namespace softgpu::ptx

// Exact rounding to a smaller floating-point format, in every rounding mode, from an
// unlimited-precision value given as sign, 64-bit significand and exponent. The slow, certain way;
// the fast ways are in the handlers.
#pragma once

#include "softgpu/ptx/exec/lanes.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

/// significand * 2^exponent, plus something less than one unit below it when `sticky`.
struct Exact {
  bool negative = false;
  bool sticky = false;
  bool infinite = false;
  bool nan = false;
  u64 significand = 0;
  int exponent = 0;
};

struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  u64 nan;
};
inline constexpr FloatFormat kHalfFormat{5, 10, 0x7fff};
inline constexpr FloatFormat kBfloatFormat{8, 7, 0x7fff};
inline constexpr FloatFormat kTf32Format{8, 10, 0x3ffff};
inline constexpr FloatFormat kFloatFormat{8, 23, 0x7fffffff};
inline constexpr FloatFormat kDoubleFormat{11, 52, 0x7fffffffffffffff};

inline Exact exact_of(f64 x) {
  const u64 bits = __builtin_bit_cast(u64, x);
  Exact value;
  value.negative = (bits >> 63) != 0;
  const int exponent = static_cast<int>(bits >> 52) & 0x7ff;
  const u64 mantissa = bits & ((u64{1} << 52) - 1);
  value.nan = exponent == 0x7ff && mantissa != 0;
  value.infinite = exponent == 0x7ff && mantissa == 0;
  value.significand = exponent == 0 ? mantissa : mantissa | (u64{1} << 52);
  value.exponent = (exponent == 0 ? 1 : exponent) - 1075;
  return value;
}

inline Exact exact_of_integer(bool negative, u64 size) {
  Exact value;
  value.negative = negative;
  value.significand = size;
  return value;
}

inline bool rounds_up(Round round, bool negative, bool odd, int against_half, bool inexact) {
  switch (round) {
    case Round::kNearest:
      return against_half > 0 || (against_half == 0 && odd);
    case Round::kAway:
      return against_half >= 0;
    case Round::kUp:
      return inexact && !negative;
    case Round::kDown:
      return inexact && negative;
    default:
      return false;
  }
}

/// The bit pattern of the value in the format.
inline u64 narrowed(const Exact& value, const FloatFormat& format, Round round) {
  const u64 sign = static_cast<u64>(value.negative)
                   << (format.exponent_bits + format.mantissa_bits);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const u64 infinity = ((u64{1} << format.exponent_bits) - 1) << format.mantissa_bits;
  if (value.nan) return format.nan;
  if (value.infinite) return sign | infinity;
  if (value.significand == 0) return sign;
  const int top = 63 - __builtin_clzll(value.significand);
  // The last kept bit weighs 2^last: limited below by the subnormals.
  const int lowest = 1 - bias - format.mantissa_bits;
  const int wanted = value.exponent + top - format.mantissa_bits;
  const int last = wanted < lowest ? lowest : wanted;
  const int drop = last - value.exponent;
  u64 kept = 0;
  int against_half = -1;
  bool inexact = value.sticky;
  if (drop <= 0) {
    kept = value.significand << -drop;
  } else if (drop > 64) {
    inexact = true;
  } else {
    kept = drop == 64 ? 0 : value.significand >> drop;
    const u64 rest = value.significand & (drop == 64 ? ~u64{0} : (u64{1} << drop) - 1);
    const u64 half = u64{1} << (drop - 1);
    against_half = rest > half || (rest == half && value.sticky) ? 1 : rest == half ? 0 : -1;
    inexact |= rest != 0;
  }
  if (rounds_up(round, value.negative, (kept & 1) != 0, against_half, inexact)) ++kept;
  // A carry out of the mantissa moves into the exponent by itself.
  const u64 biased = static_cast<u64>(last - lowest);
  const bool normal = (kept >> format.mantissa_bits) != 0;
  const u64 bits = normal ? kept + (biased << format.mantissa_bits) : kept;
  if (bits >= infinity) {
    const bool to_infinity = round == Round::kNearest || round == Round::kAway ||
                             (round == Round::kUp && !value.negative) ||
                             (round == Round::kDown && value.negative);
    return sign | (to_infinity ? infinity : infinity - 1);
  }
  return sign | bits;
}

inline f32 float_of_half(u16 bits) {
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  const u32 sign = static_cast<u32>(bits >> 15) << 31;
  const u32 exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
  if (exponent == 31) return __builtin_bit_cast(f32, sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const f32 size = static_cast<f32>(mantissa) * 0x1p-24f;
    return sign != 0 ? -size : size;
  }
  return __builtin_bit_cast(f32, sign | ((exponent + 112) << 23) | (mantissa << 13));
#endif
}
SOFTGPU_INLINE f32 float_of_bfloat(u16 bits) {
  return __builtin_bit_cast(f32, static_cast<u32>(bits) << 16);
}
inline u16 half_of_float(f32 x) {
#if defined(__F16C__)
  return x != x ? u16{0x7fff} : static_cast<u16>(_cvtss_sh(x, 0));
#else
  return static_cast<u16>(narrowed(exact_of(static_cast<f64>(x)), kHalfFormat, Round::kNearest));
#endif
}
SOFTGPU_INLINE u16 bfloat_of_float(f32 x) {
  const u32 bits = __builtin_bit_cast(u32, x);
  const u32 rounded_bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<u16>(x != x ? 0x7fff : rounded_bits);
}

#if defined(__F16C__)
// The same for a vector of lanes: compilers leave loops over the scalar instructions as they are.
#define SOFTGPU_WIDE_HALF 1
#if defined(__AVX512F__)
inline constexpr int kWide = 16;
#else
inline constexpr int kWide = 8;
#endif
using WideFloat = f32 __attribute__((vector_size(kWide * 4)));
using WideBits = u32 __attribute__((vector_size(kWide * 4)));
using WideSigned = s32 __attribute__((vector_size(kWide * 4)));
using WideHalf = u16 __attribute__((vector_size(kWide * 2)));

SOFTGPU_INLINE WideBits bits_of_wide(WideFloat x) { return __builtin_bit_cast(WideBits, x); }
SOFTGPU_INLINE WideFloat wide_of_bits(WideBits x) { return __builtin_bit_cast(WideFloat, x); }

SOFTGPU_INLINE WideFloat wide_of_half(WideHalf x) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(__builtin_bit_cast(__m256i, x));
#else
  return _mm256_cvtph_ps(__builtin_bit_cast(__m128i, x));
#endif
}
/// Rounded to the nearest, NaNs canonical.
SOFTGPU_INLINE WideHalf half_of_wide(WideFloat x) {
  const WideBits nan = __builtin_bit_cast(WideBits, x != x);
  const WideFloat value = wide_of_bits((bits_of_wide(x) & ~nan) | (nan & 0x7fffffff));
#if defined(__AVX512F__)
  return __builtin_bit_cast(WideHalf, _mm512_cvtps_ph(value, 0));
#else
  return __builtin_bit_cast(WideHalf, _mm256_cvtps_ph(value, 0));
#endif
}
#endif

}  // namespace
}  // namespace softgpu::ptx::SOFTGPU_ISA

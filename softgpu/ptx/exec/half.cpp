// f16, bf16 and their pairs. One operation in float followed by one rounding is exact for add, sub
// and mul (float has more than twice the bits); fma goes through double with the lost part kept as
// a sticky bit, or for a whole row through float rounded to odd.
#include "softgpu/ptx/exec/narrow.h"
#include "softgpu/ptx/exec/real.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

struct HalfFormat {
  static f32 wide(u16 x) { return float_of_half(x); }
  static u16 narrow(f32 x) { return half_of_float(x); }
  static constexpr const FloatFormat& kFormat = kHalfFormat;
};
struct BfloatFormat {
  static f32 wide(u16 x) { return float_of_bfloat(x); }
  static u16 narrow(f32 x) { return bfloat_of_float(x); }
  static constexpr const FloatFormat& kFormat = kBfloatFormat;
};

/// a*b+c rounded once: the product of two halves is exact in double, the error of the sum is
/// recovered.
template <class Format>
u16 half_fma(u16 a, u16 b, u16 c) {
  const f64 product = static_cast<f64>(Format::wide(a)) * static_cast<f64>(Format::wide(b));
  const f64 addend = static_cast<f64>(Format::wide(c));
  const f64 sum = product + addend;
  const f64 part = sum - product;
  const f64 error = (product - (sum - part)) + (addend - part);
  Exact value = exact_of(sum);
  if (error != 0 && !value.nan && !value.infinite) {
    // Make room below the last bit, then note that something (on either side) is there.
    const bool below = (error < 0) != value.negative;
    value.significand = (value.significand << 2) - (below ? 1 : 0);
    value.exponent -= 2;
    value.sticky = true;
  }
  return static_cast<u16>(narrowed(value, Format::kFormat, Round::kNearest));
}

template <class Fn, bool Nan>
f32 smaller_of(f32 x, f32 y, bool xor_sign) {
  if (xor_sign) return Nan ? XorSign<NanThrough<Fn>>::eval(x, y) : XorSign<Fn>::eval(x, y);
  return Nan ? NanThrough<Fn>::eval(x, y) : Fn::eval(x, y);
}

/// flags: kHalf*.
template <class Format, Op Kind, bool Nan>
u16 half_eval(u16 a, u16 b, u16 c, u32 flags) {
  if constexpr (Kind == Op::kNeg) return static_cast<u16>(a ^ 0x8000);
  if constexpr (Kind == Op::kAbs) return static_cast<u16>(a & 0x7fff);
  if constexpr (Kind == Op::kFma) return half_fma<Format>(a, b, c);
  const f32 x = Format::wide(a), y = Format::wide(b);
  if constexpr (Kind == Op::kAdd) return Format::narrow(x + y);
  if constexpr (Kind == Op::kSub) return Format::narrow(x - y);
  if constexpr (Kind == Op::kMul) return Format::narrow(x * y);
  const bool xor_sign = (flags & kHalfXorSign) != 0;
  if constexpr (Kind == Op::kMin) return Format::narrow(smaller_of<RealMin, Nan>(x, y, xor_sign));
  if constexpr (Kind == Op::kMax) return Format::narrow(smaller_of<RealMax, Nan>(x, y, xor_sign));
  if constexpr (Kind == Op::kEx2) return Format::narrow(__builtin_exp2f(x));
  if constexpr (Kind == Op::kTanh) return Format::narrow(__builtin_tanhf(x));
  return 0;
}

template <class Format>
u16 half_saturated(u16 x) {
  return Format::narrow(saturated(Format::wide(x)));
}
template <class Format>
u16 half_relu(u16 x) {
  const f32 wide = Format::wide(x);
  return wide != wide ? u16{0x7fff} : wide > 0 ? x : u16{0};
}

template <class Format>
u16 half_flushed(u16 x) {
  constexpr u16 kExponent = Format::kFormat.mantissa_bits == 10 ? 0x7c00 : 0x7f80;
  return (x & kExponent) == 0 ? static_cast<u16>(x & 0x8000) : x;
}

/// One half of each operand to one of the result, with what the flags ask for.
template <class Format, Op Kind, bool Nan>
u16 half_lane(u32 a, u32 b, u32 c, u32 flags) {
  u16 x = static_cast<u16>(a), y = static_cast<u16>(b), z = static_cast<u16>(c);
  if (__builtin_expect(flags == 0, 1)) return half_eval<Format, Kind, Nan>(x, y, z, 0);
  const bool flush = (flags & kHalfFlush) != 0;
  if (flush) {
    x = half_flushed<Format>(x);
    y = half_flushed<Format>(y);
    z = half_flushed<Format>(z);
  }
  u16 result = half_eval<Format, Kind, Nan>(x, y, z, flags);
  if (flush) result = half_flushed<Format>(result);
  if ((flags & kHalfSaturate) != 0) result = half_saturated<Format>(result);
  return (flags & kHalfRelu) != 0 ? half_relu<Format>(result) : result;
}

#if defined(SOFTGPU_WIDE_HALF)
template <class Format>
SOFTGPU_INLINE WideFloat widened(WideHalf x) {
  if constexpr (Format::kFormat.mantissa_bits == 7)
    return wide_of_bits(__builtin_convertvector(x, WideBits) << 16);
  return wide_of_half(x);
}

/// Rounded to the nearest, NaNs canonical.
template <class Format>
SOFTGPU_INLINE WideHalf narrowed_wide(WideFloat x) {
  if constexpr (Format::kFormat.mantissa_bits == 7) {
    const WideBits nan = __builtin_bit_cast(WideBits, x != x);
    const WideBits bits = bits_of_wide(x);
    const WideBits nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return __builtin_convertvector((nearest & ~nan) | (nan & 0x7fff), WideHalf);
  }
  return half_of_wide(x);
}

/// product + addend rounded to odd: what is lost shows in the last bit, which rounding to half as
/// many bits then takes for what it is.
SOFTGPU_INLINE WideFloat sum_to_odd(WideFloat product, WideFloat addend) {
  const WideFloat sum = product + addend;
  const WideFloat part = sum - product;
  const WideFloat error = (product - (sum - part)) + (addend - part);
  const WideBits bits = bits_of_wide(sum);
  const WideSigned inexact = (error < 0) | (error > 0);
  const WideBits even = (bits & 1) - 1;
  const WideSigned differs = __builtin_bit_cast(WideSigned, bits ^ bits_of_wide(error)) >> 31;
  const WideBits step = __builtin_bit_cast(WideBits, 1 + 2 * differs);
  return wide_of_bits(bits + (step & even & __builtin_bit_cast(WideBits, inexact)));
}

template <class Format, Op Kind>
constexpr bool kByRow =
    Kind == Op::kAdd || Kind == Op::kSub || Kind == Op::kMul || Kind == Op::kFma;

/// All 64 halves of a row. False: a product left float's range, and nothing can be said of the row.
template <class Format, Op Kind>
bool half_row(u16* d, const u16* a, const u16* b, const u16* c) {
  bool exact = true;
  for (int k = 0; k < 64; k += kWide) {
    const auto in = [k](const u16* p) {
      WideHalf value;
      __builtin_memcpy(&value, p + k, sizeof value);
      return widened<Format>(value);
    };
    const WideFloat x = in(a), y = in(b);
    WideFloat result = Kind == Op::kAdd ? x + y : Kind == Op::kSub ? x - y : x * y;
    if constexpr (Kind == Op::kFma) {
      if constexpr (Format::kFormat.exponent_bits == 8) {
        const WideBits size = bits_of_wide(result) & 0x7fffffff;
        const WideSigned left = (size - 0x00800000 >= 0x7f000000) & (x != 0) & (y != 0);
        for (int l = 0; l < kWide; ++l) exact &= left[l] == 0;
      }
      result = sum_to_odd(result, in(c));
    }
    const WideHalf half = narrowed_wide<Format>(result);
    __builtin_memcpy(d + k, &half, sizeof half);
  }
  return exact;
}

template <class Format, Op Kind, bool Pair>
bool half_rows(Warp& w, const Inst* i) {
  alignas(64) u32 results[32];
  const auto halves = [&w](s32 offset) { return reinterpret_cast<const u16*>(w.rf + offset); };
  if (!half_row<Format, Kind>(reinterpret_cast<u16*>(results), halves(i->a), halves(i->b),
                              halves(i->c)))
    return false;
  for_lanes(w, row<u32>(w, i->d),
            [&results](int l) { return Pair ? results[l] : results[l] & 0xffff; });
  return true;
}
#else
template <class Format, Op Kind>
constexpr bool kByRow = false;
#endif

template <class Format, Op Kind, bool Nan, bool Pair>
const Inst* half_op(Warp& w, const Inst* i) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b), *c = row<u32>(w, i->c);
  u32* d = row<u32>(w, i->d);
  const u32 flags = i->flags;
  if constexpr (kByRow<Format, Kind>) {
    if (flags == 0 && half_rows<Format, Kind, Pair>(w, i)) return i + 1;
  }
  for_each_lane(w.mask, [=](int l) {
    u32 result = half_lane<Format, Kind, Nan>(a[l], b[l], c[l], flags);
    if constexpr (Pair) {
      const u32 high = half_lane<Format, Kind, Nan>(a[l] >> 16, b[l] >> 16, c[l] >> 16, flags);
      result |= high << 16;
    }
    d[l] = result;
  });
  return i + 1;
}

template <Op Kind, bool Nan = false>
Handler pick_half(Type t) {
  switch (t) {
    case Type::kF16:
      return half_op<HalfFormat, Kind, Nan, false>;
    case Type::kF16x2:
      return half_op<HalfFormat, Kind, Nan, true>;
    case Type::kBf16:
      return half_op<BfloatFormat, Kind, Nan, false>;
    case Type::kBf16x2:
      return half_op<BfloatFormat, Kind, Nan, true>;
    default:
      return nullptr;
  }
}

}  // namespace

Handler half_handler(const Form& form) {
  switch (form.op) {
    case Op::kAdd:
      return pick_half<Op::kAdd>(form.type);
    case Op::kSub:
      return pick_half<Op::kSub>(form.type);
    case Op::kMul:
      return pick_half<Op::kMul>(form.type);
    case Op::kFma:
      return pick_half<Op::kFma>(form.type);
    case Op::kNeg:
      return pick_half<Op::kNeg>(form.type);
    case Op::kAbs:
      return pick_half<Op::kAbs>(form.type);
    case Op::kMin:
      return form.flag ? pick_half<Op::kMin, true>(form.type) : pick_half<Op::kMin>(form.type);
    case Op::kMax:
      return form.flag ? pick_half<Op::kMax, true>(form.type) : pick_half<Op::kMax>(form.type);
    case Op::kEx2:
      return pick_half<Op::kEx2>(form.type);
    case Op::kTanh:
      return pick_half<Op::kTanh>(form.type);
    default:
      return nullptr;
  }
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

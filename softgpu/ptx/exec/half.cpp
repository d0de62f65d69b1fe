// f16, bf16 and their pairs. One operation in float followed by one rounding is exact for add, sub
// and mul (float has more than twice the bits); fma goes through double with the lost part kept as
// a sticky bit.
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

template <class Format, Op Kind, bool Nan, bool Pair>
const Inst* half_op(Warp& w, const Inst* i) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b), *c = row<u32>(w, i->c);
  u32* d = row<u32>(w, i->d);
  const u32 flags = i->flags;
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

// f32: the arithmetic of real.h, and the approximate functions of the special function unit. Those
// are approximations on hardware, too; ours are within about one unit in the last place where
// hardware promises two to four, and not bit-equal.
#include "softgpu/ptx/exec/real.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

/// e^t for |t| <= ln(2)/2: the Taylor series, summed in a tree because the chain of a plain sum is
/// what one would wait for.
template <class V>
SOFTGPU_INLINE V exponential_series(V t) {
  const V t2 = t * t;
  const V c01 = t + splat<V>(1.f);
  const V c23 = fused(t, splat<V>(1.f / 6), splat<V>(0.5f));
  const V c45 = fused(t, splat<V>(1.f / 120), splat<V>(1.f / 24));
  const V c67 = fused(t, splat<V>(1.f / 5040), splat<V>(1.f / 720));
  return fused(fused(c67, t2, c45), t2 * t2, fused(c23, t2, c01));
}

constexpr f32 kExp2Low = -151.f, kExp2High = 129.f;  // beyond: 0 and infinity
constexpr f32 kLn2 = 0.69314718056f;

/// 2^x: x = n + r with |r| <= 1/2, the series of 2^r, and the scale in two steps so that subnormal
/// results come out.
SOFTGPU_INLINE f32 exp2_of(f32 x) {
  const f32 bounded = x < kExp2Low ? kExp2Low : (x > kExp2High ? kExp2High : x);
  const f32 n = __builtin_rintf(bounded);
  const f32 p = exponential_series((bounded - n) * kLn2);
  const s32 e = static_cast<s32>(n);
  const s32 half = e >> 1;
  const f32 low = real_from_bits<f32>(static_cast<u32>(half + 127) << 23);
  const f32 high = real_from_bits<f32>(static_cast<u32>(e - half + 127) << 23);
  return x != x ? x : p * low * high;
}
#if defined(SOFTGPU_WIDE)
SOFTGPU_INLINE f32x16 exp2_of(f32x16 x) {
  // Of a NaN and a number both give the second operand.
  const f32x16 below = _mm512_min_ps(splat<f32x16>(kExp2High), x);
  const f32x16 bounded = _mm512_max_ps(splat<f32x16>(kExp2Low), below);
  const f32x16 n = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm512_scalef_ps(exponential_series((bounded - n) * splat<f32x16>(kLn2)), n);
}
#endif

/// log2: exponent plus 2/ln2 atanh((m-1)/(m+1)) for the mantissa m in [sqrt(1/2), sqrt(2)).
SOFTGPU_INLINE f32 log2_of(f32 x) {
  const bool subnormal = x < 0x1p-126f;
  const f32 scaled = subnormal ? x * 0x1p24f : x;
  const u32 bits = bits_of_real(scaled);
  const u32 shifted = bits - 0x3f3504f3u;  // sqrt(1/2): the mantissa's range is centred on 1
  const s32 exponent = static_cast<s32>(shifted) >> 23;
  const f32 m = real_from_bits<f32>((shifted & 0x7fffffu) + 0x3f3504f3u);
  const f32 t = (m - 1.f) / (m + 1.f);
  const f32 t2 = t * t;
  f32 p = 1.f / 11;
  p = fused(p, t2, 1.f / 9);
  p = fused(p, t2, 1.f / 7);
  p = fused(p, t2, 1.f / 5);
  p = fused(p, t2, 1.f / 3);
  const f32 series = fused(p * t2, t, t) * 2.885390082f;
  const f32 value = static_cast<f32>(exponent) - (subnormal ? 24.f : 0.f) + series;
  const f32 infinity = __builtin_inff();
  f32 result = x == infinity ? infinity : value;
  result = x == 0.f ? -infinity : result;
  return x < 0.f || x != x ? nan_of<f32>() : result;
}

/// sin(x + quarter * pi/2): reduced in double, which is exact enough for every argument the
/// approximation is meant for.
SOFTGPU_INLINE f32 sine_of(f32 x, s64 quarter) {
  const f64 wide = magnitude(x) < 0x1p60f ? static_cast<f64>(x) : 0.0;
  const f64 n = __builtin_rint(wide * 0.63661977236758134308);
  const f64 r = fused(-n, 6.123233995736766036e-17, fused(-n, 1.57079632679489661923, wide));
  const f32 t = static_cast<f32>(r), t2 = t * t;
  f32 s = 2.7557319e-6f;
  s = fused(s, t2, -1.9841270e-4f);
  s = fused(s, t2, 8.3333333e-3f);
  s = fused(s, t2, -1.6666667e-1f);
  const f32 sine = fused(s * t2, t, t);
  f32 c = 2.4801587e-5f;
  c = fused(c, t2, -1.3888889e-3f);
  c = fused(c, t2, 4.1666667e-2f);
  c = fused(c, t2, -0.5f);
  const f32 cosine = fused(c, t2, 1.f);
  const s64 phase = static_cast<s64>(n) + quarter;
  const f32 picked = (phase & 1) != 0 ? cosine : sine;
  const f32 value = (phase & 2) != 0 ? -picked : picked;
  return magnitude(x) < __builtin_inff() ? value : nan_of<f32>();
}

/// tanh: by series near zero, where the quotient would cancel.
SOFTGPU_INLINE f32 tanh_of(f32 x) {
  const f32 size = magnitude(x);
  const f32 e = exp2_of((size > 20.f ? 20.f : size) * 2.885390082f);
  const f32 far = 1.f - 2.f / (e + 1.f);
  const f32 x2 = size * size;
  const f32 near = size * fused(x2, fused(x2, fused(x2, -17.f / 315, 2.f / 15), -1.f / 3), 1.f);
  return x != x ? nan_of<f32>() : sign_copy(size < 0.25f ? near : far, x);
}

struct Exp2 {
  static constexpr bool kWide = true;
  template <class V>
  static V eval(V x) {
    return exp2_of(x);
  }
};
struct Log2 {
  static f32 eval(f32 x) { return log2_of(x); }
};
struct Sine {
  static f32 eval(f32 x) { return sine_of(x, 0); }
};
struct Cosine {
  static f32 eval(f32 x) { return sine_of(x, 1); }
};
struct Tanh {
  static f32 eval(f32 x) { return tanh_of(x); }
};

/// mode: finite, infinite, number, notanumber, normal, subnormal.
template <class T>
const Inst* testp(Warp& w, const Inst* i) {
  const T* a = row<T>(w, i->a);
  const u32 mode = i->mode;
  const u32 result = bits_where([=](int l) {
    const T size = magnitude(a[l]);
    const bool finite = size < static_cast<T>(__builtin_inf());
    const bool normal = finite && size >= RealTraits<T>::kSmallestNormal;
    const bool is[6] = {finite,       !finite && size == size,
                        size == size, size != size,
                        normal,       size == size && finite && !normal && size != 0};
    return is[mode];
  });
  predicate_set(w, i->d, result);
  return i + 1;
}

}  // namespace

Handler float_handler(const Form& form) {
  switch (form.op) {
    case Op::kEx2:
      return pick_plain<f32, Exp2, OfOne>(form);
    case Op::kLg2:
      return pick_plain<f32, Log2, OfOne>(form);
    case Op::kSin:
      return pick_plain<f32, Sine, OfOne>(form);
    case Op::kCos:
      return pick_plain<f32, Cosine, OfOne>(form);
    case Op::kTanh:
      return pick_plain<f32, Tanh, OfOne>(form);
    case Op::kTestp:
      return form.type == Type::kF64 ? testp<f64> : testp<f32>;
    default:
      return real_handler<f32>(form);
  }
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

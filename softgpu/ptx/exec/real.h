// Arithmetic on f32 and f64, written once for both. Results are the correctly rounded ones in every
// rounding mode; a NaN result is the GPU's canonical one; .ftz flushes subnormal inputs and results
// by hand, lane by lane, which is cheaper than switching the processor's mode for every
// instruction.
#pragma once

#include "softgpu/ptx/exec/wide.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

template <class T>
struct RealTraits;
template <>
struct RealTraits<f32> {
  using Bits = u32;
  static constexpr u32 kNan = 0x7fffffffu;
  static constexpr u32 kMagnitude = 0x7fffffffu;
  static constexpr f32 kSmallestNormal = 0x1p-126f;
};
template <>
struct RealTraits<f64> {
  using Bits = u64;
  static constexpr u64 kNan = 0x7fffffffffffffffull;
  static constexpr u64 kMagnitude = 0x7fffffffffffffffull;
  static constexpr f64 kSmallestNormal = 0x1p-1022;
};

template <class T>
SOFTGPU_INLINE T real_from_bits(typename RealTraits<T>::Bits bits) {
  return __builtin_bit_cast(T, bits);
}
template <class T>
SOFTGPU_INLINE typename RealTraits<T>::Bits bits_of_real(T x) {
  return __builtin_bit_cast(typename RealTraits<T>::Bits, x);
}
template <class T>
SOFTGPU_INLINE T nan_of() {
  return real_from_bits<T>(RealTraits<T>::kNan);
}
template <class T>
SOFTGPU_INLINE T magnitude(T x) {
  return real_from_bits<T>(bits_of_real(x) & RealTraits<T>::kMagnitude);
}
template <class T>
SOFTGPU_INLINE T sign_copy(T size, T sign) {
  return real_from_bits<T>((bits_of_real(size) & RealTraits<T>::kMagnitude) |
                           (bits_of_real(sign) & ~RealTraits<T>::kMagnitude));
}

/// Zero of the same sign for a subnormal.
template <class T>
SOFTGPU_INLINE T flushed(T x) {
  return magnitude(x) < RealTraits<T>::kSmallestNormal ? sign_copy(T{0}, x) : x;
}
template <class T>
SOFTGPU_INLINE T canonical(T x) {
  return x == x ? x : nan_of<T>();
}
/// [0, 1], NaN to 0.
template <class T>
SOFTGPU_INLINE T saturated(T x) {
  return x > T{0} ? (x < T{1} ? x : T{1}) : T{0};
}

template <class T, bool Flush, bool Saturate>
SOFTGPU_INLINE T real_result(T x) {
  if constexpr (Flush) x = flushed(x);
  return Saturate ? saturated(x) : canonical(x);
}
template <class T, bool Flush>
SOFTGPU_INLINE T real_input(T x) {
  return Flush ? flushed(x) : x;
}

SOFTGPU_INLINE f32 fused(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
SOFTGPU_INLINE f64 fused(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
SOFTGPU_INLINE f32 root(f32 a) { return __builtin_sqrtf(a); }
SOFTGPU_INLINE f64 root(f64 a) { return __builtin_sqrt(a); }
/// A value in every lane of V, which may be a plain number.
template <class V>
SOFTGPU_INLINE V splat(f32 value) {
  return V{} + value;
}

// The operations. Those with kWide work on vectors of lanes (wide.h) as well as on one.

struct RealAdd {
  static constexpr bool kWide = true;
  template <class T>
  static T eval(T a, T b) {
    return a + b;
  }
};
struct RealSub {
  static constexpr bool kWide = true;
  template <class T>
  static T eval(T a, T b) {
    return a - b;
  }
};
struct RealMul {
  static constexpr bool kWide = true;
  template <class T>
  static T eval(T a, T b) {
    return a * b;
  }
};
struct RealDiv {
  static constexpr bool kWide = true;
  template <class T>
  static T eval(T a, T b) {
    return a / b;
  }
};
/// div.approx is a times the reciprocal of b, which is flushed to zero where |b| is near the top.
struct RealDivApproximate {
  template <class T>
  static T eval(T a, T b) {
    const T size = magnitude(b);
    const T quotient = a / b;
    const bool huge = size > static_cast<T>(0x1p126f) && size < static_cast<T>(__builtin_inf());
    const T zero = sign_copy(T{0}, real_from_bits<T>(bits_of_real(a) ^ bits_of_real(b)));
    const T none = magnitude(a) < static_cast<T>(__builtin_inf()) ? zero : nan_of<T>();
    return huge ? none : quotient;
  }
};
struct RealFma {
  static constexpr bool kWide = true;
  template <class T>
  static T eval(T a, T b, T c) {
    return fused(a, b, c);
  }
};
// The other operand when one is NaN; -0 below +0.
struct RealMin {
  template <class T>
  static T eval(T a, T b) {
    const T less = a < b ? a : b < a ? b : real_from_bits<T>(bits_of_real(a) | bits_of_real(b));
    return a != a ? b : b != b ? a : less;
  }
#if defined(SOFTGPU_WIDE)
  static constexpr bool kWide = true;
  static f32x16 eval(f32x16 a, f32x16 b) { return wide_min(a, b); }
  static f64x8 eval(f64x8 a, f64x8 b) { return wide_min(a, b); }
#endif
};
struct RealMax {
  template <class T>
  static T eval(T a, T b) {
    const T more = a > b ? a : b > a ? b : real_from_bits<T>(bits_of_real(a) & bits_of_real(b));
    return a != a ? b : b != b ? a : more;
  }
#if defined(SOFTGPU_WIDE)
  static constexpr bool kWide = true;
  static f32x16 eval(f32x16 a, f32x16 b) { return wide_max(a, b); }
  static f64x8 eval(f64x8 a, f64x8 b) { return wide_max(a, b); }
#endif
};
/// .NaN: a NaN operand makes the result NaN.
template <class Fn>
struct NanThrough {
  template <class T>
  static T eval(T a, T b) {
    return a != a || b != b ? nan_of<T>() : Fn::eval(a, b);
  }
};
/// .xorsign.abs: of the magnitudes, with the product's sign.
template <class Fn>
struct XorSign {
  template <class T>
  static T eval(T a, T b) {
    const T size = Fn::eval(magnitude(a), magnitude(b));
    return sign_copy(size, real_from_bits<T>(bits_of_real(a) ^ bits_of_real(b)));
  }
};
struct RealSqrt {
  static constexpr bool kWide = true;
  template <class T>
  static T eval(T a) {
    return root(a);
  }
};
struct RealRcp {
  static constexpr bool kWide = true;
  template <class T>
  static T eval(T a) {
    return splat<T>(1) / a;
  }
};
struct RealRsqrt {
  static constexpr bool kWide = true;
  template <class T>
  static T eval(T a) {
    return splat<T>(1) / root(a);
  }
};

template <class T, class Fn, bool Flush, bool Saturate>
struct Real {
  using Operation = Fn;
  static constexpr bool kFlush = Flush;
  static constexpr bool kSaturate = Saturate;
  static T eval(T a) { return real_result<T, Flush, Saturate>(Fn::eval(real_input<T, Flush>(a))); }
  static T eval(T a, T b) {
    return real_result<T, Flush, Saturate>(
        Fn::eval(real_input<T, Flush>(a), real_input<T, Flush>(b)));
  }
  static T eval(T a, T b, T c) {
    return real_result<T, Flush, Saturate>(
        Fn::eval(real_input<T, Flush>(a), real_input<T, Flush>(b), real_input<T, Flush>(c)));
  }
};

// Sign operations touch the bits only: no flush, no canonical NaN.
struct RealNeg {
  template <class T>
  static T eval(T a) {
    return real_from_bits<T>(bits_of_real(a) ^ ~RealTraits<T>::kMagnitude);
  }
};
struct RealAbs {
  template <class T>
  static T eval(T a) {
    return magnitude(a);
  }
};
/// .ftz of a sign operation.
template <class Fn>
struct FlushFirst {
  template <class T>
  static T eval(T a) {
    return Fn::eval(flushed(a));
  }
};
/// PTX: the sign of a on the magnitude of b.
struct RealCopysign {
  template <class T>
  static T eval(T a, T b) {
    return sign_copy(b, a);
  }
};

/// The processor's rounding mode for the life of the object. The barriers keep the row loops
/// inside.
class RoundingScope {
 public:
  SOFTGPU_INLINE explicit RoundingScope(Round round) {
    constexpr u32 kModes[] = {0, 0x6000, 0x2000, 0x4000};
    saved_ = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr((saved_ & ~0x6000u) | kModes[static_cast<int>(round)]);
    asm volatile("" ::: "memory");
  }
  SOFTGPU_INLINE ~RoundingScope() {
    asm volatile("" ::: "memory");
    __builtin_ia32_ldmxcsr(saved_);
  }
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;

 private:
  u32 saved_;
};

/// Any handler under a rounding mode that is not the nearest.
template <Handler Inner, Round Mode>
const Inst* rounded(Warp& w, const Inst* i) {
  const RoundingScope scope(Mode);
  return Inner(w, i);
}

#if defined(__AVX512F__)
// With AVX-512 the rounding mode is part of the instruction.
template <class T>
struct Wide512;
template <>
struct Wide512<f32> {
  using V = __m512;
  static constexpr int kLanes = 16;
  static V load(const f32* p) { return _mm512_load_ps(p); }
  template <int R>
  static V fma(V a, V b, V c) {
    return _mm512_fmadd_round_ps(a, b, c, R);
  }
  template <int R>
  static V add(V a, V b) {
    return _mm512_add_round_ps(a, b, R);
  }
  template <int R>
  static V sub(V a, V b) {
    return _mm512_sub_round_ps(a, b, R);
  }
  template <int R>
  static V mul(V a, V b) {
    return _mm512_mul_round_ps(a, b, R);
  }
  static void store(f32* p, u32 mask, V v) {
    const __mmask16 wrong = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    v = _mm512_mask_mov_ps(v, wrong, _mm512_set1_ps(nan_of<f32>()));
    _mm512_mask_store_ps(p, static_cast<__mmask16>(mask), v);
  }
};
template <>
struct Wide512<f64> {
  using V = __m512d;
  static constexpr int kLanes = 8;
  static V load(const f64* p) { return _mm512_load_pd(p); }
  template <int R>
  static V fma(V a, V b, V c) {
    return _mm512_fmadd_round_pd(a, b, c, R);
  }
  template <int R>
  static V add(V a, V b) {
    return _mm512_add_round_pd(a, b, R);
  }
  template <int R>
  static V sub(V a, V b) {
    return _mm512_sub_round_pd(a, b, R);
  }
  template <int R>
  static V mul(V a, V b) {
    return _mm512_mul_round_pd(a, b, R);
  }
  static void store(f64* p, u32 mask, V v) {
    const __mmask8 wrong = _mm512_cmp_pd_mask(v, v, _CMP_UNORD_Q);
    v = _mm512_mask_mov_pd(v, wrong, _mm512_set1_pd(nan_of<f64>()));
    _mm512_mask_store_pd(p, static_cast<__mmask8>(mask), v);
  }
};

template <class T, Op Kind, int R>
const Inst* rounded512(Warp& w, const Inst* i) {
  using W = Wide512<T>;
  const T *a = row<T>(w, i->a), *b = row<T>(w, i->b), *c = row<T>(w, i->c);
  T* d = row<T>(w, i->d);
  for (int l = 0; l < 32; l += W::kLanes) {
    const auto x = W::load(a + l), y = W::load(b + l);
    typename W::V result;
    if constexpr (Kind == Op::kFma) {
      result = W::template fma<R>(x, y, W::load(c + l));
    } else if constexpr (Kind == Op::kAdd) {
      result = W::template add<R>(x, y);
    } else if constexpr (Kind == Op::kSub) {
      result = W::template sub<R>(x, y);
    } else {
      result = W::template mul<R>(x, y);
    }
    W::store(d + l, w.mask >> l, result);
  }
  return i + 1;
}

template <class T, Op Kind>
Handler pick_rounded512(Round round) {
  switch (round) {
    case Round::kZero:
      return rounded512<T, Kind, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC>;
    case Round::kDown:
      return rounded512<T, Kind, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC>;
    case Round::kUp:
      return rounded512<T, Kind, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC>;
    default:
      return nullptr;
  }
}
#endif

template <Handler Inner>
Handler pick_rounded(Round round) {
  switch (round) {
    case Round::kZero:
      return rounded<Inner, Round::kZero>;
    case Round::kDown:
      return rounded<Inner, Round::kDown>;
    case Round::kUp:
      return rounded<Inner, Round::kUp>;
    default:
      return Inner;
  }
}

/// Shape is unary, binary or ternary of lanes.h. f64 has neither .ftz nor .sat.
template <class T, class Fn, template <class, class> class Shape>
Handler pick_real(const Form& form) {
  if constexpr (sizeof(T) == 4) {
    if (form.flush && form.saturate)
      return pick_rounded<Shape<T, Real<T, Fn, true, true>>::run>(form.round);
    if (form.flush) return pick_rounded<Shape<T, Real<T, Fn, true, false>>::run>(form.round);
    if (form.saturate) return pick_rounded<Shape<T, Real<T, Fn, false, true>>::run>(form.round);
  }
  return pick_rounded<Shape<T, Real<T, Fn, false, false>>::run>(form.round);
}

/// True when whole rows can be tried by row_plain() first.
template <class R>
constexpr bool is_wide() {
#if defined(SOFTGPU_WIDE)
  if constexpr (requires { R::Operation::kWide; }) return !R::kSaturate;
#endif
  return false;
}

/// A handler of a Real: `Lanewise` does the same for any mask and any value.
template <class T, class R, Handler Lanewise, int Operands>
const Inst* real_row(Warp& w, const Inst* i) {
#if defined(SOFTGPU_WIDE)
  if constexpr (is_wide<R>()) {
    using Fn = typename R::Operation;
    const auto done = [&w, d = row<T>(w, i->d) ](auto... in) __attribute__((always_inline)) {
      if (__builtin_expect(w.mask == kAllLanes, 1)) return row_plain<T, Fn, R::kFlush>(d, in...);
      return row_plain_masked<T, Fn, R::kFlush>(w.mask, d, in...);
    };
    const T *a = row<T>(w, i->a), *b = row<T>(w, i->b), *c = row<T>(w, i->c);
    if constexpr (Operands == 1) {
      if (done(a)) return i + 1;
    } else if constexpr (Operands == 2) {
      if (done(a, b)) return i + 1;
    } else {
      if (done(a, b, c)) return i + 1;
    }
  }
#endif
  return Lanewise(w, i);
}

template <class T, class R>
struct OfOne {
  static constexpr Handler run = real_row<T, R, unary<T, R>, 1>;
};
template <class T, class R>
struct OfTwo {
  static constexpr Handler run = real_row<T, R, binary<T, R>, 2>;
};
template <class T, class R>
struct OfThree {
  static constexpr Handler run = real_row<T, R, ternary<T, R>, 3>;
};

/// For operations that have no rounding mode and no .sat: half the instantiations.
template <class T, class Fn, template <class, class> class Shape>
Handler pick_plain(const Form& form) {
  if constexpr (sizeof(T) == 4) {
    if (form.flush) return Shape<T, Real<T, Fn, true, false>>::run;
  }
  return Shape<T, Real<T, Fn, false, false>>::run;
}

template <class T, class Fn, template <class, class> class Shape, Op Kind>
Handler pick_arithmetic(const Form& form) {
#if defined(__AVX512F__)
  if (form.round != Round::kNearest && !form.flush && !form.saturate) {
    return pick_rounded512<T, Kind>(form.round);
  }
#endif
  return pick_real<T, Fn, Shape>(form);
}

template <class T, class Fn>
Handler pick_smaller(const Form& form) {
  if constexpr (sizeof(T) == 4) {
    if (form.mode == kModeXorSign) {
      return form.flag ? pick_plain<T, XorSign<NanThrough<Fn>>, OfTwo>(form)
                       : pick_plain<T, XorSign<Fn>, OfTwo>(form);
    }
    if (form.flag) return pick_plain<T, NanThrough<Fn>, OfTwo>(form);
  }
  return pick_plain<T, Fn, OfTwo>(form);
}

template <class T>
Handler pick_sign(const Form& form) {
  if constexpr (sizeof(T) == 4) {
    if (form.flush) {
      return form.op == Op::kNeg ? unary<T, FlushFirst<RealNeg>> : unary<T, FlushFirst<RealAbs>>;
    }
  }
  return form.op == Op::kNeg ? unary<T, RealNeg> : unary<T, RealAbs>;
}

template <class T>
Handler real_handler(const Form& form) {
  switch (form.op) {
    case Op::kAdd:
      return pick_arithmetic<T, RealAdd, OfTwo, Op::kAdd>(form);
    case Op::kSub:
      return pick_arithmetic<T, RealSub, OfTwo, Op::kSub>(form);
    case Op::kMul:
      return pick_arithmetic<T, RealMul, OfTwo, Op::kMul>(form);
    case Op::kFma:
      return pick_arithmetic<T, RealFma, OfThree, Op::kFma>(form);
    case Op::kDiv:
      if constexpr (sizeof(T) == 4) {
        if (form.mode == kModeApproximate) return pick_plain<T, RealDivApproximate, OfTwo>(form);
      }
      return pick_real<T, RealDiv, OfTwo>(form);
    case Op::kSqrt:
      return pick_real<T, RealSqrt, OfOne>(form);
    case Op::kRcp:
      return pick_real<T, RealRcp, OfOne>(form);
    case Op::kRsqrt:
      return pick_plain<T, RealRsqrt, OfOne>(form);
    case Op::kMin:
      return pick_smaller<T, RealMin>(form);
    case Op::kMax:
      return pick_smaller<T, RealMax>(form);
    case Op::kNeg:
    case Op::kAbs:
      return pick_sign<T>(form);
    case Op::kCopysign:
      return binary<T, RealCopysign>;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace softgpu::ptx::SOFTGPU_ISA

// cvt. The common conversions have vector handlers; every other combination of types, widths,
// rounding and saturation goes through one scalar handler that is exact by construction (narrow.h).
#include "softgpu/ptx/exec/convert_form.h"
#include "softgpu/ptx/exec/narrow.h"
#include "softgpu/ptx/exec/real.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

struct Identity {
  static f32 eval(f32 x) { return x; }
};

/// From: what a lane of the source holds; a register may be wider than the type it is read as.
template <class D, class S, class From = Box<S>>
const Inst* integer_to_integer(Warp& w, const Inst* i) {
  const auto* a = row<From>(w, i->a);
  for_lanes(w, row<Box<D>>(w, i->d),
            [=](int l) { return static_cast<Box<D>>(static_cast<D>(static_cast<S>(a[l]))); });
  return i + 1;
}

template <class D, class S>
const Inst* to_nearest_real(Warp& w, const Inst* i) {
  const S* a = row<S>(w, i->a);
  for_lanes(w, row<D>(w, i->d), [=](int l) { return static_cast<D>(a[l]); });
  return i + 1;
}

/// f32 to f64 and back: a NaN becomes the canonical one, subnormal f32 are flushed on request.
template <class D, class S, bool Flush>
const Inst* real_to_real(Warp& w, const Inst* i) {
  const S* a = row<S>(w, i->a);
  for_lanes(w, row<D>(w, i->d), [=](int l) {
    if constexpr (sizeof(D) < sizeof(S)) return real_result<D, Flush, false>(static_cast<D>(a[l]));
    return canonical(static_cast<D>(real_input<S, Flush>(a[l])));
  });
  return i + 1;
}

/// What a NaN becomes. PTX ISA 9.0, cvt: "In float-to-integer conversions, depending upon
/// conversion types, NaN input results in following value: Zero if source is not .f64 and
/// destination is not .s64, .u64. Otherwise 1 << (BitWidth(dst) - 1)". Widths are in bits.
constexpr u64 nan_integer(u32 source, u32 destination) {
  return source != 64 && destination != 64 ? 0 : u64{1} << (destination - 1);
}

template <Round R, class T>
SOFTGPU_INLINE T to_integral(T x) {
  if constexpr (sizeof(T) == 4) {
    return R == Round::kNearest ? __builtin_rintf(x)
           : R == Round::kZero  ? __builtin_truncf(x)
           : R == Round::kDown  ? __builtin_floorf(x)
                                : __builtin_ceilf(x);
  } else {
    return R == Round::kNearest ? __builtin_rint(x)
           : R == Round::kZero  ? __builtin_trunc(x)
           : R == Round::kDown  ? __builtin_floor(x)
                                : __builtin_ceil(x);
  }
}

template <class T, Round R, bool Flush, bool Saturate>
const Inst* real_to_integral(Warp& w, const Inst* i) {
  const T* a = row<T>(w, i->a);
  for_lanes(w, row<T>(w, i->d), [=](int l) {
    return real_result<T, Flush, Saturate>(to_integral<R, T>(real_input<T, Flush>(a[l])));
  });
  return i + 1;
}

/// Real to integer: out of range to the nearest end, NaN to what nan_integer() says.
template <class D, class S, Round R>
const Inst* real_to_integer(Warp& w, const Inst* i) {
  constexpr D kNan = static_cast<D>(nan_integer(sizeof(S) * 8, sizeof(D) * 8));
  constexpr D kMax = std::is_signed_v<D> ? static_cast<D>(~(D{1} << (sizeof(D) * 8 - 1))) : ~D{0};
  constexpr D kMin = std::is_signed_v<D> ? static_cast<D>(D{1} << (sizeof(D) * 8 - 1)) : D{0};
  constexpr S kEnd = std::is_signed_v<D> ? static_cast<S>(u64{1} << (sizeof(D) * 8 - 1))
                                         : static_cast<S>(u64{1} << (sizeof(D) * 8 - 1)) * 2;
  const S* a = row<S>(w, i->a);
  for_lanes(w, row<D>(w, i->d), [=](int l) {
    const S x = to_integral<R, S>(a[l]);
    const bool high = x >= kEnd, low = x < static_cast<S>(kMin);
    const bool nan = x != x;
    const S inside = high || low || nan ? S{0} : x;
    return high ? kMax : low ? kMin : nan ? kNan : static_cast<D>(inside);
  });
  return i + 1;
}

const Inst* half_to_float(Warp& w, const Inst* i) {
  const u32* a = row<u32>(w, i->a);
#if defined(SOFTGPU_WIDE_HALF)
  alignas(64) f32 values[32];
  for (int k = 0; k < 32; k += kWide) {
    WideBits boxes;
    __builtin_memcpy(&boxes, a + k, sizeof boxes);
    const WideFloat wide = wide_of_half(__builtin_convertvector(boxes, WideHalf));
    __builtin_memcpy(values + k, &wide, sizeof wide);
  }
  for_lanes(w, row<f32>(w, i->d), [&values](int l) { return canonical(values[l]); });
#else
  for_lanes(w, row<f32>(w, i->d),
            [=](int l) { return canonical(float_of_half(static_cast<u16>(a[l]))); });
#endif
  return i + 1;
}
const Inst* bfloat_to_float(Warp& w, const Inst* i) {
  const u32* a = row<u32>(w, i->a);
  for_lanes(w, row<f32>(w, i->d),
            [=](int l) { return canonical(float_of_bfloat(static_cast<u16>(a[l]))); });
  return i + 1;
}
const Inst* float_to_half(Warp& w, const Inst* i) {
  const f32* a = row<f32>(w, i->a);
#if defined(SOFTGPU_WIDE_HALF)
  alignas(64) u16 halves[32];
  for (int k = 0; k < 32; k += kWide) {
    WideFloat value;
    __builtin_memcpy(&value, a + k, sizeof value);
    const WideHalf half = half_of_wide(value);
    __builtin_memcpy(halves + k, &half, sizeof half);
  }
  for_lanes(w, row<u32>(w, i->d), [&halves](int l) { return u32{halves[l]}; });
#else
  for_lanes(w, row<u32>(w, i->d), [=](int l) { return static_cast<u32>(half_of_float(a[l])); });
#endif
  return i + 1;
}
const Inst* float_to_bfloat(Warp& w, const Inst* i) {
  const f32* a = row<f32>(w, i->a);
  for_lanes(w, row<u32>(w, i->d), [=](int l) { return static_cast<u32>(bfloat_of_float(a[l])); });
  return i + 1;
}

// The scalar way. What is converted is described by i->imm (convert_form.h).

Exact exact_source(const u8* a, int l, const ConvertForm& form) {
  u64 bits = 0;
  if (form.from_box == 8) {
    bits = reinterpret_cast<const u64*>(a)[l];
  } else {
    bits = reinterpret_cast<const u32*>(a)[l];
  }
  const auto integer = [](s64 value) {
    return exact_of_integer(value < 0,
                            value < 0 ? 0 - static_cast<u64>(value) : static_cast<u64>(value));
  };
  switch (form.from) {
    case Type::kF32: {
      const f32 x = __builtin_bit_cast(f32, static_cast<u32>(bits));
      return exact_of(static_cast<f64>(form.flush ? flushed(x) : x));
    }
    case Type::kF64:
      return exact_of(__builtin_bit_cast(f64, bits));
    case Type::kF16:
      return exact_of(static_cast<f64>(float_of_half(static_cast<u16>(bits))));
    case Type::kBf16:
      return exact_of(static_cast<f64>(float_of_bfloat(static_cast<u16>(bits))));
    case Type::kS8:
      return integer(static_cast<s8>(bits));
    case Type::kS16:
      return integer(static_cast<s16>(bits));
    case Type::kS32:
      return integer(static_cast<s32>(bits));
    case Type::kS64:
      return integer(static_cast<s64>(bits));
    case Type::kU8:
    case Type::kB8:
      return exact_of_integer(false, static_cast<u8>(bits));
    case Type::kU16:
    case Type::kB16:
      return exact_of_integer(false, static_cast<u16>(bits));
    case Type::kU32:
    case Type::kB32:
      return exact_of_integer(false, static_cast<u32>(bits));
    default:
      return exact_of_integer(false, bits);
  }
}

/// Rounds to a whole number in place (exponent 0 or more).
void round_to_integral(Exact& value, Round round) {
  if (value.nan || value.infinite || value.exponent >= 0 || value.significand == 0) return;
  const int drop = -value.exponent;
  const u64 kept = drop >= 64 ? 0 : value.significand >> drop;
  const u64 rest = drop >= 64 ? value.significand : value.significand & ((u64{1} << drop) - 1);
  const u64 half = drop > 64 ? ~u64{0} : u64{1} << (drop - 1);
  const int against_half = rest > half ? 1 : rest == half && drop <= 64 ? 0 : -1;
  const bool up = rounds_up(round, value.negative, (kept & 1) != 0, against_half, rest != 0);
  value.significand = kept + (up ? 1 : 0);
  value.exponent = 0;
}

/// The integer's bits, clamped to the destination's type.
u64 clamped_integer(const Exact& value, const ConvertForm& form) {
  const Type type = form.to;
  const u32 bits = type_bytes(type) * 8;
  const bool is_signed = type_is_signed(type);
  const u64 max = is_signed ? (u64{1} << (bits - 1)) - 1 : ~u64{0} >> (64 - bits);
  const u64 size_of_min = is_signed ? u64{1} << (bits - 1) : 0;
  if (value.nan) {
    const u64 result = nan_integer(type_bytes(form.from) * 8, bits);
    return is_signed ? 0 - result : result;
  }
  u64 size = value.significand;
  bool huge = value.infinite;
  if (!huge && value.exponent > 0 && size != 0) {
    huge = value.exponent >= __builtin_clzll(size) + 1;
    if (!huge) size <<= value.exponent;
  }
  if (value.negative) return 0 - (huge || size > size_of_min ? size_of_min : size);
  return huge || size > max ? max : size;
}

u64 real_bits(const Exact& value, const ConvertForm& form) {
  const FloatFormat& format = form.to == Type::kF64    ? kDoubleFormat
                              : form.to == Type::kF32  ? kFloatFormat
                              : form.to == Type::kF16  ? kHalfFormat
                              : form.to == Type::kTf32 ? kTf32Format
                                                       : kBfloatFormat;
  u64 bits = narrowed(value, format, form.integral ? Round::kNearest : form.round);
  const u64 sign = u64{1} << (format.exponent_bits + format.mantissa_bits);
  const u64 infinity = ((u64{1} << format.exponent_bits) - 1) << format.mantissa_bits;
  if (form.finite && (bits & ~sign) == infinity) --bits;
  // The ten bits of the mantissa are the upper ones of an f32; a NaN is the f32's.
  if (form.to == Type::kTf32) bits = value.nan ? kFloatFormat.nan : bits << 13;
  if (form.to == Type::kF32 && form.flush) {
    bits = bits_of_real(flushed(__builtin_bit_cast(f32, static_cast<u32>(bits))));
  }
  if (!form.saturate && !form.relu) return bits;
  const u64 one = static_cast<u64>((1 << (format.exponent_bits - 1)) - 1) << format.mantissa_bits;
  const bool negative = value.negative && !value.nan;
  if (form.relu) return negative ? 0 : bits;
  return value.nan || negative ? 0 : bits > one ? one : bits;
}

u64 converted(const u8* a, int l, const ConvertForm& form) {
  Exact value = exact_source(a, l, form);
  if (!type_is_real(form.to)) {
    if (type_is_real(form.from)) {
      round_to_integral(value, form.round);
    } else if (!form.saturate) {
      const u64 bits = value.negative ? 0 - value.significand : value.significand;
      const u32 drop = 64 - type_bytes(form.to) * 8;
      if (type_is_signed(form.to)) return static_cast<u64>(static_cast<s64>(bits << drop) >> drop);
      return (bits << drop) >> drop;
    }
    return clamped_integer(value, form);
  }
  if (form.integral) round_to_integral(value, form.round);
  return real_bits(value, form);
}

const Inst* convert_any(Warp& w, const Inst* i) {
  const ConvertForm form = ConvertForm::unpack(i->imm);
  const u8* a = w.rf + i->a;
  u8* d = w.rf + i->d;
  for_each_lane(w.mask, [&](int l) {
    const u64 bits = converted(a, l, form);
    if (form.to_box == 8) {
      reinterpret_cast<u64*>(d)[l] = bits;
    } else {
      reinterpret_cast<u32*>(d)[l] = static_cast<u32>(bits);
    }
  });
  return i + 1;
}

/// cvt.f16x2.f32 d, a, b: a to the high half.
const Inst* convert_pair(Warp& w, const Inst* i) {
  const ConvertForm form = ConvertForm::unpack(i->imm);
  u32* d = row<u32>(w, i->d);
  for_each_lane(w.mask, [&](int l) {
    const u64 high = converted(w.rf + i->a, l, form), low = converted(w.rf + i->b, l, form);
    d[l] = static_cast<u32>(high << 16) | static_cast<u32>(low & 0xffff);
  });
  return i + 1;
}

template <class D>
Handler pick_integer_source(Type from) {
  switch (from) {
    case Type::kS8:
      return integer_to_integer<D, s8>;
    case Type::kB8:
    case Type::kU8:
      return integer_to_integer<D, u8>;
    case Type::kS16:
      return integer_to_integer<D, s16>;
    case Type::kB16:
    case Type::kU16:
      return integer_to_integer<D, u16>;
    case Type::kS32:
      return integer_to_integer<D, s32>;
    case Type::kB32:
    case Type::kU32:
      return integer_to_integer<D, u32>;
    default:
      return integer_to_integer<D, u64>;
  }
}

Handler pick_integer(const Form& form) {
  switch (form.type) {
    case Type::kS8:
      return pick_integer_source<s8>(form.from);
    case Type::kB8:
    case Type::kU8:
      return pick_integer_source<u8>(form.from);
    case Type::kS16:
      return pick_integer_source<s16>(form.from);
    case Type::kB16:
    case Type::kU16:
      return pick_integer_source<u16>(form.from);
    case Type::kS64:
    case Type::kB64:
    case Type::kU64:
      return pick_integer_source<u64>(form.from);
    default:
      return pick_integer_source<u32>(form.from);
  }
}

template <class D, class S>
Handler pick_to_integer(Round round) {
  switch (round) {
    case Round::kNearest:
      return real_to_integer<D, S, Round::kNearest>;
    case Round::kZero:
      return real_to_integer<D, S, Round::kZero>;
    case Round::kDown:
      return real_to_integer<D, S, Round::kDown>;
    case Round::kUp:
      return real_to_integer<D, S, Round::kUp>;
    default:
      return nullptr;
  }
}

template <class T, bool Flush, bool Saturate>
Handler pick_integral(Round round) {
  switch (round) {
    case Round::kNearest:
      return real_to_integral<T, Round::kNearest, Flush, Saturate>;
    case Round::kZero:
      return real_to_integral<T, Round::kZero, Flush, Saturate>;
    case Round::kDown:
      return real_to_integral<T, Round::kDown, Flush, Saturate>;
    case Round::kUp:
      return real_to_integral<T, Round::kUp, Flush, Saturate>;
    default:
      return nullptr;
  }
}

template <class S>
Handler pick_from_real(const Form& form) {
  switch (form.type) {
    case Type::kS32:
      return pick_to_integer<s32, S>(form.round);
    case Type::kU32:
      return pick_to_integer<u32, S>(form.round);
    case Type::kS64:
      return pick_to_integer<s64, S>(form.round);
    default:
      return nullptr;
  }
}

template <class D>
Handler pick_to_real(Type from) {
  switch (from) {
    case Type::kS32:
      return to_nearest_real<D, s32>;
    case Type::kU32:
      return to_nearest_real<D, u32>;
    case Type::kS64:
      return to_nearest_real<D, s64>;
    case Type::kU64:
      return to_nearest_real<D, u64>;
    default:
      return nullptr;
  }
}

Handler pick_real_real(const Form& form) {
  const Type to = form.type, from = form.from;
  if (to == from && to == Type::kF32 && (form.integral || form.saturate)) {
    if (!form.integral) return form.flush ? nullptr : unary<f32, Real<f32, Identity, false, true>>;
    if (form.flush) return form.saturate ? nullptr : pick_integral<f32, true, false>(form.round);
    return form.saturate ? pick_integral<f32, false, true>(form.round)
                         : pick_integral<f32, false, false>(form.round);
  }
  if (to == from && to == Type::kF64 && form.integral && !form.saturate) {
    return pick_integral<f64, false, false>(form.round);
  }
  if (form.integral || form.saturate || form.round != Round::kNearest) return nullptr;
  if (to == Type::kF64 && from == Type::kF32) {
    return form.flush ? real_to_real<f64, f32, true> : real_to_real<f64, f32, false>;
  }
  if (to == Type::kF32 && from == Type::kF64) {
    return form.flush ? real_to_real<f32, f64, true> : real_to_real<f32, f64, false>;
  }
  if (form.flush || form.flag) return nullptr;
  if (to == Type::kF32 && from == Type::kF16) return half_to_float;
  if (to == Type::kF32 && from == Type::kBf16) return bfloat_to_float;
  if (to == Type::kF16 && from == Type::kF32) return float_to_half;
  if (to == Type::kBf16 && from == Type::kF32) return float_to_bfloat;
  return nullptr;
}

/// A 64-bit register read as a smaller integer: what compilers make of long long -> int -> long
/// long.
template <class D>
Handler pick_wide_source(Type from) {
  switch (from) {
    case Type::kS8:
      return integer_to_integer<D, s8, u64>;
    case Type::kU8:
      return integer_to_integer<D, u8, u64>;
    case Type::kS16:
      return integer_to_integer<D, s16, u64>;
    case Type::kU16:
      return integer_to_integer<D, u16, u64>;
    case Type::kS32:
      return integer_to_integer<D, s32, u64>;
    case Type::kU32:
      return integer_to_integer<D, u32, u64>;
    default:
      return nullptr;
  }
}

Handler pick_wide(const Form& form) {
  if (form.from_box != 8 || form.saturate) return nullptr;
  const bool whole = form.type == Type::kS32 || form.type == Type::kU32;
  if (whole) return pick_wide_source<u32>(form.from);
  return form.type == Type::kS64 || form.type == Type::kU64 ? pick_wide_source<u64>(form.from)
                                                            : nullptr;
}

/// The vector handler, if there is one for exactly this form.
Handler pick_fast(const Form& form) {
  if (form.to_box != type_box(form.type)) return nullptr;
  const bool to_real = type_is_real(form.type), from_real = type_is_real(form.from);
  if (form.from_box != type_box(form.from)) return to_real || from_real ? nullptr : pick_wide(form);
  if (!to_real && !from_real) return form.saturate ? nullptr : pick_integer(form);
  if (to_real && from_real) return pick_real_real(form);
  if (form.saturate || form.flush) return nullptr;
  if (!to_real) {
    if (form.from == Type::kF32) return pick_from_real<f32>(form);
    return form.from == Type::kF64 ? pick_from_real<f64>(form) : nullptr;
  }
  if (form.round != Round::kNearest) return nullptr;
  if (form.type == Type::kF32) return pick_to_real<f32>(form.from);
  return form.type == Type::kF64 ? pick_to_real<f64>(form.from) : nullptr;
}

}  // namespace

Handler convert_handler(const Form& form) {
  if (form.op == Op::kConvertPair) return convert_pair;
  const Handler fast = pick_fast(form);
  return fast != nullptr ? fast : convert_any;
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

// Integer arithmetic: add to madc, division, dot products.
#include "softgpu/ptx/exec/lanes.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

template <class T>
struct WideOf;
template <>
struct WideOf<s16> {
  using type = s32;
};
template <>
struct WideOf<u16> {
  using type = u32;
};
template <>
struct WideOf<s32> {
  using type = s64;
};
template <>
struct WideOf<u32> {
  using type = u64;
};
template <>
struct WideOf<s64> {
  __extension__ using type = __int128;
};
template <>
struct WideOf<u64> {
  __extension__ using type = unsigned __int128;
};
template <class T>
using Wide = typename WideOf<T>::type;

struct Add {
  template <class T>
  static T eval(T a, T b) {
    return static_cast<T>(a + b);
  }
};
struct Sub {
  template <class T>
  static T eval(T a, T b) {
    return static_cast<T>(a - b);
  }
};
struct Mul {
  // Through unsigned: 16-bit operands promote to int, where the product could overflow.
  template <class T>
  static T eval(T a, T b) {
    return static_cast<T>(static_cast<std::make_unsigned_t<Box<T>>>(a) *
                          static_cast<std::make_unsigned_t<Box<T>>>(b));
  }
};
struct MulHi {
  template <class T>
  static T eval(T a, T b) {
    return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (sizeof(T) * 8));
  }
};
struct Mad {
  template <class T>
  static T eval(T a, T b, T c) {
    return Add::eval(Mul::eval(a, b), c);
  }
};
struct MadHi {
  template <class T>
  static T eval(T a, T b, T c) {
    return Add::eval(MulHi::eval(a, b), c);
  }
};
// Only of s32: .sat.
SOFTGPU_INLINE s32 saturated(s64 x) {
  return static_cast<s32>(x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : x);
}
struct AddSaturate {
  static s32 eval(s32 a, s32 b) { return saturated(s64{a} + b); }
};
struct SubSaturate {
  static s32 eval(s32 a, s32 b) { return saturated(s64{a} - b); }
};
struct MadHiSaturate {
  static s32 eval(s32 a, s32 b, s32 c) { return saturated(s64{MulHi::eval(a, b)} + c); }
};
struct Sad {
  template <class T>
  static T eval(T a, T b, T c) {
    return static_cast<T>(c + (a < b ? b - a : a - b));
  }
};
struct Min {
  template <class T>
  static T eval(T a, T b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  static T eval(T a, T b) {
    return a < b ? b : a;
  }
};
struct Abs {
  template <class T>
  static T eval(T a) {
    return static_cast<T>(a < 0 ? -a : a);
  }
};
struct Neg {
  template <class T>
  static T eval(T a) {
    return static_cast<T>(-a);
  }
};
/// a / b of integers below 2^53, and all ones for b = 0. Exact: a quotient that is not a whole
/// number is at least 1/b away from the next one, more than the rounding moves it. It vectorises
/// where the integer division of the processor does not.
template <class T>
SOFTGPU_INLINE T divided_as_double(T a, T b) {
  // Processors convert 64 bits better signed.
  using Small = std::conditional_t<sizeof(T) == 8, s64, T>;
  const f64 divisor = b == 0 ? 1.0 : static_cast<f64>(static_cast<Small>(b));
  const f64 quotient = static_cast<f64>(static_cast<Small>(a)) / divisor;
  return b == 0 ? static_cast<T>(~T{0}) : static_cast<T>(static_cast<s64>(quotient));
}

// Hardware gives all ones for x / 0 and x for x % 0.
struct Div {
  template <class T>
  static T eval(T a, T b) {
    if constexpr (sizeof(T) <= 4) {
      return divided_as_double(a, b);
    } else {
      if (b == 0) return ~T{0};
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0 - a;
      return a / b;
    }
  }
};
struct Rem {
  template <class T>
  static T eval(T a, T b) {
    if constexpr (sizeof(T) <= 4) {
      return b == 0 ? a : Sub::eval(a, Mul::eval(Div::eval(a, b), b));
    } else {
      if (b == 0) return a;
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
      return a % b;
    }
  }
};

/// Whether doubles hold both rows.
template <class T>
SOFTGPU_INLINE bool fits_double(const T* a, const T* b) {
  constexpr u64 kLimit = u64{1} << 53;
  u64 beyond = 0;
  for (int l = 0; l < 32; ++l) {
    // -2^53 <= x < 2^53 of signed, x < 2^53 of unsigned ones.
    const u64 shift = std::is_signed_v<T> ? kLimit : 0;
    beyond |= (static_cast<u64>(a[l]) + shift) | (static_cast<u64>(b[l]) + shift);
  }
  return beyond < (std::is_signed_v<T> ? 2 * kLimit : kLimit);
}

/// div and rem of 64 bits: the indices and sizes of programs nearly all fit a double.
template <class T, class Fn>
const Inst* divide_wide(Warp& w, const Inst* i) {
  const T *a = row<T>(w, i->a), *b = row<T>(w, i->b);
  if (!fits_double(a, b)) return binary<T, Fn>(w, i);
  for_lanes(w, row<T>(w, i->d), [=](int l) {
    const T quotient = divided_as_double(a[l], b[l]);
    if constexpr (std::is_same_v<Fn, Div>) return quotient;
    return b[l] == 0 ? a[l] : static_cast<T>(a[l] - quotient * b[l]);
  });
  return i + 1;
}

template <class T>
const Inst* mul_wide(Warp& w, const Inst* i) {
  const auto* a = row<Box<T>>(w, i->a);
  const auto* b = row<Box<T>>(w, i->b);
  for_lanes(w, row<Wide<T>>(w, i->d), [=](int l) {
    return static_cast<Wide<T>>(static_cast<T>(a[l])) * static_cast<Wide<T>>(static_cast<T>(b[l]));
  });
  return i + 1;
}

template <class T>
const Inst* mad_wide(Warp& w, const Inst* i) {
  const auto* a = row<Box<T>>(w, i->a);
  const auto* b = row<Box<T>>(w, i->b);
  const auto* c = row<Wide<T>>(w, i->c);
  for_lanes(w, row<Wide<T>>(w, i->d), [=](int l) {
    return static_cast<Wide<T>>(static_cast<T>(a[l])) * static_cast<Wide<T>>(static_cast<T>(b[l])) +
           c[l];
  });
  return i + 1;
}

/// Sets the condition code: the carry-out of the adder, one bit a lane. A subtraction is a + ~b +
/// 1, so its code is 1 where nothing is borrowed, and subc takes one more where the code is 0.
/// Compiled code relies on that: 128-bit division reads the code of a subtraction by addc.
SOFTGPU_INLINE void carry_write(Warp& w, bool wanted, u32 carry) {
  if (wanted) predicate_set(w, kCarryRow, carry);
}

template <class U, bool In, bool Out>
const Inst* add_carry(Warp& w, const Inst* i) {
  const U *a = row<U>(w, i->a), *b = row<U>(w, i->b);
  U* d = row<U>(w, i->d);
  const u32 in = In ? predicate(w, kCarryRow) : 0;
  u32 out = 0;
  for_each_lane(w.mask, [&](int l) {
    U sum, total;
    const bool first = __builtin_add_overflow(a[l], b[l], &sum);
    const bool second = __builtin_add_overflow(sum, static_cast<U>((in >> l) & 1), &total);
    d[l] = total;
    if (first || second) out |= kLaneBit[l];
  });
  carry_write(w, Out, out);
  return i + 1;
}

template <class U, bool In, bool Out>
const Inst* sub_carry(Warp& w, const Inst* i) {
  const U *a = row<U>(w, i->a), *b = row<U>(w, i->b);
  U* d = row<U>(w, i->d);
  const u32 borrow = In ? ~predicate(w, kCarryRow) : 0;
  u32 out = 0;
  for_each_lane(w.mask, [&](int l) {
    U difference, total;
    const bool first = __builtin_sub_overflow(a[l], b[l], &difference);
    const bool second =
        __builtin_sub_overflow(difference, static_cast<U>((borrow >> l) & 1), &total);
    d[l] = total;
    if (!first && !second) out |= kLaneBit[l];
  });
  carry_write(w, Out, out);
  return i + 1;
}

template <class T, bool High, bool In, bool Out>
const Inst* mad_carry(Warp& w, const Inst* i) {
  using U = std::make_unsigned_t<T>;
  const U *a = row<U>(w, i->a), *b = row<U>(w, i->b), *c = row<U>(w, i->c);
  U* d = row<U>(w, i->d);
  const u32 in = In ? predicate(w, kCarryRow) : 0;
  u32 out = 0;
  for_each_lane(w.mask, [&](int l) {
    const T x = static_cast<T>(a[l]), y = static_cast<T>(b[l]);
    const U product = static_cast<U>(High ? MulHi::eval(x, y) : Mul::eval(x, y));
    U sum, total;
    const bool first = __builtin_add_overflow(product, c[l], &sum);
    const bool second = __builtin_add_overflow(sum, static_cast<U>((in >> l) & 1), &total);
    d[l] = total;
    if (first || second) out |= kLaneBit[l];
  });
  carry_write(w, Out, out);
  return i + 1;
}

/// Bytes of a (mode bit 0: signed) times bytes of b (bit 1) added to c; dp2a takes halves of a and
/// two bytes of b.
template <bool SignedA, bool SignedB>
const Inst* dp4a(Warp& w, const Inst* i) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b), *c = row<u32>(w, i->c);
  for_lanes(w, row<u32>(w, i->d), [=](int l) {
    u32 sum = c[l];
    for (int k = 0; k < 32; k += 8) {
      const int x = SignedA ? static_cast<s8>(a[l] >> k) : static_cast<u8>(a[l] >> k);
      const int y = SignedB ? static_cast<s8>(b[l] >> k) : static_cast<u8>(b[l] >> k);
      sum += static_cast<u32>(x * y);
    }
    return sum;
  });
  return i + 1;
}

template <bool SignedA, bool SignedB>
const Inst* dp2a(Warp& w, const Inst* i) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b), *c = row<u32>(w, i->c);
  const int shift = i->flags != 0 ? 16 : 0;
  for_lanes(w, row<u32>(w, i->d), [=](int l) {
    u32 sum = c[l];
    for (int k = 0; k < 2; ++k) {
      const u32 half = a[l] >> (16 * k), byte = b[l] >> (shift + 8 * k);
      const int x = SignedA ? static_cast<s16>(half) : static_cast<u16>(half);
      const int y = SignedB ? static_cast<s8>(byte) : static_cast<u8>(byte);
      sum += static_cast<u32>(x * y);
    }
    return sum;
  });
  return i + 1;
}

template <class Fn>
Handler pick_unary(Type t) {
  switch (t) {
    case Type::kS16:
      return unary<s16, Fn>;
    case Type::kS32:
      return unary<s32, Fn>;
    case Type::kS64:
      return unary<s64, Fn>;
    default:
      return nullptr;
  }
}

template <class Fn>
Handler pick_binary(Type t) {
  switch (t) {
    case Type::kS16:
      return binary<s16, Fn>;
    case Type::kU16:
      return binary<u16, Fn>;
    case Type::kS32:
      return binary<s32, Fn>;
    case Type::kU32:
      return binary<u32, Fn>;
    case Type::kS64:
      return binary<s64, Fn>;
    case Type::kU64:
      return binary<u64, Fn>;
    default:
      return nullptr;
  }
}

template <class Fn>
Handler pick_division(Type t) {
  return t == Type::kS64   ? divide_wide<s64, Fn>
         : t == Type::kU64 ? divide_wide<u64, Fn>
                           : pick_binary<Fn>(t);
}

template <class Fn>
Handler pick_ternary(Type t) {
  switch (t) {
    case Type::kS16:
      return ternary<s16, Fn>;
    case Type::kU16:
      return ternary<u16, Fn>;
    case Type::kS32:
      return ternary<s32, Fn>;
    case Type::kU32:
      return ternary<u32, Fn>;
    case Type::kS64:
      return ternary<s64, Fn>;
    case Type::kU64:
      return ternary<u64, Fn>;
    default:
      return nullptr;
  }
}

Handler pick_wide(const Form& form) {
  const bool mad = form.op == Op::kMadWide;
  switch (form.type) {
    case Type::kS16:
      return mad ? mad_wide<s16> : mul_wide<s16>;
    case Type::kU16:
      return mad ? mad_wide<u16> : mul_wide<u16>;
    case Type::kS32:
      return mad ? mad_wide<s32> : mul_wide<s32>;
    case Type::kU32:
      return mad ? mad_wide<u32> : mul_wide<u32>;
    default:
      return nullptr;
  }
}

template <class U>
Handler pick_add_sub_carry(const Form& form) {
  const bool in = form.carry_in, out = form.carry_out;
  if (form.op == Op::kAddCarry) {
    return in ? (out ? add_carry<U, true, true> : add_carry<U, true, false>)
              : add_carry<U, false, true>;
  }
  return in ? (out ? sub_carry<U, true, true> : sub_carry<U, true, false>)
            : sub_carry<U, false, true>;
}

template <class T, bool High>
Handler pick_mad_carry(const Form& form) {
  if (!form.carry_in) return mad_carry<T, High, false, true>;
  return form.carry_out ? mad_carry<T, High, true, true> : mad_carry<T, High, true, false>;
}

Handler pick_carry(const Form& form) {
  const bool wide = type_bytes(form.type) == 8;
  if (form.op == Op::kAddCarry || form.op == Op::kSubCarry) {
    return wide ? pick_add_sub_carry<u64>(form) : pick_add_sub_carry<u32>(form);
  }
  if (form.op == Op::kMadCarryLo) {
    return wide ? pick_mad_carry<u64, false>(form) : pick_mad_carry<u32, false>(form);
  }
  switch (form.type) {
    case Type::kS32:
      return pick_mad_carry<s32, true>(form);
    case Type::kU32:
      return pick_mad_carry<u32, true>(form);
    case Type::kS64:
      return pick_mad_carry<s64, true>(form);
    case Type::kU64:
      return pick_mad_carry<u64, true>(form);
    default:
      return nullptr;
  }
}

Handler pick_dot(const Form& form) {
  const bool a = (form.mode & 1) != 0, b = (form.mode & 2) != 0;
  if (form.op == Op::kDp4a) {
    return a ? (b ? dp4a<true, true> : dp4a<true, false>)
             : (b ? dp4a<false, true> : dp4a<false, false>);
  }
  return a ? (b ? dp2a<true, true> : dp2a<true, false>)
           : (b ? dp2a<false, true> : dp2a<false, false>);
}

}  // namespace

Handler integer_handler(const Form& form) {
  if (form.saturate) {
    return form.op == Op::kAdd   ? binary<s32, AddSaturate>
           : form.op == Op::kSub ? binary<s32, SubSaturate>
                                 : ternary<s32, MadHiSaturate>;
  }
  switch (form.op) {
    case Op::kAdd:
      return pick_binary<Add>(form.type);
    case Op::kSub:
      return pick_binary<Sub>(form.type);
    case Op::kMul:
      return pick_binary<Mul>(form.type);
    case Op::kMulHi:
      return pick_binary<MulHi>(form.type);
    case Op::kMad:
      return pick_ternary<Mad>(form.type);
    case Op::kMadHi:
      return pick_ternary<MadHi>(form.type);
    case Op::kSad:
      return pick_ternary<Sad>(form.type);
    case Op::kDiv:
      return pick_division<Div>(form.type);
    case Op::kRem:
      return pick_division<Rem>(form.type);
    case Op::kMin:
      return pick_binary<Min>(form.type);
    case Op::kMax:
      return pick_binary<Max>(form.type);
    case Op::kAbs:
      return pick_unary<Abs>(form.type);
    case Op::kNeg:
      return pick_unary<Neg>(form.type);
    case Op::kMulWide:
    case Op::kMadWide:
      return pick_wide(form);
    case Op::kAddCarry:
    case Op::kSubCarry:
    case Op::kMadCarryLo:
    case Op::kMadCarryHi:
      return pick_carry(form);
    case Op::kDp4a:
    case Op::kDp2a:
      return pick_dot(form);
    default:
      return nullptr;
  }
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

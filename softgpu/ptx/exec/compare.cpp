// setp, set, selp and slct.
#include "softgpu/ptx/exec/narrow.h"
#include "softgpu/ptx/exec/real.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

template <Compare C, class T>
SOFTGPU_INLINE bool holds(T a, T b) {
  switch (C) {
    case Compare::kEq:
      return a == b;
    case Compare::kNe:
      return std::is_integral_v<T> ? a != b : a < b || a > b;
    case Compare::kLt:
      return a < b;
    case Compare::kLe:
      return a <= b;
    case Compare::kGt:
      return a > b;
    case Compare::kGe:
      return a >= b;
    case Compare::kEqu:
      return !(a < b || a > b);
    case Compare::kNeu:
      return !(a == b);
    case Compare::kLtu:
      return !(a >= b);
    case Compare::kLeu:
      return !(a > b);
    case Compare::kGtu:
      return !(a <= b);
    case Compare::kGeu:
      return !(a < b);
    case Compare::kNum:
      return a == a && b == b;
    case Compare::kNan:
      return a != a || b != b;
  }
  return false;
}

template <class T>
SOFTGPU_INLINE bool holds_any(Compare compare, T a, T b) {
  switch (compare) {
#define SOFTGPU_CASE(name) \
  case Compare::name:      \
    return holds<Compare::name, T>(a, b)
    SOFTGPU_CASE(kEq);
    SOFTGPU_CASE(kNe);
    SOFTGPU_CASE(kLt);
    SOFTGPU_CASE(kLe);
    SOFTGPU_CASE(kGt);
    SOFTGPU_CASE(kGe);
    SOFTGPU_CASE(kEqu);
    SOFTGPU_CASE(kNeu);
    SOFTGPU_CASE(kLtu);
    SOFTGPU_CASE(kLeu);
    SOFTGPU_CASE(kGtu);
    SOFTGPU_CASE(kGeu);
    SOFTGPU_CASE(kNum);
    SOFTGPU_CASE(kNan);
#undef SOFTGPU_CASE
  }
  return false;
}

#if defined(__AVX512F__)
constexpr int integer_predicate(Compare c) {
  switch (c) {
    case Compare::kEq:
      return _MM_CMPINT_EQ;
    case Compare::kNe:
      return _MM_CMPINT_NE;
    case Compare::kLt:
      return _MM_CMPINT_LT;
    case Compare::kLe:
      return _MM_CMPINT_LE;
    case Compare::kGt:
      return _MM_CMPINT_NLE;
    default:
      return _MM_CMPINT_NLT;
  }
}
constexpr int real_predicate(Compare c) {
  switch (c) {
    case Compare::kEq:
      return _CMP_EQ_OQ;
    case Compare::kNe:
      return _CMP_NEQ_OQ;
    case Compare::kLt:
      return _CMP_LT_OQ;
    case Compare::kLe:
      return _CMP_LE_OQ;
    case Compare::kGt:
      return _CMP_GT_OQ;
    case Compare::kGe:
      return _CMP_GE_OQ;
    case Compare::kEqu:
      return _CMP_EQ_UQ;
    case Compare::kNeu:
      return _CMP_NEQ_UQ;
    case Compare::kLtu:
      return _CMP_NGE_UQ;
    case Compare::kLeu:
      return _CMP_NGT_UQ;
    case Compare::kGtu:
      return _CMP_NLE_UQ;
    case Compare::kGeu:
      return _CMP_NLT_UQ;
    case Compare::kNum:
      return _CMP_ORD_Q;
    default:
      return _CMP_UNORD_Q;
  }
}
/// One bit for each of the lanes that fit 512 bits.
template <Compare C, class T>
SOFTGPU_INLINE u32 compare512(const T* a, const T* b) {
  if constexpr (std::is_same_v<T, f32>) {
    return _mm512_cmp_ps_mask(_mm512_load_ps(a), _mm512_load_ps(b), real_predicate(C));
  } else if constexpr (std::is_same_v<T, f64>) {
    return _mm512_cmp_pd_mask(_mm512_load_pd(a), _mm512_load_pd(b), real_predicate(C));
  } else {
    const __m512i x = _mm512_load_si512(a), y = _mm512_load_si512(b);
    constexpr int kPredicate = integer_predicate(C);
    if constexpr (std::is_same_v<T, s32>) return _mm512_cmp_epi32_mask(x, y, kPredicate);
    if constexpr (std::is_same_v<T, u32>) return _mm512_cmp_epu32_mask(x, y, kPredicate);
    if constexpr (std::is_same_v<T, s64>) return _mm512_cmp_epi64_mask(x, y, kPredicate);
    if constexpr (std::is_same_v<T, u64>) return _mm512_cmp_epu64_mask(x, y, kPredicate);
  }
}
#endif

template <Compare C, class T, bool Flush>
SOFTGPU_INLINE u32 compare_rows(const Warp& w, const Inst* i) {
  const auto* a = row<Box<T>>(w, i->a);
  const auto* b = row<Box<T>>(w, i->b);
#if defined(__AVX512F__)
  if constexpr (sizeof(T) >= 4 && !Flush) {
    constexpr int kLanes = 64 / sizeof(T);
    u32 bits = 0;
    for (int l = 0; l < 32; l += kLanes) bits |= compare512<C, T>(a + l, b + l) << l;
    return bits;
  }
#endif
  return bits_where([=](int l) {
    T x = static_cast<T>(a[l]), y = static_cast<T>(b[l]);
    if constexpr (Flush) {
      x = flushed(x);
      y = flushed(y);
    }
    return holds<C, T>(x, y);
  });
}

struct HalfWide {
  static constexpr u16 kExponent = 0x7c00;
  static f32 wide(u16 x) { return float_of_half(x); }
};
struct BfloatWide {
  static constexpr u16 kExponent = 0x7f80;
  static f32 wide(u16 x) { return float_of_bfloat(x); }
};

/// One bit a lane, of the halves at `shift` in their registers. Seldom enough that the comparison
/// is picked lane by lane.
template <class Format>
u32 compare_halves(const Warp& w, const Inst* i, int shift) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b);
  const auto wide = [flush = (i->mode & kHalfCompareFlush) != 0](u32 bits) {
    const u16 x = static_cast<u16>(bits);
    const bool subnormal = flush && (x & Format::kExponent) == 0;
    return Format::wide(subnormal ? static_cast<u16>(x & 0x8000) : x);
  };
  const Compare compare = static_cast<Compare>(i->mode & ~kHalfCompareFlush);
  return bits_where(
      [=](int l) { return holds_any(compare, wide(a[l] >> shift), wide(b[l] >> shift)); });
}

/// The predicate c as flags want it combined with a result.
SOFTGPU_INLINE u32 combined(const Warp& w, const Inst* i, u32 result) {
  if (__builtin_expect((i->flags & 3) == 0, 1)) return result;
  const u32 other = predicate(w, i->c) ^ ((i->flags & 4) != 0 ? ~0u : 0u);
  const u32 kind = i->flags & 3;
  return kind == 1 ? result & other : kind == 2 ? result | other : result ^ other;
}

/// flags: bits 0-1 combine with predicate c (1 and, 2 or, 3 xor), bit 2 negates c, bit 3: second
/// destination f.
SOFTGPU_INLINE const Inst* predicate_results(Warp& w, const Inst* i, u32 result) {
  if (__builtin_expect(i->flags != 0, 0)) {
    const u32 inverse = combined(w, i, ~result);
    result = combined(w, i, result);
    if ((i->flags & 8) != 0) predicate_set(w, i->f, inverse);
  }
  predicate_set(w, i->d, result);
  return i + 1;
}

template <Compare C, class T, bool Flush>
const Inst* setp(Warp& w, const Inst* i) {
  return predicate_results(w, i, compare_rows<C, T, Flush>(w, i));
}

template <class Format>
const Inst* setp_half(Warp& w, const Inst* i) {
  return predicate_results(w, i, compare_halves<Format>(w, i, 0));
}

/// f16x2: p is the low halves' result, q the high halves'.
template <class Format>
const Inst* setp_pair(Warp& w, const Inst* i) {
  const u32 low = combined(w, i, compare_halves<Format>(w, i, 0));
  const u32 high = combined(w, i, compare_halves<Format>(w, i, 16));
  predicate_set(w, i->d, low);
  if ((i->flags & 8) != 0) predicate_set(w, i->f, high);
  return i + 1;
}

/// imm: the result where the comparison holds. flags as for setp.
template <Compare C, class T, bool Flush>
const Inst* set(Warp& w, const Inst* i) {
  const u32 bits = combined(w, i, compare_rows<C, T, Flush>(w, i)), yes = static_cast<u32>(i->imm);
  for_lanes(w, row<u32>(w, i->d), [=](int l) { return (bits & kLaneBit[l]) != 0 ? yes : 0; });
  return i + 1;
}

/// Of a pair, each half has its own result; a result of 32 bits is that of both.
template <class Format, bool Pair>
const Inst* set_half(Warp& w, const Inst* i) {
  const u32 yes = static_cast<u32>(i->imm);
  const u32 low = combined(w, i, compare_halves<Format>(w, i, 0));
  const u32 high = Pair ? combined(w, i, compare_halves<Format>(w, i, 16)) : low;
  for_lanes(w, row<u32>(w, i->d), [=](int l) {
    const u32 lower = (low & kLaneBit[l]) != 0 ? yes : 0,
              upper = (high & kLaneBit[l]) != 0 ? yes : 0;
    return Pair ? (lower & 0xffff) | (upper & 0xffff0000u) : lower;
  });
  return i + 1;
}

template <class T, bool Flush, bool Set>
Handler pick_compare(Compare c) {
  switch (c) {
#define SOFTGPU_CASE(name) \
  case Compare::name:      \
    return Set ? set<Compare::name, T, Flush> : setp<Compare::name, T, Flush>
    SOFTGPU_CASE(kEq);
    SOFTGPU_CASE(kNe);
    SOFTGPU_CASE(kLt);
    SOFTGPU_CASE(kLe);
    SOFTGPU_CASE(kGt);
    SOFTGPU_CASE(kGe);
    default:
      break;
  }
  if constexpr (!std::is_integral_v<T>) {
    switch (c) {
      SOFTGPU_CASE(kEqu);
      SOFTGPU_CASE(kNeu);
      SOFTGPU_CASE(kLtu);
      SOFTGPU_CASE(kLeu);
      SOFTGPU_CASE(kGtu);
      SOFTGPU_CASE(kGeu);
      SOFTGPU_CASE(kNum);
      SOFTGPU_CASE(kNan);
      default:
        break;
    }
  }
#undef SOFTGPU_CASE
  return nullptr;
}

template <class Format, bool Set>
Handler pick_half_compare(bool pair) {
  if (Set) return pair ? set_half<Format, true> : set_half<Format, false>;
  return pair ? setp_pair<Format> : setp_half<Format>;
}

template <bool Set>
Handler pick_comparison(const Form& form) {
  switch (form.type) {
    case Type::kS16:
      return pick_compare<s16, false, Set>(form.compare);
    case Type::kB16:
    case Type::kU16:
      return pick_compare<u16, false, Set>(form.compare);
    case Type::kS32:
      return pick_compare<s32, false, Set>(form.compare);
    case Type::kB32:
    case Type::kU32:
      return pick_compare<u32, false, Set>(form.compare);
    case Type::kS64:
      return pick_compare<s64, false, Set>(form.compare);
    case Type::kB64:
    case Type::kU64:
      return pick_compare<u64, false, Set>(form.compare);
    case Type::kF32:
      return form.flush ? pick_compare<f32, true, Set>(form.compare)
                        : pick_compare<f32, false, Set>(form.compare);
    case Type::kF64:
      return pick_compare<f64, false, Set>(form.compare);
    default:
      break;
  }
  switch (form.type) {
    case Type::kF16:
    case Type::kF16x2:
      return pick_half_compare<HalfWide, Set>(form.type == Type::kF16x2);
    case Type::kBf16:
    case Type::kBf16x2:
      return pick_half_compare<BfloatWide, Set>(form.type == Type::kBf16x2);
    default:
      return nullptr;
  }
}

template <class T>
const Inst* selp(Warp& w, const Inst* i) {
  const T *a = row<T>(w, i->a), *b = row<T>(w, i->b);
  const u32 p = predicate(w, i->c) ^ ((i->flags & 4) != 0 ? ~0u : 0u);
  T* d = row<T>(w, i->d);
#if defined(__AVX512F__)
  // A predicate is a mask register's content as it is.
  for (int l = 0; l < 32; l += 64 / static_cast<int>(sizeof(T))) {
    const __m512i yes = _mm512_load_si512(a + l), no = _mm512_load_si512(b + l);
    if constexpr (sizeof(T) == 4) {
      const auto pick = static_cast<__mmask16>(p >> l), lanes = static_cast<__mmask16>(w.mask >> l);
      _mm512_mask_store_epi32(d + l, lanes, _mm512_mask_blend_epi32(pick, no, yes));
    } else {
      const auto pick = static_cast<__mmask8>(p >> l), lanes = static_cast<__mmask8>(w.mask >> l);
      _mm512_mask_store_epi64(d + l, lanes, _mm512_mask_blend_epi64(pick, no, yes));
    }
  }
#else
  for_lanes(w, d, [=](int l) { return (p & kLaneBit[l]) != 0 ? a[l] : b[l]; });
#endif
  return i + 1;
}

/// a where c >= 0, else b; C is s32 or f32, of which a subnormal counts as zero with .ftz.
template <class T, class C, bool Flush = false>
const Inst* slct(Warp& w, const Inst* i) {
  const T *a = row<T>(w, i->a), *b = row<T>(w, i->b);
  const C* c = row<C>(w, i->c);
  for_lanes(w, row<T>(w, i->d), [=](int l) {
    if constexpr (Flush) return flushed(c[l]) >= 0 ? a[l] : b[l];
    return c[l] >= 0 ? a[l] : b[l];
  });
  return i + 1;
}

}  // namespace

Handler compare_handler(const Form& form) {
  const bool wide = form.to_box == 8;
  switch (form.op) {
    case Op::kSetp:
      return pick_comparison<false>(form);
    case Op::kSet:
      return pick_comparison<true>(form);
    case Op::kSelp:
      return wide ? selp<u64> : selp<u32>;
    case Op::kSlct:
      if (form.type == Type::kF32) {
        if (form.flush) return wide ? slct<u64, f32, true> : slct<u32, f32, true>;
        return wide ? slct<u64, f32> : slct<u32, f32>;
      }
      return wide ? slct<u64, s32> : slct<u32, s32>;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

// The tools every handler family is written with: rows, lane loops and predicates. Everything here
// is inside a namespace named after the instruction set (SOFTGPU_ISA): the same source is compiled
// for several of them, and a function the linker merged across them would run illegal instructions
// on a lesser processor.
#pragma once

#include <type_traits>

#include "softgpu/ptx/code/form.h"
#include "softgpu/ptx/exec/handlers.h"
#include "softgpu/ptx/exec/warp.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace softgpu::ptx::SOFTGPU_ISA {

#define SOFTGPU_INLINE inline __attribute__((always_inline))

using f32 = float;
using f64 = double;

/// What a lane of a row holds for a value of type T: at least 32 bits.
template <class T>
using Box = std::conditional_t<(sizeof(T) < 4), u32, T>;

template <class T>
SOFTGPU_INLINE T* row(const Warp& w, s32 offset) {
  return static_cast<T*>(__builtin_assume_aligned(w.rf + offset, 64));
}

alignas(64) inline constexpr u32 kLaneBit[32] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
    1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
    1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
    1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

/// d[lane] = f(lane) for the lanes of the mask. `f` must be harmless on the other lanes, too: it is
/// evaluated for all and the results are blended, which vectorises where a loop over set bits would
/// not.
template <class D, class F>
SOFTGPU_INLINE void for_lanes(const Warp& w, D* d, F f) {
  const u32 mask = w.mask;
  if (__builtin_expect(mask == kAllLanes, 1)) {
#pragma GCC ivdep
    for (int l = 0; l < 32; ++l) d[l] = f(l);
  } else {
#pragma GCC ivdep
    for (int l = 0; l < 32; ++l) {
      const D value = f(l);
      d[l] = (mask & kLaneBit[l]) != 0 ? value : d[l];
    }
  }
}

/// body(lane) for every lane of the mask, lowest first.
template <class F>
SOFTGPU_INLINE void for_each_lane(u32 mask, F body) {
  for (; mask != 0; mask &= mask - 1) body(__builtin_ctz(mask));
}

SOFTGPU_INLINE u32& predicate(const Warp& w, s32 offset) {
  return *reinterpret_cast<u32*>(w.rf + offset);
}

SOFTGPU_INLINE void predicate_set(const Warp& w, s32 offset, u32 value) {
  u32& p = predicate(w, offset);
  p = (p & ~w.mask) | (value & w.mask);
}

/// One bit per lane from 32 words that are zero or all ones.
SOFTGPU_INLINE u32 bits_of(const u32* words) {
#if defined(__AVX512F__)
  const __m512i lo = _mm512_load_si512(words), hi = _mm512_load_si512(words + 16);
  return static_cast<u32>(_mm512_test_epi32_mask(lo, lo)) |
         (static_cast<u32>(_mm512_test_epi32_mask(hi, hi)) << 16);
#elif defined(__AVX2__)
  u32 bits = 0;
  for (int k = 0; k < 4; ++k) {
    const __m256 part = _mm256_load_ps(reinterpret_cast<const float*>(words + 8 * k));
    bits |= static_cast<u32>(_mm256_movemask_ps(part)) << (8 * k);
  }
  return bits;
#else
  u32 bits = 0;
  for (int l = 0; l < 32; ++l) bits |= words[l] & kLaneBit[l];
  return bits;
#endif
}

template <class F>
SOFTGPU_INLINE u32 bits_where(F condition) {
  alignas(64) u32 words[32];
  for (int l = 0; l < 32; ++l) words[l] = condition(l) ? ~0u : 0u;
  return bits_of(words);
}

// Handlers made of a functor: Fn::eval takes and gives values of type T.

template <class T, class Fn>
const Inst* unary(Warp& w, const Inst* i) {
  const auto* a = row<Box<T>>(w, i->a);
  for_lanes(w, row<Box<T>>(w, i->d),
            [=](int l) { return static_cast<Box<T>>(Fn::eval(static_cast<T>(a[l]))); });
  return i + 1;
}

template <class T, class Fn>
const Inst* binary(Warp& w, const Inst* i) {
  const auto* a = row<Box<T>>(w, i->a);
  const auto* b = row<Box<T>>(w, i->b);
  for_lanes(w, row<Box<T>>(w, i->d), [=](int l) {
    return static_cast<Box<T>>(Fn::eval(static_cast<T>(a[l]), static_cast<T>(b[l])));
  });
  return i + 1;
}

template <class T, class Fn>
const Inst* ternary(Warp& w, const Inst* i) {
  const auto* a = row<Box<T>>(w, i->a);
  const auto* b = row<Box<T>>(w, i->b);
  const auto* c = row<Box<T>>(w, i->c);
  for_lanes(w, row<Box<T>>(w, i->d), [=](int l) {
    return static_cast<Box<T>>(
        Fn::eval(static_cast<T>(a[l]), static_cast<T>(b[l]), static_cast<T>(c[l])));
  });
  return i + 1;
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

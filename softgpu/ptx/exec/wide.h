// What real arithmetic is made of, for one 512-bit vector of lanes at a time. The row loops of
// lanes.h leave vectors to the compiler; that is good where an instruction is its operation. Where
// results need care that hardly any result needs (canonical NaNs, flushed subnormals), it is
// cheaper to ask once per row whether there is such a lane: the answer is predicted, and the next
// instruction does not wait for it. It must not know handlers or instructions.
#pragma once

#include "softgpu/ptx/exec/lanes.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define SOFTGPU_WIDE 1

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

using f32x16 = f32 __attribute__((vector_size(64)));
using f64x8 = f64 __attribute__((vector_size(64)));
template <class T>
struct WideOf;
template <>
struct WideOf<f32> {
  using V = f32x16;
};
template <>
struct WideOf<f64> {
  using V = f64x8;
};

SOFTGPU_INLINE f32x16 wide_load(const f32* p) { return _mm512_load_ps(p); }
SOFTGPU_INLINE f64x8 wide_load(const f64* p) { return _mm512_load_pd(p); }
SOFTGPU_INLINE void wide_store(f32* p, f32x16 v) { _mm512_store_ps(p, v); }
SOFTGPU_INLINE void wide_store(f64* p, f64x8 v) { _mm512_store_pd(p, v); }

SOFTGPU_INLINE void wide_store(f32* p, u32 mask, f32x16 v) {
  _mm512_mask_store_ps(p, static_cast<__mmask16>(mask), v);
}
SOFTGPU_INLINE void wide_store(f64* p, u32 mask, f64x8 v) {
  _mm512_mask_store_pd(p, static_cast<__mmask8>(mask), v);
}

SOFTGPU_INLINE f32x16 fused(f32x16 a, f32x16 b, f32x16 c) { return _mm512_fmadd_ps(a, b, c); }
SOFTGPU_INLINE f64x8 fused(f64x8 a, f64x8 b, f64x8 c) { return _mm512_fmadd_pd(a, b, c); }
SOFTGPU_INLINE f32x16 root(f32x16 a) { return _mm512_sqrt_ps(a); }
SOFTGPU_INLINE f64x8 root(f64x8 a) { return _mm512_sqrt_pd(a); }

/// The smaller (larger) number, -0 below +0; a quiet NaN loses, two NaNs or a signalling one give
/// one.
SOFTGPU_INLINE f32x16 wide_min(f32x16 a, f32x16 b) { return _mm512_range_ps(a, b, 4); }
SOFTGPU_INLINE f64x8 wide_min(f64x8 a, f64x8 b) { return _mm512_range_pd(a, b, 4); }
SOFTGPU_INLINE f32x16 wide_max(f32x16 a, f32x16 b) { return _mm512_range_ps(a, b, 5); }
SOFTGPU_INLINE f64x8 wide_max(f64x8 a, f64x8 b) { return _mm512_range_pd(a, b, 5); }

/// Not zero when a lane of either is a NaN.
SOFTGPU_INLINE u32 nans_of(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
SOFTGPU_INLINE u32 nans_of(f64x8 a, f64x8 b) { return _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q); }

inline constexpr int kClassSubnormal = 0x20;
inline constexpr int kClassNan = 0x81;  // quiet or signalling
template <int Class>
SOFTGPU_INLINE u32 lanes_of_class(f32x16 a) {
  return _mm512_fpclass_ps_mask(a, Class);
}
template <int Class>
SOFTGPU_INLINE u32 lanes_of_class(f64x8 a) {
  return _mm512_fpclass_pd_mask(a, Class);
}

/// d = Fn(in...) for a full row, unless a lane needs more than the bare operation: a NaN result, or
/// with Flush a subnormal operand or result. Then false, and nothing is written.
template <class T, class Fn, bool Flush, class... In>
SOFTGPU_INLINE bool row_plain(T* d, const In*... in) {
  using V = typename WideOf<T>::V;
  constexpr int kLanes = 64 / sizeof(T), kParts = 32 / kLanes;
  V results[kParts];
  u32 odd = 0;
#pragma GCC unroll 4
  for (int k = 0; k < kParts; ++k) {
    results[k] = Fn::eval(wide_load(in + k * kLanes)...);
    if constexpr (Flush) {
      odd |= (lanes_of_class<kClassSubnormal>(wide_load(in + k * kLanes)) | ...);
      odd |= lanes_of_class<kClassSubnormal | kClassNan>(results[k]);
    } else if (k % 2 == 1) {
      odd |= nans_of(results[k - 1], results[k]);
    }
  }
  if (__builtin_expect(odd != 0, 0)) return false;
#pragma GCC unroll 4
  for (int k = 0; k < kParts; ++k) wide_store(d + k * kLanes, results[k]);
  return true;
}

/// The same for the lanes of a mask.
template <class T, class Fn, bool Flush, class... In>
SOFTGPU_INLINE bool row_plain_masked(u32 mask, T* d, const In*... in) {
  using V = typename WideOf<T>::V;
  constexpr int kLanes = 64 / sizeof(T), kParts = 32 / kLanes;
  V results[kParts];
  u32 odd = 0;
#pragma GCC unroll 4
  for (int k = 0; k < kParts; ++k) {
    results[k] = Fn::eval(wide_load(in + k * kLanes)...);
    u32 part = lanes_of_class<(Flush ? kClassSubnormal : 0) | kClassNan>(results[k]);
    if constexpr (Flush) {
      part |= (lanes_of_class<kClassSubnormal>(wide_load(in + k * kLanes)) | ...);
    }
    odd |= part & (mask >> (k * kLanes));
  }
  if (__builtin_expect(odd != 0, 0)) return false;
#pragma GCC unroll 4
  for (int k = 0; k < kParts; ++k) wide_store(d + k * kLanes, mask >> (k * kLanes), results[k]);
  return true;
}

}  // namespace
}  // namespace softgpu::ptx::SOFTGPU_ISA
#endif

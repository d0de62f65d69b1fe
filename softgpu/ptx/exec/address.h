// Lane addresses for loads and stores: how they are made, what makes one illegal, and the pattern
// that a half warp's addresses form. Half warps, because blocks 16 wide are as common as blocks 32
// wide, and a full pattern is just two.
#pragma once

#include "softgpu/ptx/exec/lanes.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

using Mode = AddressMode;

constexpr bool in_shared(Mode mode) {
  return mode == Mode::kShared32 || mode == Mode::kShared64 || mode == Mode::kSharedFixed;
}
constexpr bool is_fixed(Mode mode) { return mode == Mode::kFixed || mode == Mode::kSharedFixed; }

/// Where an index of 0 is, the same in all lanes that execute this.
SOFTGPU_INLINE u64 indexed_start(const Warp& w, const Inst* i, int l) {
  const u64 start = row<u64>(w, i->f)[l] + static_cast<u64>(i->imm);
  return (i->flags & kIndexPlus) != 0 ? start + row<u64>(w, i->e)[l] * i->bytes : start;
}

/// The address as the kernel names it: an offset in the shared window, or a pointer.
template <Mode M>
SOFTGPU_INLINE u64 lane_address(const Warp& w, const Inst* i, int l) {
  if constexpr (M == Mode::kShared32)
    return static_cast<u32>(row<u32>(w, i->a)[l] + static_cast<u32>(i->imm));
  if constexpr (M == Mode::kPointer || M == Mode::kShared64 || M == Mode::kLocal) {
    return row<u64>(w, i->a)[l] + static_cast<u64>(i->imm);
  }
  if constexpr (M == Mode::kIndexed) {
    const u32 index = row<u32>(w, i->a)[l];
    const u64 wide = (i->flags & kIndexSigned) != 0 ? static_cast<u64>(s64{static_cast<s32>(index)})
                                                    : u64{index};
    return indexed_start(w, i, l) + wide * i->bytes;
  }
  return static_cast<u64>(i->imm);
}

/// The addresses of `Count` lanes from h on, for those that go their own ways.
template <Mode M, int Count>
SOFTGPU_INLINE void lane_addresses(const Warp& w, const Inst* i, int h, u64* out) {
  if constexpr (M == Mode::kIndexed) {
    const u64 start = indexed_start(w, i, h);
    const u32* index = row<u32>(w, i->a) + h;
    const s32 scale = i->bytes;
    if ((i->flags & kIndexSigned) != 0) {
      for (int l = 0; l < Count; ++l)
        out[l] = start + static_cast<u64>(s64{static_cast<s32>(index[l])} * scale);
    } else {
      for (int l = 0; l < Count; ++l) out[l] = start + u64{index[l]} * static_cast<u32>(scale);
    }
  } else {
    for (int l = 0; l < Count; ++l) out[l] = lane_address<M>(w, i, h + l);
  }
}

/// Where `bytes` from this address on are; faults when they are misaligned or outside their window.
template <Mode M>
SOFTGPU_INLINE u8* located(const Warp& w, u64 address, u64 bytes, u64 align) {
  if (__builtin_expect((address & (align - 1)) != 0, 0)) fault_raise(Fault::kMisaligned, address);
  if constexpr (in_shared(M)) {
    if (__builtin_expect(address + bytes > w.shared_bytes || address > w.shared_bytes, 0)) {
      fault_raise(Fault::kIllegalAddress, address);
    }
    return w.shared + address;
  }
  if constexpr (M == Mode::kLocal) {
    const u64 inside = address - reinterpret_cast<u64>(w.local);
    if (__builtin_expect(inside + bytes > u64{32} * w.local_bytes || inside > ~bytes, 0)) {
      local_check(w, address, bytes);
    }
  }
  return reinterpret_cast<u8*>(address);
}

enum class Pattern : u8 { kUnit, kSame, kOther };

#if defined(__AVX512F__)
/// True when lane l of the sixteen holds first + l * step.
SOFTGPU_INLINE bool is_run(const u32* a, u32 first, u32 step) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i steps = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(step)));
  const __m512i want = _mm512_add_epi32(steps, _mm512_set1_epi32(static_cast<int>(first)));
  return _mm512_cmpneq_epi32_mask(_mm512_loadu_si512(a), want) == 0;
}
SOFTGPU_INLINE bool is_run(const u64* a, u64 first, u64 step) {
  const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i steps = _mm512_mullo_epi64(lanes, _mm512_set1_epi64(static_cast<s64>(step)));
  const __m512i low = _mm512_add_epi64(steps, _mm512_set1_epi64(static_cast<s64>(first)));
  const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(static_cast<s64>(step * 8)));
  return (_mm512_cmpneq_epi64_mask(_mm512_loadu_si512(a), low) |
          _mm512_cmpneq_epi64_mask(_mm512_loadu_si512(a + 8), high)) == 0;
}
#else
/// True when lane l of the sixteen holds first + l * step.
template <class A>
SOFTGPU_INLINE bool is_run(const A* a, A first, A step) {
  A bad = 0;
  for (u32 l = 0; l < 16; ++l) bad |= a[l] ^ static_cast<A>(first + l * step);
  return bad == 0;
}
#endif

/// The pattern of lanes h..h+15: consecutive elements of `stride` bytes, all the same, or neither.
template <class A>
SOFTGPU_INLINE Pattern half_pattern(const A* a, u32 stride) {
  const A first = a[0];
  const A step = static_cast<A>(a[1] - first);
  if (step == stride) return is_run(a, first, A{stride}) ? Pattern::kUnit : Pattern::kOther;
  if (step == 0) return is_run(a, first, A{0}) ? Pattern::kSame : Pattern::kOther;
  return Pattern::kOther;
}

/// The same by sixteen indices that are extended before they are scaled: where they wrap around,
/// their addresses are not neighbours.
SOFTGPU_INLINE Pattern half_pattern_indexed(const Inst* i, const u32* a, u32 stride) {
  const u32 first = a[0], step = a[1] - first;
  if (step == 0) return is_run(a, first, u32{0}) ? Pattern::kSame : Pattern::kOther;
  if (step * i->bytes != stride || step > stride) return Pattern::kOther;
  const bool is_signed = (i->flags & kIndexSigned) != 0;
  const u32 last = is_signed ? u32{INT32_MAX} : UINT32_MAX;
  if ((!is_signed || static_cast<s32>(first) >= 0) && first > last - 15 * step)
    return Pattern::kOther;
  return is_run(a, first, step) ? Pattern::kUnit : Pattern::kOther;
}

template <Mode M>
SOFTGPU_INLINE Pattern half_pattern(const Warp& w, const Inst* i, int h, u32 stride) {
  if constexpr (is_fixed(M)) return Pattern::kSame;
  if constexpr (M == Mode::kShared32) {
    return half_pattern(row<u32>(w, i->a) + h, stride);
  } else if constexpr (M == Mode::kIndexed) {
    return half_pattern_indexed(i, row<u32>(w, i->a) + h, stride);
  } else {
    return half_pattern(row<u64>(w, i->a) + h, stride);
  }
}

/// Where the lanes' cells are. Made before the first of them is touched: what a locked instruction
/// is followed by waits for it, loads above all.
template <Mode M>
void places_in(const Warp& w, const Inst* i, u64 bytes, u64* places) {
  if constexpr (!in_shared(M) && M != Mode::kLocal) {
    if (w.mask == kAllLanes) {
      u64 bits = 0;
      lane_addresses<M, 32>(w, i, 0, places);
      for (int l = 0; l < 32; ++l) bits |= places[l];
      if (__builtin_expect((bits & (bytes - 1)) == 0, 1)) return;
    }
  }
  for_each_lane(w.mask, [&](int l) {
    places[l] = reinterpret_cast<u64>(located<M>(w, lane_address<M>(w, i, l), bytes, bytes));
  });
}
inline void places_of(const Warp& w, const Inst* i, Mode mode, u64 bytes, u64* places) {
  switch (mode) {
    case Mode::kShared32:
      return places_in<Mode::kShared32>(w, i, bytes, places);
    case Mode::kShared64:
      return places_in<Mode::kShared64>(w, i, bytes, places);
    case Mode::kSharedFixed:
      return places_in<Mode::kSharedFixed>(w, i, bytes, places);
    case Mode::kIndexed:
      return places_in<Mode::kIndexed>(w, i, bytes, places);
    case Mode::kFixed:
      return places_in<Mode::kFixed>(w, i, bytes, places);
    case Mode::kLocal:
      return places_in<Mode::kLocal>(w, i, bytes, places);
    default:
      return places_in<Mode::kPointer>(w, i, bytes, places);
  }
}

}  // namespace
}  // namespace softgpu::ptx::SOFTGPU_ISA

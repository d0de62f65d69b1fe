// Loads and stores. A full warp whose addresses are consecutive or all the same, half by half,
// moves whole vectors; words from anywhere are gathered where the processor can; all else goes lane
// by lane. Every address is checked for alignment, and shared addresses against the window; what is
// not mapped at all is found by the processor (run/fault.cpp).
#include <bit>

#include "softgpu/ptx/exec/address.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

/// A memory element M widened to the box B by its own sign.
template <class B, class M>
SOFTGPU_INLINE B widened(M value) {
  if constexpr (std::is_signed_v<M>)
    return static_cast<B>(static_cast<std::make_signed_t<B>>(value));
  return static_cast<B>(value);
}

template <class M>
SOFTGPU_INLINE M read(const u8* p) {
  M value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}
template <class M>
SOFTGPU_INLINE void write(u8* p, M value) {
  __builtin_memcpy(p, &value, sizeof value);
}

template <class M, class B>
SOFTGPU_INLINE void read_run(B* d, const u8* p) {
  if constexpr (sizeof(M) == sizeof(B)) {
    __builtin_memcpy(d, p, 16 * sizeof(M));
  } else {
    const M* s = reinterpret_cast<const M*>(p);
    for (int l = 0; l < 16; ++l) d[l] = widened<B>(s[l]);
  }
}

/// Whether whole vectors are looked for. Local variables of neighbouring lanes are never
/// neighbours, and shared addresses have 32 bits nearly everywhere.
template <Mode A>
constexpr bool kPatterned = A != Mode::kLocal&& A != Mode::kShared64;

#if defined(__AVX512F__)
/// Sixteen words from where sixteen addresses say; false, and nothing done, where one of them is
/// illegal: then lane by lane it is found out which.
template <Mode A>
SOFTGPU_INLINE bool words_gather(const Warp& w, const u64* addresses, void* d) {
  const __m512i low = _mm512_loadu_si512(addresses);
  const __m512i high = _mm512_loadu_si512(addresses + 8);
  const __m512i any = _mm512_or_si512(low, high);
  if (_mm512_test_epi64_mask(any, _mm512_set1_epi64(3)) != 0) return false;
  const u8* base = nullptr;
  if constexpr (in_shared(A)) {
    if (w.shared_bytes < 4) return false;
    const __m512i last = _mm512_set1_epi64(static_cast<s64>(w.shared_bytes - 4));
    if (_mm512_cmpgt_epu64_mask(_mm512_max_epu64(low, high), last) != 0) return false;
    base = w.shared;
  }
  const __m256i first = _mm512_i64gather_epi32(low, base, 1);
  const __m256i second = _mm512_i64gather_epi32(high, base, 1);
  _mm256_storeu_si256(static_cast<__m256i*>(d), first);
  _mm256_storeu_si256(static_cast<__m256i*>(d) + 1, second);
  return true;
}
template <class M, class B>
constexpr bool kGathered = sizeof(M) == 4 && sizeof(B) == 4;
#else
template <Mode A>
SOFTGPU_INLINE bool words_gather(const Warp&, const u64*, void*) {
  return false;
}
template <class M, class B>
constexpr bool kGathered = false;
#endif

// The lanes from h on when the next sixteen indices have no pattern: their addresses are made
// together. Called at the very end, for what is live across a call would have to be saved by all
// who never make it.

template <class M, class B, Mode A>
[[gnu::noinline]] const Inst* load_scattered(const Warp& w, const Inst* i, int h) {
  B* d = row<B>(w, i->d);
  for (; h < 32; h += 16) {
    u64 addresses[16];
    lane_addresses<A, 16>(w, i, h, addresses);
    if constexpr (kGathered<M, B>) {
      if (words_gather<A>(w, addresses, d + h)) continue;
    }
    for (int l = 0; l < 16; ++l) {
      d[h + l] = widened<B>(read<M>(located<A>(w, addresses[l], sizeof(M), sizeof(M))));
    }
  }
  return i + 1;
}

template <class M, class B>
[[gnu::noinline]] const Inst* store_scattered(const Warp& w, const Inst* i, int h) {
  const B* s = row<B>(w, i->d);
  for (; h < 32; h += 16) {
    u64 addresses[16];
    lane_addresses<Mode::kIndexed, 16>(w, i, h, addresses);
    for (int l = 0; l < 16; ++l) {
      write<M>(located<Mode::kIndexed>(w, addresses[l], sizeof(M), sizeof(M)),
               static_cast<M>(s[h + l]));
    }
  }
  return i + 1;
}

template <class M, class B, Mode A>
const Inst* load(Warp& w, const Inst* i) {
  w.at = i;
  B* d = row<B>(w, i->d);
  if (kPatterned<A> && __builtin_expect(w.mask == kAllLanes, 1)) {
    for (int h = 0; h < 32; h += 16) {
      const Pattern pattern = half_pattern<A>(w, i, h, sizeof(M));
      if (pattern == Pattern::kUnit) {
        read_run<M>(d + h, located<A>(w, lane_address<A>(w, i, h), 16 * sizeof(M), sizeof(M)));
      } else if (pattern == Pattern::kSame) {
        const B value =
            widened<B>(read<M>(located<A>(w, lane_address<A>(w, i, h), sizeof(M), sizeof(M))));
        for (int l = h; l < h + 16; ++l) d[l] = value;
      } else if constexpr (A == Mode::kIndexed || kGathered<M, B>) {
        return load_scattered<M, B, A>(w, i, h);
      } else {
        for (int l = h; l < h + 16; ++l) {
          d[l] = widened<B>(read<M>(located<A>(w, lane_address<A>(w, i, l), sizeof(M), sizeof(M))));
        }
      }
    }
    return i + 1;
  }
  for_each_lane(w.mask, [&](int l) {
    d[l] = widened<B>(read<M>(located<A>(w, lane_address<A>(w, i, l), sizeof(M), sizeof(M))));
  });
  return i + 1;
}

template <class M, class B, Mode A>
const Inst* store(Warp& w, const Inst* i) {
  w.at = i;
  const B* s = row<B>(w, i->d);
  if (kPatterned<A> && __builtin_expect(w.mask == kAllLanes, 1)) {
    for (int h = 0; h < 32; h += 16) {
      const Pattern pattern = half_pattern<A>(w, i, h, sizeof(M));
      if (pattern == Pattern::kUnit) {
        u8* p = located<A>(w, lane_address<A>(w, i, h), 16 * sizeof(M), sizeof(M));
        if constexpr (sizeof(M) == sizeof(B)) {
          __builtin_memcpy(p, s + h, 16 * sizeof(M));
        } else {
          for (int l = 0; l < 16; ++l)
            write<M>(p + l * static_cast<int>(sizeof(M)), static_cast<M>(s[h + l]));
        }
      } else if constexpr (A == Mode::kIndexed) {
        return store_scattered<M, B>(w, i, h);
      } else {
        for (int l = h; l < h + 16; ++l) {
          write<M>(located<A>(w, lane_address<A>(w, i, l), sizeof(M), sizeof(M)),
                   static_cast<M>(s[l]));
        }
      }
    }
    return i + 1;
  }
  for_each_lane(w.mask, [&](int l) {
    write<M>(located<A>(w, lane_address<A>(w, i, l), sizeof(M), sizeof(M)), static_cast<M>(s[l]));
  });
  return i + 1;
}

// Vectors of N elements; their rows are d, b, c, e.

template <class B, int N>
struct VectorRows {
  B* rows[N];
  VectorRows(const Warp& w, const Inst* i) {
    const s32 offsets[4] = {i->d, i->b, i->c, i->e};
    for (int k = 0; k < N; ++k) rows[k] = row<B>(w, offsets[k]);
  }
};

template <class M, int N>
SOFTGPU_INLINE void read_vector(const VectorRows<M, N>& to, int l, const u8* p) {
  for (int k = 0; k < N; ++k) to.rows[k][l] = read<M>(p + k * static_cast<int>(sizeof(M)));
}

template <class M, Mode A, int N>
const Inst* load_vector(Warp& w, const Inst* i) {
  constexpr u32 kBytes = N * sizeof(M);
  w.at = i;
  const VectorRows<M, N> to(w, i);
  // Addresses first: the address row may be one of the destinations only for a later lane.
  if (__builtin_expect(w.mask == kAllLanes, 1)) {
    Pattern patterns[2] = {half_pattern<A>(w, i, 0, kBytes), half_pattern<A>(w, i, 16, kBytes)};
    u64 addresses[32];
    lane_addresses<A, 32>(w, i, 0, addresses);
    for (int h = 0; h < 32; h += 16) {
      if (patterns[h / 16] == Pattern::kUnit) {
        const M* p = reinterpret_cast<const M*>(located<A>(w, addresses[h], 16 * kBytes, kBytes));
        for (int k = 0; k < N; ++k) {
          M* d = to.rows[k] + h;
          for (int l = 0; l < 16; ++l) d[l] = p[l * N + k];
        }
      } else if (patterns[h / 16] == Pattern::kSame) {
        const M* p = reinterpret_cast<const M*>(located<A>(w, addresses[h], kBytes, kBytes));
        for (int k = 0; k < N; ++k) {
          const M value = p[k];
          M* d = to.rows[k] + h;
          for (int l = 0; l < 16; ++l) d[l] = value;
        }
      } else {
        for (int l = h; l < h + 16; ++l) {
          read_vector<M>(to, l, located<A>(w, addresses[l], kBytes, kBytes));
        }
      }
    }
    return i + 1;
  }
  for_each_lane(w.mask, [&](int l) {
    read_vector<M>(to, l, located<A>(w, lane_address<A>(w, i, l), kBytes, kBytes));
  });
  return i + 1;
}

template <class M, Mode A, int N>
const Inst* store_vector(Warp& w, const Inst* i) {
  constexpr u32 kBytes = N * sizeof(M);
  w.at = i;
  const VectorRows<M, N> from(w, i);
  for_each_lane(w.mask, [&](int l) {
    u8* p = located<A>(w, lane_address<A>(w, i, l), kBytes, kBytes);
    for (int k = 0; k < N; ++k) write<M>(p + k * static_cast<int>(sizeof(M)), from.rows[k][l]);
  });
  return i + 1;
}

// The call-parameter area and named local variables (flags 1): one stretch per lane.

struct LaneStretch {
  u8* start;
  u64 stride;
  LaneStretch(const Warp& w, const Inst* i) {
    const bool local = i->flags != 0;
    start = (local ? w.local : w.param_area) + static_cast<u64>(i->imm);
    stride = local ? w.local_bytes : w.param_stride;
  }
  u8* operator[](int l) const { return start + static_cast<u64>(l) * stride; }
};

template <class B, bool Load>
const Inst* lane_param(Warp& w, const Inst* i) {
  B* rows = row<B>(w, i->d);
  const LaneStretch places(w, i);
  for_each_lane(w.mask, [&](int l) {
    if constexpr (Load) {
      rows[l] = read<B>(places[l]);
    } else {
      write<B>(places[l], rows[l]);
    }
  });
  return i + 1;
}

// Elements that few kernels have: vectors of narrow ones, narrow ones as 64-bit registers or in
// seldom used address modes. One handler looks at Inst::mode when it runs.

template <class B>
B read_element(const u8* p, Element element) {
  switch (element.log_bytes | element.is_signed << 2) {
    case 0:
      return read<u8>(p);
    case 1:
      return read<u16>(p);
    case 2:
      return read<u32>(p);
    case 4:
      return widened<B>(read<s8>(p));
    case 5:
      return widened<B>(read<s16>(p));
    case 6:
      return widened<B>(read<s32>(p));
    default:
      return static_cast<B>(read<u64>(p));
  }
}

template <class B>
void write_element(u8* p, B value, Element element) {
  switch (element.log_bytes) {
    case 0:
      return write(p, static_cast<u8>(value));
    case 1:
      return write(p, static_cast<u16>(value));
    case 2:
      return write(p, static_cast<u32>(value));
    default:
      return write(p, static_cast<u64>(value));
  }
}

template <class B, bool Load>
const Inst* any_element(Warp& w, const Inst* i) {
  const Element element = std::bit_cast<Element>(i->mode);
  const int count = 1 << element.log_count;
  w.at = i;
  const Mode mode = static_cast<Mode>(element.address);
  alignas(64) u64 places[32];
  if (mode == Mode::kLaneParam) {
    const LaneStretch stretch(w, i);
    for_each_lane(w.mask, [&](int l) { places[l] = reinterpret_cast<u64>(stretch[l]); });
  } else {
    places_of(w, i, mode, u64{1} << (element.log_bytes + element.log_count), places);
  }
  const s32 rows[4] = {i->d, i->b, i->c, i->e};
  for (int k = 0; k < count; ++k) {
    B* values = row<B>(w, rows[k]);
    for_each_lane(w.mask, [&](int l) {
      u8* p = reinterpret_cast<u8*>(places[l]) + (k << element.log_bytes);
      if constexpr (Load) {
        values[l] = read_element<B>(p, element);
      } else {
        write_element<B>(p, values[l], element);
      }
    });
  }
  return i + 1;
}

template <class M, class B, Mode A, bool Load>
Handler one() {
  if constexpr (Load) {
    return load<M, B, A>;
  } else {
    return store<M, B, A>;
  }
}

/// Elements as wide as their registers: vectors through pointers, folded indices and 32-bit shared
/// addresses, single ones in all modes.
template <class B, Mode A, bool Load>
Handler pick_count(const Form& form) {
  if (form.vector == 1) return one<B, B, A, Load>();
  if constexpr (A != Mode::kPointer && A != Mode::kIndexed && A != Mode::kShared32) {
    return any_element<B, Load>;
  } else if constexpr (Load) {
    return form.vector == 2 ? load_vector<B, A, 2> : load_vector<B, A, 4>;
  } else {
    return form.vector == 2 ? store_vector<B, A, 2> : store_vector<B, A, 4>;
  }
}

template <class B, bool Load>
Handler pick_full(const Form& form) {
  switch (form.address) {
    case Mode::kPointer:
      return pick_count<B, Mode::kPointer, Load>(form);
    case Mode::kIndexed:
      return pick_count<B, Mode::kIndexed, Load>(form);
    case Mode::kShared32:
      return pick_count<B, Mode::kShared32, Load>(form);
    case Mode::kShared64:
      return pick_count<B, Mode::kShared64, Load>(form);
    case Mode::kFixed:
      return pick_count<B, Mode::kFixed, Load>(form);
    case Mode::kSharedFixed:
      return pick_count<B, Mode::kSharedFixed, Load>(form);
    case Mode::kLocal:
      return pick_count<B, Mode::kLocal, Load>(form);
    case Mode::kLaneParam:
      return form.vector == 1 ? lane_param<B, Load> : any_element<B, Load>;
  }
  return nullptr;
}

/// Narrower elements: one by one through pointers, folded indices and 32-bit shared addresses.
template <class M, class B, bool Load>
Handler pick_narrow(const Form& form) {
  if (form.vector == 1 && form.address == Mode::kPointer) return one<M, B, Mode::kPointer, Load>();
  if (form.vector == 1 && form.address == Mode::kShared32)
    return one<M, B, Mode::kShared32, Load>();
  if (form.vector == 1 && form.address == Mode::kIndexed) return one<M, B, Mode::kIndexed, Load>();
  return any_element<B, Load>;
}

template <bool Load>
Handler pick_element(const Form& form) {
  const u32 bytes = type_bytes(form.type);
  const bool sign = Load && type_is_signed(form.type);
  if (form.to_box == 8) {
    switch (bytes) {
      case 1:
      case 2:
        return any_element<u64, Load>;
      case 4:
        return sign ? pick_narrow<s32, u64, Load>(form) : pick_narrow<u32, u64, Load>(form);
      case 8:
        return pick_full<u64, Load>(form);
      default:
        return nullptr;
    }
  }
  switch (bytes) {
    case 1:
      return sign ? pick_narrow<s8, u32, Load>(form) : pick_narrow<u8, u32, Load>(form);
    case 2:
      return sign ? pick_narrow<s16, u32, Load>(form) : pick_narrow<u16, u32, Load>(form);
    case 4:
      return pick_full<u32, Load>(form);
    default:
      return nullptr;
  }
}

}  // namespace

Handler load_handler(const Form& form) { return pick_element<true>(form); }
Handler store_handler(const Form& form) { return pick_element<false>(form); }

}  // namespace softgpu::ptx::SOFTGPU_ISA

// Loads and stores. A full warp whose addresses are consecutive or all the same, half by half,
// moves whole vectors; all else goes lane by lane. Every address is checked for alignment, and
// shared addresses against the window; what is not mapped at all is found by the processor
// (run/fault.cpp).
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
/// neighbours, shared addresses have 32 bits nearly everywhere, and vectors of bytes or into wider
/// boxes are too rare to be worth their code.
template <class M, class B, Mode A, int N>
constexpr bool kPatterned = A != Mode::kLocal&& A != Mode::kShared64 &&
                            (N == 1 ||
                             (sizeof(M) > 1 && (sizeof(B) == 4 || sizeof(M) == sizeof(B))));

// The lanes from h on when the next sixteen indices have no pattern: their addresses are made
// together. Called at the very end, for what is live across a call would have to be saved by all
// who never make it.

template <class M, class B>
[[gnu::noinline]] const Inst* load_scattered(const Warp& w, const Inst* i, int h) {
  B* d = row<B>(w, i->d);
  for (; h < 32; h += 16) {
    u64 addresses[16];
    lane_addresses<Mode::kIndexed, 16>(w, i, h, addresses);
    for (int l = 0; l < 16; ++l) {
      d[h + l] =
          widened<B>(read<M>(located<Mode::kIndexed>(w, addresses[l], sizeof(M), sizeof(M))));
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
  if (kPatterned<M, B, A, 1> && __builtin_expect(w.mask == kAllLanes, 1)) {
    for (int h = 0; h < 32; h += 16) {
      const Pattern pattern = half_pattern<A>(w, i, h, sizeof(M));
      if (pattern == Pattern::kUnit) {
        read_run<M>(d + h, located<A>(w, lane_address<A>(w, i, h), 16 * sizeof(M), sizeof(M)));
      } else if (pattern == Pattern::kSame) {
        const B value =
            widened<B>(read<M>(located<A>(w, lane_address<A>(w, i, h), sizeof(M), sizeof(M))));
        for (int l = h; l < h + 16; ++l) d[l] = value;
      } else if constexpr (A == Mode::kIndexed) {
        return load_scattered<M, B>(w, i, h);
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
  if (kPatterned<M, B, A, 1> && __builtin_expect(w.mask == kAllLanes, 1)) {
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

template <class M, class B, int N>
SOFTGPU_INLINE void read_vector(const VectorRows<B, N>& to, int l, const u8* p) {
  for (int k = 0; k < N; ++k)
    to.rows[k][l] = widened<B>(read<M>(p + k * static_cast<int>(sizeof(M))));
}

template <class M, class B, Mode A, int N>
const Inst* load_vector(Warp& w, const Inst* i) {
  constexpr u32 kBytes = N * sizeof(M);
  w.at = i;
  const VectorRows<B, N> to(w, i);
  // Addresses first: the address row may be one of the destinations only for a later lane.
  if (kPatterned<M, B, A, N> && __builtin_expect(w.mask == kAllLanes, 1)) {
    Pattern patterns[2] = {half_pattern<A>(w, i, 0, kBytes), half_pattern<A>(w, i, 16, kBytes)};
    u64 addresses[32];
    lane_addresses<A, 32>(w, i, 0, addresses);
    for (int h = 0; h < 32; h += 16) {
      if (patterns[h / 16] == Pattern::kUnit) {
        const M* p = reinterpret_cast<const M*>(located<A>(w, addresses[h], 16 * kBytes, kBytes));
        for (int k = 0; k < N; ++k) {
          B* d = to.rows[k] + h;
          for (int l = 0; l < 16; ++l) d[l] = widened<B>(p[l * N + k]);
        }
      } else if (patterns[h / 16] == Pattern::kSame) {
        const M* p = reinterpret_cast<const M*>(located<A>(w, addresses[h], kBytes, kBytes));
        for (int k = 0; k < N; ++k) {
          const B value = widened<B>(p[k]);
          B* d = to.rows[k] + h;
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

template <class M, class B, Mode A, int N>
const Inst* store_vector(Warp& w, const Inst* i) {
  constexpr u32 kBytes = N * sizeof(M);
  w.at = i;
  const VectorRows<B, N> from(w, i);
  for_each_lane(w.mask, [&](int l) {
    u8* p = located<A>(w, lane_address<A>(w, i, l), kBytes, kBytes);
    for (int k = 0; k < N; ++k)
      write<M>(p + k * static_cast<int>(sizeof(M)), static_cast<M>(from.rows[k][l]));
  });
  return i + 1;
}

// The call-parameter area and named local variables (flags 1): one stretch per lane.

template <class M, class B, int N, bool Load>
const Inst* lane_param(Warp& w, const Inst* i) {
  const VectorRows<B, N> rows(w, i);
  const bool local = i->flags != 0;
  u8* const start = (local ? w.local : w.param_area) + static_cast<u64>(i->imm);
  const u64 stride = local ? w.local_bytes : w.param_stride;
  for_each_lane(w.mask, [&](int l) {
    u8* p = start + static_cast<u64>(l) * stride;
    for (int k = 0; k < N; ++k, p += sizeof(M)) {
      if constexpr (Load) {
        rows.rows[k][l] = widened<B>(read<M>(p));
      } else {
        write<M>(p, static_cast<M>(rows.rows[k][l]));
      }
    }
  });
  return i + 1;
}

template <class M, class B, bool Load>
Handler pick_indexed(const Form& form) {
  constexpr Mode kMode = Mode::kIndexed;
  if constexpr (Load) {
    if (form.vector == 1) return load<M, B, kMode>;
    return form.vector == 2 ? load_vector<M, B, kMode, 2> : load_vector<M, B, kMode, 4>;
  } else {
    if (form.vector == 1) return store<M, B, kMode>;
    return form.vector == 2 ? store_vector<M, B, kMode, 2> : store_vector<M, B, kMode, 4>;
  }
}

template <class M, class B, bool Load>
Handler pick_vector(const Form& form) {
  const bool two = form.vector == 2;
  if (form.address == Mode::kLaneParam) {
    if (form.vector == 1) return lane_param<M, B, 1, Load>;
    return two ? lane_param<M, B, 2, Load> : lane_param<M, B, 4, Load>;
  }
  if constexpr (sizeof(M) == sizeof(B) || sizeof(B) == 4) {
    if (form.address == Mode::kIndexed) return pick_indexed<M, B, Load>(form);
  }
  switch (form.address) {
#define SOFTGPU_CASE(mode)                                                                \
  case Mode::mode:                                                                        \
    if constexpr (Load) {                                                                 \
      if (form.vector == 1) return load<M, B, Mode::mode>;                                \
      return two ? load_vector<M, B, Mode::mode, 2> : load_vector<M, B, Mode::mode, 4>;   \
    } else {                                                                              \
      if (form.vector == 1) return store<M, B, Mode::mode>;                               \
      return two ? store_vector<M, B, Mode::mode, 2> : store_vector<M, B, Mode::mode, 4>; \
    }
    SOFTGPU_CASE(kPointer)
    SOFTGPU_CASE(kShared32)
    SOFTGPU_CASE(kShared64)
    SOFTGPU_CASE(kFixed)
    SOFTGPU_CASE(kSharedFixed)
    SOFTGPU_CASE(kLocal)
#undef SOFTGPU_CASE
    default:
      return nullptr;
  }
}

template <bool Load>
Handler pick_element(const Form& form) {
  const u32 bytes = type_bytes(form.type);
  const bool sign = Load && type_is_signed(form.type);
  if (form.to_box == 8) {
    switch (bytes) {
      case 1:
        return sign ? pick_vector<s8, u64, Load>(form) : pick_vector<u8, u64, Load>(form);
      case 2:
        return sign ? pick_vector<s16, u64, Load>(form) : pick_vector<u16, u64, Load>(form);
      case 4:
        return sign ? pick_vector<s32, u64, Load>(form) : pick_vector<u32, u64, Load>(form);
      case 8:
        return pick_vector<u64, u64, Load>(form);
      default:
        return nullptr;
    }
  }
  switch (bytes) {
    case 1:
      return sign ? pick_vector<s8, u32, Load>(form) : pick_vector<u8, u32, Load>(form);
    case 2:
      return sign ? pick_vector<s16, u32, Load>(form) : pick_vector<u16, u32, Load>(form);
    case 4:
      return pick_vector<u32, u32, Load>(form);
    default:
      return nullptr;
  }
}

}  // namespace

Handler load_handler(const Form& form) { return pick_element<true>(form); }
Handler store_handler(const Form& form) { return pick_element<false>(form); }

}  // namespace softgpu::ptx::SOFTGPU_ISA

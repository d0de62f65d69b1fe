// What the lanes of a warp do with each other: shuffles, votes, matches, reductions; and rows
// filled from warp state.
#include "softgpu/ptx/exec/lanes.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

enum ShuffleMode : u8 { kUp, kDown, kButterfly, kIndex };

/// The source lane of every lane, and whether it was in bounds.
template <ShuffleMode Mode>
SOFTGPU_INLINE u32 shuffle_sources(const u32* b, const u32* c, u32* source) {
  return bits_where([=](int lane) {
    const u32 l = static_cast<u32>(lane);
    const u32 value = b[l] & 31, clamp = c[l] & 31, segment = (c[l] >> 8) & 31;
    const u32 first = l & segment;
    const u32 bound = first | (clamp & ~segment);
    u32 from = 0;
    bool inside = false;
    if constexpr (Mode == kUp) {
      from = l - value;
      inside = static_cast<s32>(from) >= static_cast<s32>(bound);
    } else {
      from = Mode == kDown        ? l + value
             : Mode == kButterfly ? l ^ value
                                  : first | (value & ~segment);
      inside = from <= bound;
    }
    source[l] = inside ? from : l;
    return inside;
  });
}

SOFTGPU_INLINE void permuted(u32* out, const u32* in, const u32* source) {
#if defined(__AVX512F__)
  const __m512i lo = _mm512_load_si512(in), hi = _mm512_load_si512(in + 16);
  for (int h = 0; h < 32; h += 16) {
    _mm512_store_si512(out + h, _mm512_permutex2var_epi32(lo, _mm512_load_si512(source + h), hi));
  }
#elif defined(__AVX2__)
  for (int h = 0; h < 32; h += 8) {
    const __m256i from = _mm256_load_si256(reinterpret_cast<const __m256i*>(source + h));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + h),
                       _mm256_i32gather_epi32(reinterpret_cast<const int*>(in), from, 4));
  }
#else
  for (int l = 0; l < 32; ++l) out[l] = in[source[l]];
#endif
}

/// A lane that does not take part is read as 0: undefined in the ISA, but programs in the wild rely
/// on it.
template <ShuffleMode Mode>
const Inst* shuffle(Warp& w, const Inst* i) {
  alignas(64) u32 source[32];
  alignas(64) u32 value[32];
  const u32 inside = shuffle_sources<Mode>(row<u32>(w, i->b), row<u32>(w, i->c), source);
  permuted(value, row<u32>(w, i->a), source);
  const u32 mask = w.mask;
  if (mask == kAllLanes) {
    __builtin_memcpy(row<u32>(w, i->d), value, sizeof value);
  } else {
    for_lanes(w, row<u32>(w, i->d),
              [&](int l) { return (mask >> source[l] & 1) != 0 ? value[l] : 0; });
  }
  if (i->flags != 0) predicate_set(w, i->f, inside);
  return i + 1;
}

enum VoteMode : u8 { kAll, kAny, kUniform, kBallot };

/// The members of a *.sync operation: what the mask operand of the first active lane says.
SOFTGPU_INLINE u32 members(const Warp& w, s32 mask_row) {
  return w.mask & row<u32>(w, mask_row)[__builtin_ctz(w.mask)];
}

template <VoteMode Mode>
const Inst* vote(Warp& w, const Inst* i) {
  const u32 p = predicate(w, i->a) ^ ((i->flags & 4) != 0 ? ~0u : 0u);
  const u32 there = members(w, i->b);
  const u32 yes = p & there;
  if constexpr (Mode == kBallot) {
    for_lanes(w, row<u32>(w, i->d), [=](int) { return yes; });
  } else {
    const bool all = yes == there, any = yes != 0;
    const bool result = Mode == kAll ? all : Mode == kAny ? any : all || !any;
    predicate_set(w, i->d, result ? ~0u : 0u);
  }
  return i + 1;
}

template <class T, bool All>
const Inst* match(Warp& w, const Inst* i) {
  const T* a = row<T>(w, i->a);
  const u32 there = members(w, i->b);
  alignas(64) u32 equal[32] = {};
  bool same = true;
  for (u32 rest = there; rest != 0;) {
    const T value = a[__builtin_ctz(rest)];
    u32 group = 0;
    for_each_lane(rest, [&](int l) { group |= a[l] == value ? kLaneBit[l] : 0; });
    same = same && group == there;
    for_each_lane(group, [&](int l) { equal[l] = group; });
    rest &= ~group;
  }
  for_lanes(w, row<u32>(w, i->d), [&](int l) { return All ? (same ? there : 0) : equal[l]; });
  if (All && i->flags != 0) predicate_set(w, i->f, same ? ~0u : 0u);
  return i + 1;
}

enum ReduxMode : u8 { kAddUp, kLeast, kMost, kAndAll, kOrAll, kXorAll };

template <class T, ReduxMode Mode>
const Inst* redux(Warp& w, const Inst* i) {
  const T* a = row<T>(w, i->a);
  const u32 there = members(w, i->b);
  if (there == 0) return i + 1;
  T result = a[__builtin_ctz(there)];
  for_each_lane(there & (there - 1), [&](int l) {
    const T value = a[l];
    switch (Mode) {
      case kAddUp:
        result = static_cast<T>(result + value);
        break;
      case kLeast:
        result = value < result ? value : result;
        break;
      case kMost:
        result = value > result ? value : result;
        break;
      case kAndAll:
        result &= value;
        break;
      case kOrAll:
        result |= value;
        break;
      case kXorAll:
        result ^= value;
        break;
    }
  });
  for_lanes(w, row<T>(w, i->d), [=](int) { return result; });
  return i + 1;
}

template <class T>
Handler pick_redux(u8 mode) {
  switch (mode) {
    case kAddUp:
      return redux<T, kAddUp>;
    case kLeast:
      return redux<T, kLeast>;
    case kMost:
      return redux<T, kMost>;
    case kAndAll:
      return redux<T, kAndAll>;
    case kOrAll:
      return redux<T, kOrAll>;
    case kXorAll:
      return redux<T, kXorAll>;
    default:
      return nullptr;
  }
}

const Inst* active_mask(Warp& w, const Inst* i) {
  const u32 mask = w.mask;
  for_lanes(w, row<u32>(w, i->d), [=](int) { return mask; });
  return i + 1;
}

/// A kernel parameter into a row; mode 1: sign extended.
template <class B>
const Inst* kernel_param(Warp& w, const Inst* i) {
  u64 value = 0;
  __builtin_memcpy(&value, w.params + i->imm, i->bytes);
  if (i->mode != 0) {
    const int drop = 64 - 8 * i->bytes;
    value = static_cast<u64>(static_cast<s64>(value << drop) >> drop);
  }
  const B boxed = static_cast<B>(value);
  for_lanes(w, row<B>(w, i->d), [=](int) { return boxed; });
  return i + 1;
}

/// mode: 0 kernel parameter, 1 this lane's call-parameter area.
const Inst* param_address(Warp& w, const Inst* i) {
  const bool lanes = i->mode != 0;
  const u64 start =
      (lanes ? reinterpret_cast<u64>(w.param_area) : reinterpret_cast<u64>(w.params)) +
      static_cast<u64>(i->imm);
  const u64 stride = lanes ? w.param_stride : 0;
  for_lanes(w, row<u64>(w, i->d), [=](int l) { return start + stride * static_cast<u64>(l); });
  return i + 1;
}

const Inst* local_address(Warp& w, const Inst* i) {
  const u64 start = reinterpret_cast<u64>(w.local) + static_cast<u64>(i->imm);
  const u64 stride = w.local_bytes;
  for_lanes(w, row<u64>(w, i->d), [=](int l) { return start + stride * static_cast<u64>(l); });
  return i + 1;
}

const Inst* shared_to_generic(Warp& w, const Inst* i) {
  const u64* a = row<u64>(w, i->a);
  const u64 window = reinterpret_cast<u64>(w.shared);
  for_lanes(w, row<u64>(w, i->d), [=](int l) { return a[l] + window; });
  return i + 1;
}

const Inst* generic_to_shared(Warp& w, const Inst* i) {
  const u64* a = row<u64>(w, i->a);
  const u64 window = reinterpret_cast<u64>(w.shared);
  for_lanes(w, row<u64>(w, i->d), [=](int l) { return a[l] - window; });
  return i + 1;
}

const Inst* is_space(Warp& w, const Inst* i) {
  const u64* a = row<u64>(w, i->a);
  const u64 shared = reinterpret_cast<u64>(w.shared), shared_bytes = w.shared_bytes;
  const u64 local = reinterpret_cast<u64>(w.cta->local), local_bytes = w.cta->local_bytes;
  const Space space = static_cast<Space>(i->mode);
  predicate_set(w, i->d, bits_where([=](int l) {
                  const bool in_shared = a[l] - shared < shared_bytes;
                  const bool in_local = a[l] - local < local_bytes;
                  if (space == Space::kShared) return in_shared;
                  if (space == Space::kLocal) return in_local;
                  return space == Space::kGlobal && !in_shared && !in_local;
                }));
  return i + 1;
}

Handler pick_shuffle(u8 mode) {
  switch (mode) {
    case kUp:
      return shuffle<kUp>;
    case kDown:
      return shuffle<kDown>;
    case kButterfly:
      return shuffle<kButterfly>;
    case kIndex:
      return shuffle<kIndex>;
    default:
      return nullptr;
  }
}

Handler pick_vote(u8 mode) {
  switch (mode) {
    case kAll:
      return vote<kAll>;
    case kAny:
      return vote<kAny>;
    case kUniform:
      return vote<kUniform>;
    case kBallot:
      return vote<kBallot>;
    default:
      return nullptr;
  }
}

}  // namespace

Handler warp_handler(const Form& form) {
  const bool wide = type_bytes(form.type) == 8;
  switch (form.op) {
    case Op::kShuffle:
      return pick_shuffle(form.mode);
    case Op::kVote:
      return pick_vote(form.mode);
    case Op::kMatchAny:
      return wide ? match<u64, false> : match<u32, false>;
    case Op::kMatchAll:
      return wide ? match<u64, true> : match<u32, true>;
    case Op::kRedux:
      return form.type == Type::kS32 ? pick_redux<s32>(form.mode) : pick_redux<u32>(form.mode);
    case Op::kActiveMask:
      return active_mask;
    case Op::kParam:
      return form.to_box == 8 ? kernel_param<u64> : kernel_param<u32>;
    case Op::kParamAddress:
      return param_address;
    case Op::kLocalAddress:
      return local_address;
    case Op::kSharedToGeneric:
      return shared_to_generic;
    case Op::kGenericToShared:
      return generic_to_shared;
    case Op::kIsSpace:
      return is_space;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

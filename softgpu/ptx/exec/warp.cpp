// What the lanes of a warp do with each other: shuffles, votes, matches, reductions; and rows
// filled from warp state.
#include "softgpu/ptx/exec/control.h"
#include "softgpu/ptx/exec/lanes.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

/// True when lanes that a .sync instruction names are not here yet.
SOFTGPU_INLINE bool must_gather(Warp& w, const Inst* i, s32 members) {
  if (__builtin_expect(w.mask == kAllLanes, 1) || (i->flags & kGather) == 0) return false;
  return warp_lacks(w, row<u32>(w, members));
}

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
  if (must_gather(w, i, i->e)) return warp_gather(w, i, row<u32>(w, i->e));
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
  if ((i->flags & 1) != 0) predicate_set(w, i->f, inside);
  return i + 1;
}

enum VoteMode : u8 { kAll, kAny, kUniform, kBallot };

/// body(members, lanes) for lanes that name the same others: the tiles of a warp execute one
/// instruction together, each with a mask of its own. `members` are those of them that are here.
template <class F>
SOFTGPU_INLINE void for_each_group(const Warp& w, s32 members, F body) {
  const u32* named = row<u32>(w, members);
  for (u32 rest = w.mask; rest != 0;) {
    const u32 mask = named[__builtin_ctz(rest)];
    const u32 same = rest & bits_where([=](int l) { return named[l] == mask; });
    body(mask & w.mask, same);
    rest &= ~same;
  }
}

/// d[lane] = value for the lanes.
template <class T>
SOFTGPU_INLINE void fill_lanes(T* d, u32 lanes, T value) {
#pragma GCC ivdep
  for (int l = 0; l < 32; ++l) d[l] = (lanes & kLaneBit[l]) != 0 ? value : d[l];
}

template <VoteMode Mode>
const Inst* vote(Warp& w, const Inst* i) {
  if (must_gather(w, i, i->b)) return warp_gather(w, i, row<u32>(w, i->b));
  const u32 p = predicate(w, i->a) ^ ((i->flags & 4) != 0 ? ~0u : 0u);
  u32 result = 0;
  for_each_group(w, i->b, [&](u32 there, u32 lanes) {
    const u32 yes = p & there;
    if constexpr (Mode == kBallot) {
      fill_lanes(row<u32>(w, i->d), lanes, yes);
    } else {
      const bool all = yes == there, any = yes != 0;
      if (Mode == kAll ? all : Mode == kAny ? any : all || !any) result |= lanes;
    }
  });
  if constexpr (Mode != kBallot) predicate_set(w, i->d, result);
  return i + 1;
}

/// equal[lane] = the lanes of `there` with its value; true when that is all of them.
template <class T>
bool match_lanes(const T* a, u32 there, u32* equal) {
  bool same = true;
  for (u32 rest = there; rest != 0;) {
    const T value = a[__builtin_ctz(rest)];
    u32 group = 0;
    for_each_lane(rest, [&](int l) { group |= a[l] == value ? kLaneBit[l] : 0; });
    same = same && group == there;
    for_each_lane(group, [&](int l) { equal[l] = group; });
    rest &= ~group;
  }
  return same;
}

template <class T, bool All>
const Inst* match(Warp& w, const Inst* i) {
  if (must_gather(w, i, i->b)) return warp_gather(w, i, row<u32>(w, i->b));
  alignas(64) u32 equal[32] = {};
  u32 all_same = 0;
  for_each_group(w, i->b, [&](u32 there, u32 lanes) {
    const bool same = match_lanes(row<T>(w, i->a), there, equal);
    if (same) all_same |= lanes;
    if (All && !same) fill_lanes(equal, lanes, 0u);
  });
  for_lanes(w, row<u32>(w, i->d), [&](int l) { return equal[l]; });
  if (All && (i->flags & 1) != 0) predicate_set(w, i->f, all_same);
  return i + 1;
}

enum ReduxMode : u8 { kAddUp, kLeast, kMost, kAndAll, kOrAll, kXorAll };

template <class T, ReduxMode Mode>
T reduced(T a, T b) {
  switch (Mode) {
    case kAddUp:
      return static_cast<T>(a + b);
    case kLeast:
      return b < a ? b : a;
    case kMost:
      return b > a ? b : a;
    case kAndAll:
      return a & b;
    case kOrAll:
      return a | b;
    default:
      return a ^ b;
  }
}

template <class T, ReduxMode Mode>
const Inst* redux(Warp& w, const Inst* i) {
  if (must_gather(w, i, i->b)) return warp_gather(w, i, row<u32>(w, i->b));
  alignas(64) T a[32];
  __builtin_memcpy(a, row<T>(w, i->a), sizeof a);
  for_each_group(w, i->b, [&](u32 there, u32 lanes) {
    if (there == 0) return;
    T result = a[__builtin_ctz(there)];
    for_each_lane(there & (there - 1), [&](int l) { result = reduced<T, Mode>(result, a[l]); });
    fill_lanes(row<T>(w, i->d), lanes, result);
  });
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

/// The space that an address is in, among those that have a window; everything else is global.
Space space_at(const Warp& w, u64 address) {
  const Program& program = *w.cta->program;
  if (address - reinterpret_cast<u64>(w.shared) < w.shared_bytes) return Space::kShared;
  if (address - reinterpret_cast<u64>(w.cta->local) < w.cta->local_bytes) return Space::kLocal;
  for (const auto& [start, bytes] : w.stack_blocks) {
    if (address - reinterpret_cast<u64>(start) < bytes) return Space::kLocal;
  }
  if (address - reinterpret_cast<u64>(w.params) < program.info.param_bytes) return Space::kParam;
  for (const auto& [start, bytes] : program.constants) {
    if (address - start < bytes) return Space::kConst;
  }
  return Space::kGlobal;
}

const Inst* is_space(Warp& w, const Inst* i) {
  const u64* a = row<u64>(w, i->a);
  const Space space = static_cast<Space>(i->mode);
  u32 inside = 0;
  for_each_lane(w.mask, [&](int l) { inside |= space_at(w, a[l]) == space ? kLaneBit[l] : 0; });
  predicate_set(w, i->d, inside);
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

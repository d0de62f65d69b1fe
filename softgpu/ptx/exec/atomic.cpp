// atom and red. A CTA runs on one thread at a time, so shared memory needs no locked instructions;
// everything else is a compare-and-swap loop on the real memory, which makes atomics work across
// CTAs, threads and processes.
#include "softgpu/ptx/exec/address.h"
#include "softgpu/ptx/exec/control.h"
#include "softgpu/ptx/exec/narrow.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

template <class T>
using Bits = std::conditional_t<sizeof(T) == 2, u16, std::conditional_t<sizeof(T) == 4, u32, u64>>;

struct Half {
  u16 bits;
};
struct Bfloat {
  u16 bits;
};
struct HalfPair {
  u32 bits;
};
struct BfloatPair {
  u32 bits;
};

template <AtomicOp Kind, class T>
T combined(T old, T b, T c) {
  if constexpr (std::is_floating_point_v<T>) {
    const T sum = old + b;
    return sum == sum ? sum
                      : __builtin_bit_cast(T, sizeof(T) == 4 ? Bits<T>{0x7fffffffu}
                                                             : static_cast<Bits<T>>(~u64{0} >> 1));
  }
  if constexpr (Kind == AtomicOp::kAdd) return static_cast<T>(old + b);
  if constexpr (Kind == AtomicOp::kMin) return b < old ? b : old;
  if constexpr (Kind == AtomicOp::kMax) return old < b ? b : old;
  if constexpr (Kind == AtomicOp::kExchange) return b;
  if constexpr (std::is_integral_v<T>) {
    if constexpr (Kind == AtomicOp::kCas) return old == b ? c : old;
    if constexpr (Kind == AtomicOp::kAnd) return static_cast<T>(old & b);
    if constexpr (Kind == AtomicOp::kOr) return static_cast<T>(old | b);
    if constexpr (Kind == AtomicOp::kXor) return static_cast<T>(old ^ b);
    if constexpr (Kind == AtomicOp::kInc) return old >= b ? T{0} : static_cast<T>(old + 1);
    if constexpr (Kind == AtomicOp::kDec) return old == 0 || old > b ? b : static_cast<T>(old - 1);
  }
  return old;
}

/// f32 in global memory: subnormal operands and results are flushed, in shared memory they are not
/// (PTX ISA, atom).
struct FlushedFloat {
  f32 value;
};
f32 flushed(f32 x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.f, x) : x; }
/// Neither subnormal nor infinite nor NaN.
SOFTGPU_INLINE bool is_plain(f32 x) {
  const u32 bits = __builtin_bit_cast(u32, x) << 1;
  return (bits == 0) | (bits - 0x01000000u < 0xfe000000u);
}
template <AtomicOp Kind>
FlushedFloat combined(FlushedFloat old, FlushedFloat b, FlushedFloat) {
  // Asked rather than blended in: the locked instruction that follows waits for the whole chain.
  const f32 sum = old.value + b.value;
  if (__builtin_expect(is_plain(old.value) && is_plain(b.value) && is_plain(sum), 1)) return {sum};
  return {flushed(combined<Kind>(flushed(old.value), flushed(b.value), 0.f))};
}

u16 half_sum(u16 a, u16 b) { return half_of_float(float_of_half(a) + float_of_half(b)); }
u16 bfloat_sum(u16 a, u16 b) { return bfloat_of_float(float_of_bfloat(a) + float_of_bfloat(b)); }
template <AtomicOp>
Half combined(Half old, Half b, Half) {
  return {half_sum(old.bits, b.bits)};
}
template <AtomicOp>
Bfloat combined(Bfloat old, Bfloat b, Bfloat) {
  return {bfloat_sum(old.bits, b.bits)};
}
template <AtomicOp>
HalfPair combined(HalfPair old, HalfPair b, HalfPair) {
  const u32 low = half_sum(static_cast<u16>(old.bits), static_cast<u16>(b.bits));
  return {
      low |
      static_cast<u32>(half_sum(static_cast<u16>(old.bits >> 16), static_cast<u16>(b.bits >> 16)))
          << 16};
}
template <AtomicOp>
BfloatPair combined(BfloatPair old, BfloatPair b, BfloatPair) {
  const u32 low = bfloat_sum(static_cast<u16>(old.bits), static_cast<u16>(b.bits));
  return {
      low |
      static_cast<u32>(bfloat_sum(static_cast<u16>(old.bits >> 16), static_cast<u16>(b.bits >> 16)))
          << 16};
}

/// The value in a lane of a row: 16-bit types live in the low half of 32 bits.
template <class T>
T unboxed(Box<Bits<T>> bits) {
  return __builtin_bit_cast(T, static_cast<Bits<T>>(bits));
}

template <AtomicOp Kind, class T>
T apply_locked(u8* p, T b, T c) {
  auto* cell = reinterpret_cast<Bits<T>*>(p);
  Bits<T> seen = __atomic_load_n(cell, __ATOMIC_RELAXED);
  for (;;) {
    const T old = __builtin_bit_cast(T, seen);
    const Bits<T> next = __builtin_bit_cast(Bits<T>, combined<Kind>(old, b, c));
    if (__atomic_compare_exchange_n(cell, &seen, next, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
      return old;
  }
}

/// Lanes of one cell, lowest first, at one instant: a locked instruction for all of them.
template <AtomicOp Kind, class T>
void apply_locked_together(u8* p, u32 mask, const Box<Bits<T>>* b, const Box<Bits<T>>* c,
                           Box<Bits<T>>* old) {
  auto* cell = reinterpret_cast<Bits<T>*>(p);
  Bits<T> seen = __atomic_load_n(cell, __ATOMIC_RELAXED);
  for (;;) {
    T value = __builtin_bit_cast(T, seen);
    for_each_lane(mask, [&](int l) {
      old[l] = __builtin_bit_cast(Bits<T>, value);
      value = combined<Kind>(value, unboxed<T>(b[l]), unboxed<T>(c[l]));
    });
    const Bits<T> next = __builtin_bit_cast(Bits<T>, value);
    if (__atomic_compare_exchange_n(cell, &seen, next, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
      return;
  }
}

/// Whether the lanes of the mask (two at least) all name the cell of the lowest.
SOFTGPU_INLINE bool is_one_cell(u32 mask, const u64* places) {
  if ((mask & (mask - 1)) == 0) return false;
  const u64 first = places[__builtin_ctz(mask)];
  u64 differs = 0;
  for (int l = 0; l < 32; ++l) differs |= (mask & kLaneBit[l]) != 0 ? places[l] ^ first : 0;
  return differs == 0;
}

/// Two neighbouring cells after they were combined.
template <AtomicOp Kind, class T>
u64 pair_combined(u64 seen, const T* b, const T* c) {
  u64 next = 0;
  for (int k = 0; k < 2; ++k) {
    const T old = __builtin_bit_cast(T, static_cast<u32>(seen >> (32 * k)));
    next |= u64{__builtin_bit_cast(u32, combined<Kind>(old, b[k], c[k]))} << (32 * k);
  }
  return next;
}

/// Two neighbours at once: half as many locked instructions, which are nearly all of the cost.
template <AtomicOp Kind, class T>
void apply_locked_pair(u8* p, const T* b, const T* c, T* old) {
  auto* cell = reinterpret_cast<u64*>(p);
  u64 seen = __atomic_load_n(cell, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(cell, &seen, pair_combined<Kind>(seen, b, c), true,
                                      __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
  }
  __builtin_memcpy(old, &seen, sizeof seen);
}

/// The new values of a warp's cells.
template <AtomicOp Kind, class T>
void row_combined(const T* seen, const T* b, const T* c, T* next) {
  for (int l = 0; l < 32; ++l) next[l] = combined<Kind>(seen[l], b[l], c[l]);
}
template <>
void row_combined<AtomicOp::kAdd, FlushedFloat>(const FlushedFloat* seen, const FlushedFloat* b,
                                                const FlushedFloat* c, FlushedFloat* next) {
  u32 odd = 0;
  for (int l = 0; l < 32; ++l) {
    next[l].value = seen[l].value + b[l].value;
    odd |= static_cast<u32>(!is_plain(seen[l].value)) | static_cast<u32>(!is_plain(b[l].value)) |
           static_cast<u32>(!is_plain(next[l].value));
  }
  if (__builtin_expect(odd == 0, 1)) return;
  for (int l = 0; l < 32; ++l) next[l] = combined<AtomicOp::kAdd>(seen[l], b[l], c[l]);
}

/// A warp's 32 cells one behind the other. All are looked at and combined before the first locked
/// instruction, which would hold up what comes after it; a pair that changed meanwhile is done
/// again.
template <AtomicOp Kind, class T>
void apply_locked_run(u8* p, const T* b, const T* c, T* old) {
  constexpr int kPairs = 16;
  auto* cells = reinterpret_cast<u64*>(p);
  u64 seen[kPairs], next[kPairs];
  for (int k = 0; k < kPairs; ++k) seen[k] = __atomic_load_n(cells + k, __ATOMIC_RELAXED);
  T cells_seen[32], cells_next[32];
  __builtin_memcpy(cells_seen, seen, sizeof seen);
  row_combined<Kind>(cells_seen, b, c, cells_next);
  __builtin_memcpy(next, cells_next, sizeof next);
  for (int k = 0; k < kPairs; ++k) {
    while (!__atomic_compare_exchange_n(cells + k, &seen[k], next[k], true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED)) {
      next[k] = pair_combined<Kind>(seen[k], b + 2 * k, c + 2 * k);
    }
  }
  __builtin_memcpy(old, seen, sizeof seen);
}

template <AtomicOp Kind, class T>
T apply_plain(u8* p, T b, T c) {
  T old;
  __builtin_memcpy(&old, p, sizeof old);
  const T next = combined<Kind>(old, b, c);
  __builtin_memcpy(p, &next, sizeof next);
  return old;
}

bool is_in(const u8* p, const u8* start, u64 bytes) {
  return reinterpret_cast<u64>(p) - reinterpret_cast<u64>(start) < bytes;
}

/// The memory that only this block can name, for generic addresses: shared memory needs no locks,
/// and on local memory hardware has no atomics.
class PrivateMemory {
 public:
  explicit PrivateMemory(const Warp& w)
      : warp_(w),
        start_(w.cta->shared),
        bytes_(reinterpret_cast<u64>(w.cta->local) + w.cta->local_bytes -
               reinterpret_cast<u64>(w.cta->shared)),
        has_stack_(!w.stack_blocks.empty()) {}
  /// True in shared memory; faults in local memory, which is right behind it or on the stack.
  SOFTGPU_INLINE bool is_shared(const u8* p) const {
    if (__builtin_expect(!has_stack_ && !is_in(p, start_, bytes_), 1)) return false;
    return looked_up(p);
  }

 private:
  bool looked_up(const u8* p) const {
    const Cta& cta = *warp_.cta;
    bool local = is_in(p, cta.local, cta.local_bytes);
    for (const auto& [start, size] : warp_.stack_blocks) local |= is_in(p, start, size);
    if (local) fault_raise(Fault::kInvalidAddressSpace, reinterpret_cast<u64>(p));
    return is_in(p, warp_.shared, warp_.shared_bytes);
  }

  const Warp& warp_;
  const u8* const start_;
  const u64 bytes_;
  const bool has_stack_;
};

/// The type whose sums are those of global memory.
template <class T>
using InGlobal = std::conditional_t<std::is_same_v<T, f32>, FlushedFloat, T>;

/// d: where the old values go (the sink for red). mode: AddressMode, looked at when it runs:
/// beside a locked instruction that is nothing, and five times the handlers would be something.
template <AtomicOp Kind, class T>
const Inst* atomic(Warp& w, const Inst* i) {
  w.at = i;
  const Mode mode = static_cast<Mode>(i->mode);
  alignas(64) u64 places[32];
  places_of(w, i, mode, sizeof(T), places);
  const PrivateMemory memory(w);
  const bool shared = in_shared(mode), wanted = i->d != kSinkRow;
  using Boxed = Box<Bits<T>>;
  const Boxed *b = row<Boxed>(w, i->b), *c = row<Boxed>(w, i->c);
  Boxed* d = row<Boxed>(w, i->d);
  using G = InGlobal<T>;
  if (!shared && is_one_cell(w.mask, places)) {
    u8* const p = reinterpret_cast<u8*>(places[__builtin_ctz(w.mask)]);
    if (!memory.is_shared(p)) {
      Boxed old[32];
      apply_locked_together<Kind, G>(p, w.mask, b, c, old);
      if (wanted) for_each_lane(w.mask, [&](int l) { d[l] = old[l]; });
      return i + 1;
    }
  }
  if constexpr (sizeof(T) == 4) {
    const auto at = [&](int l) { return reinterpret_cast<u8*>(places[l]); };
    if (w.mask == kAllLanes && !shared && places[0] % 8 == 0 && is_run(places, places[0], u64{4}) &&
        is_run(places + 16, places[0] + 64, u64{4}) && !memory.is_shared(at(0)) &&
        !memory.is_shared(at(31))) {
      G cells_b[32], cells_c[32], old[32];
      for (int l = 0; l < 32; ++l) cells_b[l] = unboxed<G>(b[l]);
      for (int l = 0; l < 32; ++l) cells_c[l] = unboxed<G>(c[l]);
      apply_locked_run<Kind>(at(0), cells_b, cells_c, old);
      if (wanted) __builtin_memcpy(d, old, sizeof old);
      return i + 1;
    }
  }
  for (u32 rest = w.mask; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    u8* p = reinterpret_cast<u8*>(places[l]);
    if (shared || memory.is_shared(p)) {
      const T old = apply_plain<Kind>(p, unboxed<T>(b[l]), unboxed<T>(c[l]));
      if (wanted) d[l] = __builtin_bit_cast(Bits<T>, old);
      continue;
    }
    if constexpr (sizeof(T) == 4) {
      const bool has_next = (rest & rest << 1 & 2u << l) != 0 && places[l] % 8 == 0;
      if (has_next && places[l + 1] == places[l] + 4) {
        const G two_b[] = {unboxed<G>(b[l]), unboxed<G>(b[l + 1])};
        const G two_c[] = {unboxed<G>(c[l]), unboxed<G>(c[l + 1])};
        G old[2];
        apply_locked_pair<Kind>(p, two_b, two_c, old);
        if (wanted) __builtin_memcpy(d + l, old, sizeof old);
        rest &= rest - 1;
        continue;
      }
    }
    const G old = apply_locked<Kind>(p, unboxed<G>(b[l]), unboxed<G>(c[l]));
    if (wanted) d[l] = __builtin_bit_cast(Bits<T>, old);
  }
  return i + 1;
}

template <class T>
Handler pick_integer(const Form& form) {
  switch (static_cast<AtomicOp>(form.mode)) {
    case AtomicOp::kAdd:
      return atomic<AtomicOp::kAdd, T>;
    case AtomicOp::kMin:
      return atomic<AtomicOp::kMin, T>;
    case AtomicOp::kMax:
      return atomic<AtomicOp::kMax, T>;
    default:
      break;
  }
  if constexpr (std::is_unsigned_v<T>) {
    switch (static_cast<AtomicOp>(form.mode)) {
      case AtomicOp::kAnd:
        return atomic<AtomicOp::kAnd, T>;
      case AtomicOp::kOr:
        return atomic<AtomicOp::kOr, T>;
      case AtomicOp::kXor:
        return atomic<AtomicOp::kXor, T>;
      case AtomicOp::kExchange:
        return atomic<AtomicOp::kExchange, T>;
      case AtomicOp::kCas:
        return atomic<AtomicOp::kCas, T>;
      case AtomicOp::kInc:
        return atomic<AtomicOp::kInc, T>;
      case AtomicOp::kDec:
        return atomic<AtomicOp::kDec, T>;
      default:
        break;
    }
  }
  return nullptr;
}

}  // namespace

Handler atomic_handler(const Form& form) {
  const bool add = static_cast<AtomicOp>(form.mode) == AtomicOp::kAdd;
  const bool swap = static_cast<AtomicOp>(form.mode) == AtomicOp::kCas;
  switch (form.type) {
    case Type::kB16:
      return swap ? atomic<AtomicOp::kCas, u16> : nullptr;
    case Type::kS32:
      return pick_integer<s32>(form);
    case Type::kB32:
    case Type::kU32:
      return pick_integer<u32>(form);
    case Type::kS64:
      return pick_integer<s64>(form);
    case Type::kB64:
    case Type::kU64:
      return pick_integer<u64>(form);
    case Type::kF32:
      return add ? atomic<AtomicOp::kAdd, f32> : nullptr;
    case Type::kF64:
      return add ? atomic<AtomicOp::kAdd, f64> : nullptr;
    case Type::kF16:
      return add ? atomic<AtomicOp::kAdd, Half> : nullptr;
    case Type::kBf16:
      return add ? atomic<AtomicOp::kAdd, Bfloat> : nullptr;
    case Type::kF16x2:
      return add ? atomic<AtomicOp::kAdd, HalfPair> : nullptr;
    case Type::kBf16x2:
      return add ? atomic<AtomicOp::kAdd, BfloatPair> : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

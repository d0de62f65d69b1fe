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

template <AtomicOp Kind, class T>
T apply_plain(u8* p, T b, T c) {
  T old;
  __builtin_memcpy(&old, p, sizeof old);
  const T next = combined<Kind>(old, b, c);
  __builtin_memcpy(p, &next, sizeof next);
  return old;
}

/// The lane's value in a row: 16-bit types live in the low half of 32 bits.
template <class T>
T lane_value(const Warp& w, s32 offset, int l) {
  const auto boxed = row<Box<Bits<T>>>(w, offset)[l];
  return __builtin_bit_cast(T, static_cast<Bits<T>>(boxed));
}

/// d: where the old values go (the sink for red).
template <AtomicOp Kind, class T, Mode A>
const Inst* atomic(Warp& w, const Inst* i) {
  w.at = i;
  auto* d = row<Box<Bits<T>>>(w, i->d);
  for_each_lane(w.mask, [&](int l) {
    u8* p = located<A>(w, lane_address<A>(w, i, l), sizeof(T), sizeof(T));
    const T b = lane_value<T>(w, i->b, l), c = lane_value<T>(w, i->c, l);
    const T old = in_shared(A) ? apply_plain<Kind>(p, b, c) : apply_locked<Kind>(p, b, c);
    d[l] = __builtin_bit_cast(Bits<T>, old);
  });
  return i + 1;
}

template <AtomicOp Kind, class T>
Handler pick_mode(Mode mode) {
  switch (mode) {
    case Mode::kPointer:
      return atomic<Kind, T, Mode::kPointer>;
    case Mode::kShared32:
      return atomic<Kind, T, Mode::kShared32>;
    case Mode::kShared64:
      return atomic<Kind, T, Mode::kShared64>;
    case Mode::kFixed:
      return atomic<Kind, T, Mode::kFixed>;
    case Mode::kSharedFixed:
      return atomic<Kind, T, Mode::kSharedFixed>;
    default:
      return nullptr;
  }
}

template <class T>
Handler pick_integer(const Form& form) {
  switch (static_cast<AtomicOp>(form.mode)) {
    case AtomicOp::kAdd:
      return pick_mode<AtomicOp::kAdd, T>(form.address);
    case AtomicOp::kMin:
      return pick_mode<AtomicOp::kMin, T>(form.address);
    case AtomicOp::kMax:
      return pick_mode<AtomicOp::kMax, T>(form.address);
    default:
      break;
  }
  if constexpr (std::is_unsigned_v<T>) {
    switch (static_cast<AtomicOp>(form.mode)) {
      case AtomicOp::kAnd:
        return pick_mode<AtomicOp::kAnd, T>(form.address);
      case AtomicOp::kOr:
        return pick_mode<AtomicOp::kOr, T>(form.address);
      case AtomicOp::kXor:
        return pick_mode<AtomicOp::kXor, T>(form.address);
      case AtomicOp::kExchange:
        return pick_mode<AtomicOp::kExchange, T>(form.address);
      case AtomicOp::kCas:
        return pick_mode<AtomicOp::kCas, T>(form.address);
      case AtomicOp::kInc:
        return pick_mode<AtomicOp::kInc, T>(form.address);
      case AtomicOp::kDec:
        return pick_mode<AtomicOp::kDec, T>(form.address);
      default:
        break;
    }
  }
  return nullptr;
}

}  // namespace

Handler atomic_handler(const Form& form) {
  const bool add = static_cast<AtomicOp>(form.mode) == AtomicOp::kAdd;
  switch (form.type) {
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
      return add ? pick_mode<AtomicOp::kAdd, f32>(form.address) : nullptr;
    case Type::kF64:
      return add ? pick_mode<AtomicOp::kAdd, f64>(form.address) : nullptr;
    case Type::kF16:
      return add ? pick_mode<AtomicOp::kAdd, Half>(form.address) : nullptr;
    case Type::kBf16:
      return add ? pick_mode<AtomicOp::kAdd, Bfloat>(form.address) : nullptr;
    case Type::kF16x2:
      return add ? pick_mode<AtomicOp::kAdd, HalfPair>(form.address) : nullptr;
    case Type::kBf16x2:
      return add ? pick_mode<AtomicOp::kAdd, BfloatPair>(form.address) : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

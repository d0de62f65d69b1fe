// Logic, shifts, bit fields, moves and packing.
#include "softgpu/ptx/exec/lanes.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

struct And {
  template <class T>
  static T eval(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T eval(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static T eval(T a, T b) {
    return a ^ b;
  }
};
struct Not {
  template <class T>
  static T eval(T a) {
    return ~a;
  }
};
struct Cnot {
  template <class T>
  static T eval(T a) {
    return a == 0 ? 1 : 0;
  }
};
struct Copy {
  template <class T>
  static T eval(T a) {
    return a;
  }
};

template <class T>
const Inst* shl(Warp& w, const Inst* i) {
  constexpr u32 kBits = sizeof(T) * 8;
  const auto* a = row<Box<T>>(w, i->a);
  const u32* b = row<u32>(w, i->b);
  for_lanes(w, row<Box<T>>(w, i->d), [=](int l) {
    const u32 shift = b[l];
    const Box<T> moved = static_cast<Box<T>>(a[l] << (shift & (kBits - 1)));
    return static_cast<Box<T>>(static_cast<T>(shift >= kBits ? 0 : moved));
  });
  return i + 1;
}

template <class T>
const Inst* shr(Warp& w, const Inst* i) {
  constexpr u32 kLast = sizeof(T) * 8 - 1;
  const auto* a = row<Box<T>>(w, i->a);
  const u32* b = row<u32>(w, i->b);
  for_lanes(w, row<Box<T>>(w, i->d), [=](int l) {
    const u32 shift = b[l] > kLast ? kLast : b[l];
    const T moved = static_cast<T>(static_cast<T>(a[l]) >> shift);
    const T beyond = std::is_signed_v<T> ? moved : T{0};
    return static_cast<Box<T>>(b[l] > kLast ? beyond : moved);
  });
  return i + 1;
}

/// Funnel shift of b:a; clamped or wrapped count.
template <bool Left, bool Wrap>
const Inst* shf(Warp& w, const Inst* i) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b), *c = row<u32>(w, i->c);
  for_lanes(w, row<u32>(w, i->d), [=](int l) {
    const u32 count = Wrap ? c[l] & 31 : (c[l] > 32 ? 32 : c[l]);
    const u64 pair = (static_cast<u64>(b[l]) << 32) | a[l];
    return static_cast<u32>(Left ? (pair << count) >> 32 : pair >> count);
  });
  return i + 1;
}

/// The selector of each result byte for the modes f4e, b4e, rc8, ecl, ecr and rc16, for the low
/// bits of c.
SOFTGPU_INLINE u32 prmt_selector(u32 mode, u32 c) {
  const u32 n = c & 3;
  u32 selector = 0;
  for (u32 k = 0; k < 4; ++k) {
    u32 byte = 0;
    switch (mode) {
      case 1:
        byte = n + k;
        break;  // f4e
      case 2:
        byte = (n - k) & 7;
        break;  // b4e
      case 3:
        byte = n;
        break;  // rc8
      case 4:
        byte = k > n ? k : n;
        break;  // ecl
      case 5:
        byte = k < n ? k : n;
        break;  // ecr
      default:
        byte = ((n & 1) * 2) | (k & 1);
        break;  // rc16
    }
    selector |= byte << (4 * k);
  }
  return selector;
}

const Inst* prmt(Warp& w, const Inst* i) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b), *c = row<u32>(w, i->c);
  const u32 mode = i->mode;
  for_lanes(w, row<u32>(w, i->d), [=](int l) {
    const u64 pair = (static_cast<u64>(b[l]) << 32) | a[l];
    const u32 selector = mode == 0 ? c[l] : prmt_selector(mode, c[l]);
    u32 result = 0;
    for (int k = 0; k < 4; ++k) {
      const u32 pick = selector >> (4 * k);
      const u32 byte = static_cast<u32>(pair >> (8 * (pick & 7))) & 0xff;
      const u32 sign = (byte & 0x80) != 0 ? 0xff : 0;
      result |= ((pick & 8) != 0 ? sign : byte) << (8 * k);
    }
    return result;
  });
  return i + 1;
}

template <class U>
SOFTGPU_INLINE U ones(u32 count) {
  constexpr u32 kBits = sizeof(U) * 8;
  return count >= kBits ? ~U{0} : static_cast<U>((U{1} << (count & (kBits - 1))) - 1);
}

template <class T>
const Inst* bfe(Warp& w, const Inst* i) {
  using U = std::make_unsigned_t<T>;
  constexpr u32 kBits = sizeof(T) * 8;
  const U* a = row<U>(w, i->a);
  const u32 *b = row<u32>(w, i->b), *c = row<u32>(w, i->c);
  for_lanes(w, row<U>(w, i->d), [=](int l) {
    const u32 start = b[l] & 0xff, length = c[l] & 0xff;
    const u32 last = start + length - 1 < kBits - 1 ? start + length - 1 : kBits - 1;
    const bool negative = std::is_signed_v<T> && length != 0 && ((a[l] >> last) & 1) != 0;
    const u32 there = start >= kBits ? 0 : (length < kBits - start ? length : kBits - start);
    const U field = start >= kBits ? U{0} : static_cast<U>((a[l] >> start) & ones<U>(there));
    return negative ? static_cast<U>(field | ~ones<U>(there)) : field;
  });
  return i + 1;
}

template <class U>
const Inst* bfi(Warp& w, const Inst* i) {
  constexpr u32 kBits = sizeof(U) * 8;
  const U *a = row<U>(w, i->a), *b = row<U>(w, i->b);
  const u32 *c = row<u32>(w, i->c), *e = row<u32>(w, i->e);
  for_lanes(w, row<U>(w, i->d), [=](int l) {
    const u32 start = c[l] & 0xff, length = e[l] & 0xff;
    const U mask = start >= kBits ? U{0} : static_cast<U>(ones<U>(length) << start);
    const U field = start >= kBits ? U{0} : static_cast<U>(a[l] << start);
    return static_cast<U>((b[l] & ~mask) | (field & mask));
  });
  return i + 1;
}

template <bool Wrap>
const Inst* bmsk(Warp& w, const Inst* i) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b);
  for_lanes(w, row<u32>(w, i->d), [=](int l) {
    const u32 start = Wrap ? a[l] & 31 : a[l], length = Wrap ? b[l] & 31 : b[l];
    return start >= 32 ? 0 : ones<u32>(length) << start;
  });
  return i + 1;
}

template <class U>
const Inst* popc(Warp& w, const Inst* i) {
  const U* a = row<U>(w, i->a);
  for_lanes(w, row<u32>(w, i->d), [=](int l) {
    return static_cast<u32>(sizeof(U) == 8 ? __builtin_popcountll(a[l])
                                           : __builtin_popcount(static_cast<u32>(a[l])));
  });
  return i + 1;
}

template <class U>
SOFTGPU_INLINE u32 leading_zeros(U value) {
  if (value == 0) return sizeof(U) * 8;
  return static_cast<u32>(sizeof(U) == 8 ? __builtin_clzll(value)
                                         : __builtin_clz(static_cast<u32>(value)));
}

template <class U>
const Inst* clz(Warp& w, const Inst* i) {
  const U* a = row<U>(w, i->a);
  for_lanes(w, row<u32>(w, i->d), [=](int l) { return leading_zeros(a[l]); });
  return i + 1;
}

template <class T, bool ShiftAmount>
const Inst* bfind(Warp& w, const Inst* i) {
  using U = std::make_unsigned_t<T>;
  const T* a = row<T>(w, i->a);
  for_lanes(w, row<u32>(w, i->d), [=](int l) {
    const U value = static_cast<U>(std::is_signed_v<T> && a[l] < 0 ? ~a[l] : a[l]);
    if (value == 0) return ~0u;
    const u32 zeros = leading_zeros(value);
    return ShiftAmount ? zeros : static_cast<u32>(sizeof(T) * 8 - 1) - zeros;
  });
  return i + 1;
}

SOFTGPU_INLINE u32 reverse(u32 v) {
  v = ((v >> 1) & 0x55555555u) | ((v & 0x55555555u) << 1);
  v = ((v >> 2) & 0x33333333u) | ((v & 0x33333333u) << 2);
  v = ((v >> 4) & 0x0f0f0f0fu) | ((v & 0x0f0f0f0fu) << 4);
  return __builtin_bswap32(v);
}
struct Brev {
  static u32 eval(u32 a) { return reverse(a); }
  static u64 eval(u64 a) {
    return (static_cast<u64>(reverse(static_cast<u32>(a))) << 32) |
           reverse(static_cast<u32>(a >> 32));
  }
};

/// Any function of three bits: the table's bit number (a,b,c).
const Inst* lop3(Warp& w, const Inst* i) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b), *c = row<u32>(w, i->c);
  u32 minterm[8];
  for (int k = 0; k < 8; ++k) minterm[k] = (i->mode >> k & 1) != 0 ? ~0u : 0u;
  for_lanes(w, row<u32>(w, i->d), [=](int l) {
    u32 result = 0;
    for (int k = 0; k < 8; ++k) {
      const u32 x = (k & 4) != 0 ? a[l] : ~a[l], y = (k & 2) != 0 ? b[l] : ~b[l],
                z = (k & 1) != 0 ? c[l] : ~c[l];
      result |= x & y & z & minterm[k];
    }
    return result;
  });
  return i + 1;
}

const Inst* pack64(Warp& w, const Inst* i) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b);
  for_lanes(w, row<u64>(w, i->d),
            [=](int l) { return static_cast<u64>(a[l]) | (static_cast<u64>(b[l]) << 32); });
  return i + 1;
}

const Inst* unpack64(Warp& w, const Inst* i) {
  const u64* a = row<u64>(w, i->a);
  for_lanes(w, row<u32>(w, i->d), [=](int l) { return static_cast<u32>(a[l]); });
  for_lanes(w, row<u32>(w, i->e), [=](int l) { return static_cast<u32>(a[l] >> 32); });
  return i + 1;
}

const Inst* pack32(Warp& w, const Inst* i) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b);
  for_lanes(w, row<u32>(w, i->d), [=](int l) { return (a[l] & 0xffff) | (b[l] << 16); });
  return i + 1;
}

/// Both halves go through a copy: a destination may be the source.
const Inst* unpack32(Warp& w, const Inst* i) {
  alignas(64) u32 a[32];
  __builtin_memcpy(a, row<u32>(w, i->a), sizeof a);
  for_lanes(w, row<u32>(w, i->d), [&](int l) { return a[l] & 0xffff; });
  for_lanes(w, row<u32>(w, i->e), [&](int l) { return a[l] >> 16; });
  return i + 1;
}

const Inst* pack64x4(Warp& w, const Inst* i) {
  const u32 *a = row<u32>(w, i->a), *b = row<u32>(w, i->b), *c = row<u32>(w, i->c),
            *e = row<u32>(w, i->e);
  for_lanes(w, row<u64>(w, i->d), [=](int l) {
    return static_cast<u64>((a[l] & 0xffff) | (b[l] << 16)) |
           (static_cast<u64>((c[l] & 0xffff) | (e[l] << 16)) << 32);
  });
  return i + 1;
}

const Inst* unpack64x4(Warp& w, const Inst* i) {
  const u64* a = row<u64>(w, i->a);
  const s32 rows[4] = {i->d, i->b, i->c, i->e};
  for (int k = 0; k < 4; ++k) {
    for_lanes(w, row<u32>(w, rows[k]),
              [=](int l) { return static_cast<u32>(a[l] >> (16 * k)) & 0xffff; });
  }
  return i + 1;
}

/// Predicate logic: bit 0 of mode negates a, bit 1 negates b.
template <class Fn>
const Inst* predicate_logic(Warp& w, const Inst* i) {
  const u32 a = predicate(w, i->a) ^ ((i->mode & 1) != 0 ? ~0u : 0u);
  const u32 b = predicate(w, i->b) ^ ((i->mode & 2) != 0 ? ~0u : 0u);
  predicate_set(w, i->d, Fn::eval(a, b));
  return i + 1;
}

const Inst* predicate_move(Warp& w, const Inst* i) {
  predicate_set(w, i->d, predicate(w, i->a) ^ ((i->mode & 1) != 0 ? ~0u : 0u));
  return i + 1;
}

template <class Fn>
Handler pick_logic(const Form& form) {
  if (form.type == Type::kPred) return predicate_logic<Fn>;
  return type_bytes(form.type) == 8 ? binary<u64, Fn> : binary<u32, Fn>;
}

Handler pick_shift(const Form& form) {
  const bool left = form.op == Op::kShl;
  switch (form.type) {
    case Type::kB16:
    case Type::kU16:
      return left ? shl<u16> : shr<u16>;
    case Type::kS16:
      return left ? shl<u16> : shr<s16>;
    case Type::kB32:
    case Type::kU32:
      return left ? shl<u32> : shr<u32>;
    case Type::kS32:
      return left ? shl<u32> : shr<s32>;
    case Type::kB64:
    case Type::kU64:
      return left ? shl<u64> : shr<u64>;
    case Type::kS64:
      return left ? shl<u64> : shr<s64>;
    default:
      return nullptr;
  }
}

template <class T>
Handler pick_bfind(bool amount) {
  return amount ? bfind<T, true> : bfind<T, false>;
}

Handler pick_field(const Form& form) {
  switch (form.type) {
    case Type::kS32:
      return form.op == Op::kBfe ? bfe<s32> : pick_bfind<s32>(form.flag);
    case Type::kS64:
      return form.op == Op::kBfe ? bfe<s64> : pick_bfind<s64>(form.flag);
    case Type::kU64:
      return form.op == Op::kBfe ? bfe<u64> : pick_bfind<u64>(form.flag);
    default:
      return form.op == Op::kBfe ? bfe<u32> : pick_bfind<u32>(form.flag);
  }
}

Handler pick_count(const Form& form) {
  const bool wide = type_bytes(form.type) == 8;
  switch (form.op) {
    case Op::kPopc:
      return wide ? popc<u64> : popc<u32>;
    case Op::kClz:
      return wide ? clz<u64> : clz<u32>;
    case Op::kBrev:
      return wide ? unary<u64, Brev> : unary<u32, Brev>;
    case Op::kBfi:
      return wide ? bfi<u64> : bfi<u32>;
    case Op::kNot:
      return wide ? unary<u64, Not> : unary<u32, Not>;
    case Op::kCnot:
      return wide                         ? unary<u64, Cnot>
             : type_bytes(form.type) == 2 ? unary<u16, Cnot>
                                          : unary<u32, Cnot>;
    default:
      return wide ? unary<u64, Copy> : unary<u32, Copy>;
  }
}

}  // namespace

Handler bits_handler(const Form& form) {
  switch (form.op) {
    case Op::kAnd:
      return pick_logic<And>(form);
    case Op::kOr:
      return pick_logic<Or>(form);
    case Op::kXor:
      return pick_logic<Xor>(form);
    case Op::kShl:
    case Op::kShr:
      return pick_shift(form);
    case Op::kShf:
      return form.mode != 0 ? (form.flag ? shf<true, true> : shf<true, false>)
                            : (form.flag ? shf<false, true> : shf<false, false>);
    case Op::kPrmt:
      return prmt;
    case Op::kBfe:
    case Op::kBfind:
      return pick_field(form);
    case Op::kBmsk:
      return form.flag ? bmsk<true> : bmsk<false>;
    case Op::kPopc:
    case Op::kClz:
    case Op::kBrev:
    case Op::kBfi:
    case Op::kNot:
    case Op::kCnot:
    case Op::kMove:
      return pick_count(form);
    case Op::kLop3:
      return lop3;
    case Op::kPack64:
      return pack64;
    case Op::kUnpack64:
      return unpack64;
    case Op::kPack32:
      return pack32;
    case Op::kUnpack32:
      return unpack32;
    case Op::kPack64x4:
      return pack64x4;
    case Op::kUnpack64x4:
      return unpack64x4;
    case Op::kMovePredicate:
      return predicate_move;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

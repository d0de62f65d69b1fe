// See rare.h. Semantics: PTX ISA, sections 9.7.1 (mul24, szext, fns), 9.7.9 (cvt.pack) and 9.7.17
// (video).
#include "softgpu/ptx/exec/rare.h"

#include <algorithm>

#include "softgpu/ptx/code/form.h"

namespace softgpu::ptx {
namespace {

bool has(const Inst* i, u8 flag) { return (i->flags & flag) != 0; }

s64 sign_extended(u32 value, u32 bits) {
  return static_cast<s64>(u64{value} << (64 - bits)) >> (64 - bits);
}
s64 zero_extended(u32 value, u32 bits) {
  return static_cast<s64>(u64{value} << (64 - bits) >> (64 - bits));
}

s64 clamped(s64 value, u32 bits, bool is_signed) {
  const s64 low = is_signed ? -(s64{1} << (bits - 1)) : 0;
  const s64 high = (s64{1} << (is_signed ? bits - 1 : bits)) - 1;
  return std::clamp(value, low, high);
}

/// The product of two 24-bit numbers has 48 bits: the low or the high 32 of them.
u32 product24(const Inst* i, u32 a, u32 b) {
  const bool is_signed = has(i, kRareSignedA);
  const s64 product = is_signed ? sign_extended(a, 24) * sign_extended(b, 24)
                                : zero_extended(a, 24) * zero_extended(b, 24);
  return static_cast<u32>(has(i, kRareHigh) ? product >> 16 : product);
}

u32 multiply_add24(const Inst* i, u32 a, u32 b, u32 c) {
  const u32 product = product24(i, a, b);
  if (!has(i, kRareSaturate)) return product + c;
  return static_cast<u32>(clamped(s64{static_cast<s32>(product)} + static_cast<s32>(c), 32, true));
}

u32 extend(const Inst* i, u32 a, u32 b) {
  const u32 bits = has(i, kRareWrap) ? b & 31 : std::min(b, 32u);
  if (bits == 0) return 0;
  return static_cast<u32>(has(i, kRareSignedA) ? sign_extended(a, bits) : zero_extended(a, bits));
}

/// The position of the |offset|th set bit of the mask, counted from `base` up or down.
u32 nth_set(u32 mask, u32 base, s32 offset) {
  const auto is_set = [mask](s64 at) { return (mask >> at & 1) != 0; };
  if (base > 31) return ~0u;
  if (offset == 0) return is_set(base) ? base : ~0u;
  const s64 step = offset > 0 ? 1 : -1;
  s64 left = offset > 0 ? offset : -s64{offset};
  for (s64 at = base; at >= 0 && at < 32; at += step) {
    if (is_set(at) && --left == 0) return static_cast<u32>(at);
  }
  return ~0u;
}

/// a above b, and c above both where they are bytes.
u32 packed(const Inst* i, u32 bits, u32 a, u32 b, u32 c) {
  const auto narrow = [&](u32 x) {
    const s64 value = clamped(static_cast<s32>(x), bits, has(i, kRareSignedD));
    return static_cast<u32>(value) & ((1u << bits) - 1);
  };
  const u32 pair = narrow(a) << bits | narrow(b);
  return bits == 8 ? c << 16 | pair : pair;
}

bool holds(Compare compare, s64 a, s64 b) {
  switch (compare) {
    case Compare::kEq:
      return a == b;
    case Compare::kNe:
      return a != b;
    case Compare::kLt:
      return a < b;
    case Compare::kLe:
      return a <= b;
    case Compare::kGt:
      return a > b;
    default:
      return a >= b;
  }
}

s64 video_element(const Inst* i, s64 a, s64 b) {
  switch (static_cast<RareOp>(i->mode)) {
    case RareOp::kVideoAdd:
      return a + b;
    case RareOp::kVideoSub:
      return a - b;
    case RareOp::kVideoAverage:
      return a + b >= 0 ? (a + b + 1) >> 1 : (a + b) >> 1;
    case RareOp::kVideoDistance:
      return a < b ? b - a : a - b;
    case RareOp::kVideoMin:
      return std::min(a, b);
    case RareOp::kVideoMax:
      return std::max(a, b);
    default:
      return holds(static_cast<Compare>(i->imm >> 8), a, b) ? 1 : 0;
  }
}

u32 video(const Inst* i, u32 a, u32 b, u32 c) {
  const u32 bits = static_cast<u32>(i->imm & 0xff);
  u32 result = has(i, kRareAccumulate) ? c : 0;
  for (u32 at = 0; at < 32; at += bits) {
    const s64 x =
        has(i, kRareSignedA) ? sign_extended(a >> at, bits) : zero_extended(a >> at, bits);
    const s64 y =
        has(i, kRareSignedB) ? sign_extended(b >> at, bits) : zero_extended(b >> at, bits);
    s64 value = video_element(i, x, y);
    if (has(i, kRareSaturate)) value = clamped(value, bits, has(i, kRareSignedD));
    if (has(i, kRareAccumulate)) {
      result += static_cast<u32>(value);
    } else {
      result |= (static_cast<u32>(value) & static_cast<u32>((u64{1} << bits) - 1)) << at;
    }
  }
  return result;
}

u32 lop3(u32 table, u32 a, u32 b, u32 c) {
  u32 result = 0;
  for (u32 k = 0; k < 8; ++k) {
    if ((table >> k & 1) == 0) continue;
    result |= ((k & 4) != 0 ? a : ~a) & ((k & 2) != 0 ? b : ~b) & ((k & 1) != 0 ? c : ~c);
  }
  return result;
}

u32 evaluated(const Inst* i, u32 a, u32 b, u32 c) {
  switch (static_cast<RareOp>(i->mode)) {
    case RareOp::kMul24:
      return product24(i, a, b);
    case RareOp::kMad24:
      return multiply_add24(i, a, b, c);
    case RareOp::kSignExtend:
      return extend(i, a, b);
    case RareOp::kFindNthSet:
      return nth_set(a, b, static_cast<s32>(c));
    case RareOp::kPackHalves:
      return packed(i, 16, a, b, c);
    case RareOp::kPackBytes:
      return packed(i, 8, a, b, c);
    case RareOp::kLop3Predicate:
      return lop3(static_cast<u32>(i->imm), a, b, c);
    default:
      return video(i, a, b, c);
  }
}

u32& row_bits(const Warp& w, s32 offset) { return *reinterpret_cast<u32*>(w.rf + offset); }

}  // namespace

const Inst* run_rare(Warp& w, const Inst* i) {
  const auto row = [&](s32 offset) { return reinterpret_cast<u32*>(w.rf + offset); };
  const u32 *a = row(i->a), *b = row(i->b), *c = row(i->c);
  u32* d = row(i->d);
  u32 set = 0;
  for (u32 rest = w.mask; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    d[l] = evaluated(i, a[l], b[l], c[l]);
    if (d[l] != 0) set |= 1u << l;
  }
  if (static_cast<RareOp>(i->mode) == RareOp::kLop3Predicate) {
    const u32 q = row_bits(w, i->e);
    const u32 result = has(i, kRareOr) ? set | q : set & q;
    u32& p = row_bits(w, i->f);
    p = (p & ~w.mask) | (result & w.mask);
  }
  return i + 1;
}

}  // namespace softgpu::ptx

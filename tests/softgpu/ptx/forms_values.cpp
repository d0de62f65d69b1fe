// See forms_values.h.
#include "tests/softgpu/ptx/forms_values.h"

#include <bit>
#include <cmath>
#include <span>
#include <vector>

namespace softgpu::ptx::test {
namespace {

constexpr u64 kIntegers[] = {0,
                             1,
                             2,
                             3,
                             5,
                             7,
                             8,
                             15,
                             16,
                             31,
                             32,
                             33,
                             63,
                             64,
                             65,
                             0x7f,
                             0x80,
                             0xff,
                             0x100,
                             0x7fff,
                             0x8000,
                             0xffff,
                             0x10000,
                             0x7fffff,
                             0x800000,
                             0xffffff,
                             0x7fffffff,
                             0x80000000,
                             0x80000001,
                             0xffffffff,
                             0x100000000,
                             0x7fffffffffffffff,
                             0x8000000000000000,
                             0xffffffff80000000,
                             0xffffffffffff8000,
                             0xffffffffffffff80,
                             0xfffffffffffffffe,
                             0xffffffffffffffff};
constexpr u64 kCounts[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 0xffffffff};
constexpr u64 kFloats[] = {0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x00000001, 0x80000001,
                           0x007fffff, 0x807fffff, 0x00800000, 0x80800000, 0x7f7fffff, 0xff7fffff,
                           0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xff812345,
                           0x3f000000, 0x3fc00000, 0x40200000, 0xbf000000, 0xc0200000, 0x4b000000,
                           0x4b800001, 0x4f000000, 0xcf000000, 0x4f7fffff, 0x5f000000, 0xdf000000,
                           0x477fe000, 0x477ff000, 0x33800000, 0x33000000, 0x387fc000, 0x38801000,
                           0x3f7fffff, 0x3f800001, 0x43000000, 0x42fe0000, 0x437f0000, 0xc3000000};
constexpr u64 kDoubles[] = {
    0x0000000000000000, 0x8000000000000000, 0x3ff0000000000000, 0xbff0000000000000,
    0x0000000000000001, 0x800fffffffffffff, 0x0010000000000000, 0x7fefffffffffffff,
    0xffefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000,
    0xfff8000000000001, 0x7ff0000000000001, 0x3fe0000000000000, 0xbfe0000000000000,
    0x3ff8000000000000, 0x4004000000000000, 0x41dfffffffc00000, 0x41e0000000000000,
    0xc1e0000000200000, 0x43e0000000000000, 0xc3e0000000000000, 0x43f0000000000000,
    0x47efffffe0000000, 0x47effffff0000000, 0x3690000000000000, 0x3680000000000001,
    0x380fffffc0000000, 0x40effc0000000000, 0x40effe0000000000, 0x3e60000000000000,
    0x405fe00000000000, 0x406fe80000000000};
constexpr u64 kHalves[] = {0x0000, 0x8000, 0x3c00, 0xbc00, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400,
                           0x8400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x7fff,
                           0x3800, 0x3e00, 0x4100, 0xb800, 0x3bff, 0x3c01, 0x5bf8, 0x7800, 0x1400};
constexpr u64 kBfloats[] = {0x0000, 0x8000, 0x3f80, 0xbf80, 0x0001, 0x8001, 0x007f, 0x807f, 0x0080,
                            0x8080, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0x7fff,
                            0x3f00, 0x3fc0, 0x4020, 0xbf00, 0x3f7f, 0x3f81, 0x42fe, 0x7f00, 0x0100};

std::span<const u64> edges_of(char letter) {
  switch (letter) {
    case 's':
      return kCounts;
    case 'f':
      return kFloats;
    case 'g':
      return kDoubles;
    case 'H':
      return kHalves;
    case 'K':
      return kBfloats;
    default:
      return kIntegers;
  }
}

u64 cut(u64 bits, char letter) {
  switch (letter) {
    case 'p':
      return bits & 1;
    case 'h':
    case 'H':
    case 'K':
      return bits & 0xffff;
    case 'd':
    case 'g':
      return bits;
    default:
      return bits & 0xffffffff;
  }
}

template <class F>
u64 paired(F half) {
  const u64 low = half();
  return low | half() << 16;
}

constexpr int kPowers = 2400;

/// 2^exponent, from a table: multiplication in this width is slow.
Quad power(int exponent) {
  static const std::vector<Quad> kTable = [] {
    std::vector<Quad> table(2 * kPowers + 1);
    table[kPowers] = 1;
    for (std::size_t k = 1; k <= kPowers; ++k) {
      table[kPowers + k] = table[kPowers + k - 1] * 2;
      table[kPowers - k] = table[kPowers - k + 1] / 2;
    }
    return table;
  }();
  return kTable[static_cast<std::size_t>(kPowers + exponent)];
}

/// A small whole number: sums of products of them are exact in every format.
u64 whole_value(char letter, std::mt19937_64& random) {
  const auto half = [&](const Format& format) {
    return rounded(Quad(static_cast<s64>(random() % 9)) - 4, 0, format, Rounding::kNearest);
  };
  if (letter == 'I') return paired([&] { return half(kF16); });
  if (letter == 'M') return half(kF64);
  return letter == 'J' ? paired([&] { return half(kBf16); }) : half(kF32);
}

bool is_whole(char letter) {
  return letter == 'I' || letter == 'J' || letter == 'M' || letter == 'N';
}

}  // namespace

u64 wild_value(char letter, std::mt19937_64& random) {
  if (is_whole(letter)) return whole_value(letter, random);
  if (letter == 'X') return paired([&] { return wild_value('H', random); });
  if (letter == 'Y') return paired([&] { return wild_value('K', random); });
  const std::span<const u64> edges = edges_of(letter);
  const u64 pick = random();
  return cut(pick % 4 < 2 ? edges[random() % edges.size()] : random(), letter);
}

u64 tame_value(char letter, std::mt19937_64& random) {
  if (is_whole(letter)) return whole_value(letter, random);
  const auto real = [&] { return static_cast<double>(static_cast<s64>(random())) * 0x1p-58; };
  switch (letter) {
    case 'f':
      return std::bit_cast<u32>(static_cast<float>(real()));
    case 'g':
      return std::bit_cast<u64>(real());
    case 'H':
      return rounded(real(), 0, kF16, Rounding::kNearest);
    case 'K':
      return rounded(real(), 0, kBf16, Rounding::kNearest);
    case 'X':
      return paired([&] { return tame_value('H', random); });
    case 'Y':
      return paired([&] { return tame_value('K', random); });
    case 's':
      return random() % 64;
    default:
      return cut(random() >> (random() % 64), letter);
  }
}

const Format& format_of(std::string_view type) {
  if (type == "f16" || type == "f16x2") return kF16;
  if (type == "bf16" || type == "bf16x2") return kBf16;
  if (type == "tf32") return kTf32;
  return type == "f64" ? kF64 : kF32;
}

Rounding rounding_of(const FormCase& form) {
  if (form.has("rz") || form.has("rzi")) return Rounding::kZero;
  if (form.has("rm") || form.has("rmi")) return Rounding::kDown;
  if (form.has("rp") || form.has("rpi")) return Rounding::kUp;
  return form.has("rna") ? Rounding::kAway : Rounding::kNearest;
}

bool is_nan(u64 bits, const Format& format) {
  const u64 sign = u64{1} << (format.exponent_bits + format.mantissa_bits);
  const u64 infinity = ((u64{1} << format.exponent_bits) - 1) << format.mantissa_bits;
  return (bits & (sign - 1)) > infinity;
}

u64 flushed(u64 bits, const Format& format) {
  const u64 sign = u64{1} << (format.exponent_bits + format.mantissa_bits);
  const u64 smallest = u64{1} << format.mantissa_bits;
  return (bits & (sign - 1)) < smallest ? bits & sign : bits;
}

u64 saturated(u64 bits, const Format& format) {
  const u64 sign = u64{1} << (format.exponent_bits + format.mantissa_bits);
  const u64 one = ((u64{1} << (format.exponent_bits - 1)) - 1) << format.mantissa_bits;
  if (is_nan(bits, format) || (bits & sign) != 0) return 0;
  return bits > one ? one : bits;
}

Quad number(u64 bits, const Format& format) {
  const u64 sign = u64{1} << (format.exponent_bits + format.mantissa_bits);
  const u64 fraction = bits & ((u64{1} << format.mantissa_bits) - 1);
  const int top = (1 << format.exponent_bits) - 1, bias = top >> 1;
  const int exponent = static_cast<int>((bits & (sign - 1)) >> format.mantissa_bits);
  const bool negative = (bits & sign) != 0;
  Quad size = 0;
  if (exponent == top) {
    size = fraction != 0 ? Quad(__builtin_nan("")) : Quad(__builtin_inf());
  } else {
    const u64 whole = exponent == 0 ? fraction : fraction | u64{1} << format.mantissa_bits;
    size = Quad(whole) * power((exponent == 0 ? 1 : exponent) - bias - format.mantissa_bits);
  }
  return negative ? -size : size;
}

double real_value(u64 bits, char letter) {
  const Format& format = letter == 'H' ? kF16 : letter == 'K' ? kBf16 : letter == 'g' ? kF64 : kF32;
  return static_cast<double>(number(bits, format));
}

u64 rounded(Quad value, Quad rest, const Format& format, Rounding rounding) {
  if (value != value) return format.nan;
  const bool negative = __builtin_signbit(value) != 0;
  const u64 sign = negative ? u64{1} << (format.exponent_bits + format.mantissa_bits) : 0;
  const u64 infinity = ((u64{1} << format.exponent_bits) - 1) << format.mantissa_bits;
  const Quad size = negative ? -value : value;
  const Quad beyond = negative ? -rest : rest;
  if (size > Quad(__LDBL_MAX__)) return sign | infinity;
  if (size == 0) return sign;
  const int smallest = 2 - (1 << (format.exponent_bits - 1));
  int exponent = 0;
  std::frexp(static_cast<long double>(size), &exponent);
  --exponent;
  if (power(exponent) > size) --exponent;
  if (exponent < smallest) exponent = smallest;
  const int unit = exponent - format.mantissa_bits;
  // More than 64 bits of exponent below the smallest unit scale to less than a half: no overflow.
  const Quad scaled = size * power(-unit);
  u64 count = static_cast<u64>(scaled);
  const Quad over = scaled - Quad(count);
  const auto side = [&](Quad mark) {
    return over > mark ? 1 : over < mark ? -1 : beyond > 0 ? 1 : beyond < 0 ? -1 : 0;
  };
  const int against_half = side(Quad(0.5)), against_zero = side(Quad(0));
  // Just below a representable number: it is the next one down that is being rounded.
  if (against_zero < 0) --count;
  const bool inexact = against_zero != 0;
  bool up = false;
  switch (rounding) {
    case Rounding::kNearest:
      up = against_zero < 0 || against_half > 0 || (against_half == 0 && count % 2 == 1);
      break;
    case Rounding::kAway:
      up = against_zero < 0 || against_half >= 0;
      break;
    case Rounding::kUp:
      up = inexact && !negative;
      break;
    case Rounding::kDown:
      up = inexact && negative;
      break;
    case Rounding::kZero:
      break;
  }
  const u64 bits = (static_cast<u64>(exponent - smallest) << format.mantissa_bits) + count + up;
  if (bits < infinity) return sign | bits;
  const bool to_infinity = rounding == Rounding::kNearest || rounding == Rounding::kAway ||
                           (rounding == Rounding::kUp && !negative) ||
                           (rounding == Rounding::kDown && negative);
  return sign | (to_infinity ? infinity : infinity - 1);
}

u64 smaller(const FormCase& form, u64 a, u64 b) {
  const Format& format = format_of(form.type());
  const u64 sign = u64{1} << (format.exponent_bits + format.mantissa_bits);
  const u64 sign_of_product = (a ^ b) & sign;
  if (form.has("abs")) {
    a &= sign - 1;
    b &= sign - 1;
  }
  const bool nan_a = is_nan(a, format), nan_b = is_nan(b, format);
  if ((nan_a && nan_b) || (form.has("NaN") && (nan_a || nan_b))) return format.nan;
  u64 result = a;
  if (nan_a || nan_b) {
    result = nan_a ? b : a;
  } else {
    const Quad x = number(a, format), y = number(b, format);
    // -0 is below +0.
    const bool first = x < y || (x == y && (a & sign) >= (b & sign));
    result = first == (form.op == "min") ? a : b;
  }
  return form.has("xorsign") ? (result & (sign - 1)) | sign_of_product : result;
}

Sum fused(Quad a, Quad b, Quad c) {
  const Quad product = a * b, sum = product + c;
  if (sum != sum || sum - sum != 0) return {sum, 0};
  const Quad part = sum - product;
  return {sum, (product - (sum - part)) + (c - part)};
}

}  // namespace softgpu::ptx::test

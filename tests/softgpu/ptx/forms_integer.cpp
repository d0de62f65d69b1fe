// Integer arithmetic: PTX ISA, sections 9.7.1 and 9.7.2. Everything is computed in 128 bits and
// cut to the type.
#include <algorithm>
#include <bit>

#include "tests/softgpu/ptx/forms.h"
#include "tests/softgpu/ptx/forms_values.h"

namespace softgpu::ptx::test {
namespace {

/// Integers of one type as mathematical numbers.
struct Integers {
  u32 bits;
  bool sign;

  explicit Integers(std::string_view type) : bits(bits_of(type)), sign(is_signed(type)) {}
  Int128 of(u64 register_bits) const {
    const u64 low = bits == 64 ? register_bits : register_bits & ((u64{1} << bits) - 1);
    if (sign && (low >> (bits - 1) & 1) != 0) return Int128{static_cast<s64>(low)} - above();
    return Int128{low};
  }
  u64 cut(Int128 value) const {
    const u64 low = static_cast<u64>(value);
    return bits == 64 ? low : low & ((u64{1} << bits) - 1);
  }
  Int128 least() const { return sign ? -(Int128{1} << (bits - 1)) : 0; }
  Int128 most() const { return (Int128{1} << (sign ? bits - 1 : bits)) - 1; }

 private:
  /// What the sign bit of a 64-bit number has taken off already.
  Int128 above() const { return bits == 64 ? 0 : Int128{1} << bits; }
};

Int128 high_part(const Integers& t, Int128 a, Int128 b) {
  if (t.sign || t.bits < 64) return (a * b) >> t.bits;
  return static_cast<Int128>((static_cast<Uint128>(a) * static_cast<Uint128>(b)) >> 64);
}
Int128 low_part(const Integers& t, Int128 a, Int128 b) {
  return Int128{t.cut(static_cast<Int128>(static_cast<Uint128>(a) * static_cast<Uint128>(b)))};
}

using Two = Int128 (*)(const Integers&, Int128, Int128);

Two two_operands(std::string_view op) {
  if (op == "add") return [](const Integers&, Int128 a, Int128 b) { return a + b; };
  if (op == "sub") return [](const Integers&, Int128 a, Int128 b) { return a - b; };
  if (op == "min") return [](const Integers&, Int128 a, Int128 b) { return a < b ? a : b; };
  if (op == "max") return [](const Integers&, Int128 a, Int128 b) { return a < b ? b : a; };
  // Division by zero is undefined in the ISA; hardware gives all ones, and the dividend.
  if (op == "div")
    return [](const Integers&, Int128 a, Int128 b) { return b == 0 ? Int128{-1} : a / b; };
  if (op == "rem") return [](const Integers&, Int128 a, Int128 b) { return b == 0 ? a : a % b; };
  return nullptr;
}

std::optional<Proof> prove_two(const FormCase& form) {
  const Two op = two_operands(form.op);
  if (op == nullptr) return std::nullopt;
  const Integers t(form.type());
  const char letter = letter_of(form.type());
  Proof proof = plain_proof(form, 2, letter, letter);
  const bool clamps = form.has("sat"), relu = form.has("relu");
  proof.reference = value_of([=](const u64* in) {
    const Int128 value = op(t, t.of(in[0]), t.of(in[1]));
    if (relu && value < 0) return u64{0};
    return t.cut(clamps ? std::clamp(value, t.least(), t.most()) : value);
  });
  return proof;
}

/// add, min and max of two 16-bit integers in a word.
std::optional<Proof> prove_pair(const FormCase& form) {
  const bool sign = form.has("s16x2");
  const Two op = two_operands(form.op);
  if (op == nullptr || (!sign && !form.has("u16x2"))) return std::nullopt;
  const Integers t(sign ? "s16" : "u16");
  const bool relu = form.has("relu");
  Proof proof = plain_proof(form, 2, 'r', 'r');
  proof.reference = value_of([=](const u64* in) {
    u64 result = 0;
    for (u32 at = 0; at < 32; at += 16) {
      const Int128 value = op(t, t.of(in[0] >> at), t.of(in[1] >> at));
      result |= (relu && value < 0 ? 0 : t.cut(value)) << at;
    }
    return result;
  });
  return proof;
}

std::optional<Proof> prove_one(const FormCase& form) {
  if (form.op != "abs" && form.op != "neg") return std::nullopt;
  const Integers t(form.type());
  const bool absolute = form.op == "abs";
  Proof proof = plain_proof(form, 1, letter_of(form.type()), letter_of(form.type()));
  proof.reference = value_of([=](const u64* in) {
    const Int128 a = t.of(in[0]);
    return t.cut(absolute && a >= 0 ? a : -a);
  });
  return proof;
}

std::optional<Proof> prove_product(const FormCase& form) {
  const bool adds = form.op == "mad";
  if (!adds && form.op != "mul") return std::nullopt;
  const Integers t(form.type());
  const char letter = letter_of(form.type());
  const bool wide = form.has("wide"), high = form.has("hi"), clamps = form.has("sat");
  const char result = !wide ? letter : t.bits == 16 ? 'r' : 'd';
  Proof proof = plain_proof(form, adds ? 3 : 2, result, letter);
  if (adds) proof.operands[2] = result;
  const Integers to(!wide          ? form.type()
                    : t.bits == 16 ? (t.sign ? "s32" : "u32")
                                   : (t.sign ? "s64" : "u64"));
  proof.reference = value_of([=](const u64* in) {
    const Int128 a = t.of(in[0]), b = t.of(in[1]), c = adds ? to.of(in[2]) : 0;
    const Int128 product = wide ? a * b : high ? high_part(t, a, b) : low_part(t, a, b);
    return to.cut(clamps ? std::clamp(product + c, to.least(), to.most()) : product + c);
  });
  return proof;
}

std::optional<Proof> prove_sad(const FormCase& form) {
  if (form.op != "sad") return std::nullopt;
  const Integers t(form.type());
  Proof proof = plain_proof(form, 3, letter_of(form.type()), letter_of(form.type()));
  proof.reference = value_of([=](const u64* in) {
    const Int128 distance = t.of(in[0]) - t.of(in[1]);
    return t.cut(t.of(in[2]) + (distance < 0 ? -distance : distance));
  });
  return proof;
}

/// mul24 and mad24: 24-bit operands, 48-bit product.
std::optional<Proof> prove_24(const FormCase& form) {
  const bool adds = form.op == "mad24";
  if (!adds && form.op != "mul24") return std::nullopt;
  const Integers t(form.type());
  Proof proof = plain_proof(form, adds ? 3 : 2, 'r', 'r');
  const bool high = form.has("hi"), clamps = form.has("sat");
  proof.reference = value_of([=](const u64* in) {
    const auto operand = [&](u64 x) {
      const s64 low = static_cast<s64>(x & 0xffffff);
      return t.sign && (low >> 23) != 0 ? low - 0x1000000 : low;
    };
    const s64 product = operand(in[0]) * operand(in[1]);
    const u64 part = t.cut(high ? product >> 16 : product);
    if (!adds) return part;
    const Int128 sum = t.of(part) + t.of(in[2]);
    return t.cut(clamps ? std::clamp(sum, t.least(), t.most()) : sum);
  });
  return proof;
}

u64 highest_bit(const Integers& t, u64 x) {
  const u64 bits = t.cut(t.sign && t.of(x) < 0 ? ~t.of(x) : t.of(x));
  for (u32 k = t.bits; k-- > 0;) {
    if ((bits >> k & 1) != 0) return k;
  }
  return 0xffffffff;
}

std::optional<Proof> prove_counts(const FormCase& form) {
  static constexpr std::string_view kOps[] = {"popc", "clz", "brev", "bfind"};
  if (std::find(std::begin(kOps), std::end(kOps), form.op) == std::end(kOps)) return std::nullopt;
  const Integers t(form.type());
  const char letter = letter_of(form.type());
  Proof proof = plain_proof(form, 1, form.op == "brev" ? letter : 'r', letter);
  const std::string_view op = form.op;
  const bool amount = form.has("shiftamt");
  proof.reference = value_of([=](const u64* in) -> u64 {
    u64 count = 0, reversed = 0;
    for (u32 k = 0; k < t.bits; ++k) {
      const u64 bit = in[0] >> k & 1;
      count += bit;
      reversed |= bit << (t.bits - 1 - k);
    }
    if (op == "popc") return count;
    if (op == "brev") return reversed;
    const u64 top = highest_bit(t, in[0]);
    if (op == "clz") return top == 0xffffffff ? t.bits : t.bits - 1 - top;
    return top != 0xffffffff && amount ? t.bits - 1 - top : top;
  });
  return proof;
}

std::optional<Proof> prove_fns(const FormCase& form) {
  if (form.op != "fns") return std::nullopt;
  Proof proof = plain_proof(form, 3, 'r', 'r');
  // Bases and offsets that name bits: beyond 31 the base is undefined.
  proof.text =
      "and.b32 %t8, B, 31; and.b32 %t9, C, 15; sub.s32 %t9, %t9, 7; fns.b32 D, A, %t8, %t9;";
  proof.reference = value_of([](const u64* in) -> u64 {
    const int base = static_cast<int>(in[1] & 31), offset = static_cast<int>(in[2] & 15) - 7;
    const auto is_set = [&](int at) { return (in[0] >> at & 1) != 0; };
    if (offset == 0) return is_set(base) ? static_cast<u64>(base) : 0xffffffff;
    int found = 0;
    for (int at = base; at >= 0 && at<32; at += offset> 0 ? 1 : -1) {
      if (is_set(at) && ++found == std::abs(offset)) return static_cast<u64>(at);
    }
    return 0xffffffff;
  });
  return proof;
}

/// PTX ISA: the pseudocode of bfe.
std::optional<Proof> prove_bfe(const FormCase& form) {
  if (form.op != "bfe") return std::nullopt;
  const Integers t(form.type());
  const char letter = letter_of(form.type());
  Proof proof = plain_proof(form, 3, letter, letter);
  proof.operands = std::string(1, letter) + "ss";
  proof.reference = value_of([=](const u64* in) {
    const u32 last = t.bits - 1, position = in[1] & 0xff, length = in[2] & 0xff;
    u64 sign = 0;
    if (t.sign && length != 0) sign = in[0] >> std::min(position + length - 1, last) & 1;
    u64 result = 0;
    for (u32 k = 0; k <= last; ++k) {
      const bool inside = k < length && position + k <= last;
      result |= (inside ? in[0] >> (position + k) & 1 : sign) << k;
    }
    return result;
  });
  return proof;
}

std::optional<Proof> prove_bfi(const FormCase& form) {
  if (form.op != "bfi") return std::nullopt;
  const u32 bits = bits_of(form.type());
  const char letter = letter_of(form.type());
  Proof proof = plain_proof(form, 4, letter, letter);
  proof.operands = std::string(2, letter) + "ss";
  proof.reference = value_of([=](const u64* in) {
    const u32 position = in[2] & 0xff, length = in[3] & 0xff;
    u64 result = in[1];
    for (u32 k = 0; k < length && position + k < bits; ++k) {
      const u64 bit = u64{1} << (position + k);
      result = (in[0] >> k & 1) != 0 ? result | bit : result & ~bit;
    }
    return result;
  });
  return proof;
}

std::optional<Proof> prove_masks(const FormCase& form) {
  const bool extends = form.op == "szext";
  if (!extends && form.op != "bmsk") return std::nullopt;
  Proof proof = plain_proof(form, 2, 'r', 's');
  if (extends) proof.operands[0] = 'r';
  const bool wrap = form.has("wrap"), sign = form.has("s32");
  const auto count_of = [=](u64 x) { return wrap ? x & 31 : std::min<u64>(x, 32); };
  if (extends) {
    proof.reference = value_of([=](const u64* in) {
      const u64 count = count_of(in[1]);
      const u64 field = in[0] & ((u64{1} << count) - 1);
      const bool negative = sign && count != 0 && (field >> (count - 1) & 1) != 0;
      return negative ? (field | ~u64{0} << count) & 0xffffffff : field;
    });
  } else {
    proof.reference = value_of([=](const u64* in) {
      const u64 position = count_of(in[0]), width = count_of(in[1]);
      return (((u64{1} << width) - 1) << position) & 0xffffffff;
    });
  }
  return proof;
}

std::optional<Proof> prove_dot(const FormCase& form) {
  const bool four = form.op == "dp4a";
  if (!four && form.op != "dp2a") return std::nullopt;
  Proof proof = plain_proof(form, 3, 'r', 'r');
  const Integers a(is_signed(form.types()[0]) ? "s8" : "u8");
  const Integers b(is_signed(form.types()[1]) ? "s8" : "u8");
  const Integers pair(is_signed(form.types()[0]) ? "s16" : "u16");
  const u32 first = form.has("hi") ? 16 : 0;
  proof.reference = value_of([=](const u64* in) {
    Int128 sum = in[2];
    for (u32 k = 0; k < (four ? 4u : 2u); ++k) {
      const Int128 x = four ? a.of(in[0] >> (8 * k)) : pair.of(in[0] >> (16 * k));
      sum += x * b.of(in[1] >> (first + 8 * k));
    }
    return static_cast<u64>(sum) & 0xffffffff;
  });
  return proof;
}

// Extended precision. The condition code holds the carry-out of the adder. A subtraction is
// a + ~b + 1: its carry-out is 1 when nothing was borrowed, and subc takes one more when the code
// is 0. So either kind of instruction follows the other, as compiled 128-bit division expects.

struct Carry {
  u64 value, out;
};
Carry added(u64 a, u64 b, u64 in, u32 bits) {
  const Uint128 sum = Uint128{a} + b + in;
  const u64 cut = bits == 64 ? static_cast<u64>(sum) : static_cast<u64>(sum) & 0xffffffff;
  return {cut, static_cast<u64>(sum >> bits) & 1};
}
Carry subtracted(u64 a, u64 b, u64 in, u32 bits) {
  return added(a, bits == 64 ? ~b : ~b & 0xffffffff, in, bits);
}

/// The form after a code that an addition left, with the result D, and after one that a subtraction
/// left, with the result E. F and G show the codes that the form leaves.
Proof carry_proof(const FormCase& form, bool in, const std::string& operands) {
  const std::string type(form.type());
  const char letter = letter_of(type);
  const std::string unused = bits_of(type) == 64 ? "%q8" : "%t8";
  const bool shows = form.has("cc");
  Proof proof;
  const auto run = [&](const char* setter, const char* result, const char* reader) {
    if (in) proof.text += setter + type + " " + unused + ", A, H; ";
    proof.text += form.name() + " " + result + ", " + operands + "; ";
    if (shows) proof.text += reader;
  };
  run("add.cc.", "D", ("addc." + type + " F, 0, 0; ").c_str());
  run("sub.cc.", "E", ("subc." + type + " G, 0, 0; ").c_str());
  proof.results = std::string(shows ? 4 : 2, letter);
  proof.operands = std::string(4, letter);
  return proof;
}

}  // namespace

std::optional<Proof> prove_carry(const FormCase& form) {
  const bool in = form.op == "addc" || form.op == "subc" || form.op == "madc";
  if (!in && !form.has("cc")) return std::nullopt;
  const u32 bits = bits_of(form.type());
  const bool subtracts = form.op.substr(0, 3) == "sub", multiplies = form.op[0] == 'm';
  Proof proof = carry_proof(form, in, multiplies ? "A, B, C" : "B, C");
  const Integers t(form.type());
  const bool high = form.has("hi"), shows = form.has("cc");
  const u64 without = subtracts ? 1 : 0;  // the code that changes nothing
  const auto result = [=](const u64* of, u64 code) {
    if (subtracts) return subtracted(of[1], of[2], code, bits);
    if (!multiplies) return added(of[1], of[2], code, bits);
    const Int128 a = t.of(of[0]), b = t.of(of[1]);
    return added(t.cut(high ? high_part(t, a, b) : low_part(t, a, b)), of[2], code, bits);
  };
  proof.reference = lanewise([=](Lane& lane) {
    const u64 *of = lane.in, a = of[0], h = of[3];
    const Carry first = result(of, in ? added(a, h, 0, bits).out : without);
    const Carry second = result(of, in ? subtracted(a, h, 1, bits).out : without);
    lane.out[0] = first.value;
    lane.out[1] = second.value;
    if (!shows) return;
    lane.out[2] = first.out;
    lane.out[3] = t.cut(Int128{second.out} - 1);
  });
  return proof;
}

std::optional<Proof> prove_integer(const FormCase& form) {
  if (auto proof = prove_pair(form)) return proof;
  const std::string_view type = form.type();
  const bool integer = !type.empty() && (type[0] == 's' || type[0] == 'u' || type[0] == 'b') &&
                       type.substr(0, 2) != "bf";
  if (!integer) return std::nullopt;
  for (const Prover prover :
       {prove_two, prove_one, prove_product, prove_sad, prove_24, prove_counts, prove_fns,
        prove_bfe, prove_bfi, prove_masks, prove_dot}) {
    if (auto proof = prover(form)) return proof;
  }
  return std::nullopt;
}

}  // namespace softgpu::ptx::test

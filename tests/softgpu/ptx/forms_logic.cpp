// Logic, shifts and moves: PTX ISA, sections 9.7.8 and 9.7.9 (mov).
#include <algorithm>

#include "tests/softgpu/ptx/forms.h"

namespace softgpu::ptx::test {
namespace {

u64 cut_to(std::string_view type, u64 bits) {
  if (type == "pred") return bits & 1;
  const u32 width = bits_of(type);
  return width == 64 ? bits : bits & ((u64{1} << width) - 1);
}

std::optional<Proof> prove_bitwise(const FormCase& form) {
  const std::string_view op = form.op, type = form.type();
  const char letter = letter_of(type);
  if (op == "and" || op == "or" || op == "xor") {
    Proof proof = plain_proof(form, 2, letter, letter);
    proof.reference = value_of([=](const u64* in) {
      return op == "and" ? in[0] & in[1] : op == "or" ? in[0] | in[1] : in[0] ^ in[1];
    });
    return proof;
  }
  if (op != "not" && op != "cnot" && op != "mov") return std::nullopt;
  Proof proof = plain_proof(form, 1, letter, letter);
  proof.reference = value_of([=](const u64* in) {
    return op == "mov" ? in[0] : op == "not" ? cut_to(type, ~in[0]) : u64{in[0] == 0};
  });
  return proof;
}

std::optional<Proof> prove_shift(const FormCase& form) {
  const std::string_view type = form.type();
  if (form.op != "shl" && form.op != "shr") return std::nullopt;
  const char letter = letter_of(type);
  Proof proof = plain_proof(form, 2, letter, letter);
  proof.operands[1] = 's';
  const bool left = form.op == "shl", sign = is_signed(type);
  const u32 width = bits_of(type);
  proof.reference = value_of([=](const u64* in) {
    u64 value = in[0];
    // Bit by bit: more than the width shifts everything out.
    for (u64 k = std::min<u64>(in[1], width); k > 0; --k) {
      const u64 top = sign ? value & u64{1} << (width - 1) : 0;
      value = left ? cut_to(type, value << 1) : value >> 1 | top;
    }
    return value;
  });
  return proof;
}

std::optional<Proof> prove_funnel(const FormCase& form) {
  if (form.op != "shf") return std::nullopt;
  Proof proof = plain_proof(form, 3, 'r', 'r');
  proof.operands[2] = 's';
  const bool left = form.has("l"), wrap = form.has("wrap");
  proof.reference = value_of([=](const u64* in) {
    const u64 n = wrap ? in[2] & 31 : std::min<u64>(in[2], 32);
    const u64 pair = in[1] << 32 | in[0];
    return (left ? pair << n >> 32 : pair >> n) & 0xffffffff;
  });
  return proof;
}

u64 lop3_of(u32 table, u64 a, u64 b, u64 c) {
  u64 result = 0;
  for (u32 k = 0; k < 32; ++k) {
    const u64 index = (a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1);
    result |= u64{table >> index & 1} << k;
  }
  return result;
}

std::optional<Proof> prove_lop3(const FormCase& form) {
  if (form.op != "lop3") return std::nullopt;
  constexpr u32 kTables[] = {0x1b, 0xe8};
  Proof proof;
  const bool with_predicate = form.mods.size() > 1, is_or = form.has("or");
  proof.operands = with_predicate ? "rrrp" : "rrr";
  proof.results = with_predicate ? "rprp" : "rr";
  for (int k = 0; k < 2; ++k) {
    const std::string table = std::to_string(kTables[k]);
    const std::string to = with_predicate ? (k == 0 ? "D|E" : "F|G") : (k == 0 ? "D" : "E");
    proof.text +=
        form.name() + " " + to + ", A, B, C, " + table + (with_predicate ? ", H; " : "; ");
  }
  proof.reference = lanewise([=](Lane& lane) {
    for (std::size_t k = 0; k < 2; ++k) {
      const u64 value = lop3_of(kTables[k], lane.in[0], lane.in[1], lane.in[2]);
      lane.out[with_predicate ? 2 * k : k] = value;
      if (!with_predicate) continue;
      const u64 q = lane.in[3];
      lane.out[2 * k + 1] = is_or ? u64{value != 0} | q : u64{value != 0} & q;
    }
  });
  return proof;
}

/// The byte that each nibble of a selector names: bits 0-2 which, bit 3 its sign all over.
u64 permuted(u64 a, u64 b, u64 selector) {
  u64 result = 0;
  for (u32 k = 0; k < 4; ++k) {
    const u64 pick = selector >> (4 * k) & 15;
    const u64 source = (pick & 4) != 0 ? b : a;
    const u64 byte = source >> (8 * (pick & 3)) & 0xff;
    result |= ((pick & 8) == 0 ? byte : (byte & 0x80) != 0 ? u64{0xff} : u64{0}) << (8 * k);
  }
  return result;
}

/// PTX ISA, prmt: selectors of the special modes, d.b3 first, for the low bits of c.
u64 mode_selector(const FormCase& form, u64 c) {
  static constexpr u32 kForward[] = {0x3210, 0x4321, 0x5432, 0x6543};
  static constexpr u32 kBackward[] = {0x5670, 0x6701, 0x7012, 0x0123};
  static constexpr u32 kReplicate[] = {0x0000, 0x1111, 0x2222, 0x3333};
  static constexpr u32 kClampLeft[] = {0x3210, 0x3211, 0x3222, 0x3333};
  static constexpr u32 kClampRight[] = {0x0000, 0x1110, 0x2210, 0x3210};
  static constexpr u32 kReplicate16[] = {0x1010, 0x3232, 0x1010, 0x3232};
  const std::size_t n = c & 3;
  if (form.has("f4e")) return kForward[n];
  if (form.has("b4e")) return kBackward[n];
  if (form.has("rc8")) return kReplicate[n];
  if (form.has("ecl")) return kClampLeft[n];
  if (form.has("ecr")) return kClampRight[n];
  return form.has("rc16") ? kReplicate16[n] : c;
}

std::optional<Proof> prove_prmt(const FormCase& form) {
  if (form.op != "prmt") return std::nullopt;
  Proof proof = plain_proof(form, 3, 'r', 'r');
  proof.reference = value_of(
      [form](const u64* in) { return permuted(in[0], in[1], mode_selector(form, in[2])); });
  return proof;
}

}  // namespace

std::optional<Proof> prove_logic(const FormCase& form) {
  for (const Prover prover : {prove_bitwise, prove_shift, prove_funnel, prove_lop3, prove_prmt}) {
    if (auto proof = prover(form)) return proof;
  }
  return std::nullopt;
}

}  // namespace softgpu::ptx::test

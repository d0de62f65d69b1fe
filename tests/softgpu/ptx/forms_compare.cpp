// Comparison and selection: PTX ISA, sections 9.7.6 and 9.7.7.
#include <algorithm>
#include <bit>

#include "tests/softgpu/ptx/forms.h"
#include "tests/softgpu/ptx/forms_values.h"

namespace softgpu::ptx::test {
namespace {

std::string_view comparison_of(const FormCase& form) { return form.mods.front(); }

/// How two numbers stand: -1, 0, 1, or 2 when one is a NaN.
bool holds(std::string_view name, int order) {
  if (name == "num") return order != 2;
  if (name == "nan") return order == 2;
  const bool unordered = name.size() == 3;
  if (order == 2) return unordered;
  const std::string_view base = name.substr(0, 2);
  if (base == "eq") return order == 0;
  if (base == "ne") return order != 0;
  if (base == "lt" || base == "lo") return order < 0;
  if (base == "le" || base == "ls") return order <= 0;
  if (base == "gt" || base == "hi") return order > 0;
  return order >= 0;
}

int order_of(const FormCase& form, u64 a, u64 b) {
  const std::string_view type = form.type();
  if (is_real_type(type)) {
    const Format& format = format_of(type);
    const auto value = [&](u64 x) {
      return number(form.has("ftz") ? flushed(x, format) : x, format);
    };
    const Quad x = value(a), y = value(b);
    return x != x || y != y ? 2 : x < y ? -1 : x > y ? 1 : 0;
  }
  if (!is_signed(type)) return a < b ? -1 : a > b ? 1 : 0;
  const u32 drop = 64 - bits_of(type);
  const s64 x = static_cast<s64>(a << drop), y = static_cast<s64>(b << drop);
  return x < y ? -1 : x > y ? 1 : 0;
}

bool combined(const FormCase& form, bool value, bool other) {
  if (form.has("and")) return value && other;
  if (form.has("or")) return value || other;
  return form.has("xor") ? value != other : value;
}

bool is_pair(std::string_view type) { return type == "f16x2" || type == "bf16x2"; }
bool combines(const FormCase& form) { return form.has("and") || form.has("or") || form.has("xor"); }

std::optional<Proof> prove_setp(const FormCase& form) {
  if (form.op != "setp") return std::nullopt;
  const bool pair = is_pair(form.type());
  Proof proof;
  proof.results = "pp";
  proof.operands = std::string(2, letter_of(form.type())) + "p";
  proof.text = form.name() + " D|E, A, B" + (combines(form) ? ", C;" : ";");
  proof.reference = lanewise([=](Lane& lane) {
    const bool other = lane.in[2] != 0;
    const auto test = [&](u32 shift, u64 cut) {
      return holds(comparison_of(form),
                   order_of(form, lane.in[0] >> shift & cut, lane.in[1] >> shift & cut));
    };
    const bool first = pair ? test(0, 0xffff) : test(0, ~u64{0});
    // Of a pair, the second predicate is the upper half's; of one value, the complement's.
    const bool second = pair ? test(16, 0xffff) : !first;
    lane.out[0] = combined(form, first, other);
    lane.out[1] = combined(form, second, other);
  });
  return proof;
}

u64 true_of(std::string_view type) {
  if (type == "f32") return 0x3f800000;
  if (type == "f16" || type == "f16x2") return 0x3c00;
  if (type == "bf16" || type == "bf16x2") return 0x3f80;
  return bits_of(type) == 16 ? 0xffff : 0xffffffff;
}

std::optional<Proof> prove_set(const FormCase& form) {
  if (form.op != "set") return std::nullopt;
  const std::string_view to = form.types()[0], from = form.type();
  const bool pair = is_pair(from);
  Proof proof;
  proof.results = std::string(1, letter_of(to));
  proof.operands = std::string(2, letter_of(from)) + "p";
  proof.text = form.name() + " D, A, B" + (combines(form) ? ", C;" : ";");
  const u64 yes = pair && true_of(to) == 0xffffffff ? 0xffff : true_of(to);
  proof.reference = value_of([=](const u64* in) {
    const auto test = [&](u32 shift, u64 cut) {
      const bool truth =
          holds(comparison_of(form), order_of(form, in[0] >> shift & cut, in[1] >> shift & cut));
      return combined(form, truth, in[2] != 0) ? yes : u64{0};
    };
    return pair ? test(0, 0xffff) | test(16, 0xffff) << 16 : test(0, ~u64{0});
  });
  return proof;
}

std::optional<Proof> prove_select(const FormCase& form) {
  if (form.op == "selp") {
    const char letter = letter_of(form.type());
    Proof proof = plain_proof(form, 3, letter, letter);
    proof.operands[2] = 'p';
    proof.reference = value_of([](const u64* in) { return in[2] != 0 ? in[0] : in[1]; });
    return proof;
  }
  if (form.op != "slct") return std::nullopt;
  const char letter = letter_of(form.types()[0]);
  Proof proof = plain_proof(form, 3, letter, letter);
  const bool real = form.type() == "f32", flush = form.has("ftz");
  proof.operands[2] = real ? 'f' : 'r';
  proof.reference = value_of([=](const u64* in) {
    const u64 c = flush ? flushed(in[2], kF32) : in[2];
    // -0 counts as zero, a NaN selects b.
    const bool first = real ? number(c, kF32) >= 0 : static_cast<s32>(c) >= 0;
    return first ? in[0] : in[1];
  });
  return proof;
}

}  // namespace

std::optional<Proof> prove_compare(const FormCase& form) {
  for (const Prover prover : {prove_setp, prove_set, prove_select}) {
    if (auto proof = prover(form)) return proof;
  }
  return std::nullopt;
}

}  // namespace softgpu::ptx::test

// Video instructions: PTX ISA, sections 9.7.16 and 9.7.17: a word, four bytes or two halves of one
// at a time.
#include <algorithm>

#include "tests/softgpu/ptx/forms.h"

namespace softgpu::ptx::test {
namespace {

s64 element(u64 word, u32 at, u32 bits, bool sign) {
  const s64 value = static_cast<s64>(word >> at & ((u64{1} << bits) - 1));
  return sign && value >> (bits - 1) != 0 ? value - (s64{1} << bits) : value;
}

bool holds(const FormCase& form, s64 a, s64 b) {
  if (form.has("eq")) return a == b;
  if (form.has("ne")) return a != b;
  if (form.has("lt")) return a < b;
  if (form.has("le")) return a <= b;
  return form.has("gt") ? a > b : a >= b;
}

s64 evaluated(const FormCase& form, s64 a, s64 b) {
  const std::string_view op = form.op.substr(0, form.op.find_last_not_of("24") + 1);
  if (op == "vadd") return a + b;
  if (op == "vsub") return a - b;
  // PTX ISA: (a + b + (a + b >= 0)) >> 1.
  if (op == "vavrg") return (a + b + (a + b >= 0 ? 1 : 0)) >> 1;
  if (op == "vabsdiff") return a < b ? b - a : a - b;
  if (op == "vmin") return std::min(a, b);
  return op == "vmax" ? std::max(a, b) : s64{holds(form, a, b)};
}

}  // namespace

std::optional<Proof> prove_video(const FormCase& form) {
  if (form.op[0] != 'v' || form.op == "vote") return std::nullopt;
  const auto types = form.types();
  const bool compares = form.op.substr(0, 4) == "vset";
  const std::size_t first = compares ? 0 : 1;
  const bool sign_d = !compares && is_signed(types[0]), sign_a = is_signed(types[first]),
             sign_b = is_signed(types[first + 1]);
  const u32 bits = form.op.back() == '4' ? 8 : form.op.back() == '2' ? 16 : 32;
  const bool adds = form.has("add"), clamps = form.has("sat");
  Proof proof = plain_proof(form, bits == 32 && !adds ? 2 : 3, 'r', 'r');
  proof.reference = value_of([=](const u64* in) {
    const s64 least = sign_d ? -(s64{1} << (bits - 1)) : 0;
    const s64 most = (s64{1} << (sign_d ? bits - 1 : bits)) - 1;
    u64 sum = adds ? in[2] : 0, packed = 0;
    for (u32 at = 0; at < 32; at += bits) {
      s64 value =
          evaluated(form, element(in[0], at, bits, sign_a), element(in[1], at, bits, sign_b));
      if (clamps) value = std::clamp(value, least, most);
      sum += static_cast<u64>(value);
      packed |= (static_cast<u64>(value) & ((u64{1} << bits) - 1)) << at;
    }
    return (adds ? sum : packed) & 0xffffffff;
  });
  return proof;
}

}  // namespace softgpu::ptx::test

// f16 and bf16 arithmetic, one or two at a time: PTX ISA, section 9.7.4. Every result is the exact
// one, rounded once.
#include <cmath>

#include "tests/softgpu/ptx/forms.h"
#include "tests/softgpu/ptx/forms_values.h"

namespace softgpu::ptx::test {
namespace {

bool is_half_type(std::string_view type) {
  return type == "f16" || type == "f16x2" || type == "bf16" || type == "bf16x2";
}

u64 arithmetic(const FormCase& form, u64 a, u64 b, u64 c) {
  const Format& format = format_of(form.type());
  const Quad x = number(a, format), y = number(b, format), z = number(c, format);
  Sum sum{};
  if (form.op == "add") sum = fused(1, x, y);
  if (form.op == "sub") sum = fused(1, x, -y);
  if (form.op == "mul") sum = {x * y, 0};
  if (form.op == "fma") sum = fused(x, y, z);
  return rounded(sum.value, sum.rest, format, Rounding::kNearest);
}

u64 evaluated(const FormCase& form, u64 a, u64 b, u64 c) {
  const Format& format = format_of(form.type());
  if (form.op == "neg") return a ^ 0x8000;
  if (form.op == "abs") return a & 0x7fff;
  if (form.op == "min" || form.op == "max") return smaller(form, a, b);
  if (form.op != "ex2" && form.op != "tanh") return arithmetic(form, a, b, c);
  const double x = static_cast<double>(number(a, format));
  return rounded(form.op == "ex2" ? std::exp2(x) : std::tanh(x), 0, format, Rounding::kNearest);
}

u64 one_lane(const FormCase& form, u64 a, u64 b, u64 c) {
  const Format& format = format_of(form.type());
  const auto in = [&](u64 x) { return form.has("ftz") ? flushed(x, format) : x; };
  u64 result = evaluated(form, in(a), in(b), in(c));
  if (form.has("ftz")) result = flushed(result, format);
  if (form.has("sat")) result = saturated(result, format);
  // .relu: negative results become +0, NaN the canonical one.
  if (form.has("relu") && !is_nan(result, format) && (result & 0x8000) != 0) result = 0;
  return result;
}

std::size_t operands_of(std::string_view op) {
  if (op == "fma") return 3;
  if (op == "add" || op == "sub" || op == "mul" || op == "min" || op == "max") return 2;
  return op == "neg" || op == "abs" || op == "ex2" || op == "tanh" ? 1 : 0;
}

}  // namespace

std::optional<Proof> prove_half(const FormCase& form) {
  const auto types = form.types();
  const std::size_t operands = operands_of(form.op);
  if (types.size() != 1 || !is_half_type(types[0]) || operands == 0) return std::nullopt;
  const char letter = letter_of(types[0]);
  Proof proof = plain_proof(form, operands, letter, letter);
  // Stated for f16: ex2 2^-9.9, tanh 2^-10.987; for bf16: 2^-7 and 2^-8.
  if (form.has("approx")) proof.relative = types[0].substr(0, 2) == "bf" ? 0x1p-7 : 0x1p-9;
  const bool pair = letter == 'X' || letter == 'Y';
  proof.reference = value_of([=](const u64* in) {
    const auto half = [&](u32 shift) {
      return one_lane(form, in[0] >> shift & 0xffff, in[1] >> shift & 0xffff,
                      in[2] >> shift & 0xffff);
    };
    return pair ? half(0) | half(16) << 16 : half(0);
  });
  return proof;
}

}  // namespace softgpu::ptx::test

// What a form's modifiers say: types, registers, the plain text of an instruction. See forms.h.
#include <algorithm>

#include "softgpu/ptx/text/types.h"
#include "tests/softgpu/ptx/forms.h"

namespace softgpu::ptx::test {

bool FormCase::has(std::string_view mod) const {
  return std::find(mods.begin(), mods.end(), mod) != mods.end();
}

std::vector<std::string_view> FormCase::types() const {
  std::vector<std::string_view> found;
  for (const std::string_view mod : mods) {
    if (type_of(mod) != Type::kNone) found.push_back(mod);
  }
  return found;
}

std::string_view FormCase::type() const {
  const auto all = types();
  return all.empty() ? std::string_view() : all.back();
}

std::string FormCase::name() const {
  std::string text(op);
  for (const std::string_view mod : mods) text += "." + std::string(mod);
  return text;
}

u32 bits_of(std::string_view type) { return 8 * type_bytes(type_of(type)); }

char letter_of(std::string_view type) {
  if (type == "pred") return 'p';
  if (type == "f16") return 'H';
  if (type == "bf16") return 'K';
  if (type == "f16x2") return 'X';
  if (type == "bf16x2") return 'Y';
  if (type == "f32") return 'f';
  if (type == "f64") return 'g';
  const u32 bits = bits_of(type);
  return bits == 64 ? 'd' : bits == 16 ? 'h' : 'r';
}

Proof plain_proof(const FormCase& form, std::size_t operands, char result, char operand) {
  static constexpr std::string_view kNames[] = {"A", "B", "C", "H"};
  Proof proof;
  proof.text = form.name() + " D";
  for (std::size_t k = 0; k < operands; ++k) proof.text += ", " + std::string(kNames[k]);
  proof.text += ";";
  proof.results = std::string(1, result);
  proof.operands = std::string(operands, operand);
  return proof;
}

}  // namespace softgpu::ptx::test

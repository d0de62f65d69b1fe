// From the list of forms to concrete instructions.
#include <algorithm>

#include "softgpu/ptx/code/forms.h"
#include "tests/softgpu/ptx/forms.h"

namespace softgpu::ptx::test {
namespace {

/// One choice per group; kLeftOut for an optional group that is left out.
constexpr std::size_t kLeftOut = SIZE_MAX;
using Choice = std::vector<std::size_t>;

std::vector<std::size_t> choices_of(const FormGroup& group) {
  std::vector<std::size_t> choices;
  if (group.optional) choices.push_back(kLeftOut);
  for (std::size_t k = 0; k < group.alternatives.size(); ++k) choices.push_back(k);
  if (group.hint) choices.resize(1);
  return choices;
}

FormCase chosen(const FormText& text, const std::vector<FormGroup>& groups, const Choice& choice) {
  FormCase form{text.op, {}};
  for (std::size_t k = 0; k < groups.size(); ++k) {
    if (choice[k] != kLeftOut) form.mods.push_back(groups[k].alternatives[choice[k]]);
  }
  return form;
}

void expand(const FormText& text, std::vector<FormCase>& forms) {
  const std::vector<FormGroup> groups = form_groups(text);
  std::vector<Choice> product{{}};
  for (const FormGroup& group : groups) {
    std::vector<Choice> longer;
    for (const Choice& head : product) {
      for (const std::size_t pick : choices_of(group)) {
        longer.push_back(head);
        longer.back().push_back(pick);
      }
    }
    product = std::move(longer);
  }
  for (const Choice& choice : product) forms.push_back(chosen(text, groups, choice));
  for (std::size_t k = 0; k < groups.size(); ++k) {
    if (!groups[k].hint) continue;
    for (std::size_t pick = groups[k].optional ? 0 : 1; pick < groups[k].alternatives.size();
         ++pick) {
      // The last choice of the rest: the product began with the first one.
      Choice choice = product.back();
      choice[k] = pick;
      forms.push_back(chosen(text, groups, choice));
    }
  }
}

}  // namespace

std::vector<FormCase> forms_of(std::string_view op) {
  std::vector<FormCase> forms;
  for (const FormText& text : form_texts()) {
    if (text.op == op) expand(text, forms);
  }
  return forms;
}

std::vector<std::string> form_opcodes() {
  std::vector<std::string> ops;
  for (const FormText& text : form_texts()) {
    if (std::find(ops.begin(), ops.end(), text.op) == ops.end()) ops.emplace_back(text.op);
  }
  return ops;
}

std::optional<Proof> proof_of(const FormCase& form) {
  for (const Prover prover : {prove_carry, prove_integer, prove_logic, prove_half, prove_real,
                              prove_compare, prove_convert, prove_memory, prove_atomic, prove_async,
                              prove_matrix, prove_warp, prove_control, prove_video, prove_image}) {
    if (auto proof = prover(form)) return proof;
  }
  return std::nullopt;
}

}  // namespace softgpu::ptx::test

// Every instruction form that this interpreter executes: the decoder refuses what is not listed,
// and the tests run what is. Without the list a modifier nobody knows would be skipped over, and
// the kernel would compute something else than it says.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace softgpu::ptx {

/// One line of the list. `groups` are separated by spaces, alternatives inside a group by '|'. A
/// group that ends in '?' may be left out; one that begins with '~' does not change results (cache
/// operators, scopes of ordering, hints). Modifiers may come in any order, as the assembler allows;
/// groups with the same alternatives are filled from left to right.
struct FormText {
  std::string_view op;
  std::string_view groups;
};
std::span<const FormText> form_texts();

struct FormGroup {
  std::vector<std::string_view> alternatives;
  bool optional = false;
  bool hint = false;
};
std::vector<FormGroup> form_groups(const FormText& text);

/// Whether an instruction with these modifiers is listed.
bool form_listed(std::string_view op, const std::vector<std::string_view>& mods);
/// Whether any form of the opcode is.
bool form_opcode_listed(std::string_view op);

}  // namespace softgpu::ptx

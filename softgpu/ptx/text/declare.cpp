// Variable declarations; see declare.h.
#include "softgpu/ptx/text/declare.h"

#include <algorithm>
#include <bit>

namespace softgpu::ptx {
namespace {

/// Attributes and types in front of the name; returns the number of vector elements.
u32 variable_attributes(Cursor& at, VariableText& variable) {
  u32 vector = 1;
  while (at.is_kind(Token::Kind::kName) && at.peek().text.front() == '.') {
    const std::string_view word = at.take().text.substr(1);
    if (word == "align") {
      const s64 align = at.integer();
      if (align <= 0 || align > 4096 || !std::has_single_bit(static_cast<u64>(align))) {
        at.fail("alignment must be a power of two up to 4096");
      }
      variable.align = static_cast<u32>(align);
    } else if (word == "attribute") {
      at.expect("(");
      while (!at.accept(")")) variable.managed |= at.take().text == ".managed";
    } else if (word == "v2" || word == "v4") {
      vector = word == "v2" ? 2 : 4;
    } else if (word == "ptr") {
      if (at.is_kind(Token::Kind::kName) && at.peek().text.front() == '.' && !at.is(".align")) {
        at.take();
      }
      if (at.accept(".align")) at.integer();
    } else if (const Type type = type_of(word); type != Type::kNone) {
      variable.element = type_bytes(type);
    } else {
      at.fail("unknown attribute '." + std::string(word) + "' of a variable");
    }
  }
  return vector;
}

}  // namespace

VariableText variable_declare(Cursor& at, Space space) {
  VariableText variable;
  variable.space = space;
  variable.line = at.line();
  const u32 vector = variable_attributes(at, variable);
  variable.align = std::max({variable.align, variable.element * vector});
  if (at.is_kind(Token::Kind::kName)) variable.name = at.name();
  u64 count = 1;
  while (at.accept("[")) {
    if (at.accept("]")) {
      count = 0;
      continue;
    }
    const s64 extent = at.integer();
    if (extent < 0 || extent > (s64{1} << 40)) at.fail("array extent out of range");
    count *= static_cast<u64>(extent);
    if (count > u64{1} << 40) at.fail("array is too large");
    at.expect("]");
  }
  variable.external = count == 0;
  variable.bytes = count * variable.element * vector;
  return variable;
}

}  // namespace softgpu::ptx

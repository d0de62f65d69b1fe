// The outline of a PTX text: what it declares and defines at module scope, and which of its
// functions mention which names. Enough to link several texts, to find symbols that nobody defines,
// and to know what a kernel needs before it runs (a heap, an output FIFO, a stack of unknown
// depth). Knows nothing of instructions: a text that is wrong inside its functions has an outline
// too, and the interpreter's parser is the one that complains.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace softgpu::driver {

struct TextItem {
  enum class Kind { kVariable, kFunction, kEntry, kOther };
  enum class Linkage { kStatic, kVisible, kExtern, kWeak, kCommon };
  Kind kind = Kind::kOther;
  Linkage linkage = Linkage::kStatic;
  bool defined = false;   // with a body, or a variable that is not .extern
  bool shared = false;    // dynamic shared memory is .extern and needs no definition
  std::string_view text;  // from the first directive to ';' or '}'
  std::string_view name;  // the one it introduces
  std::vector<std::string_view> mentions;  // identifiers after the name, each once
};

/// Views into the text it was made of.
struct TextOutline {
  int version = 0;  // 90 = 9.0; 0 = none: not PTX
  int target = 0;   // sm number
  std::vector<TextItem> items;
};
TextOutline text_outline(std::string_view ptx);

/// What an entry needs besides its own code, as far as its calls can be followed.
struct TextNeeds {
  bool heap = false;           // device malloc
  bool fifo = false;           // device printf
  bool stack_unknown = false;  // recursion or calls through pointers: no depth can be computed
};
std::map<std::string, TextNeeds, std::less<>> text_needs(const TextOutline& outline);

/// Functions that the device itself provides.
bool text_provided(std::string_view name);

/// The first name that is used, declared .extern and defined nowhere; empty when there is none.
std::string_view text_unresolved(const TextOutline& outline);

}  // namespace softgpu::driver

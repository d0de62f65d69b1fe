// PTX text to tokens. Tokens are views into the text, which must outlive them.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "softgpu/ptx/text/types.h"

namespace softgpu::ptx {

/// What is wrong with the text, and where. Never leaves this library: module_load() turns it into a
/// LoadResult.
struct TextError : std::runtime_error {
  TextError(int at_line, const std::string& what)
      : std::runtime_error("line " + std::to_string(at_line) + ": " + what), line(at_line) {}
  int line;
};

struct Token {
  enum class Kind : u8 { kName, kNumber, kPunctuation, kString, kEnd };
  Kind kind = Kind::kEnd;
  u8 real_bytes = 0;  // 4 or 8 for a floating-point literal, whose bit pattern is `bits`
  int line = 0;
  std::string_view text;
  u64 bits = 0;
};

/// Ends with one kEnd token. Throws TextError.
std::vector<Token> tokens_of(std::string_view text);

}  // namespace softgpu::ptx

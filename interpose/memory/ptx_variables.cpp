// See ptx_variables.h.
#include "interpose/memory/ptx_variables.h"

#include <string.h>

namespace sluice::interpose {
namespace {

bool is_of_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '%' || c == '.';
}

// 0 for a word that is no type, and for textures and the like.
uint64_t type_bytes(const char* word) {
  struct Type {
    char suffix[8];
    uint8_t bytes;
  };
  // The letter says how bits are taken, the number how many there are.
  static constexpr Type kTypes[] = {{"8", 1},  {"16", 2}, {"16x2", 4},
                                    {"32", 4}, {"64", 8}, {"128", 16}};
  if (word[0] != '.') return 0;
  const char* at = word + 1;
  if (strncmp(at, "bf16", 4) == 0) ++at;
  if (*at != 'b' && *at != 'u' && *at != 's' && *at != 'f') return 0;
  for (const Type& type : kTypes) {
    if (strcmp(at + 1, type.suffix) == 0) return type.bytes;
  }
  return 0;
}

// A number as PTX has them ("Integer Constants"): decimal, 0x..., 0b..., 0..., with or without a U.
// False: it is none, or too large.
bool number_read(const char* word, uint64_t* out) {
  uint64_t base = 10;
  if (word[0] == '0' && word[1] != '\0' && word[1] != 'U') {
    const bool has_letter = word[1] == 'x' || word[1] == 'X' || word[1] == 'b' || word[1] == 'B';
    base = !has_letter ? 8 : word[1] == 'x' || word[1] == 'X' ? 16 : 2;
    word += has_letter ? 2 : 1;
  }
  const char* at = word;
  for (*out = 0; *at != '\0' && *at != 'U'; ++at) {
    const bool is_letter = (*at | 0x20) >= 'a' && (*at | 0x20) <= 'f';
    const int digit = is_letter ? (*at | 0x20) - 'a' + 10 : *at - '0';
    if (digit < 0 || static_cast<uint64_t>(digit) >= base ||
        __builtin_mul_overflow(*out, base, out) ||
        __builtin_add_overflow(*out, static_cast<uint64_t>(digit), out))
      return false;
  }
  return at != word && (at[0] == '\0' || at[1] == '\0');
}

}  // namespace

// Whether the byte belongs to a comment or a string, or ends or begins one.
bool PtxVariables::skipped(char c) {
  const char before = before_;
  before_ = c;
  switch (skips_) {
    case Skips::kNothing:
      break;
    case Skips::kLine:
      if (c == '\n') skips_ = Skips::kNothing;
      return true;
    case Skips::kBlock:
      if (before == '*' && c == '/') skips_ = Skips::kNothing, before_ = 0;
      return true;
    case Skips::kString:
      if (before == '\\') {
        before_ = 0;
      } else if (c == '"') {
        skips_ = Skips::kNothing;
      }
      return true;
  }
  if (c == '"') skips_ = Skips::kString;
  if (before == '/' && c == '/') skips_ = Skips::kLine;
  if (before == '/' && c == '*') skips_ = Skips::kBlock, before_ = 0;
  return skips_ != Skips::kNothing;
}

void PtxVariables::feed(char c) {
  if (skipped(c)) {
    word_end();
  } else if (is_of_word(c)) {
    if (word_bytes_ < kWordMax) word_[word_bytes_++] = c;
  } else {
    word_end();
    punctuation(c);
  }
}

void PtxVariables::word_end() {
  if (word_bytes_ == 0) return;
  word_[word_bytes_] = '\0';
  word_bytes_ = 0;
  if (braces_ != 0) return;
  if (parentheses_ != 0) {
    if (declares_ && strcmp(word_, ".managed") == 0) is_managed_ = true;
    return;
  }
  if (declares_) return word_in_declaration();
  if (strcmp(word_, ".extern") == 0) is_extern_ = true;
  if (strcmp(word_, ".entry") == 0 || strcmp(word_, ".func") == 0) is_extern_ = false;
  declares_ = strcmp(word_, ".global") == 0 || strcmp(word_, ".const") == 0;
}

void PtxVariables::word_in_declaration() {
  if (initialises_) return;
  if (aligns_) {
    aligns_ = false;
  } else if (named_) {
    uint64_t count = 0;
    // More than one word between brackets is an expression.
    if (dimension_known_ || !number_read(word_, &count) ||
        __builtin_mul_overflow(count_, count, &count_))
      count_ = 0;
    dimension_known_ = true;
  } else if (strcmp(word_, ".align") == 0) {
    aligns_ = true;
  } else if (strcmp(word_, ".v2") == 0 || strcmp(word_, ".v4") == 0) {
    lanes_ = word_[2] == '2' ? 2 : 4;
  } else if (word_[0] == '.') {
    const uint64_t bytes = type_bytes(word_);
    if (bytes != 0) unit_bytes_ = bytes;
  } else if (brackets_ == 0) {  // .const[1] names a bank
    named_ = true;
  }
}

void PtxVariables::punctuation(char c) {
  if (c == '{') {
    ++braces_;
  } else if (c == '}') {
    if (braces_ > 0) --braces_;
    if (braces_ == 0 && !declares_) statement_end();  // of a function
  }
  if (braces_ != 0) return;
  if (c == '(') {
    ++parentheses_;
  } else if (c == ')') {
    if (parentheses_ > 0) --parentheses_;
  }
  if (parentheses_ != 0) return;
  if (c == '[') {
    ++brackets_;
    dimension_known_ = false;
  } else if (c == ']') {
    if (brackets_ > 0) --brackets_;
    if (named_ && !initialises_ && !dimension_known_) count_ = 0;  // as many as there are values
  } else if (c == '=') {
    initialises_ = true;
  } else if (c == ',') {
    if (declares_) declarator_end();
  } else if (c == ';') {
    statement_end();
  } else if (named_ && !initialises_ && brackets_ != 0 && c != ' ' && c != '\t' && c != '\n') {
    count_ = 0;  // an operator
  }
}

void PtxVariables::declarator_end() {
  uint64_t bytes = 0;
  const bool counts = named_ && !is_extern_ && !is_managed_;
  if (counts && !__builtin_mul_overflow(unit_bytes_ * lanes_, count_, &bytes) &&
      __builtin_add_overflow(bytes_, bytes, &bytes_))
    bytes_ = 0;
  named_ = initialises_ = false;
  count_ = 1;
}

void PtxVariables::statement_end() {
  if (declares_) declarator_end();
  declares_ = is_extern_ = is_managed_ = aligns_ = false;
  brackets_ = 0;
  unit_bytes_ = 0;
  lanes_ = 1;
}

}  // namespace sluice::interpose

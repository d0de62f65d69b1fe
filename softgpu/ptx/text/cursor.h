// A position in the token list and the questions a recursive-descent parser asks there.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "softgpu/ptx/text/lexer.h"

namespace softgpu::ptx {

class Cursor {
 public:
  explicit Cursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(std::size_t ahead = 0) const {
    const std::size_t at = at_ + ahead;
    return at < tokens_.size() ? tokens_[at] : tokens_.back();
  }
  bool ended() const { return peek().kind == Token::Kind::kEnd; }
  int line() const { return peek().line; }
  bool is(std::string_view text) const {
    return peek().kind != Token::Kind::kString && peek().kind != Token::Kind::kEnd &&
           peek().text == text;
  }
  bool is_kind(Token::Kind kind) const { return peek().kind == kind; }

  const Token& take() {
    const Token& token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool accept(std::string_view text) {
    if (!is(text)) return false;
    take();
    return true;
  }
  void expect(std::string_view text) {
    if (!accept(text)) fail("expected '" + std::string(text) + "'");
  }
  std::string_view name() {
    if (!is_kind(Token::Kind::kName)) fail("expected a name");
    return take().text;
  }
  /// An integer with an optional minus sign.
  s64 integer() {
    const bool negative = accept("-");
    if (!is_kind(Token::Kind::kNumber) || peek().real_bytes != 0) fail("expected an integer");
    const u64 bits = take().bits;
    return static_cast<s64>(negative ? 0 - bits : bits);
  }
  /// The rest of the current line: .file and .loc have no terminator.
  void skip_line() {
    const int here = line();
    while (!ended() && line() == here) take();
  }
  void skip_past(std::string_view text) {
    while (!accept(text)) {
      if (ended()) fail("expected '" + std::string(text) + "'");
      take();
    }
  }
  [[noreturn]] void fail(const std::string& what) const {
    const std::string found =
        ended() ? "the end of the text" : "'" + std::string(peek().text) + "'";
    throw TextError(line(), what + ", found " + found);
  }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace softgpu::ptx

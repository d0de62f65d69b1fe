// The PTX lexer: identifiers keep their dots ("ld.global.u32" is one token), 0f/0d literals keep
// their bits.
#include "softgpu/ptx/text/lexer.h"

#include <bit>
#include <charconv>
#include <cstdlib>

namespace softgpu::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_name(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' ||
         c == '%' || c == '.';
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> run() {
    tokens_.reserve(text_.size() / 4);
    while (skip_blank()) next();
    Token end;
    end.line = line_;
    tokens_.push_back(end);
    return std::move(tokens_);
  }

 private:
  char at(std::size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0';
  }

  /// False at the end of the text.
  bool skip_blank() {
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c == '\n') {
        ++line_;
        ++pos_;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v' || c == '\0') {
        ++pos_;
      } else if (c == '/' && at(1) == '/') {
        while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
      } else if (c == '/' && at(1) == '*') {
        skip_comment();
      } else {
        return true;
      }
    }
    return false;
  }

  void skip_comment() {
    const int opened = line_;
    pos_ += 2;
    while (!(at() == '*' && at(1) == '/')) {
      if (pos_ >= text_.size()) throw TextError(opened, "comment is never closed");
      if (text_[pos_++] == '\n') ++line_;
    }
    pos_ += 2;
  }

  void next() {
    if (at() == '"') {
      string();
    } else if (is_digit(at())) {
      number();
    } else if (is_name(at())) {
      name();
    } else {
      push(Token::Kind::kPunctuation, pos_, pos_ + 1);
    }
  }

  Token& push(Token::Kind kind, std::size_t begin, std::size_t end) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = text_.substr(begin, end - begin);
    tokens_.push_back(token);
    pos_ = end;
    return tokens_.back();
  }

  void string() {
    std::size_t end = pos_ + 1;
    while (end < text_.size() && text_[end] != '"') {
      if (text_[end] == '\n') throw TextError(line_, "string is never closed");
      end += text_[end] == '\\' ? 2 : 1;
    }
    if (end >= text_.size()) throw TextError(line_, "string is never closed");
    push(Token::Kind::kString, pos_ + 1, end);
    ++pos_;
  }

  /// Directives may follow each other without a space: ".reg.b16".
  void name() {
    const bool directive = at() == '.';
    std::size_t end = pos_;
    while (end < text_.size()) {
      if (directive && end > pos_ && text_[end] == '.') break;
      if (is_name(text_[end])) {
        ++end;
      } else if (text_[end] == ':' && end + 2 < text_.size() && text_[end + 1] == ':' &&
                 is_name(text_[end + 2])) {
        end += 2;
      } else {
        break;
      }
    }
    push(Token::Kind::kName, pos_, end);
  }

  void real_bits(std::size_t digits) {
    const std::size_t end = pos_ + 2 + digits;
    if (end > text_.size()) throw TextError(line_, "floating-point literal is cut short");
    u64 bits = 0;
    const char* first = text_.data() + pos_ + 2;
    const auto [stop, error] = std::from_chars(first, first + digits, bits, 16);
    if (error != std::errc() || stop != first + digits) {
      throw TextError(
          line_, "floating-point literal needs " + std::to_string(digits) + " hexadecimal digits");
    }
    Token& token = push(Token::Kind::kNumber, pos_, end);
    token.bits = bits;
    token.real_bytes = static_cast<u8>(digits / 2);
  }

  void number() {
    const char kind = at(1);
    if (at() == '0' && (kind == 'f' || kind == 'F') && is_hex(at(2))) return real_bits(8);
    if (at() == '0' && (kind == 'd' || kind == 'D') && is_hex(at(2))) return real_bits(16);
    int base = 10;
    std::size_t begin = pos_;
    if (at() == '0' && (kind == 'x' || kind == 'X')) {
      base = 16;
      begin += 2;
    } else if (at() == '0' && (kind == 'b' || kind == 'B')) {
      base = 2;
      begin += 2;
    } else if (at() == '0' && is_digit(kind)) {
      base = 8;
    }
    u64 bits = 0;
    const char* last = text_.data() + text_.size();
    const auto [stop, error] = std::from_chars(text_.data() + begin, last, bits, base);
    if (error != std::errc()) throw TextError(line_, "number does not fit 64 bits");
    std::size_t end = static_cast<std::size_t>(stop - text_.data());
    if (base == 10 && end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      return decimal();
    }
    if (end < text_.size() && text_[end] == 'U') ++end;
    push(Token::Kind::kNumber, pos_, end).bits = bits;
  }

  void decimal() {
    double value = 0;
    const char* first = text_.data() + pos_;
    const auto [stop, error] = std::from_chars(first, text_.data() + text_.size(), value);
    if (error != std::errc()) throw TextError(line_, "floating-point literal out of range");
    Token& token = push(Token::Kind::kNumber, pos_, static_cast<std::size_t>(stop - text_.data()));
    token.bits = std::bit_cast<u64>(value);
    token.real_bytes = 8;
  }

  std::string_view text_;
  std::size_t pos_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view text) { return Lexer(text).run(); }

}  // namespace softgpu::ptx

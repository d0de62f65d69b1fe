// What can be seen of a TOML text without parsing it.
#include "config/reader/shape.h"

#include "config/reader/keys.h"

namespace sluice::config {
namespace {

// Brackets and dots in one statement; the schema needs three.
constexpr std::size_t kLevelsMax = 64;

/// Walks over TOML text outside of strings and comments, as far as the text is valid: where it is
/// not, the parser stops too.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  /// The next character outside of strings and comments; nothing at the end.
  std::optional<char> next() {
    if (at_ >= text_.size()) return std::nullopt;
    const char c = text_[at_];
    if (c == '"' || c == '\'') {
      string_skip(c);
    } else if (c == '#') {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else {
      line_ += c == '\n' ? 1 : 0;
      ++at_;
    }
    return c;
  }
  std::uint32_t line() const { return line_; }

 private:
  void string_skip(char quote) {
    const std::string triple(3, quote);
    const bool multiline = text_.substr(at_, 3) == triple;
    at_ += multiline ? 3 : 1;
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\n') {
        if (!multiline) return;
        ++line_;
      } else if (text_[at_] == '\\' && quote == '"') {
        ++at_;
      } else if (multiline ? text_.substr(at_, 3) == triple : text_[at_] == quote) {
        at_ += multiline ? 3 : 1;
        // Up to two quotes before the closing three belong to the string.
        for (int i = 0; multiline && i < 2 && at_ < text_.size() && text_[at_] == quote; ++i) ++at_;
        return;
      }
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
};

}  // namespace

std::string_view line_of(std::string_view text, std::uint32_t number) {
  for (; number > 1; --number) {
    const auto end = text.find('\n');
    if (end == text.npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

std::optional<Error> unquoted_find(std::string_view text, std::uint32_t number) {
  const std::string_view line = line_of(text, number);
  const auto equals = line.find('=');
  if (equals == line.npos) return std::nullopt;
  const auto begin = line.find_first_not_of(" \t", equals + 1);
  if (begin == line.npos) return std::nullopt;
  std::string_view value = line.substr(begin, line.find('#', begin) - begin);
  while (!value.empty() && (value.back() == ' ' || value.back() == '\t' || value.back() == '\r')) {
    value.remove_suffix(1);
  }
  if (value.find_first_not_of("0123456789") == value.npos)
    return std::nullopt;  // a plain number is no mistake
  const bool size = size_parse(value).has_value();
  if (!size && !duration_parse(value)) return std::nullopt;
  std::string_view key = line.substr(0, equals);
  while (!key.empty() && (key.front() == ' ' || key.front() == '\t')) key.remove_prefix(1);
  while (!key.empty() && (key.back() == ' ' || key.back() == '\t')) key.remove_suffix(1);
  return Error{{},
               number,
               static_cast<std::uint32_t>(begin + 1),
               std::string("put quotes around ") + (size ? "sizes" : "durations") + ": " +
                   text_shown(key) + " = \"" + text_shown(value) + "\""};
}

std::optional<Error> shape_check(std::string_view text) {
  if (text.size() > kFileBytesMax) {
    return Error{
        {}, 0, 0, "longer than " + size_format(kFileBytesMax) + "; this is no configuration file"};
  }
  Scanner scanner(text);
  std::size_t open = 0;    // brackets
  std::size_t levels = 0;  // brackets and dots of one statement
  while (const auto c = scanner.next()) {
    if (*c == '[' || *c == '{') ++open;
    if ((*c == ']' || *c == '}') && open > 0) --open;
    if (*c == '[' || *c == '{' || *c == '.') ++levels;
    if (*c == '\n' && open == 0) levels = 0;
    if (levels > kLevelsMax) return Error{{}, scanner.line(), 1, "tables or lists nested too deep"};
  }
  return std::nullopt;
}

}  // namespace sluice::config

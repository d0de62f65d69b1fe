// Decoding and the widths are libc's, in a locale of our own: the user's may know ASCII only.
#include "broker/cli/text_width.h"

#include <locale.h>
#include <wchar.h>

#include <algorithm>

namespace sluice::cli {
namespace {

/// Makes this thread read text as UTF-8 for as long as it lives.
class Utf8 {
 public:
  Utf8() : before_(locale() != nullptr ? uselocale(locale()) : nullptr) {}
  ~Utf8() {
    if (before_ != nullptr) uselocale(before_);
  }
  Utf8(const Utf8&) = delete;
  Utf8& operator=(const Utf8&) = delete;

 private:
  static locale_t locale() {
    static const locale_t made = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    return made;
  }
  locale_t before_;
};

struct Character {
  std::size_t bytes = 1;
  std::size_t columns = 1;
};

Character character_at(std::string_view text) {
  wchar_t wide = 0;
  mbstate_t state{};
  const std::size_t bytes = mbrtowc(&wide, text.data(), text.size(), &state);
  if (bytes == 0 || bytes > text.size()) return {};
  return {bytes, static_cast<std::size_t>(std::max(wcwidth(wide), 0))};
}

}  // namespace

std::size_t text_width(std::string_view text) {
  const Utf8 utf8;
  std::size_t columns = 0;
  while (!text.empty()) {
    const Character character = character_at(text);
    columns += character.columns;
    text.remove_prefix(character.bytes);
  }
  return columns;
}

std::string text_cut(std::string_view text, std::size_t columns) {
  const Utf8 utf8;
  std::size_t at = 0;
  while (at < text.size()) {
    const Character character = character_at(text.substr(at));
    if (character.columns > columns) break;
    columns -= character.columns;
    at += character.bytes;
  }
  return std::string(text.substr(0, at));
}

}  // namespace sluice::cli

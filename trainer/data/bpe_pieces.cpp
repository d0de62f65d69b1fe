// Cutting text into words, as GPT-2's expression does; see bpe.h. The properties of characters are
// ICU's.
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <array>

#include "trainer/data/bpe.h"

namespace sluice::train {
namespace {

enum class Kind : std::uint8_t { kLetter, kNumber, kSpace, kOther, kEnd };

struct Character {
  Kind kind = Kind::kEnd;
  std::size_t length = 0;  // bytes
};

Kind kind_of(UChar32 code) {
  if (code < 0) return Kind::kOther;  // not UTF-8
  const std::uint32_t category = U_GET_GC_MASK(code);
  if ((category & U_GC_L_MASK) != 0) return Kind::kLetter;
  if ((category & U_GC_N_MASK) != 0) return Kind::kNumber;
  return u_isUWhiteSpace(code) ? Kind::kSpace : Kind::kOther;
}

Character character_at(std::string_view text, std::size_t at) {
  if (at == text.size()) return {};
  const std::size_t longest = std::min<std::size_t>(text.size() - at, U8_MAX_LENGTH);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data()) + at;
  int used = 0;
  UChar32 code = 0;
  U8_NEXT(bytes, used, static_cast<int>(longest), code);
  if (code < 0) used = 1;
  return {kind_of(code), static_cast<std::size_t>(used)};
}

/// Where the run of characters of `kind` that begins at `at` ends.
std::size_t run_end(std::string_view text, std::size_t at, Kind kind) {
  for (Character next = character_at(text, at); next.kind == kind; next = character_at(text, at)) {
    at += next.length;
  }
  return at;
}

std::size_t contraction_length(std::string_view rest) {
  constexpr std::array<std::string_view, 7> kContractions = {"'s", "'t",  "'re", "'ve",
                                                             "'m", "'ll", "'d"};
  for (const std::string_view one : kContractions) {
    if (rest.starts_with(one)) return one.size();
  }
  return 0;
}

/// Spaces before a word: all but the last, which belongs to the word when it is " "; a single one
/// stands alone. At the end of the text all of them.
std::size_t spaces_end(std::string_view text, std::size_t at) {
  std::size_t last = at;
  std::size_t end = at;
  for (Character next = character_at(text, at); next.kind == Kind::kSpace;
       next = character_at(text, end)) {
    last = end;
    end += next.length;
  }
  return end == text.size() || last == at ? end : last;
}

std::size_t piece_end(std::string_view text, std::size_t at) {
  if (const std::size_t length = contraction_length(text.substr(at)); length > 0)
    return at + length;
  const Kind kind = character_at(text, at).kind;
  if (kind != Kind::kSpace) return run_end(text, at, kind);
  if (text[at] == ' ') {
    const Kind next = character_at(text, at + 1).kind;
    if (next != Kind::kSpace && next != Kind::kEnd) return run_end(text, at + 1, next);
  }
  return spaces_end(text, at);
}

}  // namespace

std::vector<std::string_view> bpe_pieces(std::string_view text) {
  std::vector<std::string_view> pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(text, at);
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

}  // namespace sluice::train

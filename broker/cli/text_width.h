// How wide a text is on a terminal: names may be in any script.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::cli {

/// Columns of a UTF-8 text: two for wide characters, none for combining ones, one for a byte that
/// is no UTF-8.
std::size_t text_width(std::string_view text);

/// The beginning of `text` that fits into `columns`, whole characters with what combines.
std::string text_cut(std::string_view text, std::size_t columns);

}  // namespace sluice::cli

// The nearest known word to a mistyped one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

/// Insertions, deletions and replacements from `a` to `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);
/// The nearest of `known` if it is near enough to have been meant; empty otherwise.
std::string suggest(std::string_view word, const std::vector<std::string>& known);

}  // namespace sluice::cli

// Looks at the text of a configuration before and after the TOML parser does: before, for what
// would harm the parser; after it failed, for the mistake that everybody makes once. Knows no keys.
#pragma once

#include <optional>
#include <string_view>

#include "config/reader/config.h"

namespace sluice::config {

/// Refuses what no person wrote: too long, or nested too deep. The parser needs stack for every
/// level of nesting, brackets and dotted names alike, and a small file can hold a hundred thousand
/// of them.
std::optional<Error> shape_check(std::string_view text);

/// Line `number` of the text, from 1; empty = it has fewer.
std::string_view line_of(std::string_view text, std::uint32_t number);

/// Line `number` says `key = 8GiB`, without the quotes: the place of the value and the line as it
/// should be.
std::optional<Error> unquoted_find(std::string_view text, std::uint32_t number);

}  // namespace sluice::config

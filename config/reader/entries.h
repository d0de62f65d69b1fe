// A TOML file of plain keys and values, for programs whose keys are their own: what stands where,
// and nothing about what it means. The file has one table, the root; a value is a string, a number,
// a truth value or a list of such.
#pragma once

#include "config/reader/keys.h"

namespace sluice::config {

struct Entry {
  std::string key;
  std::uint32_t line = 0;  // of the key; the value has its own
  std::uint32_t column = 0;
  Value value;
};

/// The entries in the order of the file. Errors name file, line and column.
Result<std::vector<Entry>> entries_parse(std::string_view text, const std::string& path);
Result<std::vector<Entry>> entries_read(const std::string& path);

}  // namespace sluice::config

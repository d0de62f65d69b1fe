// The reader of sluice.toml under arbitrary bytes.
//
// Holds for every text: reading ends; a configuration that is believed says the same when it is
// written and read again; one that is not has a mistake with a line in the text and words fit for a
// terminal.
#include <algorithm>
#include <cstdint>
#include <string>

#include "config/reader/config.h"
#include "tests/fuzz/target.h"

using namespace sluice;
using fuzz::require;

FUZZ_TARGET(config) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto result = config::config_parse(text, "f.toml");
  if (result.ok()) {
    const auto again = config::config_parse(config::config_format(*result), "f.toml");
    require(again.ok() && *again == *result);
    return 0;
  }
  require(!result.errors().empty());
  const auto lines = 1 + std::count(text.begin(), text.end(), '\n');
  for (const config::Error& error : result.errors()) {
    require(error.line <= lines && !error.what.empty());
    for (const char c : error.text()) {
      const auto byte = static_cast<unsigned char>(c);
      require(byte >= 0x20 && byte != 0x7f);
    }
  }
  return 0;
}

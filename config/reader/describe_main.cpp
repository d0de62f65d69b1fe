// Prints the reference of all keys as Markdown; docs/config.md is its output and a test compares
// the two.
#include <cstdio>

#include "config/reader/config.h"

int main() {
  std::fputs(sluice::config::config_describe().c_str(), stdout);
  return 0;
}

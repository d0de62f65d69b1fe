// What `sluice why` is asked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::exporter {

struct WhyOptions {
  std::string tenant;  // number or name; empty = all
  std::uint64_t seconds_ns = 10'000'000'000;
  std::optional<std::string> socket;
  bool json = false;
  bool bpf = true;
  bool help = false;
};

extern const char* const kWhyUsage;
std::optional<WhyOptions> why_options_parse(const std::vector<std::string>& arguments,
                                            std::string* error);

}  // namespace sluice::exporter

// What sluice-watch tells sluice-exporter: a small file that one replaces as a whole and the other
// reads. Neither has to trust or wait for the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "exporter/bypass/judge.h"

namespace sluice::exporter {

struct BypassFigures {
  std::uint64_t at_ns = 0;  // CLOCK_MONOTONIC, when they were written
  BypassPolicy policy = BypassPolicy::kReport;
  bool sources[kFoundBy] = {};  // what is looked at
  BypassCounts counts;
};

inline constexpr const char* kPolicyNames[] = {"count", "report", "stop"};
/// Older ones are of a watcher that is gone.
inline constexpr std::uint64_t kFiguresGoodNs = 30'000'000'000;

/// 0 or an errno. The file can be read by everybody.
int bypass_figures_write(const std::string& path, const BypassFigures& figures);
/// Nothing where there are none, or none of the last half minute.
std::optional<BypassFigures> bypass_figures_read(const std::string& path, std::uint64_t now_ns);

std::string bypass_figures_text(const BypassFigures& figures);
std::optional<BypassFigures> bypass_figures_parse(const std::string& text);

}  // namespace sluice::exporter

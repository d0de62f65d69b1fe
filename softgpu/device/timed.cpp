// Kernels that take a given time: parsing of the rules, and which one a kernel falls under. See
// settings.h.
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "softgpu/device/device.h"
#include "softgpu/device/text.h"

namespace softgpu::device {
namespace {

bool rule_parse(std::string_view text, TimedRule& rule) {
  constexpr std::string_view kSkip = "/skip";
  const auto equals = text.rfind('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view pattern = trimmed(text.substr(0, equals));
  std::string_view time = trimmed(text.substr(equals + 1));
  rule = TimedRule{};
  if (time.ends_with(kSkip)) {
    rule.skip = 1;
    time = trimmed(time.substr(0, time.size() - kSkip.size()));
  }
  if (pattern.empty() || pattern.size() >= sizeof rule.pattern) return false;
  std::memcpy(rule.pattern, pattern.data(), pattern.size());
  return duration_parse(std::string(time), rule.ns);
}

}  // namespace

bool duration_parse(const std::string& text, double& nanoseconds) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(value) || value < 0) return false;
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
  for (const auto& [unit, factor] : kUnits) {
    if (trimmed(end) != unit) continue;
    nanoseconds = value * factor;
    return true;
  }
  return false;
}

bool timed_parse(const std::string& text, std::vector<TimedRule>& rules, std::string& error) {
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t comma = std::min(text.find(',', from), text.size());
    const std::string_view part = trimmed(std::string_view(text).substr(from, comma - from));
    from = comma + 1;
    if (part.empty()) continue;
    if (rules.size() == kTimedMax) {
      error = "more than " + std::to_string(kTimedMax) + " timed kernels";
      return false;
    }
    TimedRule rule;
    if (!rule_parse(part, rule)) {
      error = "\"" + std::string(part) +
              "\" is no timed kernel (PATTERN=TIME such as gemm*=2ms, or gemm*=2ms/skip)";
      return false;
    }
    rules.push_back(rule);
  }
  return true;
}

std::optional<TimedRule> Device::timed(const std::string& kernel) {
  if (__atomic_load_n(&segment_->timed_count, __ATOMIC_ACQUIRE) == 0) return std::nullopt;
  const Lock lock(*this);
  const TimedRule* const begin = segment_->timed;
  const TimedRule* const end = begin + segment_->timed_count;
  const TimedRule* found = std::find_if(begin, end, [&](const TimedRule& rule) {
    return fnmatch(rule.pattern, kernel.c_str(), 0) == 0;
  });
  return found == end ? std::nullopt : std::optional(*found);
}

}  // namespace softgpu::device

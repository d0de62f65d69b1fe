// Which process is meant: a number alone is given again when its process has ended.
#pragma once

#include <compare>
#include <cstdint>

namespace sluice::exporter {

struct ProcessName {
  std::uint32_t pid = 0;
  std::uint64_t start_ticks = 0;  // of the kernel's clock since it booted (USER_HZ)
  auto operator<=>(const ProcessName&) const = default;
};

}  // namespace sluice::exporter

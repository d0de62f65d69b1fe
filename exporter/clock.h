// The clock of the broker's snapshots, of the shim's pages and of BPF.
#pragma once

#include <time.h>

#include <cstdint>

namespace sluice::exporter {

/// CLOCK_MONOTONIC, in nanoseconds.
inline std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000ULL +
         static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace sluice::exporter

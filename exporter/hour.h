// The last hour in steps of ten seconds, for the curves of the wall page. Pure; bounded by its
// steps and the number of GPUs.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "exporter/devices.h"
#include "exporter/snapshot.h"

namespace sluice::exporter {

inline constexpr std::uint64_t kHourStep_ns = 10'000'000'000;
inline constexpr std::size_t kHourSteps = 360;

struct HourPoint {
  struct Gpu {
    double busy = 0;  // fraction of the step in which work of tenants ran
    double held = 0;  // fraction of its memory that they held at the end of it
  };
  std::uint64_t end_ns = 0;               // CLOCK_MONOTONIC
  std::map<std::string, Gpu> gpus;        // by UUID as text
  std::uint32_t queued = 0, running = 0;  // tenants, at the end of it
};

class Hour {
 public:
  /// To be called more often than once a step. Steps in which nobody looked are missing.
  void look(const Snapshot& snapshot, const DeviceFigures& devices = {});
  const std::deque<HourPoint>& points() const { return points_; }

 private:
  /// What the driver said during the step, of GPUs that are not metered.
  struct Told {
    double sum = 0;
    std::uint32_t looks = 0;
  };

  std::deque<HourPoint> points_;
  std::uint64_t broker_started_ns_ = 0, begin_ns_ = 0, last_ns_ = 0;
  std::map<std::string, std::uint64_t> begin_busy_ns_;
  std::map<std::string, Told> told_;
};

}  // namespace sluice::exporter

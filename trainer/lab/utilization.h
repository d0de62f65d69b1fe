// How busy real GPUs are, as NVML tells it: a thread that asks several times a second. Software
// GPUs keep exact accounts instead.
#pragma once

#include <memory>
#include <vector>

#include "trainer/lab/metrics.h"

namespace sluice::lab {

class UtilizationSampler {
 public:
  /// Starts at once. Without NVML it measures nothing.
  UtilizationSampler();
  ~UtilizationSampler();
  UtilizationSampler(const UtilizationSampler&) = delete;
  UtilizationSampler& operator=(const UtilizationSampler&) = delete;

  /// Ends the thread. By GPU: busy time is the mean utilization times the elapsed time. Empty when
  /// there was nothing to ask.
  std::vector<GpuUse> stop();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

}  // namespace sluice::lab

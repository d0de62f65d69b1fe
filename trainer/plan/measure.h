// Measures the device at hand for a calibration, in the device's own time (events): every kernel
// that training launches, at a few shapes each, and the links between ranks. On software GPUs that
// is modelled time, and repeatable to the digit.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/plan/calibration.h"

namespace sluice::train::planner {

struct MeasureOptions {
  bool quick = false;      // fewer repetitions and sizes
  std::vector<int> ranks;  // of the collectives
  Engine engine = Engine::kAuto;
  LinkModel link;  // of software GPUs
  double timeout_s = 60;
  std::function<void(const std::string&)> progress;  // a line before each part
};

/// The whole of it, in child processes: this one calls no driver. Seconds; a fraction of one when
/// quick.
Calibration calibration_measure(const MeasureOptions& options);

/// What is there, by a child too.
DeviceFacts device_facts();

/// In this process, on this device. (measure_kernels.cpp)
KernelRates kernels_measure(const Device& device, bool quick);

/// One line of text for each operation, algorithm and size; one of `rank_count` processes that meet
/// in `directory`, empty before. (measure_links.cpp)
/// With `pairs` also a line for each size and each pair in which this rank is the lower one.
std::string links_measure(const MeasureOptions& options, int rank, int rank_count, bool pairs,
                          const std::string& directory);
/// The lines of the first rank as rates.
std::vector<CollectiveRate> links_fit(const std::string& lines, int rank_count);
/// The pairs of a rank's lines.
std::vector<PairRate> pairs_fit(const std::string& lines);

}  // namespace sluice::train::planner

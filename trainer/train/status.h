// The progress line of a training job: what there is to say of it at a moment, in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::train {

struct TrainStatus {
  std::uint64_t steps = 0;
  std::uint64_t steps_before = 0;   // of them, not made in `spent_s`: by earlier runs
  std::uint64_t steps_planned = 0;  // 0 = until `seconds` have passed
  double loss = 0;
  double samples_per_s = 0;
  double tokens_per_sample = 0;  // of text; 0 = samples are what is counted
  double mfu = -1;               // of the GPUs' peak; -1 = not known
  bool has_ranks = false;        // more than one, so that there is communication
  double exposed = 0;            // part of the time that waits for gradients
  double stall = 0;              // part of the time that waits for data
  double spent_s = 0;            // so far
  double seconds = 0;            // to be spent; 0 = as the steps take
};

/// The most important first: a narrow terminal shows as many as fit.
std::vector<std::string> status_parts(const TrainStatus& status);

/// "0:42", "12:03", "3:05:10"
std::string duration_text(double seconds);

}  // namespace sluice::train

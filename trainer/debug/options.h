// The command line of sluice-debug, checked.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/debug/plan.h"

namespace sluice::train {

struct DebugOptions {
  int kernels = 12;
  std::uint64_t seed = 1;
  std::string outcome = "ok";  // or "random"
  DebugMix mix;
  double gap_ms = 5;
  int elements = 65536;
  int jobs = 0;  // 0 = be one job; else start so many
  double rate_per_s = 1;
  double patience_s = 60;  // what lives so much longer than planned is killed
  std::string log;
  bool quiet = false;

  DebugPlan plan(std::uint64_t of_seed) const {
    DebugOutcome fixed{};
    return debug_plan(mix, of_seed, outcome_parse(outcome, &fixed) ? &fixed : nullptr);
  }
};

/// Parses and checks. On --help or a mistake prints what is due and returns false with the exit
/// code.
bool debug_options_parse(int argc, char** argv, DebugOptions* out, int* exit_code);

}  // namespace sluice::train

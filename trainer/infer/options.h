// The command line of sluice-infer, checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/infer/arrivals.h"
#include "trainer/infer/serving.h"

namespace sluice::train {

struct InferOptions {
  Load load;  // the trace is read, and scaled
  double seconds = 10;
  std::uint64_t seed = 1;
  BatchPolicy policy;
  double objective_ms = 100;
  double drain_seconds = 10;
  std::vector<int> hidden = {128};
  int model_count = 1;
  std::vector<std::string> files;  // of weights; none = model_count models of random weights
  double stall_ms = 0;             // a planted stall of the server, before the first batch that
  double stall_at_s = 1;           // begins this long after the start
  std::string log;
  bool quiet = false;

  Nanos objective_ns() const { return static_cast<Nanos>(objective_ms * 1e6); }
};

/// Parses, checks, and reads the trace. On --help or a mistake prints what is due and returns false
/// with the exit code.
bool infer_options_parse(int argc, char** argv, InferOptions* out, int* exit_code);

}  // namespace sluice::train

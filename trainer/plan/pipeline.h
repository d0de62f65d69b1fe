// The schedule of a pipeline: stages that are consecutive layers, micro-batches that go through
// them one forward and one backward in turn (1F1B: Narayanan et al., PipeDream, 2019; with a flush
// at the end of a step, as Megatron-LM has it). Played through, not a formula, so that stages may
// differ; for equal ones and free links the idle part is (P-1) / (M+P-1). Pure arithmetic.
#pragma once

#include <cstddef>
#include <vector>

namespace sluice::train::planner {

struct StageTime {
  double forward_ns = 0;   // of a micro-batch
  double backward_ns = 0;  // of a micro-batch
  double send_ns = 0;      // its output to the next stage; the gradient of it comes back as long
  double copy_ns = 0;      // into a message before it is sent, and out of it when it has come
  double staging_ns = 0;   // of a message through the host's memory, on either side
};

struct PipelineTimes {
  std::vector<double> backward_end_ns;  // of each stage's last micro-batch, from the step's start
  double step_ns = 0;                   // of the last of them
};

/// A message is on its way while its sender goes on.
PipelineTimes pipeline_play(const std::vector<StageTime>& stages, int micro_batches);

/// Micro-batches that stage `stage` of `stages` has under way at most.
int pipeline_kept(int stage, int stages, int micro_batches);

/// Cuts `costs` into `parts` runs so that the dearest is cheapest: the first of each, and the end.
/// By dynamic programming.
std::vector<std::size_t> runs_balance(const std::vector<double>& costs, int parts);

}  // namespace sluice::train::planner

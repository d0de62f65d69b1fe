// What the stages of a pipeline do in which order, so that few batches are under way at once and
// each stage is idle no longer than it must: one forward, one backward (1F1B; Narayanan et al.,
// PipeDream-2BW, 2021). Stage s of p goes forward until the first gradient can have come back (p -
// 1
// - s micro-batches, and one more), then in turns backward and forward, and ends with what is left
// to go backward. Gradients of micro-batches add up in their order, on every stage. Pure.
#pragma once

#include <vector>

namespace sluice::train {

/// One micro-batch through one stage, one way.
struct PipelineOp {
  enum class Way : unsigned char { kForward, kBackward };
  Way way;
  int micro;

  bool operator==(const PipelineOp&) const = default;
};

/// In order; every micro-batch once each way.
std::vector<PipelineOp> pipeline_schedule(int stage, int stage_count, int micro_count);

/// Micro-batches that a stage has under way at most, gone forward and not yet backward.
int pipeline_slots(int stage, int stage_count, int micro_count);

/// The share of its time that a stage is idle, where all stages take equally long and sending takes
/// no time: (p - 1) / (m + p - 1).
double pipeline_bubble(int stage_count, int micro_count);

}  // namespace sluice::train

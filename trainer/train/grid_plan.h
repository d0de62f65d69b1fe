// What the static plan says of a grid: which part every rank has, the memory that it needs, what
// its groups send in a step; and what a rank says that found too little memory.
#pragma once

#include <string>

#include "trainer/train/plan.h"

namespace sluice::train {

/// Device memory of one rank. Sizes of a transformer are exact but for the room that matrix
/// products make for themselves; of other models only the weights' share is known.
struct RankMemory {
  std::size_t weights = 0;  // and gradients, and sums of micro-batches
  std::size_t optimizer = 0;
  std::size_t rest = 0;  // activations, batches, messages between stages

  std::size_t total() const { return weights + optimizer + rest; }
};
RankMemory rank_memory(const TrainOptions& options, const TrainPlan& plan, int rank);

/// What ranks send beside gradients in a step of full batches, in bytes of the busiest: the
/// formulas that the transport's counts are compared with.
struct GridTraffic {
  double tensor = 0;    // of one rank of the tensor's
  double pipeline = 0;  // of a stage in the middle, or of either of two
  double ends = 0;      // the embedding's gradient, which two stages have
};
GridTraffic grid_traffic(const TrainOptions& options, const TrainPlan& plan);

/// Lines of the plan, each after a line break; of a grid of data alone only the memory, if it is
/// known.
std::string grid_text(const TrainPlan& plan, const TrainOptions& options);

/// For people: what this rank needs, what is free on its GPU when it has nothing there, and what to
/// do. Opens the GPU.
std::string memory_text(const TrainOptions& options);

}  // namespace sluice::train

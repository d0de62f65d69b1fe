// What the ranks that have one copy of the model between them do together, beside the passes
// themselves: the norm of a gradient that lies on several, what all must know or decide alike, and
// the whole weights for a file. With a copy on one rank each of these is that rank's own affair.
#pragma once

#include <memory>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/model/model_part.h"
#include "trainer/train/state.h"
#include "trainer/train/update.h"

namespace sluice::train {

class Replica {
 public:
  /// `comm` is between the ranks of the copy. Both must outlive this.
  Replica(Communicator& comm, Stream& stream) : comm_(comm), stream_(stream) {}

  /// After the gradients of this rank's part have become those of all data: sums what several
  /// ranks of the copy have of one gradient (the embedding's, on both ends of a pipeline; `ends` is
  /// between those), and the extras. Waits.
  ReductionTimes reduce(Communicator* ends, const ModelPart& part, Network& network);
  /// The largest of what the ranks say; waits.
  float max_of(float mine);
  bool any_of(bool mine) { return max_of(mine ? 1.0f : 0.0f) > 0; }
  /// The whole model's weights, on the first rank of the copy (elsewhere of no use); waits.
  std::vector<float> weights_gather(const ModelPart& part, std::span<const float> mine);
  /// The same of a state of this rank's part.
  void state_gather(const ModelPart& part, TrainState& state);

 private:
  Communicator& comm_;
  Stream& stream_;
  DeviceArray<float> value_{1};
};

/// This part of the whole model's state.
void state_cut(const ModelPart& part, TrainState& state);

/// Each rank updates what it has; the gradient is clipped by the norm over all ranks of the copy,
/// to which every parameter adds once.
std::unique_ptr<WeightUpdate> replica_update(Communicator& comm, Stream& stream,
                                             const OptimizerSettings& settings,
                                             CUdeviceptr gradients, CUdeviceptr parameters,
                                             const ModelPart& part);

}  // namespace sluice::train

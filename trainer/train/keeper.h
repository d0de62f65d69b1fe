// How a rank comes by the state that its training begins with, and what it keeps of the state while
// it trains: in memory, for when a rank is lost, and in checkpoints.
#pragma once

#include "trainer/train/grid.h"
#include "trainer/train/worker.h"

namespace sluice::train {

class StateKeeper {
 public:
  /// Everything must outlive the keeper.
  struct Parts {
    const TrainOptions& options;
    Worker& worker;
    const TrainPlan& plan;
    Groups& groups;
    Stream& stream;
    Network& network;
    WeightUpdate* update;  // null on a worker of --strategy async
    BucketReduction& reduction;
    LossScaler* scaler;  // null without fp16
    std::uint32_t train_count;
    int root;  // the rank whose state all go on from
  };
  explicit StateKeeper(const Parts& parts) : parts_(parts) {}

  /// The state that all go on from, on the device: what root has in memory, or on the disk, or a
  /// new one. A collective; what it returns has no parameters on ranks other than root.
  const TrainState& begin();
  const TrainState& first() const { return first_; }
  /// After `step` steps, in memory and on the disk, where it is time to. A collective.
  void keep(std::uint64_t step, const DataPosition& position, bool is_last);

 private:
  bool is_alone() const;
  TrainState found() const;
  StateMover mover() const;
  CheckpointIdentity identity() const;
  void checkpoint_write(const TrainState& state, bool is_last);

  const Parts parts_;
  TrainState first_;
};

}  // namespace sluice::train

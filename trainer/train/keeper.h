// How a rank comes by the state that its training begins with, and what it keeps of the state while
// it trains: in memory, for when a rank is lost, and in checkpoints.
#pragma once

#include "trainer/train/feed.h"
#include "trainer/train/grid.h"
#include "trainer/train/replica.h"
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
    Replica& replica;
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
  /// new one. A collective.
  const TrainState& begin();
  const TrainState& first() const { return first_; }
  /// Steps that every worker of --strategy async begins with.
  std::vector<std::uint64_t> clocks() const;
  /// Steps that this rank begins with: of a worker of --strategy async its own.
  std::uint64_t own_steps() const;
  /// After `step` steps, in memory and on the disk, where it is time to. A collective.
  void keep(std::uint64_t step, const DataPosition& position, bool is_last);
  /// The same by the server of --strategy async, alone: after the slowest worker's steps.
  void keep_served(const std::vector<std::uint64_t>& clocks, const Feed& feed, bool is_last);

 private:
  bool is_split() const { return parts_.plan.grid.is_split(); }
  bool is_async() const { return parts_.options.strategy == Strategy::kAsync; }
  void put();
  TrainState take();
  TrainState found() const;
  StateMover mover() const;
  CheckpointIdentity identity() const;
  void checkpoint_write(const TrainState& state, bool is_last);

  const Parts parts_;
  TrainState first_;
  std::uint64_t served_ = 0;  // steps of the slowest worker when they were kept last
};

}  // namespace sluice::train

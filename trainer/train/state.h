// The state of a training job between two steps, on the host: all that must be there for the job to
// go on as if nothing had been, with any number of ranks. Every rank takes one from time to time
// (`--commit-every`), checkpoints are one in a file, and a rank that joins gets one by broadcast.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/data/sampler.h"
#include "trainer/model/loss_scale.h"
#include "trainer/model/network.h"
#include "trainer/train/reduction.h"
#include "trainer/train/update.h"

namespace sluice::train {

struct TrainState {
  std::uint64_t step = 0;     // so many are done, the first of them in whatever run
  DataPosition position;      // of the data, after them
  std::uint64_t samples = 0;  // that all ranks trained on in them
  int rank_count = 0;         // that made it
  std::vector<float> parameters;
  OptimizerState optimizer;                  // without arrays before the first step
  std::optional<LossScaleState> loss_scale;  // with fp16
  /// What each rank of those that made it kept back (BucketReduction::errors()); none where nothing
  /// is kept back.
  std::vector<std::vector<float>> errors;
  /// What all of them began their next step with (BucketReduction::warm_take()); empty = nothing.
  std::vector<float> warm;
  /// With --strategy async the steps that every worker has made; `step` is the slowest's.
  std::vector<std::uint64_t> clocks;
};

/// What a rank is to have of the errors of others: those of ranks rank, rank + rank_count, ... of
/// before, added up; so the sum over all ranks is what it was. Empty = zeros.
std::vector<float> errors_of(const TrainState& state, int rank, int rank_count);

/// Moves states between host and devices. Every method waits; between steps, because what is in the
/// array of gradients is lost. Everything must outlive this.
class StateMover {
 public:
  struct Parts {
    Communicator& comm;
    Stream& stream;
    Network& network;
    WeightUpdate& update;
    BucketReduction& reduction;
    LossScaler* scaler;  // null without fp16
    int rank;
    int rank_count;
  };
  explicit StateMover(const Parts& parts) : parts_(parts) {}

  /// A collective; the same on every rank. What the devices do not know stays 0.
  TrainState take();
  /// A collective: everyone's becomes root's.
  void share(TrainState& state, int root);
  /// Onto this rank's device.
  void put(const TrainState& state);

 private:
  struct Head;
  std::size_t count() const { return parts_.network.parameter_count(); }
  void floats_share(std::vector<float>& values, int root);

  const Parts parts_;
};

}  // namespace sluice::train

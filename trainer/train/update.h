// What becomes of the reduced gradients: new weights, on every rank the same. `data`: every rank
// has the whole sum and the optimizer's whole state, and updates all weights. `sharded`: a rank
// gets the sum of its part of each bucket alone (a reduce-scatter), has the state of those weights
// alone, updates them, and all ranks gather the new weights. The same bytes on the wire as one
// all-reduce, 1/N of the state (Rajbhandari et al., "ZeRO", 2020, stage 1 with scattered
// gradients).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "trainer/model/optimizer.h"
#include "trainer/train/reduction.h"

namespace sluice::train {

/// An optimizer's state on the host.
struct OptimizerState {
  int steps = 0;
  std::vector<std::vector<float>> arrays;  // state_count() x [parameter_count]
};

/// Between device and host, since the beginning.
struct HostCopies {
  std::uint64_t bytes = 0;
  Nanos device_ns = 0;  // that copies took, in the device's time, hidden or not
};

class WeightUpdate {
 public:
  virtual ~WeightUpdate() = default;
  /// From the reduced gradients; on the stream, may wait.
  virtual void step(double rate) = 0;
  /// Of the optimizer on this rank's device.
  virtual std::size_t state_bytes() const = 0;
  /// After step(): brings the new weights to where they are not. Nothing hides it. Waits.
  virtual ReductionTimes gather() { return {}; }
  /// Where the state is on the host. Waits for the last step's copies.
  virtual HostCopies host_copies() { return {}; }
  virtual std::size_t host_state_bytes() const { return 0; }
  /// Of gather(), as BucketReduction counts them.
  virtual double bus_bytes() const { return 0; }

  /// The state of all weights of this rank's part of the model, whoever has it: the same on every
  /// rank with that part, and for any number of them. Between steps; the gradients are lost. A
  /// collective; waits.
  virtual OptimizerState state_take() = 0;
  /// On every rank with that part the same. Waits.
  virtual void state_put(const OptimizerState& state) = 0;
};

/// Of an optimizer that has the state of `count` weights; waits.
OptimizerState optimizer_take(Stream& stream, const Optimizer& optimizer, Method method,
                              std::size_t count);
void optimizer_put(Stream& stream, Optimizer& optimizer, const OptimizerState& state);

/// Gradients [..] of a bucket become its part's sums, on the rank whose part it is.
class ShardedReduction final : public BucketReduction {
 public:
  ShardedReduction(Communicator& comm, int rank, int rank_count, CUdeviceptr gradients,
                   const ShardPlan& plan);
  void reduce(Stream& stream, const Bucket& bucket) override;
  Nanos link_ns(const Bucket& bucket) const override;
  double bus_bytes(const Bucket& bucket) const override;

 private:
  Communicator& comm_;
  const int rank_, rank_count_;
  const CUdeviceptr gradients_;
  const ShardPlan plan_;
  PlainReduction whole_;
};

/// All weights by one optimizer. Throws Failure where the device has no room for its state.
std::unique_ptr<WeightUpdate> plain_update(Stream& stream, const OptimizerSettings& settings,
                                           CUdeviceptr gradients, CUdeviceptr parameters,
                                           std::size_t parameter_count);

/// The same with the state on the host, where the updates are made; the weights differ by a
/// rounding at most.
std::unique_ptr<WeightUpdate> offload_update(Stream& stream, const OptimizerSettings& settings,
                                             CUdeviceptr gradients, CUdeviceptr parameters,
                                             std::size_t parameter_count);

struct ShardedUpdateOptions {
  int rank;
  int rank_count;
  std::size_t parameter_count;
  std::span<const Bucket> buckets;  // of ShardPlan::buckets()
  ShardPlan plan;
};
std::unique_ptr<WeightUpdate> sharded_update(Communicator& comm, Stream& stream,
                                             const OptimizerSettings& settings,
                                             CUdeviceptr gradients, CUdeviceptr parameters,
                                             const ShardedUpdateOptions& options);

}  // namespace sluice::train

// Which network, reduction of gradients and update of weights a rank needs follows from the options
// and from what the rank has of the model; here is the one place that knows.
#pragma once

#include <memory>

#include "trainer/train/grid.h"
#include "trainer/train/plan.h"
#include "trainer/train/reduction.h"
#include "trainer/train/update.h"

namespace sluice::train {

/// Everything must outlive what is made of it.
struct StrategyParts {
  const TrainOptions& options;
  const TrainPlan& plan;
  Groups& groups;
  Stream& stream;
  Network& network;
};

/// The network of this rank's part, with the engine of its products. Rank 0 says where that is not
/// the one that it would be.
NetworkSettings strategy_settings(const TrainOptions& options, const PartPlace& place,
                                  const Device& device);
std::unique_ptr<BucketReduction> strategy_reduction(const StrategyParts& parts);
/// None for a worker of --strategy async, whose server makes the updates.
std::unique_ptr<WeightUpdate> strategy_update(const StrategyParts& parts);

}  // namespace sluice::train

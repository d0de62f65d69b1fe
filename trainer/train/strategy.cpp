// See strategy.h.
#include "trainer/train/strategy.h"

#include <algorithm>
#include <cstdio>

#include "trainer/train/compression.h"
#include "trainer/train/powersgd.h"
#include "trainer/train/replica.h"

namespace sluice::train {
namespace {

bool is_sharded(const TrainOptions& options) {
  return options.strategy == Strategy::kSharded && options.place.rank_count > 1;
}

}  // namespace

NetworkSettings strategy_settings(const TrainOptions& options, const PartPlace& place,
                                  const Device& device) {
  NetworkSettings settings = network_settings(options, place);
  std::string note;
  settings.gemm = gemm_engine(options.gemm, device.is_software(), cublaslt_library, &note);
  if (!note.empty() && options.place.rank == 0)
    std::fprintf(stderr, "sluice: sluice-train: %s\n", note.c_str());
  return settings;
}

std::unique_ptr<BucketReduction> strategy_reduction(const StrategyParts& parts) {
  const TrainOptions& options = parts.options;
  const TrainPlan& plan = parts.plan;
  Network& network = parts.network;
  Communicator& comm = *parts.groups.data;
  if (is_sharded(options)) {
    return std::make_unique<ShardedReduction>(comm, options.place.rank, options.place.rank_count,
                                              network.gradients(), plan.shards);
  }
  if (options.compression.kind == Compression::kPowersgd) {
    return powersgd_reduction(options.compression.rank, comm, plan.grid.data, parts.stream,
                              network.gradients(), network.ranges());
  }
  std::size_t largest = 0;
  for (const Bucket& bucket : plan.buckets) largest = std::max(largest, bucket.count);
  return compressed_reduction(options.compression, comm, plan.grid.data, parts.stream,
                              network.gradients(), network.parameter_count(), largest);
}

std::unique_ptr<WeightUpdate> strategy_update(const StrategyParts& parts) {
  const TrainOptions& options = parts.options;
  const TrainPlan& plan = parts.plan;
  Network& network = parts.network;
  if (plan.grid.is_split()) {
    return replica_update(*parts.groups.replica, parts.stream, options.optimizer,
                          network.gradients(), network.parameters(), plan.part);
  }
  if (options.strategy == Strategy::kAsync && !options.is_server()) return nullptr;
  if (!is_sharded(options)) {
    const auto make = options.offload ? offload_update : plain_update;
    return make(parts.stream, options.optimizer, network.gradients(), network.parameters(),
                network.parameter_count());
  }
  return sharded_update(*parts.groups.data, parts.stream, options.optimizer, network.gradients(),
                        network.parameters(),
                        {options.place.rank, options.place.rank_count, network.parameter_count(),
                         plan.buckets, plan.shards});
}

}  // namespace sluice::train

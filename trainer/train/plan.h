// The static plan of a training job: who computes what where, and what travels per step. Made once,
// before the first step, from the options alone; printed; never reconsidered while the job runs.
#pragma once

#include <string>
#include <vector>

#include "trainer/model/model_part.h"
#include "trainer/train/grid.h"
#include "trainer/train/options.h"

namespace sluice::train {

/// A run of the flat gradient array that is reduced in one piece.
struct Bucket {
  std::size_t begin;
  std::size_t count;
};

/// Which weights are whose in `sharded`: equal parts of every bucket. What does not divide by the
/// number of ranks is the end of the array, which every rank has: those few weights, and the
/// extras.
struct ShardPlan {
  std::size_t shared_begin = 0;  // from here on every rank has everything

  static ShardPlan of(std::size_t parameter_count, int rank_count) {
    return {parameter_count - parameter_count % static_cast<std::size_t>(rank_count)};
  }
  /// Buckets for [0, total): all parts of a bucket are equal, but of the first, which is shared.
  std::vector<Bucket> buckets(std::size_t total, std::size_t bucket_floats, int rank_count) const;
  bool is_shared(const Bucket& bucket) const { return bucket.begin >= shared_begin; }
  /// This rank's part of a bucket that is not shared.
  static Bucket part(const Bucket& bucket, int rank, int rank_count) {
    const std::size_t count = bucket.count / static_cast<std::size_t>(rank_count);
    return {bucket.begin + count * static_cast<std::size_t>(rank), count};
  }
};

struct TrainPlan {
  ModelShape shape;
  Grid grid;
  ModelPart part;  // this rank's; the launcher's is that of rank 0
  int rank_count;
  int gpu_count;
  int ranks_here;               // of a machine; on several of them each has as many
  std::vector<Bucket> buckets;  // in order of reduction: the last layers' gradients are ready first
  std::size_t gradient_bytes;   // of all buckets together
  ShardPlan shards;             // of Strategy::kSharded

  int gpu_of(int rank) const { return rank % ranks_here % gpu_count; }
  bool own_gpu_each() const { return ranks_here <= gpu_count; }
};

/// The model that the options ask for. Throws Failure where it cannot be.
ModelShape model_shape(const TrainOptions& options);

/// Throws Failure where the options do not go together.
TrainPlan train_plan(const TrainOptions& options, int rank_count, int gpu_count);

/// What `rank` has of the model.
ModelPart part_of_rank(const TrainPlan& plan, int rank);
/// The network of such a part.
NetworkSettings network_settings(const TrainOptions& options, const PartPlace& place);

/// The learning rate of every step of this job, which has `data_count` batches in a global one.
RatePlan rate_plan(const TrainOptions& options, int data_count, std::uint64_t steps_per_epoch);

/// [0, count) in buckets of at most `bucket_floats`, the highest first.
std::vector<Bucket> buckets_cut(std::size_t count, std::size_t bucket_floats);

/// The buckets of a job with so many weights, in order of reduction, its extras included.
std::vector<Bucket> plan_buckets(std::size_t parameters, Strategy strategy,
                                 const CompressionSettings& compression, std::uint64_t bucket_bytes,
                                 int rank_count);

/// As --strategy has it.
const char* strategy_name(Strategy strategy);

/// For people: a few lines.
std::string plan_text(const TrainPlan& plan, const TrainOptions& options);

}  // namespace sluice::train

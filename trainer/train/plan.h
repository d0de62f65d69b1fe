// The static plan of a training job: who computes what where, and what travels per step. Made once,
// before the first step, from the options alone; printed; never reconsidered while the job runs.
#pragma once

#include <string>
#include <vector>

#include "trainer/model/mlp.h"
#include "trainer/train/options.h"

namespace sluice::train {

/// A run of the flat gradient array that is reduced in one piece.
struct Bucket {
  std::size_t begin;
  std::size_t count;
};

struct TrainPlan {
  MlpShape shape;
  int rank_count;
  int gpu_count;
  std::vector<Bucket> buckets;  // in order of reduction: the last layers' gradients are ready first
  std::size_t gradient_bytes;   // of all buckets together

  int gpu_of(int rank) const { return rank % gpu_count; }
  bool own_gpu_each() const { return rank_count <= gpu_count; }
};

/// Throws Failure where the options do not go together.
TrainPlan train_plan(const TrainOptions& options, int rank_count, int gpu_count);

/// The learning rate of every step of this job.
RatePlan rate_plan(const TrainOptions& options, int rank_count, std::uint64_t steps_per_epoch);

/// [0, count) in buckets of at most `bucket_floats`, the highest first.
std::vector<Bucket> buckets_cut(std::size_t count, std::size_t bucket_floats);

/// For people: a few lines.
std::string plan_text(const TrainPlan& plan, const TrainOptions& options);

}  // namespace sluice::train

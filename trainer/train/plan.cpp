// See plan.h.
#include "trainer/train/plan.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace sluice::train {

std::vector<Bucket> buckets_cut(std::size_t count, std::size_t bucket_floats) {
  assert(count > 0 && bucket_floats > 0);
  std::vector<Bucket> buckets;
  for (std::size_t end = count; end > 0;) {
    const std::size_t size = std::min(end, bucket_floats);
    buckets.push_back({end - size, size});
    end -= size;
  }
  return buckets;
}

TrainPlan train_plan(const TrainOptions& options, int rank_count, int gpu_count) {
  if (gpu_count < 1) {
    throw Failure("no GPU is visible (CUDA_VISIBLE_DEVICES); training needs at least one");
  }
  if (options.algorithm == Algorithm::kBcube &&
      !std::has_single_bit(static_cast<unsigned>(rank_count))) {
    throw Failure(
        text_format("bcube needs 2, 4, 8, ... ranks, not %d; take --algorithm ring or "
                    "halving-doubling",
                    rank_count));
  }
  TrainPlan plan;
  plan.shape = mlp_shape(options.hidden);
  plan.rank_count = rank_count;
  plan.gpu_count = gpu_count;
  const std::size_t floats = plan.shape.parameter_count() + kExtraCount;
  plan.buckets = buckets_cut(floats, options.bucket_kib * 1024 / sizeof(float));
  plan.gradient_bytes = floats * sizeof(float);
  if (plan.shape.parameter_count() > INT32_MAX / 2) {
    throw Failure("more than 2^30 parameters; make --hidden smaller");
  }
  return plan;
}

RatePlan rate_plan(const TrainOptions& options, int rank_count, std::uint64_t steps_per_epoch) {
  RatePlan plan;
  plan.schedule = options.schedule;
  plan.peak = rate_scaled(
      options.rate, options.rate_batch,
      static_cast<std::uint64_t>(options.batch) * static_cast<std::uint64_t>(rank_count));
  plan.low = options.rate_low;
  if (plan.low < 0) {
    plan.low = options.schedule == Schedule::kOneCycle     ? plan.peak / 25
               : options.schedule == Schedule::kTriangular ? plan.peak / 10
                                                           : 0;
  }
  plan.warmup = options.rate_warmup;
  plan.steps = options.steps ? options.steps : options.epochs * steps_per_epoch;
  plan.period = options.rate_period ? options.rate_period : 2 * steps_per_epoch;
  return plan;
}

std::string plan_text(const TrainPlan& plan, const TrainOptions& options) {
  const int gpus_used = std::min(plan.gpu_count, plan.rank_count);
  std::string text =
      text_format("plan: %s, %zu parameters; %d rank%s on %d GPU%s, placed for good:",
                  plan.shape.text().c_str(), plan.shape.parameter_count(), plan.rank_count,
                  plan.rank_count == 1 ? "" : "s", gpus_used, gpus_used == 1 ? "" : "s");
  for (int rank = 0; rank < plan.rank_count; ++rank) {
    text += text_format(" %d->GPU %d", rank, plan.gpu_of(rank));
  }
  text += text_format("\nplan: batch %d per rank, %d in all", options.batch,
                      options.batch * plan.rank_count);
  if (plan.rank_count == 1) return text + "; nothing to reduce";
  std::uint64_t sent = 0;
  Nanos link_ns = 0;
  for (const Bucket& bucket : plan.buckets) {
    const std::uint64_t bytes = bucket.count * sizeof(float);
    sent +=
        static_cast<std::uint64_t>(allreduce_cost(options.algorithm, plan.rank_count, bytes).bytes);
    link_ns += options.link.allreduce_ns(options.algorithm, plan.rank_count, bytes);
  }
  return text + text_format(
                    "; all-reduce by %s in %zu bucket%s, %llu bytes sent per rank and step "
                    "(modelled link: %.3f ms)",
                    algorithm_name(options.algorithm), plan.buckets.size(),
                    plan.buckets.size() == 1 ? "" : "s", static_cast<unsigned long long>(sent),
                    millis_of(link_ns));
}

}  // namespace sluice::train

// See plan.h.
#include "trainer/train/plan.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "trainer/train/async.h"
#include "trainer/train/compression.h"
#include "trainer/train/grid_plan.h"
#include "trainer/train/pipeline_schedule.h"
#include "trainer/train/powersgd.h"

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

ModelShape model_shape(const TrainOptions& options) {
  switch (options.model) {
    case Model::kCnn:
      return cnn_shape(options.channels, options.hidden);
    case Model::kGpt:
      return gpt_shape(options.gpt);
    case Model::kMlp:
      break;
  }
  return mlp_shape(options.hidden);
}

std::vector<Bucket> ShardPlan::buckets(std::size_t total, std::size_t bucket_floats,
                                       int rank_count) const {
  const auto ranks = static_cast<std::size_t>(rank_count);
  std::vector<Bucket> out{{shared_begin, total - shared_begin}};
  if (shared_begin == 0) return out;
  const std::size_t whole = std::max(bucket_floats / ranks, std::size_t{1}) * ranks;
  for (const Bucket& one : buckets_cut(shared_begin, whole)) out.push_back(one);
  return out;
}

std::vector<Bucket> plan_buckets(std::size_t parameters, Strategy strategy,
                                 const CompressionSettings& compression, std::uint64_t bucket_bytes,
                                 int rank_count) {
  const std::size_t bucket_floats = bucket_bytes / sizeof(float);
  const std::size_t all = parameters + kExtraCount;
  if (strategy == Strategy::kSharded)
    return ShardPlan::of(parameters, rank_count).buckets(all, bucket_floats, rank_count);
  if (compression.kind == Compression::kNone) return buckets_cut(all, bucket_floats);
  std::vector<Bucket> buckets{{parameters, kExtraCount}};  // exact, so apart
  for (const Bucket& one : buckets_cut(parameters, bucket_floats)) buckets.push_back(one);
  return buckets;
}

namespace {

/// A bucket for every thin matrix, and between them for what travels as it is.
std::vector<Bucket> powersgd_plan(const std::vector<ParameterRange>& ranges, int rank) {
  std::vector<Bucket> buckets{{ranges.back().end(), kExtraCount}};
  for (const Bucket& one : powersgd_buckets(ranges, rank)) buckets.push_back(one);
  return buckets;
}

/// What a rank sends for one bucket, and how many messages wait for each other.
AllreduceCost bucket_cost(const TrainPlan& plan, const TrainOptions& options,
                          const Bucket& bucket) {
  const std::uint64_t bytes = bucket.count * sizeof(float);
  const int ranks = plan.grid.data;
  const double others = ranks - 1;
  const AllreduceCost whole = allreduce_cost(options.algorithm, ranks, bytes);
  if (options.strategy == Strategy::kSharded) {
    if (plan.shards.is_shared(bucket)) return whole;
    return {2 * others, 2 * static_cast<double>(bytes) * others / ranks};
  }
  if (bucket.begin >= plan.part.parameter_count()) return whole;
  switch (options.compression.kind) {
    case Compression::kNone:
      break;
    case Compression::kFp16:
    case Compression::kBf16:
      return allreduce_cost(options.algorithm, ranks, bytes / 2);
    case Compression::kTopk: {
      const std::size_t k = topk_of(options.compression.ratio, bucket.count);
      return {others, static_cast<double>(k * kPairBytes) * others};
    }
    case Compression::kPowersgd: {
      const int rank = options.compression.rank;
      const auto matrix = powersgd_matrix(plan.shape.ranges(), bucket, rank);
      if (!matrix) break;
      const AllreduceCost left =
          allreduce_cost(options.algorithm, plan.rank_count, matrix->left(rank) * sizeof(float));
      const AllreduceCost right =
          allreduce_cost(options.algorithm, plan.rank_count, matrix->right(rank) * sizeof(float));
      return {left.steps + right.steps, left.bytes + right.bytes};
    }
  }
  return whole;
}

/// A push is the gradients with their extras; an answer the weights and what is said with them.
std::string async_text(const TrainPlan& plan, const TrainOptions& options) {
  const std::size_t parameters = plan.shape.parameter_count();
  return text_format(
      "; rank 0 serves the weights to %d worker%s, none more than %llu steps ahead of the slowest; "
      "a step sends %zu bytes there and %zu back",
      plan.rank_count - 1, plan.rank_count == 2 ? "" : "s",
      static_cast<unsigned long long>(options.staleness),
      (parameters + kExtraCount) * sizeof(float), (parameters + kReplyCount) * sizeof(float));
}

std::string collective_text(const TrainOptions& options) {
  if (options.strategy == Strategy::kSharded) return "reduce-scatter and all-gather by ring";
  if (options.compression.kind == Compression::kTopk)
    return "all-gather by ring of " + options.compression.text();
  std::string text = std::string("all-reduce by ") + algorithm_name(options.algorithm);
  if (options.compression.kind != Compression::kNone) text += " as " + options.compression.text();
  return text;
}

}  // namespace

TrainPlan train_plan(const TrainOptions& options, int rank_count, int gpu_count) {
  if (gpu_count < 1) {
    throw Failure("no GPU is visible (CUDA_VISIBLE_DEVICES); training needs at least one");
  }
  if (options.strategy == Strategy::kAsync && rank_count < 2) {
    throw Failure(
        "--strategy async needs a server and at least one worker: give --nproc 2 or more");
  }
  if (options.slow.rank >= rank_count) {
    throw Failure(
        text_format("--plant-slow: there is no rank %d of %d", options.slow.rank, rank_count));
  }
  TrainPlan plan;
  plan.grid = Grid::of(rank_count, options.tensor, options.pipeline);
  for (const int ranks : {plan.grid.data, plan.grid.tensor, plan.grid.replica()}) {
    if (options.algorithm != Algorithm::kBcube || std::has_single_bit(static_cast<unsigned>(ranks)))
      continue;
    throw Failure(
        text_format("bcube needs 2, 4, 8, ... ranks, not %d; take --algorithm ring or "
                    "halving-doubling",
                    ranks));
  }
  const std::size_t split = options.faults.split_weights.size();
  if (split > 0 && split != static_cast<std::size_t>(rank_count)) {
    throw Failure(text_format("--split %s is for %zu ranks, and there are %d",
                              options.faults.split.c_str(), split, rank_count));
  }
  plan.shape = model_shape(options);
  plan.part = part_of_rank(plan, std::max(options.place.rank, 0));
  plan.rank_count = rank_count;
  plan.gpu_count = gpu_count;
  plan.ranks_here = std::max(rank_count / options.nodes.count, 1);
  const std::size_t floats = plan.part.parameter_count() + kExtraCount;
  plan.shards = ShardPlan::of(plan.shape.parameter_count(), rank_count);
  plan.buckets = options.compression.kind == Compression::kPowersgd
                     ? powersgd_plan(plan.shape.ranges(), options.compression.rank)
                     : plan_buckets(plan.part.parameter_count(), options.strategy,
                                    options.compression, options.bucket_bytes, rank_count);
  plan.gradient_bytes = floats * sizeof(float);
  if (plan.shape.parameter_count() > INT32_MAX / 2) {
    throw Failure("more than 2^30 parameters; make the model smaller");
  }
  return plan;
}

ModelPart part_of_rank(const TrainPlan& plan, int rank) {
  const Grid& grid = plan.grid;
  return {plan.shape, {grid.tensor_of(rank), grid.tensor, grid.stage_of(rank), grid.pipeline}};
}

NetworkSettings network_settings(const TrainOptions& options, const PartPlace& place) {
  return {.batch_max = options.batch,
          .accumulates = options.accumulate > 1 || !options.faults.split.empty(),
          .precision = options.precision,
          .slots = pipeline_slots(place.stage, place.stage_count, options.accumulate)};
}

RatePlan rate_plan(const TrainOptions& options, int data_count, std::uint64_t steps_per_epoch) {
  RatePlan plan;
  plan.schedule = options.schedule;
  plan.peak = rate_scaled(options.rate, options.rate_batch,
                          static_cast<std::uint64_t>(options.rank_batch()) *
                              static_cast<std::uint64_t>(options.worker_count(data_count)));
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

const char* strategy_name(Strategy strategy) {
  switch (strategy) {
    case Strategy::kData:
      break;
    case Strategy::kSharded:
      return "sharded";
    case Strategy::kAsync:
      return "async";
  }
  return "data";
}

std::string plan_text(const TrainPlan& plan, const TrainOptions& options) {
  const int gpus_used = std::min(plan.gpu_count, plan.ranks_here);
  std::string text = text_format(
      "plan: %s, %zu parameters; %d rank%s on %d GPU%s%s, placed for good:",
      plan.shape.text().c_str(), plan.shape.parameter_count(), plan.rank_count,
      plan.rank_count == 1 ? "" : "s", gpus_used, gpus_used == 1 ? "" : "s",
      options.nodes.are_many() ? text_format(" of each of %d nodes", options.nodes.count).c_str()
                               : "");
  for (int rank = 0; rank < plan.rank_count; ++rank) {
    text += text_format(" %d->GPU %d", rank, plan.gpu_of(rank));
  }
  text += text_format("\nplan: batch %d per rank, %d in all", options.rank_batch(),
                      options.rank_batch() * options.worker_count(plan.grid.data));
  if (options.accumulate > 1) text += text_format(", by %d micro-batches", options.accumulate);
  if (options.precision != Precision::kFp32) {
    text += std::string("; matrix products in ") + precision_name(options.precision);
  }
  const std::string parts = grid_text(plan, options);
  if (options.strategy == Strategy::kAsync) return text + async_text(plan, options);
  if (plan.grid.data == 1) return text + "; nothing to reduce" + parts;
  double sent = 0;
  Nanos link_ns = 0;
  for (const Bucket& bucket : plan.buckets) {
    const AllreduceCost cost = bucket_cost(plan, options, bucket);
    sent += cost.bytes;
    link_ns += options.link.transfer_ns(cost.steps, cost.bytes);
  }
  return text +
         text_format(
             "; %s in %zu bucket%s, %llu bytes sent per rank and step "
             "(modelled link: %.3f ms)",
             collective_text(options).c_str(), plan.buckets.size(),
             plan.buckets.size() == 1 ? "" : "s", static_cast<unsigned long long>(sent),
             millis_of(link_ns)) +
         parts;
}

}  // namespace sluice::train

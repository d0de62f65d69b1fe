// See memory.h.
#include "trainer/plan/memory.h"

#include <algorithm>

#include "kernels/optimizers.h"
#include "trainer/train/compression.h"

namespace sluice::train::planner {
namespace {

double optimizer_floats(Method method, std::size_t weights) {
  return static_cast<double>(weights * state_count(method)) +
         kernels::square_sum_parts(static_cast<int>(weights)) + 1;
}

double state_floats(const Job& job, const Candidate& c, std::size_t parameters) {
  const Method method = job.optimizer.method;
  if (c.strategy != Strategy::kSharded || c.data == 1) return optimizer_floats(method, parameters);
  const ShardPlan plan = ShardPlan::of(parameters, c.data);
  double sum = 1;  // the norm of all
  double partials = 0;
  for (const Bucket& bucket : stage_buckets(job, c, parameters)) {
    if (plan.is_shared(bucket)) continue;
    const std::size_t part = ShardPlan::part(bucket, 0, c.data).count;
    sum += optimizer_floats(method, part);
    partials += kernels::square_sum_parts(static_cast<int>(part));
  }
  if (parameters > plan.shared_begin)
    sum += optimizer_floats(method, parameters - plan.shared_begin);
  return job.optimizer.clip > 0 ? sum + partials * (1 + c.data) : sum;
}

double compression_floats(const Job& job, const Candidate& c, std::size_t parameters) {
  if (c.data == 1 || job.compression.kind == Compression::kNone) return 0;
  std::size_t largest = 0;
  for (const Bucket& bucket : stage_buckets(job, c, parameters))
    largest = std::max(largest, bucket.count);
  if (job.compression.kind != Compression::kTopk) return static_cast<double>(largest) / 2;
  const auto pairs = static_cast<double>(topk_of(job.compression.ratio, largest) * kPairBytes);
  return static_cast<double>(parameters) + pairs * (1 + c.data) / sizeof(float);
}

}  // namespace

double memory_bytes(const Job& job, const Candidate& c, const Stage& stage, int kept) {
  const auto parameters = static_cast<double>(stage.parameters());
  double floats = 2 * parameters + kExtraCount;                  // weights and gradients
  floats += c.micro_batches > 1 ? parameters + kExtraCount : 1;  // sums over micro-batches
  floats += 1;                                                   // right answers, counted
  floats += stage.kept_floats() * kept + stage.scratch_floats() + stage.message_floats();
  floats += state_floats(job, c, stage.parameters());
  floats += compression_floats(job, c, stage.parameters());
  return floats * sizeof(float);
}

}  // namespace sluice::train::planner

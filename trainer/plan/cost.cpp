// See cost.h.
#include "trainer/plan/cost.h"

#include <algorithm>
#include <numeric>

#include "trainer/plan/memory.h"
#include "trainer/plan/pipeline.h"
#include "trainer/plan/stage.h"
#include "trainer/train/compression.h"

namespace sluice::train::planner {
namespace {

/// What a bucket's gradients take on the links.
double bucket_ns(const Job& job, const Candidate& c, const Machine& machine, const Bucket& bucket,
                 std::size_t parameters) {
  const auto bytes = static_cast<double>(bucket.count * sizeof(float));
  const auto all_reduce = [&](double size) {
    return machine.links.ns(Operation::kAllReduce, c.algorithm, c.data, size);
  };
  if (c.strategy == Strategy::kSharded) {
    if (ShardPlan::of(parameters, c.data).is_shared(bucket)) return all_reduce(bytes);
    return machine.links.ns(Operation::kReduceScatter, c.algorithm, c.data, bytes);
  }
  if (bucket.begin >= parameters) return all_reduce(bytes);
  switch (job.compression.kind) {
    case Compression::kNone:
    case Compression::kPowersgd:  // refused: choose.cpp
      break;
    case Compression::kFp16:
    case Compression::kBf16:
      return all_reduce(bytes / 2);
    case Compression::kTopk:
      return machine.links.ns(
          Operation::kAllGather, c.algorithm, c.data,
          static_cast<double>(topk_of(job.compression.ratio, bucket.count) * kPairBytes) * c.data);
  }
  return all_reduce(bytes);
}

struct Reduction {
  double collective_ns = 0;
  double exposed_ns = 0;
};

/// Gradients, and where they are sharded the new weights, over the data-parallel ranks of a stage.
Reduction reduction_of(const Job& job, const Candidate& c, const Machine& machine,
                       const Stage& stage) {
  Reduction out;
  if (c.data == 1) return out;
  const std::vector<Bucket> buckets = stage_buckets(job, c, stage.parameters());
  std::vector<double> times;
  double gather = 0;
  for (const Bucket& bucket : buckets) {
    times.push_back(bucket_ns(job, c, machine, bucket, stage.parameters()));
    if (c.strategy == Strategy::kSharded &&
        !ShardPlan::of(stage.parameters(), c.data).is_shared(bucket)) {
      gather += machine.links.ns(Operation::kAllGather, c.algorithm, c.data,
                                 static_cast<double>(bucket.count * sizeof(float)));
    }
  }
  out.collective_ns = std::accumulate(times.begin(), times.end(), gather);
  out.exposed_ns = gather + reduction_exposed_ns(stage.marks(), buckets, times,
                                                 stage.last_backward_ns(), c.overlap);
  return out;
}

void candidate_check(const Job& job, const Candidate& c) {
  if (c.data < 1 || c.tensor < 1 || c.pipeline < 1 || c.micro_batches < 1)
    throw Failure("a plan needs at least one rank in every direction");
  if (job.global_batch % (c.data * c.micro_batches) != 0) {
    throw Failure(
        text_format("%d samples of a step do not divide by %d replicas x %d micro-batches",
                    job.global_batch, c.data, c.micro_batches));
  }
  if (c.strategy == Strategy::kSharded && job.compression.kind != Compression::kNone)
    throw Failure("compression is not for the sharded strategy");
}

}  // namespace

double reduction_exposed_ns(const std::vector<FinalMark>& marks, const std::vector<Bucket>& buckets,
                            const std::vector<double>& times, double backward_ns, bool overlap) {
  double free = 0;
  std::size_t mark = 0;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    while (mark < marks.size() && marks[mark].begin > buckets[i].begin) ++mark;
    const double ready = overlap && mark < marks.size() ? marks[mark].ns : backward_ns;
    free = std::max(free, ready) + times[i];
  }
  return std::max(0.0, free - backward_ns);
}

Prediction predict(const Job& job, const Candidate& c, const Machine& machine) {
  candidate_check(job, c);
  const double turns = machine.ranks_per_gpu;
  const std::vector<Stage> stages = stages_make(job, c, machine);
  std::vector<StageTime> times;
  for (const Stage& stage : stages) times.push_back(stage.time());
  const PipelineTimes played = pipeline_play(times, c.micro_batches);

  Prediction worst;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Stage& stage = stages[s];
    const Reduction reduction = reduction_of(job, c, machine, stage);
    Prediction one;
    one.input_ns = turns * stage.input_ns() * c.micro_batches;
    one.compute_ns = turns * (stage.compute_ns() * c.micro_batches + stage.accumulate_ns());
    one.tensor_ns = stage.tensor_ns() * c.micro_batches;
    const double busy = stage.busy_ns() * c.micro_batches;
    one.bubble_ns = played.backward_end_ns[s] - busy;
    one.collective_ns = reduction.collective_ns + stage.tied_ns();
    one.exposed_ns = reduction.exposed_ns + stage.tied_ns();
    one.update_ns = turns * update_ns(job, c, machine, stage.parameters());
    one.memory_bytes =
        std::max(worst.memory_bytes,
                 memory_bytes(job, c, stage,
                              pipeline_kept(static_cast<int>(s), c.pipeline, c.micro_batches)));
    if (s == 0 || one.step_ns() >= worst.step_ns()) {
      worst = one;
    } else {
      worst.memory_bytes = one.memory_bytes;
    }
  }
  return worst;
}

std::string Candidate::text() const {
  std::string out;
  const auto part = [&](const char* name, int ranks) {
    if (ranks > 1) out += (out.empty() ? "" : " x ") + text_format("%s %d", name, ranks);
  };
  part(strategy == Strategy::kSharded ? "sharded" : "data", data);
  part("tensor", tensor);
  part("pipeline", pipeline);
  if (out.empty()) out = "one rank";
  if (micro_batches > 1) out += text_format(", %d micro-batches", micro_batches);
  if (data == 1) return out;
  if (strategy == Strategy::kData) out += std::string(", ") + algorithm_name(algorithm);
  return out + text_format(", buckets of %zu KiB%s", (bucket_bytes + 1023) / 1024,
                           overlap ? "" : ", no overlap");
}

}  // namespace sluice::train::planner

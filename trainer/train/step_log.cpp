// See step_log.h.
#include "trainer/train/step_log.h"

#include <algorithm>

#include "trainer/job/statistics.h"

namespace sluice::train {
namespace {

constexpr std::size_t kRecentSteps = 64;  // over which the board's medians go
constexpr std::size_t kBucketsSaid = 64;  // one by one; of more, the first

}  // namespace

void executes_log(JobLog& log, const TrainOptions& options, const TrainPlan& plan,
                  const char* engine, bool overlaps) {
  std::string buckets;
  for (std::size_t i = 0; i < std::min(plan.buckets.size(), kBucketsSaid); ++i) {
    buckets +=
        text_format("%s%zu+%zu", i == 0 ? "" : ",", plan.buckets[i].begin, plan.buckets[i].count);
  }
  log.write(JsonLine("executes")
                .add("data", plan.grid.data)
                .add("tensor", plan.grid.tensor)
                .add("pipeline", plan.grid.pipeline)
                .add("batch", options.batch)
                .add("micro_batches", options.accumulate)
                .add("strategy", strategy_name(options.strategy))
                .add("engine", engine)
                .add("algorithm", algorithm_name(options.algorithm))
                .add("overlap", overlaps ? "on" : "off")
                .add("bucket_count", static_cast<std::uint64_t>(plan.buckets.size()))
                .add("buckets", buckets));
}

void Recent::put(Nanos value) {
  if (values_.size() < kRecentSteps) {
    values_.push_back(value);
  } else {
    values_[next_] = value;
  }
  next_ = (next_ + 1) % kRecentSteps;
}

Nanos Recent::median() const { return percentile(values_, 50); }

Nanos StepLog::note(const StepFacts& facts) {
  const Nanos end = now_ns();
  JsonLine json("step", end);
  json.add("rank", parts_.rank)
      .add("step", facts.step)
      .add("duration_ns", end - facts.begin)
      .add("loss", facts.loss)
      .add("rate", facts.rate)
      .add("communication_ns", facts.reduced.wall_ns)
      .add("collective_ns", facts.reduced.collective_ns)
      .add("exposed_ns", facts.reduced.exposed_ns)
      .add("device_ns", facts.device_ns)
      .add("stall_ns", facts.stall_ns);
  if (parts_.tensor) json.add("tensor_ns", facts.reduced.tensor_ns);
  if (parts_.pipeline != nullptr) pipeline_add(json);
  if (const LossScaler* scaler = parts_.scaler)
    json.add("loss_scale", scaler->value()).add("skipped", scaler->skipped());
  if (parts_.offload) json.add("offload_ns", offload_note());
  if (const AsyncWorker* async = parts_.async)
    json.add("age", async->age()).add("ahead", async->ahead());
  parts_.worker.log.write(json);
  board_add(facts, end);
  return end;
}

/// Of a step through the pipeline: how long this stage computed, and how long all took.
void StepLog::pipeline_add(JsonLine& json) {
  RankLine& line = parts_.worker.line;
  const PipelineTimes times = parts_.pipeline->times();
  const auto span = static_cast<Nanos>(parts_.replica.max_of(static_cast<float>(times.end_ns)));
  json.add("busy_ns", times.busy_ns).add("pipeline_ns", span).add("stage_wait_ns", times.wait_ns());
  line.pipeline_busy_ns += times.busy_ns;
  line.pipeline_span_ns += span;
}

Nanos StepLog::offload_note() {
  if (parts_.update == nullptr) return 0;
  RankLine& line = parts_.worker.line;
  const HostCopies copies = parts_.update->host_copies();
  const Nanos since = copies.device_ns - line.offload_ns;
  line.offload_bytes = copies.bytes;
  line.offload_ns = copies.device_ns;
  return since;
}

/// The count of steps is written last: who sees it sees all of the step.
void StepLog::board_add(const StepFacts& facts, Nanos end) {
  RankLine& line = parts_.worker.line;
  if (parts_.scaler != nullptr) line.skipped = parts_.scaler->skipped();
  compute_.put(end - facts.begin - facts.reduced.wall_ns);
  device_.put(facts.device_ns);
  step_.put(facts.device_ns + facts.reduced.exposed_ns);
  line.communication_ns += facts.reduced.wall_ns;
  line.collective_ns += facts.reduced.collective_ns;
  line.exposed_ns += facts.reduced.exposed_ns;
  line.tensor_ns += facts.reduced.tensor_ns;
  line.stage_wait_ns += facts.reduced.stage_wait_ns;
  line.bus_bytes = line.bus_bytes + parts_.bus_bytes + facts.reduced.bus_bytes;
  line.stall_ns += facts.stall_ns;
  line.compute_median_ns = compute_.median();
  line.device_median_ns = device_.median();
  line.step_median_ns = step_.median();
  line.loss = facts.loss;
  line.samples += static_cast<std::uint64_t>(facts.counted);
  line.end_ns = end;
  line.job_samples += facts.job_samples;
  line.own_steps = line.own_steps + 1;
  line.steps = facts.step + 1;
}

}  // namespace sluice::train

// See choose.h.
#include "trainer/plan/choose.h"

#include <algorithm>
#include <cstdio>

#include "trainer/plan/measure.h"

namespace sluice::train::planner {
namespace {

Job job_of(const TrainOptions& options, int rank_count) {
  Job job;
  job.shape = model_shape(options);
  job.global_batch = options.rank_batch() * (rank_count / options.tensor / options.pipeline);
  job.precision = options.precision;
  job.optimizer = options.optimizer;
  job.compression = options.compression;
  return job;
}

/// Sizes of groups that ranks of a grid can be in.
std::vector<int> group_sizes(int rank_count) {
  std::vector<int> sizes;
  for (int size = 2; size <= rank_count; ++size)
    if (rank_count % size == 0) sizes.push_back(size);
  if (rank_count > 2 && rank_count % 2 != 0) sizes.insert(sizes.begin(), 2);  // neighbours
  return sizes;
}

Calibration calibration_for(const TrainOptions& options, int rank_count,
                            const std::function<void(const std::string&)>& progress) {
  if (!options.calibration.empty()) {
    Calibration read = calibration_read(options.calibration);
    calibration_check(read, options.calibration, device_facts(), options.link);
    return read;
  }
  MeasureOptions measure;
  measure.quick = true;
  measure.ranks = group_sizes(rank_count);
  measure.engine = options.engine;
  measure.link = options.link;
  measure.timeout_s = options.timeout_s;
  measure.progress = progress;
  return calibration_measure(measure);
}

Candidate given_of(const TrainOptions& options) {
  Candidate given;
  given.strategy = options.strategy;
  given.bucket_bytes = options.bucket_bytes;
  given.algorithm = options.algorithm;
  given.overlap = options.overlap;
  given.tensor = options.tensor;
  given.pipeline = options.pipeline;
  return given;
}

/// Ways to train whose time is not predicted.
void unknown_refuse(const TrainOptions& options) {
  const char* const what = options.strategy == Strategy::kAsync ? "--strategy async"
                           : options.compression.kind == Compression::kPowersgd
                               ? "--compress powersgd"
                           : options.offload               ? "--offload optimizer"
                           : !options.faults.split.empty() ? "--split"
                                                           : nullptr;
  if (what != nullptr)
    throw Failure(std::string("what ") + what +
                  " takes cannot be predicted; leave it out, or train without a predicted plan");
}

/// What needs ranks that have the whole model (see fault_options.cpp and options.cpp).
bool split_possible(const TrainOptions& options) {
  const FaultOptions& faults = options.faults;
  return options.sharing == Sharing::kIndex && faults.split.empty() && !faults.is_elastic();
}

}  // namespace

PlanSearch plan_search(const TrainOptions& options, int rank_count,
                       const std::function<void(const std::string&)>& progress) {
  unknown_refuse(options);
  train_plan(options, rank_count, 1);  // refuses what no plan can be made for
  PlanSearch out;
  out.job = job_of(options, rank_count);
  out.calibration = calibration_for(options, rank_count, progress);
  out.source = options.calibration.empty() ? "a quick one of now"
                                           : options.calibration + " of " + out.calibration.date;
  out.rank_count = rank_count;
  const int gpus = out.calibration.device.count;
  const Machine machine{out.calibration.kernels, out.calibration.links,
                        (rank_count + gpus - 1) / gpus,
                        out.calibration.engine == "gloo" && out.calibration.device.software};
  SearchOptions search_options;
  search_options.ranks = rank_count;
  search_options.fixed = options.plan_fixed;
  search_options.given = given_of(options);
  search_options.accumulate = options.accumulate;
  search_options.sharded_possible =
      options.compression.kind == Compression::kNone && options.precision != Precision::kFp16;
  search_options.split_possible = split_possible(options);
  search_options.algorithms = out.calibration.engine == "gloo";
  search_options.memory_bytes = out.calibration.device.memory_bytes;
  out.ranked = search(out.job, machine, search_options);
  return out;
}

Ranked plan_take(const PlanSearch& found, TrainOptions& options) {
  const Ranked* best = best_of(found.ranked);
  if (best == nullptr) {
    const double least = found.ranked.empty() ? 0 : found.ranked.front().prediction.memory_bytes;
    throw Failure(text_format(
        "no plan that this program can execute fits into a GPU's %llu MiB (the nearest needs %.0f "
        "MiB a rank); take a smaller --batch with --accumulate, or more ranks",
        static_cast<unsigned long long>(found.calibration.device.memory_bytes >> 20),
        least / (1 << 20)));
  }
  options.strategy = best->candidate.strategy;
  options.bucket_bytes = best->candidate.bucket_bytes;
  options.algorithm = best->candidate.algorithm;
  options.tensor = best->candidate.tensor;
  options.pipeline = best->candidate.pipeline;
  options.accumulate = best->candidate.micro_batches;
  options.batch = found.job.global_batch / best->candidate.data / options.accumulate;
  return *best;
}

std::string planned_format(const TrainOptions& options) {
  return text_format(
      "%s:%llu:%s:%d:%d:%d:%d", options.strategy == Strategy::kSharded ? "sharded" : "data",
      static_cast<unsigned long long>(options.bucket_bytes), algorithm_name(options.algorithm),
      options.tensor, options.pipeline, options.batch, options.accumulate);
}

bool planned_parse(const std::string& text, TrainOptions* options) {
  char strategy[16] = "", algorithm[32] = "";
  unsigned long long bytes = 0;
  int tensor = 0, pipeline = 0, batch = 0, accumulate = 0;
  if (std::sscanf(text.c_str(), "%15[a-z]:%llu:%31[a-z-]:%d:%d:%d:%d", strategy, &bytes, algorithm,
                  &tensor, &pipeline, &batch, &accumulate) != 7) {
    return false;
  }
  if (std::min({tensor, pipeline, batch, accumulate}) < 1) return false;
  const auto parsed = algorithm_parse(algorithm);
  const std::string name = strategy;
  if (!parsed || bytes < sizeof(float) || (name != "data" && name != "sharded")) return false;
  options->strategy = name == "sharded" ? Strategy::kSharded : Strategy::kData;
  options->bucket_bytes = bytes;
  options->algorithm = *parsed;
  options->tensor = tensor;
  options->pipeline = pipeline;
  options->batch = batch;
  options->accumulate = accumulate;
  return true;
}

std::string prediction_text(const Prediction& p) {
  std::string text = text_format("%.3f ms: input %.3f, compute %.3f", p.step_ns() / 1e6,
                                 p.input_ns / 1e6, p.compute_ns / 1e6);
  if (p.tensor_ns > 0) text += text_format(", tensor %.3f", p.tensor_ns / 1e6);
  if (p.bubble_ns > 0) text += text_format(", bubble %.3f", p.bubble_ns / 1e6);
  return text + text_format(", exposed communication %.3f of %.3f, update %.3f; %.2f MiB a rank",
                            p.exposed_ns / 1e6, p.collective_ns / 1e6, p.update_ns / 1e6,
                            p.memory_bytes / (1 << 20));
}

}  // namespace sluice::train::planner

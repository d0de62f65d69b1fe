// See commands.h.
#include "trainer/plan/commands.h"

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "trainer/job/command_line.h"
#include "trainer/plan/choose.h"
#include "trainer/plan/measure.h"
#include "trainer/train/launcher.h"

namespace sluice::train::planner {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kRunnersUp = 16;  // of the table for people

/// Which ranks have which part, and on which GPU.
std::string placement_text(const Candidate& c, int gpu_count) {
  std::string text;
  for (int rank = 0; rank < c.ranks(); ++rank) {
    text += text_format(" %d->GPU %d", rank, rank % gpu_count);
    if (c.tensor * c.pipeline == 1) continue;
    text += text_format(" (replica %d, stage %d, part %d)", rank / c.tensor / c.pipeline,
                        rank / c.tensor % c.pipeline, rank % c.tensor);
  }
  return text;
}

std::string schedule_text(const Candidate& c) {
  if (c.pipeline > 1)
    return text_format("%d stages, %d micro-batches one forward and one backward in turn",
                       c.pipeline, c.micro_batches);
  std::string text = "forward, backward";
  if (c.micro_batches > 1) text = text_format("%d times ", c.micro_batches) + text;
  if (c.data > 1) text += c.overlap ? " with the reduction beside it" : ", reduction";
  return text + ", update" +
         (c.data > 1 && c.strategy == Strategy::kSharded ? ", gathering the weights" : "");
}

Json ranked_json(const Ranked& one) {
  const Candidate& c = one.candidate;
  const Prediction& p = one.prediction;
  return {{"data", c.data},
          {"tensor", c.tensor},
          {"pipeline", c.pipeline},
          {"micro_batches", c.micro_batches},
          {"strategy", strategy_name(c.strategy)},
          {"bucket_bytes", c.bucket_bytes},
          {"algorithm", algorithm_name(c.algorithm)},
          {"overlap", c.overlap},
          {"executable", one.executable},
          {"fits", one.fits},
          {"step_ns", p.step_ns()},
          {"input_ns", p.input_ns},
          {"compute_ns", p.compute_ns},
          {"tensor_ns", p.tensor_ns},
          {"bubble_ns", p.bubble_ns},
          {"collective_ns", p.collective_ns},
          {"exposed_ns", p.exposed_ns},
          {"update_ns", p.update_ns},
          {"memory_bytes", p.memory_bytes}};
}

void plan_print_json(const PlanSearch& found, const Ranked& chosen, const TrainOptions& options) {
  const TrainPlan plan = train_plan(options, found.rank_count, found.calibration.device.count);
  Json json = {{"model", found.job.shape.text()},
               {"parameters", found.job.shape.parameter_count()},
               {"ranks", found.rank_count},
               {"global_batch", found.job.global_batch},
               {"device", found.calibration.device.name},
               {"calibration", found.source},
               {"chosen", ranked_json(chosen)},
               {"gpus", Json::array()},
               {"buckets", Json::array()},
               {"candidates", Json::array()}};
  for (int rank = 0; rank < found.rank_count; ++rank) json["gpus"].push_back(plan.gpu_of(rank));
  if (found.rank_count > 1) {
    for (const Bucket& bucket : plan.buckets)
      json["buckets"].push_back({{"begin", bucket.begin}, {"count", bucket.count}});
  }
  for (const Ranked& one : found.ranked) json["candidates"].push_back(ranked_json(one));
  std::printf("%s\n", json.dump(1).c_str());
}

void plan_print(const PlanSearch& found, const Ranked& chosen, const TrainOptions& options) {
  const TrainPlan plan = train_plan(options, found.rank_count, found.calibration.device.count);
  const Candidate& c = chosen.candidate;
  std::printf("model      %s, %zu parameters, %d samples a step\n", found.job.shape.text().c_str(),
              found.job.shape.parameter_count(), found.job.global_batch);
  std::printf("machine    %d x %s; calibration: %s\n", found.calibration.device.count,
              found.calibration.device.name.c_str(), found.source.c_str());
  std::printf("strategy   %s\n", c.text().c_str());
  std::printf("placement %s\n", placement_text(c, found.calibration.device.count).c_str());
  std::printf("schedule   %s\n", schedule_text(c).c_str());
  if (found.rank_count > 1) {
    std::printf("buckets    %zu:", plan.buckets.size());
    for (std::size_t i = 0; i < plan.buckets.size() && i < 8; ++i)
      std::printf(" %zu", plan.buckets[i].count * sizeof(float));
    std::printf("%s bytes\n", plan.buckets.size() > 8 ? " ..." : "");
  }
  std::printf("step       %s\n\n", prediction_text(chosen.prediction).c_str());
  std::printf("%-74s %10s %9s %9s %9s %9s %9s\n", "candidate", "step ms", "compute", "waiting",
              "exposed", "update", "MiB");
  // The best of each way; other buckets and micro-batches are variants of it.
  std::set<std::tuple<int, int, int, Strategy, Algorithm>> shown;
  for (const Ranked& one : found.ranked) {
    const Candidate& way = one.candidate;
    if (shown.size() == kRunnersUp) break;
    if (!shown.insert({way.data, way.tensor, way.pipeline, way.strategy, way.algorithm}).second)
      continue;
    const Prediction& p = one.prediction;
    std::printf("%-74s %10.3f %9.3f %9.3f %9.3f %9.3f %9.2f%s%s\n", one.candidate.text().c_str(),
                p.step_ns() / 1e6, (p.input_ns + p.compute_ns) / 1e6,
                (p.tensor_ns + p.bubble_ns) / 1e6, p.exposed_ns / 1e6, p.update_ns / 1e6,
                p.memory_bytes / (1 << 20), one.fits ? "" : "  does not fit",
                one.executable ? "" : "  not executed by this build");
  }
  if (found.ranked.size() > shown.size())
    std::printf("... and %zu more (--json has them)\n", found.ranked.size() - shown.size());
}

std::vector<int> ranks_up_to(int most) {
  std::vector<int> ranks;
  for (int count = 2; count <= most; ++count) ranks.push_back(count);
  return ranks;
}

}  // namespace

int calibrate_run(int argc, char** argv) {
  std::string out = "calibration.json";
  int ranks = 0;
  bool quick = false;
  std::string engine = "auto";
  MeasureOptions measure;
  CommandLine line("sluice-train calibrate",
                   "Measures this machine's GPUs and the links between their ranks, for "
                   "sluice-train plan and --plan auto.");
  line.text("--out", out, "JSON file to write");
  line.number("--ranks", ranks, "collectives of 2 to so many ranks; 0 = one per visible GPU", 0,
              kRanksMax);
  line.flag("--quick", quick, "fewer repetitions and sizes");
  line.word("--comm", engine, "what carries the collectives", {"auto", "gloo", "nccl"});
  line.number("--link-alpha-us", measure.link.alpha_us,
              "modelled latency of a message (software GPUs)", 0.0, 1e6);
  line.number("--link-gbps", measure.link.gigabits_per_s,
              "modelled bandwidth in gigabits/s (software GPUs); 0 = infinite", 0.0, 1e6);
  line.seconds("--comm-timeout", measure.timeout_s, "how long to wait for a silent rank", 0.1, 1e5);
  int exit_code = 0;
  if (!line.parse(argc, argv, &exit_code)) return exit_code;
  measure.quick = quick;
  measure.engine = *engine_parse(engine);
  measure.ranks = ranks_up_to(ranks > 0 ? ranks : gpus_count());
  measure.progress = [](const std::string& text) {
    std::printf("calibrate: %s\n", text.c_str());
    std::fflush(stdout);
  };
  const Calibration calibration = calibration_measure(measure);
  calibration_write(out, calibration);
  std::printf("%scalibrate: wrote %s\n", calibration_text(calibration).c_str(), out.c_str());
  return 0;
}

int plan_run(int argc, char** argv) {
  bool json = false;
  std::vector<char*> words;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else {
      words.push_back(argv[i]);
    }
  }
  if (words.size() > 1 && std::strcmp(words[1], "--help") == 0) {
    std::printf(
        "sluice-train plan [--json] OPTIONS: what `sluice-train --plan auto OPTIONS` would "
        "do, and what else could be done. OPTIONS are those of a job:\n\n");
    std::fflush(stdout);
  }
  words.push_back(nullptr);
  TrainOptions options;
  int exit_code = 0;
  if (!train_options_parse(static_cast<int>(words.size()) - 1, words.data(), &options, &exit_code))
    return exit_code;
  const int rank_count = options.rank_count > 0 ? options.rank_count : gpus_count();
  const PlanSearch found = plan_search(options, rank_count, nullptr);
  const Ranked chosen = plan_take(found, options);
  json ? plan_print_json(found, chosen, options) : plan_print(found, chosen, options);
  return 0;
}

}  // namespace sluice::train::planner

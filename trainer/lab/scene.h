// What a scene is: which jobs run where, under which rules, for how long. Data only; runner.h
// carries it out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/lab/metrics.h"
#include "trainer/lab/records.h"
#include "trainer/lab/usage.h"

namespace sluice::lab {

/// How a scene treats its jobs.
enum class Control { kNone, kSluice };

enum class JobKind { kTraining, kInference, kDebug };

/// One job, or for debug a stream of short ones, as the scene wants it.
struct JobPlan {
  std::string name;
  JobKind kind = JobKind::kInference;
  std::vector<int> gpus;          // indices
  std::string tenant_class;       // for Control::kSluice
  std::optional<int> sm_percent;  // its share per GPU; none = no share is promised
  std::uint32_t batch = 0;        // training: per rank
  double rate_per_s = 0;          // inference: requests; debug: jobs
};

struct ScenePlan {
  std::string name;
  std::string title;  // one line for people
  Control control = Control::kNone;
  std::vector<JobPlan> jobs;
};

/// The knobs of a run; all of them are written into results.json.
struct Settings {
  double seconds = 27;  // measured window of each scene
  std::uint64_t seed = 1;
  double request_rate_per_s = 0;  // per inference service
  double objective_ms = 0;        // a request is in time below this
  double debug_rate_per_s = 0.8;
  std::uint32_t batch = 64;    // per rank with two ranks; doubled where one rank stands for two
  std::uint32_t hidden = 128;  // of the trained network
  std::uint32_t inference_hidden = 512;  // of the served one
  std::string data = "fashion-mnist";
  std::string config;              // sluice.toml of the broker; empty = its defaults
  std::uint64_t memory_bytes = 0;  // quota of every shared vGPU
  int training_share_percent = 40, inference_share_percent = 40, debug_share_percent = 20;
};

/// The reference (inference alone) and the four scenes, for `gpu_count` GPUs. With one GPU the
/// segregated scene is left out and `note` says why.
std::vector<ScenePlan> scenes_plan(const Settings& settings, int gpu_count, std::string* note);

/// What a job did in a scene.
struct JobResult {
  JobPlan plan;
  std::vector<int> pids;
  std::optional<int> exit_status;
  bool had_to_be_killed = false;
  TrainingLog training;
  InferenceLog inference;
  std::vector<DebugRun> debug;
  /// GPU seconds by GPU index, from the device's account, or from the broker's where only that
  /// knows.
  std::vector<std::optional<double>> gpu_seconds;
  /// What the broker granted, by GPU index; empty in scenes without one.
  std::vector<TenantUse> leases;
};

struct SceneResult {
  ScenePlan plan;
  Window window;
  std::vector<JobResult> jobs;
  std::vector<GpuUse> gpus;  // by index; empty where nobody accounts
  std::string problem;       // empty = it ran; else why its figures do not count
};

/// Everything that the table shows for one scene.
struct SceneMetrics {
  std::optional<TrainingMetrics> training;
  std::optional<double> accuracy;
  std::optional<InferenceMetrics> inference;  // all services together
  std::optional<DebugMetrics> debug;
  std::optional<double> lag;
  bool inconclusive = false;
};
SceneMetrics scene_measure(const SceneResult& scene, const Settings& settings);

}  // namespace sluice::lab

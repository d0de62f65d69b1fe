#include "trainer/lab/scene.h"

#include <numeric>

namespace sluice::lab {
namespace {

std::vector<int> all_gpus(int count) {
  std::vector<int> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

JobPlan training_plan(const Settings& s, std::vector<int> gpus, std::uint32_t batch) {
  JobPlan job;
  job.name = "training";
  job.kind = JobKind::kTraining;
  job.gpus = std::move(gpus);
  job.batch = batch;
  job.tenant_class = "batch";
  job.sm_percent = s.training_share_percent;
  return job;
}

// One inference service for every GPU that the machine has, so that every scene serves the same
// load; placed on `homes`.
void shared_jobs_add(ScenePlan& scene, const Settings& s, int services,
                     const std::vector<int>& homes) {
  for (int i = 0; i < services; ++i) {
    JobPlan job;
    job.name = "inference-" + std::to_string(i);
    job.kind = JobKind::kInference;
    job.gpus = {homes[static_cast<std::size_t>(i) % homes.size()]};
    job.tenant_class = "inference";
    job.sm_percent = s.inference_share_percent;
    job.rate_per_s = s.request_rate_per_s;
    scene.jobs.push_back(job);
  }
  JobPlan debug;
  debug.name = "debug";
  debug.kind = JobKind::kDebug;
  debug.gpus = homes;
  debug.tenant_class = "debug";
  debug.sm_percent = s.debug_share_percent;
  debug.rate_per_s = s.debug_rate_per_s;
  scene.jobs.push_back(debug);
}

}  // namespace

std::vector<ScenePlan> scenes_plan(const Settings& s, int gpu_count, std::string* note) {
  const std::vector<int> all = all_gpus(gpu_count);
  std::vector<ScenePlan> out;

  ScenePlan alone{"inference-alone",
                  "reference: the inference services alone, one on each GPU",
                  Control::kNone,
                  {}};
  shared_jobs_add(alone, s, gpu_count, all);
  alone.jobs.pop_back();
  out.push_back(alone);

  ScenePlan exclusive{
      "exclusive", "training alone, exclusive, data-parallel on all GPUs", Control::kSluice, {}};
  exclusive.jobs.push_back(training_plan(s, all, s.batch));
  exclusive.jobs[0].tenant_class = "exclusive";
  exclusive.jobs[0].sm_percent = 100;
  out.push_back(exclusive);

  ScenePlan uncontrolled{"uncontrolled",
                         "the same training, inference and debug jobs with no control",
                         Control::kNone,
                         {}};
  uncontrolled.jobs.push_back(training_plan(s, all, s.batch));
  uncontrolled.jobs[0].sm_percent.reset();
  shared_jobs_add(uncontrolled, s, gpu_count, all);
  for (JobPlan& job : uncontrolled.jobs) job.sm_percent.reset();
  out.push_back(uncontrolled);

  ScenePlan quota{"quota", "the same jobs as vGPUs under Sluice", Control::kSluice, {}};
  quota.jobs.push_back(training_plan(s, all, s.batch));
  shared_jobs_add(quota, s, gpu_count, all);
  out.push_back(quota);

  if (gpu_count < 2) {
    *note = "scene 'segregated' is left out: it needs two GPUs";
    return out;
  }
  // The training keeps its global batch: one rank does the work of the ranks of all GPUs.
  ScenePlan segregated{"segregated",
                       "training exclusive on one GPU, the shared jobs as vGPUs on the others",
                       Control::kSluice,
                       {}};
  segregated.jobs.push_back(training_plan(s, {0}, s.batch * static_cast<std::uint32_t>(gpu_count)));
  segregated.jobs[0].tenant_class = "exclusive";
  segregated.jobs[0].sm_percent = 100;
  shared_jobs_add(segregated, s, gpu_count, std::vector<int>(all.begin() + 1, all.end()));
  out.push_back(segregated);
  return out;
}

SceneMetrics scene_measure(const SceneResult& scene, const Settings& settings) {
  SceneMetrics out;
  std::vector<Request> requests;
  std::vector<DebugRun> debug;
  bool has_inference = false, has_debug = false;
  for (const JobResult& job : scene.jobs) {
    switch (job.plan.kind) {
      case JobKind::kTraining:
        out.training = training_measure(job.training.steps, scene.window);
        out.accuracy = job.training.accuracy;
        break;
      case JobKind::kInference:
        has_inference = true;
        requests.insert(requests.end(), job.inference.requests.begin(),
                        job.inference.requests.end());
        break;
      case JobKind::kDebug:
        has_debug = true;
        debug.insert(debug.end(), job.debug.begin(), job.debug.end());
        break;
    }
  }
  if (has_inference)
    out.inference = inference_measure(requests, scene.window, settings.objective_ms);
  if (has_debug) out.debug = debug_measure(debug);
  out.lag = lag_ratio(scene.gpus);
  out.inconclusive = !scene.problem.empty() || (out.lag && *out.lag > kLagRatioMax);
  return out;
}

}  // namespace sluice::lab

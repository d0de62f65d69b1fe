// results.json. Every figure that the table shows, and what it was computed from; a figure nobody
// measured is null.
#include <nlohmann/json.hpp>

#include "trainer/lab/report.h"

namespace sluice::lab {
namespace {

using nlohmann::json;

json value(const std::optional<double>& v) { return v ? json(*v) : json(nullptr); }

json machine_json(const Machine& m, const std::string& started) {
  json out = {{"host", m.host},      {"processor", m.processor}, {"cores", m.cores},
              {"kernel", m.kernel},  {"started", started},       {"software_gpus", m.software},
              {"gpus", m.gpu_names}, {"driver", m.driver}};
  if (m.software) {
    out["calibration"] = {
        {"warp_instructions_per_s_per_core", m.calibration.warp_instructions_per_s_core},
        {"copy_bytes_per_s", m.calibration.copy_bytes_per_s},
        {"device_warp_instructions_per_s", m.rate_warp_instructions_per_s},
        {"device_copy_bytes_per_s", m.copy_rate_bytes_per_s},
        {"host_fraction", kHostFraction}};
  }
  return out;
}

json settings_json(const Settings& s) {
  return {{"seconds", s.seconds},
          {"seed", s.seed},
          {"request_rate_per_s", s.request_rate_per_s},
          {"objective_ms", s.objective_ms},
          {"debug_rate_per_s", s.debug_rate_per_s},
          {"batch_per_rank", s.batch},
          {"hidden", s.hidden},
          {"inference_hidden", s.inference_hidden},
          {"data", s.data},
          {"config", s.config},
          {"memory_bytes", s.memory_bytes},
          {"training_share_percent", s.training_share_percent},
          {"inference_share_percent", s.inference_share_percent},
          {"debug_share_percent", s.debug_share_percent}};
}

const char* kind_name(JobKind kind) {
  return kind == JobKind::kTraining    ? "training"
         : kind == JobKind::kInference ? "inference"
                                       : "debug";
}

json job_json(const JobResult& job) {
  json seconds = json::array();
  for (const auto& s : job.gpu_seconds) seconds.push_back(value(s));
  json out = {{"name", job.plan.name},
              {"kind", kind_name(job.plan.kind)},
              {"gpus", job.plan.gpus},
              {"class", job.plan.tenant_class},
              {"share_percent", job.plan.sm_percent ? json(*job.plan.sm_percent) : json(nullptr)},
              {"pids", job.pids},
              {"gpu_seconds", seconds},
              {"exit_status", job.exit_status ? json(*job.exit_status) : json(nullptr)},
              {"had_to_be_killed", job.had_to_be_killed}};
  if (job.plan.kind == JobKind::kTraining) out["batch_per_rank"] = job.plan.batch;
  if (job.plan.kind != JobKind::kTraining) out["rate_per_s"] = job.plan.rate_per_s;
  for (const DebugRun& run : job.debug) {
    out["runs"].push_back(
        {{"started_ns", run.started_ns},
         {"first_result_ns", run.first_result_ns ? json(*run.first_result_ns) : json(nullptr)},
         {"planned", run.planned},
         {"exit_status", run.exit_status ? json(*run.exit_status) : json(nullptr)}});
  }
  return out;
}

json metrics_json(const LabRun& run, const SceneResult& scene) {
  const SceneMetrics m = scene_measure(scene, run.settings);
  const SceneResult* first = scene_find(run, "exclusive");
  const SceneResult* alone = scene_find(run, "inference-alone");
  json out = {
      {"inconclusive", m.inconclusive}, {"problem", scene.problem}, {"lag_ratio", value(m.lag)}};
  if (m.training) {
    const TrainingMetrics& t = *m.training;
    std::optional<double> base;
    if (first) base = scene_measure(*first, run.settings).training->steps_per_s;
    out["training"] = {{"steps", t.steps},
                       {"steps_per_s", t.steps_per_s},
                       {"relative_to_exclusive", value(relative(t.steps_per_s, base))},
                       {"accuracy", value(m.accuracy)},
                       {"step_p50_ms", value(t.step_p50_ms)},
                       {"step_p99_ms", value(t.step_p99_ms)},
                       {"step_cv", value(t.step_cv)},
                       {"communication_fraction", value(t.communication_fraction)}};
  }
  if (m.inference) {
    const InferenceMetrics& i = *m.inference;
    InferenceMetrics quiet;
    if (alone) quiet = *scene_measure(*alone, run.settings).inference;
    out["inference"] = {{"requests", i.requests},
                        {"answered", i.answered},
                        {"p50_ms", value(i.p50_ms)},
                        {"p99_ms", value(i.p99_ms)},
                        {"p50_relative_to_alone", value(relative(i.p50_ms, quiet.p50_ms))},
                        {"p99_relative_to_alone", value(relative(i.p99_ms, quiet.p99_ms))},
                        {"in_time", value(i.in_time)}};
  }
  if (m.debug) {
    out["debug"] = {{"runs", m.debug->runs},
                    {"with_result", m.debug->with_result},
                    {"as_planned", m.debug->as_planned},
                    {"first_result_p50_ms", value(m.debug->first_result_p50_ms)},
                    {"first_result_p90_ms", value(m.debug->first_result_p90_ms)}};
  }
  for (const GpuUse& gpu : scene.gpus) {
    out["gpus"].push_back({{"busy_s", gpu.busy_s},
                           {"elapsed_s", gpu.elapsed_s},
                           {"lag_s", value(gpu.lag_s)},
                           {"utilization", value(gpu.utilization())}});
  }
  for (const ShareRow& s : share_rows(scene)) {
    out["shares"].push_back({{"job", s.job},
                             {"gpu", s.gpu},
                             {"used", value(s.used)},
                             {"target", value(s.target)},
                             {"held", value(s.held)},
                             {"waited", value(s.waited)}});
  }
  return out;
}

}  // namespace

std::string json_format(const LabRun& run) {
  json out = {{"machine", machine_json(run.machine, run.started)},
              {"settings", settings_json(run.settings)}};
  out["settings"]["notes"] = run.notes;
  out["scenes"] = json::array();
  for (const SceneResult& scene : run.scenes) {
    json jobs = json::array();
    for (const JobResult& job : scene.jobs) jobs.push_back(job_json(job));
    out["scenes"].push_back(
        {{"name", scene.plan.name},
         {"title", scene.plan.title},
         {"control", scene.plan.control == Control::kSluice ? "sluice" : "none"},
         {"window", {{"begin_ns", scene.window.begin_ns}, {"end_ns", scene.window.end_ns}}},
         {"records", "raw/" + scene.plan.name},
         {"jobs", jobs},
         {"metrics", metrics_json(run, scene)}});
  }
  return out.dump(2) + "\n";
}

}  // namespace sluice::lab

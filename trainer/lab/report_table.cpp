// The table on the terminal, and the small computations that all three reports share.
#include <algorithm>
#include <cstdio>

#include "trainer/lab/report.h"

namespace sluice::lab {
namespace {

std::string number(std::optional<double> value, int digits, const char* unit = "") {
  if (!value) return "";
  char text[64];
  std::snprintf(text, sizeof text, "%.*f%s", digits, *value, unit);
  return text;
}
std::string percent(std::optional<double> value, int digits = 0) {
  return value ? number(*value * 100, digits, " %") : "";
}

using Row = std::vector<std::string>;

std::string rows_format(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      line += (i == 0 ? row[i] + pad : "  " + pad + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string utilizations(const SceneResult& scene) {
  std::string out;
  for (const GpuUse& gpu : scene.gpus)
    out += (out.empty() ? "" : " / ") + percent(gpu.utilization());
  return out;
}

Row scene_row(const LabRun& run, const SceneResult& scene) {
  const SceneMetrics m = scene_measure(scene, run.settings);
  const SceneResult* first = scene_find(run, "exclusive");
  const SceneResult* alone = scene_find(run, "inference-alone");
  const SceneMetrics reference = first ? scene_measure(*first, run.settings) : SceneMetrics{};
  const SceneMetrics quiet = alone ? scene_measure(*alone, run.settings) : SceneMetrics{};
  Row row = {scene.plan.name + (m.inconclusive ? " *" : "")};
  const auto t = m.training;
  const std::optional<double> rate = t ? std::optional(t->steps_per_s) : std::nullopt;
  const std::optional<double> base =
      reference.training ? std::optional(reference.training->steps_per_s) : std::nullopt;
  row.push_back(number(rate, 1));
  row.push_back(number(relative(rate, base), 2));
  row.push_back(percent(m.accuracy, 1));
  row.push_back(t ? number(t->step_p50_ms, 1) : "");
  row.push_back(t ? number(t->step_p99_ms, 1) : "");
  row.push_back(t ? number(t->step_cv, 2) : "");
  const auto i = m.inference;
  row.push_back(i ? number(i->p50_ms, 1) : "");
  row.push_back(i ? number(i->p99_ms, 1) : "");
  row.push_back(i && quiet.inference ? number(relative(i->p50_ms, quiet.inference->p50_ms), 1, "x")
                                     : "");
  row.push_back(i && quiet.inference ? number(relative(i->p99_ms, quiet.inference->p99_ms), 1, "x")
                                     : "");
  row.push_back(i ? percent(i->in_time, 1) : "");
  row.push_back(m.debug ? number(m.debug->first_result_p50_ms, 0) : "");
  row.push_back(utilizations(scene));
  row.push_back(percent(m.lag, 2));
  return row;
}

}  // namespace

std::optional<double> relative(std::optional<double> value, std::optional<double> reference) {
  if (!value || !reference || *reference == 0) return std::nullopt;
  return *value / *reference;
}

const SceneResult* scene_find(const LabRun& run, const std::string& name) {
  for (const SceneResult& scene : run.scenes) {
    if (scene.plan.name == name) return &scene;
  }
  return nullptr;
}

std::vector<ShareRow> share_rows(const SceneResult& scene) {
  std::vector<ShareRow> out;
  const double window_s = scene.window.seconds();
  for (const JobResult& job : scene.jobs) {
    for (const int gpu : job.plan.gpus) {
      ShareRow row;
      row.job = job.plan.name;
      row.gpu = gpu;
      const std::size_t g = static_cast<std::size_t>(gpu);
      if (g < job.gpu_seconds.size() && job.gpu_seconds[g] && window_s > 0)
        row.used = *job.gpu_seconds[g] / window_s;
      if (job.plan.sm_percent && scene.plan.control == Control::kSluice)
        row.target = *job.plan.sm_percent / 100.0;
      if (g < job.leases.size() && window_s > 0) {
        row.held = std::min(1.0, job.leases[g].held_s / window_s);
        row.waited = std::min(1.0, job.leases[g].waited_s / window_s);
      }
      out.push_back(row);
    }
  }
  return out;
}

std::string table_format(const LabRun& run) {
  std::vector<Row> rows = {
      {"", "steps/s", "relative", "accuracy", "step p50", "p99", "CV", "infer p50", "p99",
       "to alone", "p99", "in time", "debug first", "GPUs busy", "lag"},
      {"", "", "", "", "ms", "ms", "", "ms", "ms", "p50", "", "", "ms", "", ""}};
  for (const SceneResult& scene : run.scenes) rows.push_back(scene_row(run, scene));
  std::string out =
      rows_format(rows) +
      "\nGPU time (fractions of the window): used, [asked for: a guarantee, of debug a weight], "
      "lease held, waited for it.\nWhat is neither held nor waited for was not asked for.\n";
  std::vector<Row> shares = {{"", "", "", "used", "", "held", "waited"}};
  for (const SceneResult& scene : run.scenes) {
    for (const ShareRow& s : share_rows(scene)) {
      shares.push_back({scene.plan.name, s.job, "GPU " + std::to_string(s.gpu), percent(s.used, 1),
                        s.target ? "[" + percent(s.target) + "]" : "", percent(s.held),
                        percent(s.waited)});
    }
  }
  out += rows_format(shares);
  for (const SceneResult& scene : run.scenes) {
    const SceneMetrics m = scene_measure(scene, run.settings);
    if (!m.inconclusive) continue;
    out += "\n* " + scene.plan.name + " is inconclusive: ";
    out += !scene.problem.empty()
               ? scene.problem
               : "lag " + percent(m.lag, 1) +
                     " is above 2 %: the host's cores were the bottleneck, not the "
                     "GPU; close other programs and run again";
  }
  for (const std::string& note : run.notes) out += "\nnote: " + note;
  return out + "\n";
}

}  // namespace sluice::lab

// report.html: the table and four plots in one file that opens anywhere, with no script and nothing
// fetched.
#include <algorithm>
#include <map>

#include "trainer/lab/report.h"
#include "trainer/lab/svg.h"

namespace sluice::lab {
namespace {

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--soft:#6a737d;--grid:#e4e7eb}
@media(prefers-color-scheme:dark){:root{--fg:#e6e6e6;--bg:#16181c;--soft:#9aa4af;--grid:#2c3138}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:66rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}p.s,figcaption{color:var(--soft)}
pre{overflow-x:auto;font-size:11px;border:1px solid var(--grid);padding:.8rem;border-radius:4px}
figure{margin:1rem 0}svg{width:100%;height:auto}.g{stroke:var(--grid)}.t{fill:var(--fg);font:12px system-ui,sans-serif}
)";

const std::string& scene_color(const std::string& name) {
  static const std::map<std::string, std::string> colors = {{"inference-alone", "#8c8c8c"},
                                                            {"exclusive", "#1f77b4"},
                                                            {"uncontrolled", "#d62728"},
                                                            {"quota", "#e69f00"},
                                                            {"segregated", "#2ca02c"}};
  static const std::string other = "#7f7f7f";
  const auto found = colors.find(name);
  return found == colors.end() ? other : found->second;
}

std::string text(double value, const char* unit) {
  char out[48];
  std::snprintf(out, sizeof out, "%.3g%s", value, unit);
  return out;
}

std::string throughput_plot(const LabRun& run) {
  std::vector<Bar> bars;
  for (const SceneResult& scene : run.scenes) {
    const SceneMetrics m = scene_measure(scene, run.settings);
    if (!m.training) continue;
    bars.push_back({scene.plan.name + (m.inconclusive ? " *" : ""), m.training->steps_per_s,
                    text(m.training->steps_per_s, " steps/s"), scene_color(scene.plan.name)});
  }
  return svg_bars(bars);
}

// Fraction of requests answered within x milliseconds, and within the window.
std::string latency_plot(const LabRun& run) {
  std::vector<Series> series;
  for (const SceneResult& scene : run.scenes) {
    std::vector<double> ms;
    double count = 0;
    for (const JobResult& job : scene.jobs) {
      for (const Request& r : job.inference.requests) {
        if (!scene.window.contains(r.arrival_ns)) continue;
        ++count;
        if (r.done_ns && *r.done_ns < scene.window.end_ns)
          ms.push_back(static_cast<double>(*r.done_ns - r.arrival_ns) * 1e-6);
      }
    }
    if (ms.empty()) continue;
    std::sort(ms.begin(), ms.end());
    Series s{scene.plan.name, scene_color(scene.plan.name), {}};
    const std::size_t stride = std::max<std::size_t>(1, ms.size() / 300);
    for (std::size_t i = 0; i < ms.size(); i += stride)
      s.points.emplace_back(ms[i], 100.0 * static_cast<double>(i + 1) / count);
    s.points.emplace_back(ms.back(), 100.0 * static_cast<double>(ms.size()) / count);
    series.push_back(std::move(s));
  }
  return svg_lines(series, "latency, ms", "% answered", Axis::kLog, false);
}

std::string step_plot(const LabRun& run) {
  std::vector<Series> series;
  for (const SceneResult& scene : run.scenes) {
    for (const JobResult& job : scene.jobs) {
      if (job.training.steps.empty()) continue;
      Series s{scene.plan.name, scene_color(scene.plan.name), {}};
      for (const Step& step : job.training.steps) {
        if (step.rank != 0 || !scene.window.contains(step.end_ns)) continue;
        s.points.emplace_back(static_cast<double>(step.end_ns - scene.window.begin_ns) * 1e-9,
                              static_cast<double>(step.duration_ns) * 1e-6);
      }
      series.push_back(std::move(s));
    }
  }
  return svg_lines(series, "time in the scene, s", "step, ms", Axis::kLinear, true);
}

std::string use_plot(const LabRun& run) {
  std::vector<Bar> bars;
  for (const SceneResult& scene : run.scenes) {
    for (const ShareRow& row : share_rows(scene)) {
      if (!row.used) continue;
      const std::string target = row.target ? " of " + text(*row.target * 100, " % asked for") : "";
      bars.push_back({scene.plan.name + " " + row.job + " GPU " + std::to_string(row.gpu),
                      *row.used, text(*row.used * 100, " %") + target,
                      scene_color(scene.plan.name)});
    }
  }
  return svg_bars(bars);
}

std::string figure(const std::string& title, const std::string& plot, const std::string& caption) {
  return "<h2>" + title + "</h2><figure>" + plot + "<figcaption>" + caption +
         "</figcaption></figure>\n";
}

}  // namespace

std::string html_format(const LabRun& run) {
  std::string gpus;
  for (const std::string& name : run.machine.gpu_names) gpus += (gpus.empty() ? "" : ", ") + name;
  std::string out =
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Sluice lab</title>"
      "<meta name='viewport' content='width=device-width'><style>" +
      std::string(kStyle) + "</style></head><body>\n";
  out += "<h1>Shared against exclusive</h1>\n<p class='s'>" +
         html_escape(run.started + " · " + run.machine.host + " · " + run.machine.processor +
                     " · " + std::to_string(run.machine.cores) + " cores · " + gpus) +
         "</p>\n";
  if (run.machine.software) {
    out +=
        "<p>The GPUs are software: kernels are really executed, their time is modelled. Ratios "
        "between scenes carry over; "
        "absolute figures do not describe any real GPU.</p>\n";
  }
  out += "<ul>";
  for (const SceneResult& scene : run.scenes)
    out += "<li><b>" + scene.plan.name + "</b>: " + html_escape(scene.plan.title) + "</li>";
  out += "</ul>\n<h2>The table</h2>\n<pre>" + html_escape(table_format(run)) + "</pre>\n";
  out += figure("Training throughput", throughput_plot(run),
                "Steps per second with the same global batch in every scene.");
  out += figure("Inference latency", latency_plot(run),
                "From the intended arrival of a request to its answer; a curve that stays "
                "below 100 % left requests unanswered.");
  out += figure("Training step time", step_plot(run),
                "Every step of rank 0: sharing shows as scatter.");
  out += figure(
      "GPU time by job", use_plot(run),
      "Fraction of each GPU's time that a job used, and the share that it asked for: a guarantee, "
      "or a weight for debug jobs.");
  return out + "</body></html>\n";
}

}  // namespace sluice::lab

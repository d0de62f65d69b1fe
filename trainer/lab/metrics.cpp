#include "trainer/lab/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sluice::lab {

std::optional<double> percentile(std::vector<double> values, double q) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(q / 100.0 * static_cast<double>(values.size()));
  const std::size_t index = rank < 1 ? 0 : static_cast<std::size_t>(rank) - 1;
  return values[std::min(index, values.size() - 1)];
}

std::optional<double> variation_coefficient(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  if (mean == 0) return std::nullopt;
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / (n - 1)) / mean;
}

TrainingMetrics training_measure(const std::vector<Step>& steps, const Window& window) {
  TrainingMetrics out;
  std::vector<double> times_ms;
  double communication_ms = 0;
  for (const Step& s : steps) {
    if (s.rank != 0 || !window.contains(s.end_ns)) continue;
    times_ms.push_back(static_cast<double>(s.duration_ns) * 1e-6);
    communication_ms += static_cast<double>(s.communication_ns) * 1e-6;
  }
  out.steps = times_ms.size();
  out.steps_per_s = window.seconds() > 0 ? static_cast<double>(out.steps) / window.seconds() : 0;
  out.step_p50_ms = percentile(times_ms, 50);
  out.step_p99_ms = percentile(times_ms, 99);
  out.step_cv = variation_coefficient(times_ms);
  const double total_ms = std::accumulate(times_ms.begin(), times_ms.end(), 0.0);
  if (total_ms > 0) out.communication_fraction = communication_ms / total_ms;
  return out;
}

InferenceMetrics inference_measure(const std::vector<Request>& requests, const Window& window,
                                   double objective_ms) {
  InferenceMetrics out;
  std::vector<double> latencies_ms;
  std::uint64_t in_time = 0;
  const Window judged{window.begin_ns,
                      window.end_ns - static_cast<std::int64_t>(objective_ms * 1e6)};
  for (const Request& r : requests) {
    if (!judged.contains(r.arrival_ns)) continue;
    const bool answered = r.done_ns && *r.done_ns < window.end_ns;
    const std::int64_t until = answered ? *r.done_ns : window.end_ns;
    const double latency_ms = static_cast<double>(until - r.arrival_ns) * 1e-6;
    latencies_ms.push_back(latency_ms);
    out.answered += answered ? 1 : 0;
    in_time += answered && latency_ms <= objective_ms ? 1 : 0;
  }
  out.requests = latencies_ms.size();
  out.p50_ms = percentile(latencies_ms, 50);
  out.p99_ms = percentile(latencies_ms, 99);
  if (out.requests > 0)
    out.in_time = static_cast<double>(in_time) / static_cast<double>(out.requests);
  return out;
}

namespace {

/// Longer than any: left out, a scene that never answers would look quicker than one that answers
/// late.
constexpr double kNoResult = std::numeric_limits<double>::infinity();

std::optional<double> known(std::optional<double> ms) {
  return ms && std::isfinite(*ms) ? ms : std::nullopt;
}

}  // namespace

DebugMetrics debug_measure(const std::vector<DebugRun>& runs) {
  DebugMetrics out;
  std::vector<double> first_ms;
  for (const DebugRun& r : runs) {
    ++out.runs;
    out.with_result += r.first_result_ns ? 1 : 0;
    first_ms.push_back(r.first_result_ns
                           ? static_cast<double>(*r.first_result_ns - r.started_ns) * 1e-6
                           : kNoResult);
    if (!r.exit_status) continue;
    const int status = *r.exit_status;
    const bool fits = r.planned == "ok"       ? status == 0
                      : r.planned == "killed" ? status == 128 + 9
                                              : status != 0;
    out.as_planned += fits ? 1 : 0;
  }
  out.first_result_p50_ms = known(percentile(first_ms, 50));
  out.first_result_p90_ms = known(percentile(first_ms, 90));
  return out;
}

std::optional<double> GpuUse::utilization() const {
  if (elapsed_s <= 0) return std::nullopt;
  return busy_s / elapsed_s;
}

std::optional<double> lag_ratio(const std::vector<GpuUse>& gpus) {
  double busy = 0, lag = 0;
  for (const GpuUse& g : gpus) {
    busy += g.busy_s;
    if (!g.lag_s) return std::nullopt;
    lag += *g.lag_s;
  }
  if (busy <= 0) return std::nullopt;
  return lag / busy;
}

}  // namespace sluice::lab

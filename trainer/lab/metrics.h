// From raw records to the figures of the table. Pure arithmetic: no file, no process, no clock; the
// same records always give the same figures, and a test recomputes them independently.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::lab {

/// Half-open interval of CLOCK_MONOTONIC nanoseconds in which a scene was measured.
struct Window {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  double seconds() const { return static_cast<double>(end_ns - begin_ns) * 1e-9; }
  bool contains(std::int64_t t) const { return t >= begin_ns && t < end_ns; }
};

struct Step {
  std::uint32_t rank = 0;
  std::int64_t end_ns = 0;
  std::int64_t duration_ns = 0;
  std::int64_t communication_ns = 0;
};

/// A request of an open-loop generator; `done_ns` is empty while unanswered.
struct Request {
  std::int64_t arrival_ns = 0;  // intended, whatever the queue
  std::optional<std::int64_t> done_ns;
};

struct DebugRun {
  std::int64_t started_ns = 0;  // when the lab started the process
  std::optional<std::int64_t> first_result_ns;
  std::string planned;  // ok | fail | killed
  std::optional<int> exit_status;
};

/// Nearest-rank percentile, q in [0, 100]; nothing for no values.
std::optional<double> percentile(std::vector<double> values, double q);
/// Standard deviation over mean; nothing below two values.
std::optional<double> variation_coefficient(const std::vector<double>& values);

struct TrainingMetrics {
  std::uint64_t steps = 0;  // of rank 0, ended inside the window
  double steps_per_s = 0;
  std::optional<double> step_p50_ms, step_p99_ms, step_cv;
  std::optional<double> communication_fraction;  // of rank 0's step time
};
/// Step times are those of rank 0: with synchronous data parallelism every rank's step ends with
/// the slowest.
TrainingMetrics training_measure(const std::vector<Step>& steps, const Window& window);

struct InferenceMetrics {
  std::uint64_t requests = 0;  // arrived inside the window
  std::uint64_t answered = 0;
  std::optional<double> p50_ms, p99_ms;
  std::optional<double> in_time;  // fraction answered within the objective
};
/// A request unanswered when the window closes counts with the time it had waited by then: a lower
/// bound, so that an overloaded scene cannot look better by never answering. Requests that arrived
/// too late to be judged (less than the objective before the end) are left out.
InferenceMetrics inference_measure(const std::vector<Request>& requests, const Window& window,
                                   double objective_ms);

struct DebugMetrics {
  std::uint64_t runs = 0;
  std::uint64_t with_result = 0;
  std::uint64_t as_planned = 0;  // ended the way they were planned to
  std::optional<double> first_result_p50_ms, first_result_p90_ms;
};
DebugMetrics debug_measure(const std::vector<DebugRun>& runs);

/// What the devices' own accounts say of one GPU over the window; of real GPUs, NVML's utilization
/// samples (and no lag: hardware does not run behind a model).
struct GpuUse {
  double busy_s = 0;
  std::optional<double> lag_s;
  double elapsed_s = 0;
  std::optional<double> utilization() const;
};
/// Time by which execution overran its model, over the time the devices were busy; nothing when
/// they never were, or are not modelled.
std::optional<double> lag_ratio(const std::vector<GpuUse>& gpus);
/// Above this a scene says more about the host's cores than about the GPU.
inline constexpr double kLagRatioMax = 0.02;

}  // namespace sluice::lab

// Open-loop load: the times at which requests arrive, and which model each asks, are drawn before
// anything is served, so a slow server cannot slow down its own clients, and latency counts from
// the intended arrival: no coordinated omission (G. Tene's term). Pure; a function of the load, the
// duration and the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/base/clock.h"

namespace sluice::train {

/// Arrival times of a Poisson process in ns after the start, ascending, all below `seconds`.
std::vector<Nanos> poisson_arrivals(double rate_per_s, double seconds, std::uint64_t seed);

/// A rate that goes up and down as a day does: the mean times
/// 1 + amplitude sin(2 pi t / period + phase + model phase_step).
struct Diurnal {
  double amplitude = 0;   // in [0, 1]
  double period_s = 60;   // a day
  double phase = 0;       // radians
  double phase_step = 0;  // radians from one model to the next: their days begin apart
};

/// A measured load: the arrivals themselves, or rates of intervals that follow one another.
struct Trace {
  std::vector<double> times_s;      // ascending; empty where there are rates
  std::vector<double> rates_per_s;  // a Poisson process of this rate in each interval
  double interval_s = 0;

  double length_s() const;
  double mean_rate_per_s() const;
  /// `factor` times as many requests a second: rates are multiplied, times play so much faster.
  Trace scaled(double factor) const;
};

/// Text lines; the first says what follows, "times" (seconds from the start) or "rates SECONDS"
/// (requests per second in intervals of so many seconds), then one number a line; what follows a #
/// is a comment. Throws Failure; `name` is in its text.
Trace trace_parse(const std::string& text, const std::string& name);
Trace trace_load(const std::string& path);

enum class ArrivalKind : std::uint8_t { kPoisson, kDiurnal, kTrace };

struct Load {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate_per_s = 20;  // mean, all models together; of a trace, the trace's
  Diurnal diurnal;
  Trace trace;
  std::vector<double> shares = {1};  // of the models, in any unit
};

struct Arrival {
  Nanos at_ns = 0;  // after the start
  std::uint32_t model = 0;

  bool operator==(const Arrival&) const = default;
};

/// All requests of the first `seconds`, in the order of their arrival.
std::vector<Arrival> load_arrivals(const Load& load, double seconds, std::uint64_t seed);

}  // namespace sluice::train

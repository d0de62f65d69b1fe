// Open-loop load: the times at which requests arrive are drawn before anything is served (a Poisson
// process), so a slow server cannot slow down its own clients, and latency counts from the intended
// arrival: no coordinated omission (G. Tene's term). Pure; a function of rate, duration and seed.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/base/clock.h"

namespace sluice::train {

/// Arrival times in ns after the start, ascending, all below `seconds`.
std::vector<Nanos> poisson_arrivals(double rate_per_s, double seconds, std::uint64_t seed);

/// One served request; all times on the same clock.
struct Request {
  std::uint32_t id = 0;
  Nanos arrival_ns = 0;
  Nanos start_ns = 0;
  Nanos done_ns = 0;

  Nanos latency_ns() const { return done_ns - arrival_ns; }
};

struct LatencySummary {
  std::uint64_t served = 0;
  std::uint64_t unserved = 0;  // arrived (or due) and never answered: they miss every objective
  Nanos p50_ns = 0;
  Nanos p95_ns = 0;
  Nanos p99_ns = 0;
  double attainment = 0;     // share of all requests answered within the objective
  double goodput_per_s = 0;  // requests within the objective per second
};

LatencySummary latency_summary(const std::vector<Request>& served, std::uint64_t unserved,
                               Nanos objective_ns, double seconds);

}  // namespace sluice::train

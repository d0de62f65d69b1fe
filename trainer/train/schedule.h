// Learning rates over a run: what the rate is at a step follows from the plan alone, so every rank
// knows it without asking.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::train {

enum class Schedule : std::uint8_t {
  kConstant,
  kCosine,      // half a cosine from the rate to `low` (Loshchilov and Hutter, SGDR, 2017)
  kOneCycle,    // up for the first 30 %, then half a cosine down (Smith and Topin, 2019)
  kTriangular,  // up and down between `low` and the rate, every `period` steps (Smith, 2017)
};

const char* schedule_name(Schedule schedule);
std::optional<Schedule> schedule_parse(const std::string& name);

struct RatePlan {
  Schedule schedule = Schedule::kConstant;
  double peak = 0;           // the rate itself; what others go up to
  double low = 0;            // where cosine ends, triangular turns and 1cycle begins
  std::uint64_t warmup = 0;  // steps of a linear start before anything else; not with 1cycle
  std::uint64_t steps = 0;   // of the whole run; cosine and 1cycle need it
  std::uint64_t period = 0;  // steps of one triangle
};

/// The rate of step `step` (the first is 0). After the last step it stays where it is.
double rate_at(const RatePlan& plan, std::uint64_t step);

/// Linear scaling (Goyal et al., Accurate, Large Minibatch SGD, 2017): `rate` is meant for batches
/// of `meant_for`; 0 leaves it as it is.
double rate_scaled(double rate, std::uint64_t meant_for, std::uint64_t batch);

}  // namespace sluice::train

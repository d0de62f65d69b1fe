// See schedule.h.
#include "trainer/train/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace sluice::train {
namespace {

constexpr std::array<const char*, 4> kScheduleNames = {"constant", "cosine", "1cycle",
                                                       "triangular"};
constexpr double kCycleUp = 0.3;    // of a 1cycle's steps
constexpr double kCycleEnd = 1e-4;  // of `low`: where it ends

/// From `from` (at 0) to `to` (at 1) along half a cosine.
double cosine_between(double from, double to, double at) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * std::clamp(at, 0.0, 1.0))) / 2;
}

/// How far `step` is in [begin, end), the last step being 1.
double progress(double step, double begin, double end) {
  return end - 1 > begin ? (step - begin) / (end - 1 - begin) : 1.0;
}

}  // namespace

const char* schedule_name(Schedule schedule) {
  return kScheduleNames[static_cast<std::size_t>(schedule)];
}

std::optional<Schedule> schedule_parse(const std::string& name) {
  for (std::size_t i = 0; i < kScheduleNames.size(); ++i) {
    if (name == kScheduleNames[i]) return static_cast<Schedule>(i);
  }
  return std::nullopt;
}

double rate_at(const RatePlan& plan, std::uint64_t step) {
  const auto at = static_cast<double>(step);
  const auto steps = static_cast<double>(plan.steps);
  const auto warmup = static_cast<double>(plan.warmup);
  if (plan.schedule == Schedule::kOneCycle) {
    const double top = std::max(1.0, std::floor(kCycleUp * steps));
    if (at < top) return plan.low + (plan.peak - plan.low) * at / top;
    return cosine_between(plan.peak, plan.low * kCycleEnd, progress(at, top, steps));
  }
  // The first step already moves, the last of the warm-up is the first at the full rate.
  if (at + 1 < warmup) return plan.peak * (at + 1) / warmup;
  const double begin = std::max(0.0, warmup - 1);
  switch (plan.schedule) {
    case Schedule::kCosine:
      return cosine_between(plan.peak, plan.low, progress(at, begin, steps));
    case Schedule::kTriangular: {
      // Begins at the peak after a warm-up, else below: a triangle by itself is its own warm-up.
      const double half = static_cast<double>(plan.period) / 2;
      const double place = std::fmod(at - begin + (plan.warmup > 0 ? half : 0), 2 * half) / half;
      return plan.low + (plan.peak - plan.low) * (place < 1 ? place : 2 - place);
    }
    case Schedule::kConstant:
    case Schedule::kOneCycle:
      break;
  }
  return plan.peak;
}

double rate_scaled(double rate, std::uint64_t meant_for, std::uint64_t batch) {
  if (meant_for == 0) return rate;
  return rate * static_cast<double>(batch) / static_cast<double>(meant_for);
}

}  // namespace sluice::train

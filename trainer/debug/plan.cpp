// See plan.h.
#include "trainer/debug/plan.h"

#include <cmath>

#include "trainer/base/random.h"

namespace sluice::train {
namespace {

constexpr std::uint64_t kPlanPurpose = 0x706c616e;
constexpr const char* kOutcomeNames[kOutcomes] = {"ok", "fail", "crash", "kill", "loop"};

}  // namespace

const char* outcome_name(DebugOutcome outcome) {
  return kOutcomeNames[static_cast<std::size_t>(outcome)];
}

bool outcome_parse(const std::string& name, DebugOutcome* out) {
  for (std::size_t i = 0; i < kOutcomes; ++i) {
    if (name != kOutcomeNames[i]) continue;
    *out = static_cast<DebugOutcome>(i);
    return true;
  }
  return false;
}

DebugPlan debug_plan(const DebugMix& mix, std::uint64_t seed, const DebugOutcome* fixed) {
  // Always all three, so that the outcome does not shift the life.
  Random random(seed, kPlanPurpose);
  DebugPlan plan;
  plan.life_ns = nanos_of_seconds(mix.life_median_s * std::exp(mix.life_sigma * random.normal()));
  plan.busy = mix.busy_low + (mix.busy_high - mix.busy_low) * random.uniform();
  double all = 0;
  for (const double odds : mix.odds) all += odds;
  double left = all * random.uniform();
  std::size_t drawn = 0;
  while (drawn + 1 < kOutcomes && left >= mix.odds[drawn]) left -= mix.odds[drawn++];
  plan.outcome = fixed != nullptr ? *fixed : static_cast<DebugOutcome>(drawn);
  return plan;
}

}  // namespace sluice::train

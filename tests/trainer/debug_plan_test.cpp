// The draws of debug jobs: log-normal lives, an even busy part, outcomes by their odds.
#include "trainer/debug/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "trainer/job/statistics.h"

namespace sluice::train {
namespace {

TEST(DebugPlan, LivesAreLogNormalAndOutcomesFollowTheirOdds) {
  const DebugMix mix{.life_median_s = 3, .life_sigma = 0.8, .odds = {50, 0, 20, 20, 10}};
  constexpr int kDraws = 10000;
  std::vector<double> logs;
  double counts[kOutcomes] = {};
  double busy = 0;
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    const DebugPlan plan = debug_plan(mix, seed, nullptr);
    logs.push_back(std::log(seconds_of(plan.life_ns)));
    ++counts[static_cast<std::size_t>(plan.outcome)];
    EXPECT_GE(plan.busy, 0.1);
    EXPECT_LE(plan.busy, 0.3);
    busy += plan.busy / kDraws;
  }
  // Of a normal distribution: the median within five of its deviations, and the quantiles that lie
  // one deviation to each side.
  const double mean = std::log(3.0);
  EXPECT_NEAR(percentile(logs, 50), mean, 5 * 0.8 * 1.2533 / std::sqrt(kDraws));
  EXPECT_NEAR(percentile(logs, 84.134), mean + 0.8, 0.06);
  EXPECT_NEAR(percentile(logs, 15.866), mean - 0.8, 0.06);
  EXPECT_NEAR(busy, 0.2, 5 * 0.2 / std::sqrt(12.0 * kDraws));
  for (std::size_t i = 0; i < kOutcomes; ++i) {
    const double odds = mix.odds[i] / 100;
    EXPECT_NEAR(counts[i] / kDraws, odds, 5 * std::sqrt(odds * (1 - odds) / kDraws)) << i;
  }
}

TEST(DebugPlan, IsAFunctionOfTheSeedAndAGivenOutcomeDoesNotShiftTheLife) {
  const DebugMix mix{.life_median_s = 1};
  const DebugPlan drawn = debug_plan(mix, 7, nullptr);
  EXPECT_EQ(debug_plan(mix, 7, nullptr).life_ns, drawn.life_ns);
  EXPECT_NE(debug_plan(mix, 8, nullptr).life_ns, drawn.life_ns);
  for (const DebugOutcome outcome : {DebugOutcome::kOk, DebugOutcome::kLoop}) {
    const DebugPlan fixed = debug_plan(mix, 7, &outcome);
    EXPECT_EQ(fixed.outcome, outcome);
    EXPECT_EQ(fixed.life_ns, drawn.life_ns);
    EXPECT_EQ(fixed.busy, drawn.busy);
  }
  EXPECT_EQ(debug_plan({}, 7, nullptr).life_ns, 0);
}

TEST(DebugPlan, OutcomesHaveNames) {
  for (std::size_t i = 0; i < kOutcomes; ++i) {
    const auto outcome = static_cast<DebugOutcome>(i);
    DebugOutcome parsed{};
    ASSERT_TRUE(outcome_parse(outcome_name(outcome), &parsed));
    EXPECT_EQ(parsed, outcome);
  }
  DebugOutcome none{};
  EXPECT_FALSE(outcome_parse("random", &none));
}

}  // namespace
}  // namespace sluice::train

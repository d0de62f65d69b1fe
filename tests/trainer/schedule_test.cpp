// Learning rates over a run: where they begin, turn and end, and that they never leave their
// bounds.
#include "trainer/train/schedule.h"

#include <gtest/gtest.h>

#include "trainer/train/plan.h"

namespace sluice::train {
namespace {

TEST(Schedule, NamesGoBothWays) {
  for (const Schedule schedule :
       {Schedule::kConstant, Schedule::kCosine, Schedule::kOneCycle, Schedule::kTriangular}) {
    EXPECT_EQ(schedule_parse(schedule_name(schedule)), schedule);
  }
  EXPECT_EQ(schedule_parse("linear"), std::nullopt);
}

TEST(Schedule, ConstantAfterALinearStart) {
  const RatePlan plan{.peak = 0.8, .warmup = 4, .steps = 10};
  EXPECT_DOUBLE_EQ(rate_at(plan, 0), 0.2);
  EXPECT_DOUBLE_EQ(rate_at(plan, 1), 0.4);
  EXPECT_DOUBLE_EQ(rate_at(plan, 3), 0.8);
  EXPECT_DOUBLE_EQ(rate_at(plan, 1000), 0.8);
  EXPECT_DOUBLE_EQ(rate_at({.peak = 0.8}, 0), 0.8);
}

TEST(Schedule, CosineEndsAtItsLow) {
  const RatePlan plan{
      .schedule = Schedule::kCosine, .peak = 1, .low = 0.1, .warmup = 11, .steps = 111};
  EXPECT_DOUBLE_EQ(rate_at(plan, 10), 1);
  EXPECT_NEAR(rate_at(plan, 60), 0.55, 1e-12);  // half way
  EXPECT_NEAR(rate_at(plan, 110), 0.1, 1e-12);
  EXPECT_NEAR(rate_at(plan, 5000), 0.1, 1e-12);
  for (std::uint64_t step = 11; step < 111; ++step) {
    EXPECT_LT(rate_at(plan, step), rate_at(plan, step - 1));
  }
}

TEST(Schedule, OneCycleGoesUpOnceAndDownOnce) {
  const RatePlan plan{.schedule = Schedule::kOneCycle, .peak = 1, .low = 0.04, .steps = 100};
  EXPECT_DOUBLE_EQ(rate_at(plan, 0), 0.04);
  EXPECT_DOUBLE_EQ(rate_at(plan, 30), 1);
  EXPECT_NEAR(rate_at(plan, 99), 0.04e-4, 1e-12);
  for (std::uint64_t step = 1; step < 100; ++step) {
    EXPECT_EQ(rate_at(plan, step) > rate_at(plan, step - 1), step <= 30) << step;
  }
}

TEST(Schedule, TriangularTurnsEveryHalfPeriod) {
  const RatePlan plan{.schedule = Schedule::kTriangular, .peak = 1, .low = 0.2, .period = 20};
  EXPECT_DOUBLE_EQ(rate_at(plan, 0), 0.2);
  EXPECT_DOUBLE_EQ(rate_at(plan, 5), 0.6);
  EXPECT_DOUBLE_EQ(rate_at(plan, 10), 1);
  EXPECT_DOUBLE_EQ(rate_at(plan, 15), 0.6);
  EXPECT_DOUBLE_EQ(rate_at(plan, 20), 0.2);
  EXPECT_DOUBLE_EQ(rate_at(plan, 30), 1);
  // After a warm-up it goes on from the top.
  RatePlan warm = plan;
  warm.warmup = 4;
  EXPECT_DOUBLE_EQ(rate_at(warm, 2), 0.75);
  EXPECT_DOUBLE_EQ(rate_at(warm, 3), 1);
  EXPECT_DOUBLE_EQ(rate_at(warm, 13), 0.2);
}

TEST(Schedule, ShortRunsStayWithinTheirBounds) {
  for (const Schedule schedule :
       {Schedule::kConstant, Schedule::kCosine, Schedule::kOneCycle, Schedule::kTriangular}) {
    for (std::uint64_t steps = 1; steps < 6; ++steps) {
      for (const std::uint64_t warmup : {0u, 1u, 3u, 9u}) {
        if (schedule == Schedule::kOneCycle && warmup > 0) continue;
        const RatePlan plan{.schedule = schedule,
                            .peak = 1,
                            .low = 0.1,
                            .warmup = warmup,
                            .steps = steps,
                            .period = 2};
        for (std::uint64_t step = 0; step < steps + 3; ++step) {
          EXPECT_GT(rate_at(plan, step), 0) << schedule_name(schedule) << " " << steps;
          EXPECT_LE(rate_at(plan, step), 1) << schedule_name(schedule) << " " << steps;
        }
      }
    }
  }
}

TEST(RatePlanOfAJob, ScalesLinearlyWithTheGlobalBatch) {
  TrainOptions options;
  options.rate = 0.1;
  options.rate_batch = 256;
  options.batch = 128;
  options.epochs = 3;
  options.schedule = Schedule::kOneCycle;
  const RatePlan plan = rate_plan(options, 8, 50);
  EXPECT_DOUBLE_EQ(plan.peak, 0.4);
  EXPECT_DOUBLE_EQ(plan.low, 0.4 / 25);
  EXPECT_EQ(plan.steps, 150u);
  EXPECT_EQ(plan.period, 100u);
  options.rate_batch = 0;
  options.rate_low = 0.001;
  EXPECT_DOUBLE_EQ(rate_plan(options, 8, 50).peak, 0.1);
  EXPECT_DOUBLE_EQ(rate_plan(options, 8, 50).low, 0.001);
}

}  // namespace
}  // namespace sluice::train

#include "trainer/lab/metrics.h"

#include <gtest/gtest.h>

namespace sluice::lab {
namespace {

constexpr std::int64_t kMs = 1'000'000;

TEST(Percentile, IsNearestRank) {
  EXPECT_EQ(percentile({}, 50), std::nullopt);
  EXPECT_EQ(percentile({7}, 0), 7);
  EXPECT_EQ(percentile({7}, 99), 7);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 50), 2);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 75), 3);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 76), 4);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 100), 4);
}

TEST(VariationCoefficient, IsSampleDeviationOverMean) {
  EXPECT_EQ(variation_coefficient({1}), std::nullopt);
  EXPECT_DOUBLE_EQ(*variation_coefficient({2, 2, 2}), 0);
  EXPECT_NEAR(*variation_coefficient({1, 3}), 1.41421356 / 2, 1e-8);
}

TEST(Training, CountsOnlyRankZeroInsideTheWindow) {
  const Window window{100 * kMs, 1100 * kMs};
  const std::vector<Step> steps = {
      {0, 99 * kMs, 10 * kMs, 0},          // before
      {0, 100 * kMs, 10 * kMs, 1 * kMs},   // first inside
      {1, 500 * kMs, 99 * kMs, 0},         // another rank
      {0, 1099 * kMs, 30 * kMs, 3 * kMs},  // last inside
      {0, 1100 * kMs, 10 * kMs, 0},        // the end is outside
  };
  const TrainingMetrics m = training_measure(steps, window);
  EXPECT_EQ(m.steps, 2u);
  EXPECT_DOUBLE_EQ(m.steps_per_s, 2.0);
  EXPECT_DOUBLE_EQ(*m.step_p50_ms, 10);
  EXPECT_DOUBLE_EQ(*m.step_p99_ms, 30);
  EXPECT_DOUBLE_EQ(*m.communication_fraction, 0.1);
}

TEST(Inference, UnansweredRequestsCountAsWaiting) {
  const Window window{0, 1000 * kMs};
  const std::vector<Request> requests = {
      {0, 10 * kMs},              // in time
      {100 * kMs, 400 * kMs},     // late
      {200 * kMs, std::nullopt},  // never: waited 800 ms
      {300 * kMs, 1500 * kMs},    // answered after the window: waited 700 ms
      {980 * kMs, 985 * kMs},     // too late to be judged against 50 ms
  };
  const InferenceMetrics m = inference_measure(requests, window, 50);
  EXPECT_EQ(m.requests, 4u);
  EXPECT_EQ(m.answered, 2u);
  EXPECT_DOUBLE_EQ(*m.in_time, 0.25);
  EXPECT_DOUBLE_EQ(*m.p50_ms, 300);
  EXPECT_DOUBLE_EQ(*m.p99_ms, 800);
}

TEST(Inference, NoRequestsGiveBlanks) {
  const InferenceMetrics m = inference_measure({}, {0, kMs}, 50);
  EXPECT_FALSE(m.p50_ms || m.p99_ms || m.in_time);
}

TEST(Debug, ComparesWithThePlan) {
  const DebugMetrics m = debug_measure({{0, 5 * kMs, "ok", 0},
                                        {0, 15 * kMs, "fail", 1},
                                        {0, 25 * kMs, "killed", 137},
                                        {0, std::nullopt, "ok", 1},
                                        {0, std::nullopt, "ok", std::nullopt}});
  EXPECT_EQ(m.runs, 5u);
  EXPECT_EQ(m.with_result, 3u);
  EXPECT_EQ(m.as_planned, 3u);
  EXPECT_DOUBLE_EQ(*m.first_result_p50_ms, 25) << "of five: those without a result are the slowest";
  EXPECT_EQ(m.first_result_p90_ms, std::nullopt);
}

TEST(Devices, LagIsOverrunOverBusyTime) {
  EXPECT_EQ(lag_ratio({}), std::nullopt);
  EXPECT_EQ(lag_ratio({{0, 0, 1}}), std::nullopt);
  EXPECT_DOUBLE_EQ(*lag_ratio({{3, 0.1, 10}, {1, 0.1, 10}}), 0.05);
  EXPECT_DOUBLE_EQ(*(GpuUse{2.5, 0, 10}.utilization()), 0.25);
  EXPECT_FALSE((GpuUse{0, 0, 0}.utilization()));
  EXPECT_FALSE(lag_ratio({{2.5, std::nullopt, 10}})) << "hardware has none";
}

}  // namespace
}  // namespace sluice::lab

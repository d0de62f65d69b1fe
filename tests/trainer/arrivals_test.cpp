// The open-loop schedule and the arithmetic of its summary.
#include "trainer/infer/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "trainer/job/statistics.h"

namespace sluice::train {
namespace {

TEST(Arrivals, ComeAtTheRateWithTheSpreadOfAPoissonProcess) {
  const double rate = 50;
  const double seconds = 400;
  const std::vector<Nanos> arrivals = poisson_arrivals(rate, seconds, 7);
  // 20,000 expected, deviation 141: five deviations.
  EXPECT_NEAR(static_cast<double>(arrivals.size()), rate * seconds, 5 * std::sqrt(rate * seconds));
  EXPECT_TRUE(std::is_sorted(arrivals.begin(), arrivals.end()));
  EXPECT_LT(arrivals.back(), nanos_of_seconds(seconds));
  // The gaps of a Poisson process have a deviation equal to their mean; a regular schedule would
  // have none.
  double sum = 0;
  double squares = 0;
  for (std::size_t i = 1; i < arrivals.size(); ++i) {
    const double gap = seconds_of(arrivals[i] - arrivals[i - 1]);
    sum += gap;
    squares += gap * gap;
  }
  const double count = static_cast<double>(arrivals.size() - 1);
  const double mean = sum / count;
  EXPECT_NEAR(std::sqrt(squares / count - mean * mean) / mean, 1.0, 0.05);
}

TEST(Arrivals, AreAFunctionOfTheSeed) {
  EXPECT_EQ(poisson_arrivals(20, 10, 3), poisson_arrivals(20, 10, 3));
  EXPECT_NE(poisson_arrivals(20, 10, 3), poisson_arrivals(20, 10, 4));
  EXPECT_TRUE(poisson_arrivals(0.001, 0.001, 1).empty());
}

TEST(Percentile, IsTheNearestRank) {
  const std::vector<int> values = {50, 10, 40, 30, 20};
  EXPECT_EQ(percentile(values, 50), 30);
  EXPECT_EQ(percentile(values, 20), 10);
  EXPECT_EQ(percentile(values, 21), 20);
  EXPECT_EQ(percentile(values, 99), 50);
  EXPECT_EQ(percentile(values, 100), 50);
  EXPECT_EQ(percentile(std::vector<int>{}, 50), 0);
}

TEST(LatencySummary, CountsFromTheArrivalAndCountsTheUnserved) {
  std::vector<Request> served;
  for (int i = 1; i <= 10; ++i) {
    const auto id = static_cast<std::uint32_t>(i);
    // Started late and served quickly: the wait in the queue is latency all the same.
    served.push_back({id, 1000, 1000 + i * 10 - 1, 1000 + i * 10});
  }
  const LatencySummary sum = latency_summary(served, 10, 50, 2.0);
  EXPECT_EQ(sum.p50_ns, 50);
  EXPECT_EQ(sum.p95_ns, 100);
  EXPECT_EQ(sum.p99_ns, 100);
  EXPECT_DOUBLE_EQ(sum.attainment, 5.0 / 20.0);
  EXPECT_DOUBLE_EQ(sum.goodput_per_s, 2.5);
  EXPECT_EQ(latency_summary({}, 0, 50, 0).p99_ns, 0);
}

}  // namespace
}  // namespace sluice::train

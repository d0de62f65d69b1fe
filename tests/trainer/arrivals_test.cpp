// The open-loop schedules: their rates, their shapes, and that a seed repeats them.
#include "trainer/infer/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trainer/base/failure.h"
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

/// Arrivals in [from, to) seconds.
double arrivals_between(const std::vector<Arrival>& arrivals, double from, double to) {
  return static_cast<double>(std::count_if(arrivals.begin(), arrivals.end(), [&](const Arrival& a) {
    return seconds_of(a.at_ns) >= from && seconds_of(a.at_ns) < to;
  }));
}

Load diurnal_load() {
  Load load;
  load.kind = ArrivalKind::kDiurnal;
  load.rate_per_s = 50;
  load.diurnal = {.amplitude = 0.9, .period_s = 40, .phase = 0.7};
  return load;
}

TEST(Load, DiurnalArrivalsFollowTheSine) {
  const Load load = diurnal_load();
  const double seconds = 400;
  const auto arrivals = load_arrivals(load, seconds, 11);
  EXPECT_TRUE(std::is_sorted(arrivals.begin(), arrivals.end(),
                             [](const Arrival& a, const Arrival& b) { return a.at_ns < b.at_ns; }));
  // Every eighth of a day, all days together, against the integral of the rate over it.
  const Diurnal& day = load.diurnal;
  const double omega = 2 * std::numbers::pi / day.period_s;
  for (int eighth = 0; eighth < 8; ++eighth) {
    const double length = day.period_s / 8;
    const double from = eighth * length, to = from + length;
    const double waves = (std::cos(omega * from + day.phase) - std::cos(omega * to + day.phase));
    const double days = seconds / day.period_s;
    const double expected = days * load.rate_per_s * (length + day.amplitude * waves / omega);
    double counted = 0;
    for (double start = 0; start < seconds; start += day.period_s) {
      counted += arrivals_between(arrivals, start + from, start + to);
    }
    // Counts are Poisson; five deviations.
    EXPECT_NEAR(counted, expected, 5 * std::sqrt(expected)) << eighth;
  }
  // It is no constant rate: the busiest eighth has many times the quietest one's.
  EXPECT_GT(arrivals_between(arrivals, 0, 5), 4 * arrivals_between(arrivals, 20, 25));
}

TEST(Load, AModelsDayMayBeginLaterAndTheSumIsEvenThen) {
  Load load = diurnal_load();
  load.shares = {1, 1};
  load.diurnal.phase_step = std::numbers::pi;
  load.diurnal.phase = 0;
  const auto arrivals = load_arrivals(load, 400, 5);
  double first_half[2] = {0, 0}, all[2] = {0, 0};
  for (const Arrival& arrival : arrivals) {
    const bool is_first = std::fmod(seconds_of(arrival.at_ns), 40) < 20;
    ++all[arrival.model];
    first_half[arrival.model] += is_first ? 1 : 0;
  }
  // The mean of 1 + 0.9 sin over its first half is 1 + 1.8 / pi, of which a day has 2.
  const double part = (1 + 1.8 / std::numbers::pi) / 2;
  for (int model = 0; model < 2; ++model) {
    EXPECT_NEAR(all[model], 10000, 5 * std::sqrt(10000.0));
    EXPECT_NEAR(first_half[model] / all[model], model == 0 ? part : 1 - part, 0.03) << model;
  }
  EXPECT_NEAR(first_half[0] + first_half[1], 10000, 5 * std::sqrt(10000.0));
}

TEST(Load, RequestsPickModelsByTheirShares) {
  Load load;
  load.rate_per_s = 100;
  load.shares = {3, 1, 6};
  const auto arrivals = load_arrivals(load, 200, 4);
  const auto times = poisson_arrivals(100, 200, 4);  // whichever model each one asks
  ASSERT_EQ(arrivals.size(), times.size());
  double counts[3] = {};
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    EXPECT_EQ(arrivals[i].at_ns, times[i]);
    ++counts[arrivals[i].model];
  }
  for (int model = 0; model < 3; ++model) {
    EXPECT_NEAR(counts[model] / static_cast<double>(arrivals.size()), load.shares[model] / 10,
                0.02);
  }
}

TEST(Load, IsAFunctionOfTheSeed) {
  Load trace;
  trace.kind = ArrivalKind::kTrace;
  trace.trace = trace_parse("rates 2\n10\n30\n", "t");
  trace.shares = {1, 2};
  for (const Load& load : {Load(), diurnal_load(), trace}) {
    EXPECT_EQ(load_arrivals(load, 4, 3), load_arrivals(load, 4, 3));
    EXPECT_NE(load_arrivals(load, 4, 3), load_arrivals(load, 4, 4));
  }
}

TEST(Trace, TimesAreTheArrivals) {
  const Trace trace = trace_parse("# made by hand\ntimes\n0.5\n1.25  # a comment\n\n4\n", "t");
  EXPECT_EQ(trace.times_s, (std::vector<double>{0.5, 1.25, 4}));
  EXPECT_DOUBLE_EQ(trace.mean_rate_per_s(), 0.75);
  Load load;
  load.kind = ArrivalKind::kTrace;
  load.trace = trace;
  const auto arrivals = load_arrivals(load, 2, 9);
  EXPECT_EQ(arrivals,
            (std::vector<Arrival>{{500 * kNanosPerMilli, 0}, {1250 * kNanosPerMilli, 0}}));
  EXPECT_EQ(trace.scaled(2).times_s, (std::vector<double>{0.25, 0.625, 2}));
  EXPECT_DOUBLE_EQ(trace.scaled(2).mean_rate_per_s(), 1.5);
}

TEST(Trace, RatesAreThoseOfTheirIntervals) {
  Load load;
  load.kind = ArrivalKind::kTrace;
  load.trace = trace_parse("rates 50\n10\n0\n40\n", "t").scaled(2);
  EXPECT_DOUBLE_EQ(load.trace.length_s(), 150);
  EXPECT_NEAR(load.trace.mean_rate_per_s(), 100.0 / 3, 1e-12);
  const auto arrivals = load_arrivals(load, 150, 2);
  EXPECT_NEAR(arrivals_between(arrivals, 0, 50), 1000, 5 * std::sqrt(1000.0));
  EXPECT_EQ(arrivals_between(arrivals, 50, 100), 0);
  EXPECT_NEAR(arrivals_between(arrivals, 100, 150), 4000, 5 * std::sqrt(4000.0));
  EXPECT_EQ(arrivals_between(load_arrivals(load, 110, 2), 110, 150), 0);
}

TEST(Trace, WhatIsNoTraceIsRefusedWithItsLine) {
  const auto complaint = [](const char* text) -> std::string {
    try {
      trace_parse(text, "file");
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  };
  EXPECT_EQ(complaint("1\n2\n"),
            "file is no trace: its first line is not \"times\" or \"rates SECONDS\"");
  EXPECT_EQ(complaint(""), complaint("1\n"));
  EXPECT_EQ(complaint("times\n# x\n1\ntwo\n"), "file, line 4: \"two\" is no number of 0 or more");
  EXPECT_EQ(complaint("times\n2\n1\n"), "file, line 3: 1 comes after 2; times must ascend");
  EXPECT_EQ(complaint("rates -1\n2\n"), "file, line 1: \"-1\" is no number of 0 or more");
  for (const char* empty : {"times\n", "times\n0\n", "rates 5\n", "rates 0\n3\n", "rates 5\n0\n"}) {
    EXPECT_EQ(complaint(empty), "file has no requests: a trace needs a length and a rate above 0")
        << empty;
  }
}

}  // namespace
}  // namespace sluice::train

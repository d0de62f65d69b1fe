// Unions of busy intervals: what is new of each, in whatever order they are told.
#include "interpose/intervals.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace sluice::interpose {
namespace {

TEST(IntervalsTest, AgreeWithABruteForceUnion) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Intervals intervals;
    std::vector<bool> covered(200);
    for (int i = 0; i < 30; ++i) {
      const int begin = static_cast<int>(random() % 190),
                end = begin + static_cast<int>(random() % 10);
      std::vector<std::pair<double, double>> parts;
      const double grown =
          intervals.add(begin, end, [&](double from, double to) { parts.emplace_back(from, to); });
      double expected = 0, told = begin;
      for (const auto& [from, to] : parts) {
        EXPECT_GE(from, told) << "out of order";
        EXPECT_LT(from, to);
        told = to;
        for (int x = static_cast<int>(from); x < static_cast<int>(to); ++x) {
          EXPECT_FALSE(covered[static_cast<size_t>(x)]) << x << " is not new";
          covered[static_cast<size_t>(x)] = true;
          ++expected;
        }
      }
      EXPECT_LE(told, end);
      EXPECT_DOUBLE_EQ(grown, expected);
      for (int x = begin; x < end; ++x) EXPECT_TRUE(covered[static_cast<size_t>(x)]) << x;
    }
  }
}

TEST(IntervalsTest, WhatIsToldLateFillsTheGapsBetweenAllThatAreRemembered) {
  Intervals intervals;
  for (unsigned i = 0; i < kIntervalsMax; ++i) intervals.add(10 * i, 10 * i + 5);
  EXPECT_TRUE(intervals.is_full());
  EXPECT_DOUBLE_EQ(intervals.add(0, 10 * kIntervalsMax), 5 * kIntervalsMax);
  EXPECT_FALSE(intervals.is_full());
}

TEST(IntervalsTest, ForgottenTimeIsNotCountedTwice) {
  Intervals intervals;
  double sum = 0;
  for (unsigned i = 0; i < 3 * kIntervalsMax; ++i) sum += intervals.add(10 * i, 10 * i + 5);
  EXPECT_DOUBLE_EQ(sum, 15 * kIntervalsMax);
  for (const double late : {0.0, 5.0, 7.0}) EXPECT_DOUBLE_EQ(intervals.add(late, late + 5), 0);
  intervals.clear();
  EXPECT_DOUBLE_EQ(intervals.add(0, 5), 5);
}

// One more than there is room for, which comes before others.
TEST(IntervalsTest, ALateOneThatIsByItself) {
  Intervals intervals;
  for (unsigned i = 0; i < kIntervalsMax; ++i) intervals.add(10 * i, 10 * i + 5);
  const double late = 10 * (kIntervalsMax - 2) + 7;
  EXPECT_DOUBLE_EQ(intervals.add(late, late + 1), 1);
  EXPECT_DOUBLE_EQ(intervals.add(late, late + 1), 0);
  EXPECT_DOUBLE_EQ(intervals.add(10 * kIntervalsMax - 10, 10 * kIntervalsMax), 5);
}

}  // namespace
}  // namespace sluice::interpose

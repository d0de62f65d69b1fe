// The map of moments that a tenant's processes were charged for.
#include "interpose/covered.h"

#include <gtest/gtest.h>

#include <thread>

namespace sluice::interpose {
namespace {

// A map of its own for each test: several processes of a tenant look into one.
class CoveredTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBit = 1ull << kCoveredBitShift;
  static constexpr uint64_t kLap = kBit * kCoveredBitsPerWord * protocol::kChargedWords;
  double take(uint64_t begin_bit, uint64_t end_bit) {
    return covered_take(map, kStart + begin_bit * kBit, kStart + end_bit * kBit);
  }
  static constexpr uint64_t kStart = 1000 * kLap;
  protocol::AtomicU64 map[protocol::kChargedWords] = {};
};

TEST_F(CoveredTest, AMomentIsChargedOnce) {
  EXPECT_EQ(take(100, 200), 1);
  EXPECT_EQ(take(100, 200), 0);
  EXPECT_EQ(take(120, 150), 0);
  // In front and behind, and what several covered in between.
  EXPECT_EQ(take(50, 150), 0.5);
  EXPECT_EQ(take(0, 400), (50.0 + 200.0) / 400);
}

// However the pieces lie to the bits, who saw the same time in one piece finds all of it charged.
TEST_F(CoveredTest, PiecesThatFollowEachOtherLeaveNoneOut) {
  constexpr uint64_t kPiece = kBit * 13 / 10;
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(covered_take(map, kStart + i * kPiece, kStart + (i + 1) * kPiece), 1);
  }
  EXPECT_EQ(covered_take(map, kStart, kStart + 1000 * kPiece), 0);
}

TEST_F(CoveredTest, IntervalsThatFollowEachOtherAreChargedWhole) {
  for (uint64_t i = 0; i < 100'000; ++i) {
    const uint64_t begin_ns = kStart + i * 333'333, end_ns = begin_ns + 333'333;
    ASSERT_EQ(covered_take(map, begin_ns, end_ns), 1) << i;
  }
}

// In whatever order they are learned.
TEST_F(CoveredTest, AnIntervalThatIsLearnedLate) {
  EXPECT_EQ(take(300, 400), 1);
  EXPECT_EQ(take(0, 100), 1);
  EXPECT_EQ(take(0, 400), 0.5);
}

TEST_F(CoveredTest, WhatIsShorterThanTheMapSeesIsChargedWhole) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(covered_take(map, kStart + 1, kStart + kBit), 1);
  }
}

TEST_F(CoveredTest, WhatIsOlderThanTheMapIsChargedWhole) {
  constexpr uint64_t kLapBits = kLap / kBit;
  EXPECT_EQ(take(10, 100), 1);
  EXPECT_EQ(take(10 + kLapBits, 100 + kLapBits), 1);
  EXPECT_EQ(take(10, 100), 1);  // the words speak of a later time by now
  EXPECT_EQ(take(10 + kLapBits, 100 + kLapBits), 0);
  // A kernel of eight laps: what the map can say of its end is said.
  EXPECT_EQ(take(20 * kLapBits, 28 * kLapBits + 1), 1);
  EXPECT_NEAR(take(20 * kLapBits, 28 * kLapBits + 1), 7.0 / 8, 0.001);
}

TEST_F(CoveredTest, TwoAtOnceChargeTheUnion) {
  constexpr uint64_t kIntervals = 160;  // less than a lap
  static_assert(kIntervals * 101 < kLap / kBit);
  for (int repeat = 0; repeat < 50; ++repeat) {
    double charged[2] = {};
    const auto take_all = [&](int which) {
      for (uint64_t i = 0; i < kIntervals; ++i) charged[which] += take(i * 101, i * 101 + 101);
    };
    std::thread other(take_all, 0);
    take_all(1);
    other.join();
    ASSERT_NEAR(charged[0] + charged[1], kIntervals, 1e-6);
    for (auto& word : map) word.store(0);
  }
}

}  // namespace
}  // namespace sluice::interpose

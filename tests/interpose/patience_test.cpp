// How long a launch waits for what may be waiting for it.
#include "interpose/patience.h"

#include <gtest/gtest.h>

namespace sluice::interpose {
namespace {

const auto* const kOneStream = reinterpret_cast<const StreamRecord*>(0x1000);
const auto* const kAnotherStream = reinterpret_cast<const StreamRecord*>(0x2000);
constexpr uint64_t kMillisecondNs = 1'000'000;

class PatienceTest : public ::testing::Test {
 protected:
  // After how many milliseconds of waiting the next launch is let through; -1 = not within
  // `most_ms`.
  int let_through(const InFlight& seen, int most_ms = 10'000) {
    for (int ms = 0; ms <= most_ms; ++ms, now_ns += kMillisecondNs) {
      if (patience_ends(patience, seen, now_ns)) return ms;
    }
    return -1;
  }
  Patience patience{};
  uint64_t now_ns = 1;
};

TEST_F(PatienceTest, WhatNeverEndsIsWaitedForEquallyLongBeforeEachLaunchThatDoes) {
  for (int i = 0; i < 100; ++i) EXPECT_EQ(let_through({kOneStream, 7, 1}), 50) << i;
}

TEST_F(PatienceTest, WhatPilesUpBehindItGoesEverSlowerButGoes) {
  const int expected[] = {50, 50, 100, 200, 400, 800, 1600, 1600};
  uint64_t launches = 1;
  for (const int ms : expected) EXPECT_EQ(let_through({kOneStream, 7, launches++}), ms);
}

TEST_F(PatienceTest, KernelsThatAreMerelyLongGainLittle) {
  // Every launch ends when its turn comes, and each time there is another one.
  int admitted = 0;
  uint64_t done = 0;
  for (; now_ns < 3'600'000'000'000; now_ns += 10 * kMillisecondNs) {
    done = now_ns / 200'000'000;
    admitted += patience_ends(patience, {kOneStream, done, 2}, now_ns);
  }
  // 50 ms times two to the sixteenth are an hour; four within the first kernel, to which the wait
  // is not doubled yet.
  EXPECT_LE(admitted, 16 + 4);
  EXPECT_GE(admitted, 14);
}

TEST_F(PatienceTest, AnotherStreamIsAnotherWork) {
  EXPECT_EQ(let_through({kOneStream, 7, 1}), 50);
  EXPECT_EQ(let_through({kAnotherStream, 7, 1}), 50);
  EXPECT_EQ(let_through({kAnotherStream, 7, 1}), 100) << "what was there first is gone";
  EXPECT_EQ(let_through({kAnotherStream, 7, 1}), 100);
  EXPECT_EQ(let_through({kAnotherStream, 8, 1}), 100);
  EXPECT_EQ(let_through({kAnotherStream, 8, 1}), 200);
}

TEST_F(PatienceTest, WorkOfAnotherProcessIsNotKnownToBeTheSame) {
  for (const int ms : {50, 100, 200, 400, 800, 1600, 3200, 6400})
    EXPECT_EQ(let_through({nullptr, 0, 0}), ms);
}

TEST_F(PatienceTest, WhoNeedNotWaitAnyMoreBeginsAnew) {
  EXPECT_EQ(let_through({kOneStream, 7, 1}), 50);
  EXPECT_EQ(let_through({kOneStream, 7, 2}), 50);
  EXPECT_EQ(let_through({kOneStream, 7, 3}), 100);
  patience = Patience{};
  EXPECT_EQ(let_through({kOneStream, 7, 2}), 50);
}

}  // namespace
}  // namespace sluice::interpose

// When a silent rank counts as lost.
#include "trainer/train/heartbeat.h"

#include <gtest/gtest.h>

namespace sluice::train {
namespace {

constexpr Nanos kMs = kNanosPerMilli;

class SilenceTest : public testing::Test {
 protected:
  RankLine& line() { return board_.line(0); }
  BoardMap board_;
};

// The last beat may have been a whole gap before the process stopped, and it is to be noticed,
// killed and reaped within the timeout all the same.
TEST_F(SilenceTest, AStoppedProcessIsGivenUpBeforeItsTimeIsOver) {
  line().alive_ns = 5000 * kMs;
  line().waits = true;
  EXPECT_EQ(silence_due(line(), 1000 * kMs, true, 0), 6000 * kMs - kNoticeLead);
  EXPECT_GT(kNoticeLead, kBeatGap);
  EXPECT_EQ(silence_due(line(), 50 * kMs, true, 0), 5045 * kMs) << "a tenth of short times at most";
}

TEST_F(SilenceTest, ATrainingThreadHasAllOfItsTime) {
  line().alive_ns = 5900 * kMs;
  line().progress_ns = 5000 * kMs;
  line().waits = false;
  EXPECT_EQ(silence_due(line(), 1000 * kMs, true, 0), 6000 * kMs);
  EXPECT_EQ(silence_due(line(), 1000 * kMs, false, 0), 6900 * kMs - kNoticeLead);
  line().waits = true;
  EXPECT_EQ(silence_due(line(), 1000 * kMs, true, 0), 6900 * kMs - kNoticeLead);
}

TEST_F(SilenceTest, WhatALauncherCouldNotHearIsNobodysFault) {
  line().alive_ns = 5000 * kMs;
  line().progress_ns = 5000 * kMs;
  line().waits = false;
  EXPECT_EQ(silence_due(line(), 1000 * kMs, true, 8000 * kMs), 9000 * kMs - kNoticeLead);
}

}  // namespace
}  // namespace sluice::train

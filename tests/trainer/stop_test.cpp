// Being asked to stop: seen when looked for, ends a sleep, and stays.
#include "trainer/job/stop.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace sluice::train {
namespace {

TEST(StopSignal, IsSeenAndStays) {
  StopSignal stop;
  EXPECT_FALSE(stop.asked());
  EXPECT_FALSE(stop.sleep_until(now_ns() + kNanosPerMilli));
  kill(getpid(), SIGTERM);
  EXPECT_TRUE(stop.sleep_until(now_ns() + 3600 * kNanosPerSecond));
  EXPECT_TRUE(stop.asked());
  EXPECT_TRUE(stop.asked());
}

TEST(StopSignal, SleepsAtLeastUntilThen) {
  StopSignal stop;
  const Nanos then = now_ns() + 3 * kNanosPerMilli;
  EXPECT_FALSE(stop.sleep_until(then));
  EXPECT_GE(now_ns(), then);
}

}  // namespace
}  // namespace sluice::train

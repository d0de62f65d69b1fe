// The rule of the loss scale: halved by an overflow, doubled after many good steps, and an end
// where it can get no smaller.
#include "trainer/model/loss_scale.h"

#include <gtest/gtest.h>

namespace sluice::train {
namespace {

TEST(LossScale, HalvesAtOnceAndDoublesAfterGoodSteps) {
  LossScale scale({.initial = 1024, .growth_steps = 3});
  EXPECT_EQ(scale.value(), 1024);
  scale.step_note(true);
  EXPECT_EQ(scale.value(), 512);
  scale.step_note(false);
  scale.step_note(false);
  EXPECT_EQ(scale.value(), 512);
  scale.step_note(true);  // the good ones are counted anew
  EXPECT_EQ(scale.value(), 256);
  scale.step_note(false);
  scale.step_note(false);
  EXPECT_EQ(scale.value(), 256);
  scale.step_note(false);
  EXPECT_EQ(scale.value(), 512);
  for (int step = 0; step < 3; ++step) scale.step_note(false);
  EXPECT_EQ(scale.value(), 1024);
  EXPECT_EQ(scale.skipped(), 2u);
}

TEST(LossScale, HasALowestAndAHighestValue) {
  LossScale high({.initial = kLossScaleMax, .growth_steps = 1});
  high.step_note(false);
  EXPECT_EQ(static_cast<double>(high.value()), kLossScaleMax);
  LossScale low({.initial = 1.5});
  low.step_note(true);
  EXPECT_EQ(low.value(), 1);
  EXPECT_THROW(low.step_note(true), Failure);
}

}  // namespace
}  // namespace sluice::train

// Weights of an uneven split from what the same work took each rank.
#include "trainer/train/split.h"

#include <gtest/gtest.h>

#include "trainer/train/fault_options.h"

namespace sluice::train {
namespace {

using Ratio = std::vector<int>;

TEST(SplitOf, IsTheRatioOfSpeeds) {
  constexpr int kMost = kSplitWeightMax;
  EXPECT_EQ(split_of(std::vector<float>{1, 2}), (Ratio{kMost, kMost / 2}));
  EXPECT_EQ(split_of(std::vector<float>{4, 1, 2}), (Ratio{kMost / 4, kMost, kMost / 2}));
  EXPECT_EQ(split_of(std::vector<float>{3, 3, 3}), (Ratio{kMost, kMost, kMost}));
}

TEST(SplitOf, NobodyGetsNothing) {
  EXPECT_EQ(split_of(std::vector<float>{1, 1e9f}), (Ratio{kSplitWeightMax, 1}));
  // A clock that did not move says nothing.
  EXPECT_EQ(split_of(std::vector<float>{0, 0}), (Ratio{kSplitWeightMax, kSplitWeightMax}));
}

}  // namespace
}  // namespace sluice::train

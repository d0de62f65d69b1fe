// Steps and bytes of the all-reduce algorithms, and the time the alpha-beta model makes of them.
#include "trainer/comm/link.h"

#include <gtest/gtest.h>

namespace sluice::train {
namespace {

TEST(AllreduceCost, RingTakesTwiceNMinusOneStepsAndTwoSharesOfTheBytes) {
  EXPECT_EQ(allreduce_cost(Algorithm::kRing, 1, 1000).steps, 0);
  EXPECT_EQ(allreduce_cost(Algorithm::kRing, 2, 1000).steps, 2);
  EXPECT_DOUBLE_EQ(allreduce_cost(Algorithm::kRing, 2, 1000).bytes, 1000);
  EXPECT_EQ(allreduce_cost(Algorithm::kRing, 8, 8000).steps, 14);
  EXPECT_DOUBLE_EQ(allreduce_cost(Algorithm::kRing, 8, 8000).bytes, 14000);
}

TEST(AllreduceCost, HalvingDoublingTakesTwiceTheLogarithm) {
  EXPECT_EQ(allreduce_cost(Algorithm::kHalvingDoubling, 8, 8000).steps, 6);
  EXPECT_DOUBLE_EQ(allreduce_cost(Algorithm::kHalvingDoubling, 8, 8000).bytes, 14000);
  EXPECT_EQ(allreduce_cost(Algorithm::kBcube, 4, 100).steps, 4);
}

TEST(AllreduceCost, BinaryBlocksTakeTheStepsOfTheLargestAndNeverMoreThanTwiceTheBytes) {
  EXPECT_EQ(allreduce_cost(Algorithm::kHalvingDoubling, 3, 3000).steps, 2);
  EXPECT_DOUBLE_EQ(allreduce_cost(Algorithm::kHalvingDoubling, 3, 3000).bytes, 4500);
  EXPECT_EQ(allreduce_cost(Algorithm::kHalvingDoubling, 5, 4000).steps, 4);
  EXPECT_DOUBLE_EQ(allreduce_cost(Algorithm::kHalvingDoubling, 5, 4000).bytes, 7000);
  EXPECT_DOUBLE_EQ(allreduce_cost(Algorithm::kHalvingDoubling, 7, 4000).bytes, 8000);
}

TEST(LinkModel, TimeIsLatencyPerMessagePlusBytesOverBandwidth) {
  const LinkModel link{.alpha_us = 10, .gigabits_per_s = 8};  // one byte a nanosecond
  EXPECT_EQ(link.transfer_ns(3, 1000), 3 * 10'000 + 1000);
  EXPECT_EQ(link.allreduce_ns(Algorithm::kRing, 2, 4096), 2 * 10'000 + 4096);
  EXPECT_EQ(link.broadcast_ns(3, 1000), 2 * 10'000 + 2000);
  EXPECT_EQ(link.allreduce_ns(Algorithm::kRing, 1, 4096), 0);
  const LinkModel fast{.alpha_us = 1, .gigabits_per_s = 0};
  EXPECT_EQ(fast.transfer_ns(1, 1e12), 1000);
  EXPECT_EQ(link.half_ring_ns(4, 4000), 3 * 10'000 + 3000);
}

TEST(Algorithm, NamesGoBothWays) {
  for (const Algorithm one : {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kBcube}) {
    EXPECT_EQ(algorithm_parse(algorithm_name(one)), one);
  }
  EXPECT_EQ(algorithm_parse("tree"), std::nullopt);
}

}  // namespace
}  // namespace sluice::train

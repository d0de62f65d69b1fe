// The generator's moments, and permutations.
#include "trainer/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::train {
namespace {

TEST(Random, HasTheMomentsOfItsDistributions) {
  Random random(5);
  constexpr int kCount = 100000;
  double uniform = 0;
  double normal = 0;
  double normal_squares = 0;
  double exponential = 0;
  for (int i = 0; i < kCount; ++i) {
    uniform += random.uniform();
    const double value = random.normal();
    normal += value;
    normal_squares += value * value;
    exponential += random.exponential(3.0);
  }
  // Five deviations of the mean of 100,000 draws.
  EXPECT_NEAR(uniform / kCount, 0.5, 5 * 0.289 / 316);
  EXPECT_NEAR(normal / kCount, 0.0, 5 * 1.0 / 316);
  EXPECT_NEAR(normal_squares / kCount, 1.0, 5 * 1.414 / 316);
  EXPECT_NEAR(exponential / kCount, 3.0, 5 * 3.0 / 316);
}

TEST(Random, PurposesAreIndependent) {
  EXPECT_NE(Random(1, 1).next(), Random(1, 2).next());
  EXPECT_NE(Random(1, 1).next(), Random(2, 1).next());
  EXPECT_EQ(Random(1, 1).next(), Random(1, 1).next());
}

TEST(Permutation, HasEveryNumberOnce) {
  for (const std::uint32_t count : {1u, 2u, 17u, 1000u}) {
    std::vector<std::uint32_t> order = permutation_draw(count, Random(9));
    if (count == 1000) {
      EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    }
    std::sort(order.begin(), order.end());
    for (std::uint32_t i = 0; i < count; ++i) EXPECT_EQ(order[i], i);
  }
}

}  // namespace
}  // namespace sluice::train

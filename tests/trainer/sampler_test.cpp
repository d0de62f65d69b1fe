// Every sample exactly once per epoch, for any number of ranks; and global batches that do not
// depend on that number.
#include "trainer/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace sluice::train {
namespace {

struct Cut {
  std::uint32_t samples;
  std::uint32_t ranks;
  std::uint32_t batch;
};

class SamplerTest : public testing::TestWithParam<Cut> {
 protected:
  std::vector<Sampler> samplers_make(std::uint64_t seed) const {
    const Cut cut = GetParam();
    std::vector<Sampler> samplers;
    for (std::uint32_t rank = 0; rank < cut.ranks; ++rank) {
      samplers.emplace_back(SamplerOptions{cut.samples, rank, cut.ranks, cut.batch, seed});
    }
    return samplers;
  }
};

TEST_P(SamplerTest, EverySampleExactlyOncePerEpoch) {
  const Cut cut = GetParam();
  std::vector<Sampler> samplers = samplers_make(5);
  const std::uint32_t steps = samplers[0].steps_per_epoch();
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int> seen(cut.samples);
    for (std::uint64_t step = epoch * steps; step < (epoch + 1) * steps; ++step) {
      std::uint32_t together = 0;
      for (Sampler& sampler : samplers) {
        const Sampler::Batch batch = sampler.batch_of(step);
        EXPECT_LE(batch.samples.size(), cut.batch);
        together += static_cast<std::uint32_t>(batch.samples.size());
        for (const std::uint32_t sample : batch.samples) ++seen[sample];
      }
      EXPECT_EQ(together, samplers[0].batch_of(step).global_count);
    }
    EXPECT_EQ(seen, std::vector<int>(cut.samples, 1)) << "epoch " << epoch;
  }
}

TEST_P(SamplerTest, AGlobalBatchIsThatOfOneBigRank) {
  const Cut cut = GetParam();
  std::vector<Sampler> samplers = samplers_make(5);
  Sampler alone({cut.samples, 0, 1, cut.batch * cut.ranks, 5});
  ASSERT_EQ(alone.steps_per_epoch(), samplers[0].steps_per_epoch());
  for (std::uint64_t step = 0; step < 2 * alone.steps_per_epoch(); ++step) {
    const Sampler::Batch whole = alone.batch_of(step);
    std::multiset<std::uint32_t> parts;
    for (Sampler& sampler : samplers) {
      const Sampler::Batch part = sampler.batch_of(step);
      parts.insert(part.samples.begin(), part.samples.end());
    }
    EXPECT_EQ(parts, std::multiset<std::uint32_t>(whole.samples.begin(), whole.samples.end()));
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, SamplerTest,
                         testing::Values(Cut{100, 1, 7}, Cut{100, 2, 7}, Cut{100, 3, 7},
                                         Cut{101, 3, 4}, Cut{97, 2, 16}, Cut{64, 2, 32},
                                         Cut{2, 3, 4}, Cut{1, 1, 64}));

TEST(Sampler, EpochsAndSeedsHaveOrdersOfTheirOwn) {
  const auto order = [](std::uint64_t seed, std::uint64_t epoch) {
    Sampler sampler({50, 0, 1, 50, seed});
    const auto samples = sampler.batch_of(epoch).samples;
    return std::vector<std::uint32_t>(samples.begin(), samples.end());
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
}

}  // namespace
}  // namespace sluice::train

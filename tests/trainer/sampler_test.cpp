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

TEST(SamplerResume, OtherRanksFinishTheEpochWithEverySampleOnce) {
  constexpr std::uint32_t kSamples = 403;
  for (const std::uint32_t before : {1u, 2u, 3u, 5u}) {
    for (const std::uint32_t after : {1u, 2u, 3u, 7u}) {
      const Sampler old({kSamples, 0, before, 8, 9});
      for (const std::uint64_t steps : {0u, 1u, 4u, 9u, 200u}) {
        const DataPosition at = old.position_after(steps);
        std::vector<int> seen(kSamples);
        // What came before in this epoch.
        Sampler whole({kSamples, 0, 1, 8 * before, 9});
        for (std::uint64_t step = 0; step < steps; ++step) {
          if (whole.position_after(step).epoch != at.epoch) continue;
          for (const std::uint32_t sample : whole.batch_of(step).samples) ++seen[sample];
        }
        std::vector<int> next(kSamples);
        for (std::uint32_t rank = 0; rank < after; ++rank) {
          Sampler sampler({kSamples, rank, after, 8, 9, {}, at});
          const std::uint64_t left = sampler.steps_until(at.epoch + 1);
          for (std::uint64_t step = 0; step < sampler.steps_until(at.epoch + 2); ++step) {
            for (const std::uint32_t sample : sampler.batch_of(step).samples)
              ++(step < left ? seen : next)[sample];
          }
          EXPECT_EQ(sampler.position_after(left), (DataPosition{at.epoch + 1, 0}));
          EXPECT_EQ(sampler.steps_until(at.epoch), 0u);
        }
        EXPECT_EQ(seen, std::vector<int>(kSamples, 1)) << before << after << " after " << steps;
        EXPECT_EQ(next, std::vector<int>(kSamples, 1)) << before << after << " after " << steps;
      }
    }
  }
}

TEST(SamplerSplit, PartsAreInTheRatioAndTogetherTheWholeBatch) {
  const std::vector<int> weights = {3, 1, 5};
  std::vector<Sampler> ranks;
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    ranks.emplace_back(SamplerOptions{403, rank, 3, 6, 9, {}, {}, weights});
  Sampler whole({403, 0, 1, 18, 9});
  for (std::uint64_t step = 0; step < 2 * whole.steps_per_epoch(); ++step) {
    std::vector<std::uint32_t> together;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const Sampler::Batch part = ranks[rank].batch_of(step);
      together.insert(together.end(), part.samples.begin(), part.samples.end());
      EXPECT_LE(part.samples.size(), ranks[rank].part_max());
      if (part.global_count == 18) {
        EXPECT_EQ(part.samples.size(), static_cast<std::size_t>(2 * weights[rank]));
      }
    }
    const Sampler::Batch all = whole.batch_of(step);
    EXPECT_EQ(together, std::vector<std::uint32_t>(all.samples.begin(), all.samples.end()));
  }
}

}  // namespace
}  // namespace sluice::train

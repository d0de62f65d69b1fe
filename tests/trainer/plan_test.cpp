// The static plan: buckets that cover every gradient once, placement round-robin, refusals, and the
// text.
#include "trainer/train/plan.h"

#include <gtest/gtest.h>

namespace sluice::train {
namespace {

TEST(ShardPlan, EveryWeightIsOnePartOfOneRankOrEveryones) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::size_t bucket : {std::size_t{1}, std::size_t{7}, std::size_t{1000}}) {
      for (const std::size_t count : {std::size_t{2}, std::size_t{23}, std::size_t{100}}) {
        const ShardPlan plan = ShardPlan::of(count, ranks);
        std::vector<int> owners(count + 2, 0);
        std::size_t expected_end = count + 2;
        for (const Bucket& one : plan.buckets(count + 2, bucket, ranks)) {
          EXPECT_EQ(one.begin + one.count, expected_end);
          expected_end = one.begin;
          for (int rank = 0; rank < ranks; ++rank) {
            const Bucket part = plan.is_shared(one) ? one : ShardPlan::part(one, rank, ranks);
            for (std::size_t i = 0; i < part.count; ++i)
              owners[part.begin + i] += plan.is_shared(one) ? rank == 0 : 1;
          }
        }
        EXPECT_EQ(expected_end, 0u);
        EXPECT_EQ(owners, std::vector<int>(count + 2, 1)) << ranks << " " << bucket;
        EXPECT_LT(count - plan.shared_begin, static_cast<std::size_t>(ranks));
      }
    }
  }
}

TEST(Buckets, CoverEverythingOnceFromTheEnd) {
  for (const std::size_t size : {1u, 3u, 7u, 100u}) {
    const std::vector<Bucket> buckets = buckets_cut(23, size);
    std::size_t expected_end = 23;
    for (const Bucket& bucket : buckets) {
      EXPECT_GE(bucket.count, 1u);
      EXPECT_LE(bucket.count, size);
      EXPECT_EQ(bucket.begin + bucket.count, expected_end);
      expected_end = bucket.begin;
    }
    EXPECT_EQ(expected_end, 0u);
  }
}

TEST(TrainPlan, PlacesRanksRoundRobinAndCountsParameters) {
  TrainOptions options;
  options.hidden = {64, 32};
  options.bucket_bytes = 64 * 1024;
  const TrainPlan plan = train_plan(options, 5, 2);
  EXPECT_EQ(plan.shape.parameter_count(), static_cast<std::size_t>(785 * 64 + 65 * 32 + 33 * 10));
  EXPECT_EQ(plan.gpu_of(0), 0);
  EXPECT_EQ(plan.gpu_of(3), 1);
  EXPECT_FALSE(plan.own_gpu_each());
  EXPECT_EQ(plan.buckets.size(), 4u);
  EXPECT_EQ(plan.gradient_bytes, (plan.shape.parameter_count() + kExtraCount) * sizeof(float));
}

TEST(TrainPlan, SaysWhatItWillDo) {
  TrainOptions options;
  const std::string two = plan_text(train_plan(options, 2, 2), options);
  EXPECT_NE(two.find("784-128-10, 101770 parameters; 2 ranks on 2 GPUs"), std::string::npos) << two;
  EXPECT_NE(two.find("0->GPU 0 1->GPU 1"), std::string::npos) << two;
  EXPECT_NE(two.find("ring in 1 bucket, 407088 bytes sent"), std::string::npos) << two;
  const std::string one = plan_text(train_plan(options, 1, 1), options);
  EXPECT_NE(one.find("nothing to reduce"), std::string::npos) << one;
}

TEST(TrainPlan, MicroBatchesCountForTheGlobalBatch) {
  TrainOptions options;
  options.batch = 16;
  options.accumulate = 4;
  options.rate_batch = 64;
  options.rate = 0.1;
  EXPECT_DOUBLE_EQ(rate_plan(options, 2, 10).peak, 0.2);
  const std::string text = plan_text(train_plan(options, 2, 2), options);
  EXPECT_NE(text.find("batch 64 per rank, 128 in all, by 4 micro-batches"), std::string::npos)
      << text;
}

TEST(TrainPlan, ThinMatricesAreBucketsOfTheirOwnAndTheRestIsBetweenThem) {
  TrainOptions options;
  options.hidden = {64};
  options.compression = *compression_parse("powersgd:4");
  const TrainPlan plan = train_plan(options, 2, 2);
  const std::size_t all = plan.shape.parameter_count();
  const std::vector<std::size_t> counts = {kExtraCount, 10, 640, 64, 784 * 64};
  ASSERT_EQ(plan.buckets.size(), counts.size());
  std::size_t end = all + kExtraCount;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(plan.buckets[i].count, counts[i]);
    EXPECT_EQ(plan.buckets[i].begin + counts[i], end);
    end = plan.buckets[i].begin;
  }
  EXPECT_EQ(end, 0u);
  // 4 (784 + 64) and 4 (64 + 10) floats; the biases and the extras as they are.
  EXPECT_NE(plan_text(plan, options).find(" 15056 bytes sent"), std::string::npos);
  // 11 (64 + 10) is more than 64 x 10: the last layer goes with the biases beside it.
  options.compression = *compression_parse("powersgd:11");
  const TrainPlan wide = train_plan(options, 2, 2);
  ASSERT_EQ(wide.buckets.size(), 3u);
  EXPECT_EQ(wide.buckets[1].count, 64u + 640 + 10);
}

TEST(TrainPlan, AServerIsNoWorker) {
  TrainOptions options;
  options.strategy = Strategy::kAsync;
  options.batch = 8;
  options.rate = 0.1;
  options.rate_batch = 8;
  EXPECT_THROW(train_plan(options, 1, 1), Failure);
  const std::string text = plan_text(train_plan(options, 4, 1), options);
  EXPECT_NE(text.find("batch 8 per rank, 24 in all; rank 0 serves the weights to 3 workers"),
            std::string::npos)
      << text;
  EXPECT_DOUBLE_EQ(rate_plan(options, 4, 10).peak, 0.3);
}

TEST(TrainPlan, RefusesWhatCannotWork) {
  TrainOptions options;
  options.slow.rank = 2;
  EXPECT_NO_THROW(train_plan(options, 3, 1));
  EXPECT_THROW(train_plan(options, 2, 1), Failure);
  options.slow = {};
  EXPECT_THROW(train_plan(options, 1, 0), Failure);
  options.algorithm = Algorithm::kBcube;
  EXPECT_NO_THROW(train_plan(options, 4, 1));
  EXPECT_THROW(train_plan(options, 3, 1), Failure);
}

}  // namespace
}  // namespace sluice::train

// What compression may lose and what not: top-k sends the rest later, and all ranks have the same.
#include "trainer/train/compression.h"

#include <mutex>

#include "tests/trainer/device_fixture.h"
#include "tests/trainer/ranks.h"
#include "trainer/train/powersgd.h"

namespace sluice::tests {
namespace {

using namespace sluice::train;

constexpr std::size_t kParameters = 1000;
constexpr std::size_t kExtras = 2;

/// Reduces `rounds` gradients and adds up what comes out of each, on every rank.
std::vector<Floats> reduced(int ranks, const char* compression, int rounds, int silent_rounds) {
  std::vector<Floats> sums(static_cast<std::size_t>(ranks));
  ranks_run(ranks, [&](int rank, const std::string& directory) {
    Device device(0);
    Stream stream(device);
    CommOptions options;
    options.rank = rank;
    options.rank_count = ranks;
    options.directory = directory;
    options.timeout_s = 20;
    const auto comm = gloo_comm(options);
    const Together together;
    DeviceArray<float> gradients(kParameters + kExtras);
    // In three buckets, of which one is short, and the extras.
    const std::vector<Bucket> buckets = {{kParameters, kExtras}, {600, 400}, {200, 400}, {0, 200}};
    const auto reduction = compressed_reduction(*compression_parse(compression), *comm, ranks,
                                                stream, gradients.at(), kParameters, 400);
    const Floats mine = floats_draw(gradients.size(), static_cast<std::uint64_t>(rank) + 1);
    Floats& sum = sums[static_cast<std::size_t>(rank)];
    sum.assign(gradients.size(), 0);
    for (int round = 0; round < rounds + silent_rounds; ++round) {
      Floats values = round < rounds ? mine : Floats(gradients.size(), 0.0f);
      stream.upload(gradients.at(), values.data(), gradients.bytes());
      for (const Bucket& bucket : buckets) reduction->reduce(stream, bucket);
      stream.download(values.data(), gradients.at(), gradients.bytes());
      stream.synchronize();
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  });
  return sums;
}

Floats plain_sum(int ranks, int rounds) {
  Floats out(kParameters + kExtras, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const Floats one = floats_draw(out.size(), static_cast<std::uint64_t>(rank) + 1);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += static_cast<float>(rounds) * one[i];
  }
  return out;
}

class CompressionTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { SLUICE_NEEDS_DRIVER(); }
};

TEST_P(CompressionTest, WhatTopkDoesNotSendNowItSendsLater) {
  const int ranks = GetParam();
  constexpr int kRounds = 3;
  const std::vector<Floats> at_once = reduced(ranks, "topk:0.25", kRounds, 0);
  const std::vector<Floats> in_time = reduced(ranks, "topk:0.25", kRounds, 4);
  const Floats expected = plain_sum(ranks, kRounds);
  double missing = 0;
  for (std::size_t i = 0; i < kParameters; ++i) {
    EXPECT_NEAR(in_time[0][i], expected[i], 1e-4) << i;
    missing = std::max(missing, std::fabs(static_cast<double>(at_once[0][i] - expected[i])));
  }
  EXPECT_GT(missing, 0.1) << "a quarter of the values cannot be all of them";
  for (std::size_t i = kParameters; i < expected.size(); ++i)
    EXPECT_NEAR(at_once[0][i], expected[i], 1e-5) << "extras are not compressed";
  for (const Floats& one : in_time) EXPECT_EQ(one, in_time[0]);  // every rank, every bit
}

TEST_P(CompressionTest, SixteenBitsAreTheSumWithTheirRounding) {
  const int ranks = GetParam();
  const Floats expected = plain_sum(ranks, 1);
  for (const auto& [name, digit] : {std::pair{"fp16", 0x1p-10}, {"bf16", 0x1p-7}}) {
    const std::vector<Floats> sums = reduced(ranks, name, 1, 0);
    double apart = 0;
    for (std::size_t i = 0; i < kParameters; ++i) {
      // Values below 1 in magnitude, each rounded once, and each partial sum.
      EXPECT_NEAR(sums[0][i], expected[i], digit * 2 * ranks) << name << " " << i;
      apart = std::max(apart, std::fabs(static_cast<double>(sums[0][i] - expected[i])));
    }
    EXPECT_GT(apart, digit / 64) << "nothing was rounded";
    for (std::size_t i = kParameters; i < expected.size(); ++i)
      EXPECT_NEAR(sums[0][i], expected[i], 1e-5) << "extras are not compressed";
    for (const Floats& one : sums) EXPECT_EQ(one, sums[0]);
  }
}

/// A matrix of 30 x 20 between two vectors, whose gradient is of rank 2 on each rank.
constexpr std::size_t kThinRows = 30, kThinColumns = 20, kThinFirst = 7, kThinLast = 5;

Floats thin_gradient(int rank) {
  const auto seed = static_cast<std::uint64_t>(rank) + 1;
  const Floats left = floats_draw(2 * kThinRows, seed),
               right = floats_draw(2 * kThinColumns, seed + 50);
  Floats out = floats_draw(kThinFirst + kThinRows * kThinColumns + kThinLast + kExtras, seed + 90);
  for (std::size_t row = 0; row < kThinRows; ++row) {
    for (std::size_t column = 0; column < kThinColumns; ++column) {
      out[kThinFirst + row * kThinColumns + column] =
          left[2 * row] * right[2 * column] + left[2 * row + 1] * right[2 * column + 1];
    }
  }
  return out;
}

/// What comes out of one gradient and `silent_rounds` of zeros, added up, on every rank.
std::vector<Floats> powersgd_reduced(int ranks, int low_rank, int silent_rounds) {
  std::vector<Floats> sums(static_cast<std::size_t>(ranks));
  ranks_run(ranks, [&](int rank, const std::string& directory) {
    Device device(0);
    Stream stream(device);
    CommOptions options;
    options.rank = rank;
    options.rank_count = ranks;
    options.directory = directory;
    options.timeout_s = 20;
    const auto comm = gloo_comm(options);
    const Together together;
    RangeList list;
    list.add("first", kThinFirst);
    list.add("matrix", kThinRows * kThinColumns, kThinColumns);
    list.add("last", kThinLast);
    const std::size_t parameters = kThinFirst + kThinRows * kThinColumns + kThinLast;
    Floats values = thin_gradient(rank);
    DeviceArray<float> gradients(values.size());
    const auto reduction =
        powersgd_reduction(low_rank, *comm, ranks, stream, gradients.at(), list.ranges());
    std::vector<Bucket> buckets = powersgd_buckets(list.ranges(), low_rank);
    ASSERT_EQ(buckets.size(), 3u);
    buckets.push_back({parameters, kExtras});
    Floats& sum = sums[static_cast<std::size_t>(rank)];
    sum.assign(values.size(), 0);
    for (int round = 0; round <= silent_rounds; ++round) {
      if (round > 0) values.assign(values.size(), 0.0f);
      stream.upload(gradients.at(), values.data(), gradients.bytes());
      for (const Bucket& bucket : buckets) reduction->reduce(stream, bucket);
      stream.download(values.data(), gradients.at(), gradients.bytes());
      stream.synchronize();
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  });
  return sums;
}

TEST_P(CompressionTest, PowersgdIsExactWhereItsRankSufficesAndLateWhereNot) {
  const int ranks = GetParam();
  Floats expected(thin_gradient(0).size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const Floats one = thin_gradient(rank);
    for (std::size_t i = 0; i < one.size(); ++i) expected[i] += one[i];
  }
  const auto farthest = [&](const Floats& got) {
    double apart = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      apart = std::max(apart, std::fabs(static_cast<double>(got[i] - expected[i])));
    return apart;
  };
  const auto enough = powersgd_reduced(ranks, 2 * ranks, 0);
  EXPECT_LT(farthest(enough[0]), 1e-4);
  for (const Floats& one : enough) EXPECT_EQ(one, enough[0]);  // every rank, every bit
  const auto too_low = powersgd_reduced(ranks, 1, 0);
  EXPECT_GT(farthest(too_low[0]), 0.1);
  const auto in_time = powersgd_reduced(ranks, 1, 12 * ranks);
  EXPECT_LT(farthest(in_time[0]), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Ranks, CompressionTest, testing::Values(2, 3));

TEST(Compression, OptionsSayWhatTheyMean) {
  EXPECT_EQ(compression_parse("topk:0.05")->ratio, 0.05);
  EXPECT_EQ(compression_parse("powersgd:4")->rank, 4);
  for (const char* text : {"none", "fp16", "bf16", "topk:0.05", "powersgd:32"})
    EXPECT_EQ(compression_parse(text)->text(), text);
  for (const char* text : {"powersgd", "powersgd:", "powersgd:0", "powersgd:33", "powersgd:2x"})
    EXPECT_FALSE(compression_parse(text)) << text;
  for (const char* text : {"", "topk", "topk:", "topk:0", "topk:nan", "topk:1.5", "topk:-1", "fp8"})
    EXPECT_FALSE(compression_parse(text)) << text;
  EXPECT_EQ(topk_of(0.1, 100), 10u);
  EXPECT_EQ(topk_of(0.001, 100), 1u);
  EXPECT_EQ(topk_of(1, 100), 100u);
}

}  // namespace
}  // namespace sluice::tests

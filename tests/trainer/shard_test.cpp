// Data sets in shards: what was written is what is read, whole or refused, and ranks with shards of
// their own see each image exactly once per epoch.
#include "trainer/data/shard.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/trainer/process.h"
#include "trainer/base/failure.h"
#include "trainer/data/sampler.h"
#include "trainer/data/store.h"

namespace sluice::tests {
namespace {

using train::ImageStore;
using train::Sampler;

/// Images that say in their first two bytes which they are.
train::ImageSet numbered(std::uint32_t count) {
  train::ImageSet set;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::vector<std::uint8_t> image(train::kImagePixels, static_cast<std::uint8_t>(i % 251));
    image[0] = static_cast<std::uint8_t>(i & 0xff);
    image[1] = static_cast<std::uint8_t>(i >> 8);
    set.pixels.insert(set.pixels.end(), image.begin(), image.end());
    set.labels.push_back(static_cast<std::uint8_t>(i % 10));
  }
  return set;
}

std::uint32_t number_of(std::span<const std::uint8_t> image) { return image[0] | image[1] << 8; }

class ShardTest : public testing::Test {
 protected:
  void pack(std::uint32_t train, std::uint32_t shards) {
    train::shards_write(directory_, {numbered(train), numbered(7), "numbers"}, shards);
  }
  std::string complaint() {
    try {
      train::shards_verify(directory_);
      return "";
    } catch (const train::Failure& failure) {
      EXPECT_EQ(std::string(failure.what()).find('\n'), std::string::npos);
      return failure.what();
    }
  }
  std::string file(const std::string& name) const { return directory_ + "/" + name; }
  /// Turns one bit of a file; a second time puts it back.
  void bit_flip(const std::string& name, std::size_t at) {
    std::string bytes = file_text(file(name));
    ASSERT_LT(at, bytes.size());
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    std::ofstream(file(name), std::ios::binary) << bytes;
  }

  ScratchDirectory scratch_;
  std::string directory_ = scratch_.file("deep/shards");
};

TEST_F(ShardTest, WhatIsReadIsWhatWasWritten) {
  const train::ImageSet set = numbered(401);
  for (const std::uint32_t shards : {1u, 3u, 401u}) {
    pack(401, shards);
    EXPECT_EQ(complaint(), "");
    const train::ShardIndex index = train::index_read(directory_);
    EXPECT_EQ(index.name, "numbers");
    ASSERT_EQ(index.train.size(), shards);
    for (const auto& entry : index.train) EXPECT_LE(entry.count - 401 / shards, 1u);
    const ImageStore store(directory_, index, train::shards_of_rank(shards, 0, 1));
    ASSERT_EQ(store.train().size(), 401u);
    EXPECT_EQ(store.test().size(), 7u);
    for (std::uint32_t i = 0; i < 401; ++i) {
      const auto image = store.train().image(i);
      ASSERT_TRUE(std::equal(image.begin(), image.end(), set.image(i).begin())) << i;
      ASSERT_EQ(store.train().label(i), set.labels[i]);
    }
    EXPECT_EQ(number_of(store.test().image(6)), 6u);
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory_))
    EXPECT_EQ(entry.path().extension(), ".slu");
}

TEST_F(ShardTest, EveryDamageIsRefused) {
  pack(30, 2);
  const std::string shard = "train-00001-of-00002.slu";
  const std::size_t size = file_text(file(shard)).size();
  ASSERT_EQ(size, 40u + 15u * 785u);
  for (const std::size_t at : {0u, 9u, 13u, 17u, 21u, 25u, 29u, 33u, 37u, 40u, 5000u}) {
    bit_flip(shard, at);
    EXPECT_NE(complaint().find(shard + " is not the shard that its index tells of"),
              std::string::npos)
        << at;
    bit_flip(shard, at);
  }
  bit_flip(shard, size - 1);
  EXPECT_NE(complaint().find("its checksum does not fit"), std::string::npos);
  bit_flip(shard, size - 1);
  const std::size_t index_size = file_text(file("index.slu")).size();
  for (std::size_t at = 0; at < index_size; ++at) {
    bit_flip("index.slu", at);
    EXPECT_NE(complaint().find("is not an index of shards"), std::string::npos) << at;
    bit_flip("index.slu", at);
  }
  EXPECT_EQ(complaint(), "");
}

TEST_F(ShardTest, FilesThatAreCutShortGoOnOrAreMissingAreRefused) {
  pack(30, 2);
  const std::string shard = file("train-00000-of-00002.slu");
  const std::string whole = file_text(shard);
  for (const std::size_t size : {std::size_t{0}, std::size_t{39}, whole.size() - 1}) {
    std::filesystem::resize_file(shard, size);
    EXPECT_NE(complaint().find(train::text_format("it has %zu bytes where 11815 are", size)),
              std::string::npos)
        << complaint();
  }
  std::ofstream(shard, std::ios::binary) << whole << "x";
  EXPECT_NE(complaint().find("it has 11816 bytes"), std::string::npos);
  std::filesystem::remove(shard);
  EXPECT_NE(complaint().find("opening the shard"), std::string::npos);
  pack(30, 2);
  const std::string index = file_text(file("index.slu"));
  for (std::size_t size = 0; size < index.size(); ++size) {
    std::ofstream(file("index.slu"), std::ios::binary) << index.substr(0, size);
    EXPECT_NE(complaint().find("is not an index"), std::string::npos) << size;
  }
  std::filesystem::remove(file("index.slu"));
  EXPECT_NE(complaint().find("no shards in"), std::string::npos);
}

TEST_F(ShardTest, AShardOfAnotherSetIsRefused) {
  train::shards_write(scratch_.file("other"), {numbered(31), numbered(7), "other"}, 2);
  pack(30, 2);
  // The same size, whole in itself, but other images.
  std::filesystem::copy_file(scratch_.file("other/train-00000-of-00002.slu"),
                             file("train-00001-of-00002.slu"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(complaint().find("it belongs to another set"), std::string::npos) << complaint();
}

TEST_F(ShardTest, LabelsThatNoClassHasAreRefused) {
  train::Dataset data{numbered(5), numbered(5), "bad"};
  data.train.labels[3] = 10;
  train::shards_write(directory_, data, 1);
  EXPECT_NE(complaint().find("a label 10"), std::string::npos) << complaint();
}

TEST_F(ShardTest, WritingThatFailsLeavesNoIndexAndNoParts) {
  pack(30, 3);
  // A directory in a shard's place cannot be replaced by a file.
  std::filesystem::remove(file("train-00002-of-00003.slu"));
  std::filesystem::create_directories(file("train-00002-of-00003.slu/x"));
  EXPECT_THROW(pack(30, 3), train::Failure);
  EXPECT_FALSE(std::filesystem::exists(file("index.slu")));
  for (const auto& entry : std::filesystem::directory_iterator(directory_))
    EXPECT_EQ(entry.path().extension(), ".slu");
  EXPECT_THROW(pack(30, 31), train::Failure);
  EXPECT_THROW(pack(30, 0), train::Failure);
}

TEST_F(ShardTest, EveryImageComesOncePerEpochForEveryNumberOfRanks) {
  constexpr std::uint32_t kImages = 403;
  constexpr std::uint32_t kShards = 7;
  constexpr std::uint32_t kBatch = 16;
  pack(kImages, kShards);
  const train::ShardIndex index = train::index_read(directory_);
  for (const bool own : {false, true}) {
    for (const std::uint32_t ranks : {1u, 2u, 3u, 5u, 7u}) {
      SCOPED_TRACE(train::text_format("own %d, %u ranks", own, ranks));
      std::vector<std::unique_ptr<ImageStore>> stores;
      std::vector<Sampler> samplers;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        stores.push_back(std::make_unique<ImageStore>(
            directory_, index, train::shards_of_rank(kShards, own ? rank : 0, own ? ranks : 1)));
        train::SamplerOptions how{stores.back()->train().size(), rank, ranks, kBatch, 5};
        if (own) how.own_counts = train::counts_of_ranks(index, ranks);
        samplers.emplace_back(how);
      }
      const std::uint32_t steps = samplers[0].steps_per_epoch();
      for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
        std::vector<int> seen(kImages);
        for (std::uint64_t step = epoch * steps; step < (epoch + 1) * steps; ++step) {
          std::size_t together = 0;
          for (std::uint32_t rank = 0; rank < ranks; ++rank) {
            const Sampler::Batch batch = samplers[rank].batch_of(step);
            ASSERT_EQ(samplers[rank].steps_per_epoch(), steps);
            EXPECT_LE(batch.samples.size(), kBatch);
            together += batch.samples.size();
            for (const std::uint32_t row : batch.samples)
              ++seen.at(number_of(stores[rank]->train().image(row)));
          }
          EXPECT_EQ(samplers[ranks - 1].batch_of(step).global_count, together);
          EXPECT_GT(together, 0u);
        }
        EXPECT_EQ(seen, std::vector<int>(kImages, 1)) << "epoch " << epoch;
      }
    }
  }
}

TEST(OwnSamples, RanksAndEpochsHaveOrdersOfTheirOwn) {
  const auto order = [](std::uint32_t rank, std::uint64_t epoch) {
    Sampler sampler({40, rank, 2, 40, 1, {40, 40}});
    const auto samples = sampler.batch_of(epoch).samples;
    return std::vector<std::uint32_t>(samples.begin(), samples.end());
  };
  EXPECT_EQ(order(0, 0), order(0, 0));
  EXPECT_NE(order(0, 0), order(1, 0));
  EXPECT_NE(order(0, 0), order(0, 1));
}

}  // namespace
}  // namespace sluice::tests

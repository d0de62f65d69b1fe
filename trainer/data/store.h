// Where a rank's images lie while it trains: in memory of its own, or in mapped shards. Either way
// they are rows with numbers from 0.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/dataset.h"
#include "trainer/data/shard.h"
#include "trainer/data/source.h"

namespace sluice::train {

/// Stretches of images, one after the other. Owns nothing.
class ImageRows {
 public:
  void add(std::span<const std::uint8_t> pixels, std::span<const std::uint8_t> labels);

  std::uint32_t size() const { return size_; }
  std::span<const std::uint8_t> image(std::uint32_t row) const;
  std::uint8_t label(std::uint32_t row) const;

 private:
  struct Part {
    std::uint32_t begin;
    std::span<const std::uint8_t> pixels, labels;
  };
  const Part& part_of(std::uint32_t row) const;

  std::vector<Part> parts_;
  std::uint32_t size_ = 0;
};

class ImageStore : public Source {
 public:
  explicit ImageStore(Dataset data);
  /// Maps these training shards, in this order, and all test shards; shards_verify() has looked at
  /// them before.
  ImageStore(const std::string& directory, const ShardIndex& index,
             std::span<const std::uint32_t> train_shards);
  ImageStore(const ImageStore&) = delete;
  ImageStore& operator=(const ImageStore&) = delete;

  std::uint32_t train_count() const override { return train_.size(); }
  std::uint32_t test_count() const override { return test_.size(); }
  /// inputs: kImagePixels floats an image (pixel_value)
  void train_put(std::span<const std::uint32_t> samples, void* inputs, int* targets) const override;
  void test_put(std::span<const std::uint32_t> samples, void* inputs, int* targets) const override;

  const ImageRows& train() const { return train_; }
  const ImageRows& test() const { return test_; }

 private:
  Dataset held_;
  std::vector<Shard> mapped_;
  ImageRows train_, test_;
};

/// The training shards of one of several ranks that share nothing: every rank_count-th.
std::vector<std::uint32_t> shards_of_rank(std::uint32_t shards, std::uint32_t rank,
                                          std::uint32_t rank_count);
/// How many training images each rank has then.
std::vector<std::uint32_t> counts_of_ranks(const ShardIndex& index, std::uint32_t rank_count);

}  // namespace sluice::train

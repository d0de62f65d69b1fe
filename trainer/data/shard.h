// A data set on disk, ready for training: shard files that are mapped into memory and read where
// they lie, and an index that says what belongs together. A directory holds
//   index.slu               what there is; written last, so a directory with one is whole
//   train-00000-of-00004.slu, ...  images in the data set's order, in contiguous parts
//   test-00000-of-00001.slu
// All numbers are 32-bit little-endian. A shard: kShardMagic, version, split, number, count of
// shards, count of images, bytes per image, CRC-32 of what follows the header, CRC-32 of the
// header; then the images, then a byte of label each. The index: kIndexMagic, version, bytes per
// image, and for train and for test the count of shards and each one's count of images and CRC-32;
// then the length of the data set's name and the name; last the CRC-32 of all before.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/dataset.h"

namespace sluice::train {

inline constexpr char kIndexFile[] = "index.slu";
inline constexpr std::uint32_t kShardsMax = 4096;

enum class Split : std::uint32_t { kTrain = 0, kTest = 1 };

struct ShardIndex {
  struct Entry {
    std::uint32_t count;     // images
    std::uint32_t checksum;  // of images and labels
  };
  std::string name;
  std::vector<Entry> train, test;

  const std::vector<Entry>& entries(Split split) const {
    return split == Split::kTrain ? train : test;
  }
};

/// Writes `data` to `directory` (made where it is not) in `shards` training shards, each of at
/// least one image and as long as the others up to one, and one test shard. Every file appears
/// whole or not at all; an index that was there is gone first.
void shards_write(const std::string& directory, const Dataset& data, std::uint32_t shards);

/// Throws Failure when there is none, or it is not whole.
ShardIndex index_read(const std::string& directory);

/// How much of a shard is looked at when it is opened.
enum class ShardCheck : std::uint8_t {
  kShape,  // header, index and length agree
  kWhole,  // the checksum and the labels too: reads all of it
};

/// One shard, mapped read-only. The file must not be cut short while it is in use.
class Shard {
 public:
  Shard(const std::string& directory, const ShardIndex& index, Split split, std::uint32_t number,
        ShardCheck check);
  ~Shard();
  Shard(Shard&& other) noexcept;
  Shard& operator=(Shard&&) = delete;

  std::span<const std::uint8_t> pixels() const;
  std::span<const std::uint8_t> labels() const;

 private:
  [[noreturn]] void refuse(const std::string& why) const;
  void map(std::size_t expected);
  void check(const ShardIndex& index, Split split, std::uint32_t number, ShardCheck how) const;

  std::string path_;
  std::uint32_t count_ = 0;
  const std::uint8_t* bytes_ = nullptr;
  std::size_t size_ = 0;
};

/// Opens every shard of the directory and checks it whole.
void shards_verify(const std::string& directory);

}  // namespace sluice::train

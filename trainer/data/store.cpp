// See store.h.
#include "trainer/data/store.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sluice::train {
namespace {

void rows_put(const ImageRows& from, std::span<const std::uint32_t> rows, void* inputs,
              int* targets) {
  auto* to = static_cast<float*>(inputs);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::span<const std::uint8_t> image = from.image(rows[i]);
    to = std::transform(image.begin(), image.end(), to, pixel_value);
    targets[i] = from.label(rows[i]);
  }
}

}  // namespace

void ImageRows::add(std::span<const std::uint8_t> pixels, std::span<const std::uint8_t> labels) {
  assert(pixels.size() == labels.size() * kImagePixels);
  if (labels.empty()) return;
  parts_.push_back({size_, pixels, labels});
  size_ += static_cast<std::uint32_t>(labels.size());
}

const ImageRows::Part& ImageRows::part_of(std::uint32_t row) const {
  assert(row < size_);
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), row,
                       [](std::uint32_t value, const Part& part) { return value < part.begin; });
  return *(after - 1);
}

std::span<const std::uint8_t> ImageRows::image(std::uint32_t row) const {
  const Part& part = part_of(row);
  return part.pixels.subspan(std::size_t{row - part.begin} * kImagePixels, kImagePixels);
}

std::uint8_t ImageRows::label(std::uint32_t row) const {
  const Part& part = part_of(row);
  return part.labels[row - part.begin];
}

ImageStore::ImageStore(Dataset data) : held_(std::move(data)) {
  train_.add(held_.train.pixels, held_.train.labels);
  test_.add(held_.test.pixels, held_.test.labels);
}

ImageStore::ImageStore(const std::string& directory, const ShardIndex& index,
                       std::span<const std::uint32_t> train_shards) {
  const auto open = [&](ImageRows& rows, Split split, std::uint32_t number) {
    mapped_.emplace_back(directory, index, split, number, ShardCheck::kShape);
    rows.add(mapped_.back().pixels(), mapped_.back().labels());
  };
  for (const std::uint32_t number : train_shards) open(train_, Split::kTrain, number);
  for (std::uint32_t number = 0; number < index.test.size(); ++number)
    open(test_, Split::kTest, number);
}

void ImageStore::train_put(std::span<const std::uint32_t> samples, void* inputs,
                           int* targets) const {
  rows_put(train_, samples, inputs, targets);
}

void ImageStore::test_put(std::span<const std::uint32_t> samples, void* inputs,
                          int* targets) const {
  rows_put(test_, samples, inputs, targets);
}

std::vector<std::uint32_t> shards_of_rank(std::uint32_t shards, std::uint32_t rank,
                                          std::uint32_t rank_count) {
  assert(rank < rank_count);
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t number = rank; number < shards; number += rank_count)
    numbers.push_back(number);
  return numbers;
}

std::vector<std::uint32_t> counts_of_ranks(const ShardIndex& index, std::uint32_t rank_count) {
  std::vector<std::uint32_t> counts(rank_count);
  for (std::size_t number = 0; number < index.train.size(); ++number)
    counts[number % rank_count] += index.train[number].count;
  return counts;
}

}  // namespace sluice::train

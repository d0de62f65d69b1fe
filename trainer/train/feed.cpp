// See feed.h.
#include "trainer/train/feed.h"

#include <algorithm>

namespace sluice::train {
namespace {

constexpr std::uint32_t kSyntheticTrain = 4096;
constexpr std::uint32_t kSyntheticTest = 1024;

bool in_shards(const TrainOptions& options) {
  return options.data != "fashion-mnist" && options.data != "synthetic";
}

std::vector<std::uint32_t> shards_mine(const TrainOptions& options, const ShardIndex& index,
                                       std::uint32_t rank_count) {
  const auto shards = static_cast<std::uint32_t>(index.train.size());
  if (options.sharing == Sharing::kIndex) return shards_of_rank(shards, 0, 1);
  return shards_of_rank(shards, static_cast<std::uint32_t>(options.place.rank), rank_count);
}

}  // namespace

Dataset dataset_make(const TrainOptions& options) {
  if (options.data == "fashion-mnist")
    return fashion_read(options.data_directory, options.train_samples);
  const std::uint32_t count = options.train_samples ? options.train_samples : kSyntheticTrain;
  return synthetic_draw(options.seed, count, kSyntheticTest);
}

void feed_verify(const TrainOptions& options, int rank_count) {
  if (!in_shards(options)) return;
  shards_verify(options.data);
  const std::size_t shards = index_read(options.data).train.size();
  if (options.sharing == Sharing::kPresharded && shards < static_cast<std::size_t>(rank_count)) {
    throw Failure(
        text_format("%s has %zu shard%s for %d ranks; write it again with sluice-train "
                    "pack --shards %d or more, or take --sharing index",
                    options.data.c_str(), shards, shards == 1 ? "" : "s", rank_count, rank_count));
  }
}

void rows_put(const ImageRows& from, std::span<const std::uint32_t> rows, float* inputs,
              int* labels) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::span<const std::uint8_t> image = from.image(rows[i]);
    float* to = inputs + i * kImagePixels;
    for (std::size_t pixel = 0; pixel < kImagePixels; ++pixel)
      to[pixel] = pixel_value(image[pixel]);
    labels[i] = from.label(rows[i]);
  }
}

Feed::Feed(const TrainOptions& options, int rank_count) : options_(options) {
  SamplerOptions how;
  how.rank = static_cast<std::uint32_t>(options.place.rank);
  how.rank_count = static_cast<std::uint32_t>(rank_count);
  how.batch = static_cast<std::uint32_t>(options.batch);
  how.seed = options.seed;
  if (in_shards(options)) {
    const ShardIndex index = index_read(options.data);
    store_ = std::make_unique<ImageStore>(options.data, index,
                                          shards_mine(options, index, how.rank_count));
    if (options.sharing == Sharing::kPresharded)
      how.own_counts = counts_of_ranks(index, how.rank_count);
  } else {
    store_ = std::make_unique<ImageStore>(dataset_make(options));
  }
  how.sample_count = store_->train().size();
  if (options.train_samples > 0)
    how.sample_count = std::min(how.sample_count, options.train_samples);
  sampler_ = std::make_unique<Sampler>(how);
}

void Feed::start(std::uint64_t steps) {
  std::vector<LoadedBatch> slots;
  // One slot is in use while the others are made ready.
  for (int i = 0; i <= options_.prefetch; ++i) {
    memory_.push_back(std::make_unique<PinnedBatch>(static_cast<std::size_t>(options_.batch)));
    slots.push_back({memory_.back()->inputs.data(), memory_.back()->labels.data()});
  }
  LoaderOptions how{steps, static_cast<Nanos>(options_.load_delay_us * 1000)};
  loader_ = std::make_unique<Loader>(
      std::move(slots), how, [this](std::uint64_t step, LoadedBatch& batch) { fill(step, batch); });
}

void Feed::fill(std::uint64_t step, LoadedBatch& batch) {
  const Sampler::Batch part = sampler_->batch_of(step);
  rows_put(store_->train(), part.samples, batch.inputs, batch.labels);
  batch.count = static_cast<std::uint32_t>(part.samples.size());
  batch.global_count = part.global_count;
}

}  // namespace sluice::train

// See feed.h.
#include "trainer/train/feed.h"

#include <algorithm>
#include <numeric>

#include "trainer/data/text.h"

namespace sluice::train {
namespace {

constexpr std::uint32_t kSyntheticTrain = 4096;
constexpr std::uint32_t kSyntheticTest = 1024;
constexpr std::size_t kSyntheticText = 200'000;  // bytes

bool in_shards(const TrainOptions& options) {
  return options.model != Model::kGpt && options.data != "fashion-mnist" &&
         options.data != "synthetic";
}

std::vector<std::uint32_t> shards_mine(const TrainOptions& options, const ShardIndex& index,
                                       std::uint32_t rank_count) {
  const auto shards = static_cast<std::uint32_t>(index.train.size());
  if (options.sharing != Sharing::kPresharded) return shards_of_rank(shards, 0, 1);
  return shards_of_rank(shards, static_cast<std::uint32_t>(options.place.rank), rank_count);
}

std::unique_ptr<Source> text_open(const TrainOptions& options) {
  const std::string text = options.data == "synthetic" ? text_draw(options.seed, kSyntheticText)
                                                       : text_read(options.data);
  return std::make_unique<TextSource>(tokenizer_make(options)->encode(text), options.gpt.context);
}

}  // namespace

Dataset dataset_make(const TrainOptions& options) {
  if (options.data == "fashion-mnist")
    return fashion_read(options.data_directory, options.train_samples);
  const std::uint32_t count = options.train_samples ? options.train_samples : kSyntheticTrain;
  return synthetic_draw(options.seed, count, kSyntheticTest);
}

void feed_verify(const TrainOptions& options, int rank_count) {
  if (options.model == Model::kGpt) text_open(options);
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

Feed::Feed(const TrainOptions& options, int rank, int rank_count, BoardMap& board,
           std::shared_ptr<Source>* kept)
    : options_(options), scattered_(options.sharing == Sharing::kScatter && rank_count > 1) {
  SamplerOptions& how = how_;
  // A server has the data for its part of the evaluation alone.
  const int workers = options.worker_count(rank_count);
  how.rank = static_cast<std::uint32_t>(std::max(rank - (rank_count - workers), 0));
  how.rank_count = static_cast<std::uint32_t>(workers);
  how.batch = static_cast<std::uint32_t>(options.rank_batch());
  how.seed = options.seed;
  if (kept != nullptr) source_ = *kept;
  if (!scattered_ || how.rank == 0) source_open(how);
  if (kept != nullptr) *kept = source_;
  if (scattered_) counts_share(how, board);
  train_count_ = how.own_counts.empty()
                     ? how.sample_count
                     : std::accumulate(how.own_counts.begin(), how.own_counts.end(), 0u);
  sampler_ = std::make_unique<Sampler>(how);
}

void Feed::begin_at(const DataPosition& first) {
  how_.first = first;
  sampler_ = std::make_unique<Sampler>(how_);
}

void Feed::weights_set(const std::vector<int>& weights) {
  how_.weights = weights;
  sampler_ = std::make_unique<Sampler>(how_);
}

void Feed::source_make(SamplerOptions& how) {
  if (options_.model == Model::kGpt) {
    source_ = text_open(options_);
  } else if (in_shards(options_)) {
    const ShardIndex index = index_read(options_.data);
    source_ = std::make_unique<ImageStore>(options_.data, index,
                                           shards_mine(options_, index, how.rank_count));
    if (options_.sharing == Sharing::kPresharded)
      how.own_counts = counts_of_ranks(index, how.rank_count);
  } else {
    source_ = std::make_unique<ImageStore>(dataset_make(options_));
  }
}

void Feed::source_open(SamplerOptions& how) {
  if (!source_) source_make(how);
  how.sample_count = source_->train_count();
  if (options_.train_samples > 0)
    how.sample_count = std::min(how.sample_count, options_.train_samples);
  test_count_ = source_->test_count();
}

/// If rank 0 is lost meanwhile, the launcher ends us, where there is one.
void Feed::counts_share(SamplerOptions& how, BoardMap& board) {
  RankLine& line = board.line(0);
  if (how.rank == 0) {
    line.test_samples = test_count_;
    line.train_samples = how.sample_count;
    // The global batches of N ranks are the batches of one that is N times as large.
    how.batch *= how.rank_count;
    how.rank_count = 1;
    return;
  }
  const Nanos deadline = now_ns() + nanos_of_seconds(options_.timeout_s);
  while (line.train_samples == 0) {
    if (now_ns() > deadline) {
      throw PeerFailure(
          text_format("rank 0 has not read its data in %g s (--comm-timeout)", options_.timeout_s));
    }
    sleep_until(now_ns() + kNanosPerMilli);
  }
  how.sample_count = line.train_samples;
  test_count_ = line.test_samples;
}

void Feed::start(std::uint64_t steps, const SampleShape& sample) {
  if (!source_) return;
  std::vector<LoadedBatch> slots;
  // One slot is in use while the others are made ready.
  const auto batch_max = static_cast<std::size_t>(sampler_->part_max());
  for (int i = 0; i <= options_.prefetch; ++i) {
    memory_.push_back(std::make_unique<PinnedBatch>(batch_max, sample));
    slots.push_back({memory_.back()->inputs.data(), memory_.back()->targets.data()});
  }
  LoaderOptions how{steps, static_cast<Nanos>(options_.load_delay_us * 1000)};
  loader_ = std::make_unique<Loader>(
      std::move(slots), how, [this](std::uint64_t step, LoadedBatch& batch) { fill(step, batch); });
}

void Feed::fill(std::uint64_t step, LoadedBatch& batch) {
  const Sampler::Batch part = sampler_->batch_of(step);
  source_->train_put(part.samples, batch.inputs, batch.targets);
  batch.count = static_cast<std::uint32_t>(part.samples.size());
  batch.global_count = part.global_count;
}

}  // namespace sluice::train

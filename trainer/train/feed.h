// What a rank trains on: the data, which of it comes in which step, and the batches themselves,
// made ready in page-locked memory ahead of the steps (loader.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "trainer/data/loader.h"
#include "trainer/data/sampler.h"
#include "trainer/data/store.h"
#include "trainer/device/device.h"
#include "trainer/model/network.h"
#include "trainer/train/board.h"
#include "trainer/train/options.h"

namespace sluice::train {

/// The data set that the options name; not one of shards.
Dataset dataset_make(const TrainOptions& options);

/// Looks at the shards or the text that the options name, if they do, before any rank does: what is
/// wrong with them is said once. Throws Failure.
void feed_verify(const TrainOptions& options, int rank_count);

/// Page-locked memory for one batch.
struct PinnedBatch {
  PinnedBatch(std::size_t batch, const SampleShape& sample)
      : inputs(batch * sample.inputs), targets(batch * sample.targets) {}

  PinnedArray<std::uint32_t> inputs;
  PinnedArray<int> targets;
};

class Feed {
 public:
  /// Reads or maps the data; with --sharing scatter rank 0 does, and the others wait on the board
  /// until they know how much there is. start() needs a current context, this does not.
  /// `rank` of the `rank_count` that share out the data. `kept`, where it is given, is the source
  /// of an earlier feed of this process, or becomes this one's.
  Feed(const TrainOptions& options, int rank, int rank_count, BoardMap& board,
       std::shared_ptr<Source>* kept = nullptr);

  /// Null on a rank that has no data of its own.
  const Source* source() const { return source_.get(); }
  std::uint32_t test_count() const { return test_count_; }
  /// One rank makes the batches of all.
  bool is_scattered() const { return scattered_; }
  /// All ranks' samples in this step; not while batches are being made.
  std::uint32_t global_count(std::uint64_t step) { return sampler_->batch_of(step).global_count; }
  std::uint32_t steps_per_epoch() const { return sampler_->steps_per_epoch(); }
  std::uint32_t train_count() const { return train_count_; }

  /// Step 0 begins there; before anything below. Afterwards where step `steps` begins, and how many
  /// steps there are until `epochs` epochs are over.
  void begin_at(const DataPosition& first);
  DataPosition position_after(std::uint64_t steps) const { return sampler_->position_after(steps); }
  std::uint64_t steps_until(std::uint64_t epochs) const { return sampler_->steps_until(epochs); }

  /// Parts of a global batch in this ratio, a number for every rank; not with presharded data.
  void weights_set(const std::vector<int>& weights);
  const std::vector<int>& weights() const { return how_.weights; }
  /// Most samples that this rank has in a step.
  int part_max() const { return static_cast<int>(sampler_->part_max()); }

  /// From now on the batches of steps 0 to `steps` are made, of samples of this shape: this rank's
  /// part, or all ranks' where they are scattered. Nothing on a rank without data.
  void start(std::uint64_t steps, const SampleShape& sample);
  const LoadedBatch& next() { return loader_->next(); }
  Nanos stall_ns() const { return loader_ ? loader_->stall_ns() : 0; }

 private:
  void source_make(SamplerOptions& how);
  void source_open(SamplerOptions& how);
  void counts_share(SamplerOptions& how, BoardMap& board);
  void fill(std::uint64_t step, LoadedBatch& batch);

  const TrainOptions& options_;
  const bool scattered_;
  std::uint32_t test_count_ = 0;
  std::uint32_t train_count_ = 0;  // all ranks'
  SamplerOptions how_;
  std::shared_ptr<Source> source_;
  std::unique_ptr<Sampler> sampler_;  // the loader's, once that has started
  std::vector<std::unique_ptr<PinnedBatch>> memory_;
  std::unique_ptr<Loader> loader_;  // ends before its memory goes
};

}  // namespace sluice::train

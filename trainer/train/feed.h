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
#include "trainer/train/options.h"

namespace sluice::train {

/// The data set that the options name; not one of shards.
Dataset dataset_make(const TrainOptions& options);

/// Looks at the shards that the options name, if they do, before any rank does: what is wrong with
/// them is said once. Throws Failure.
void feed_verify(const TrainOptions& options, int rank_count);

/// Page-locked memory for the images and labels of one batch.
struct PinnedBatch {
  explicit PinnedBatch(std::size_t batch) : inputs(batch * kImagePixels), labels(batch) {}

  PinnedArray<float> inputs;
  PinnedArray<int> labels;
};

/// Pixels of these rows as the model sees them, and their labels.
void rows_put(const ImageRows& from, std::span<const std::uint32_t> rows, float* inputs,
              int* labels);

class Feed {
 public:
  /// Reads or maps the data. start() needs a current context, this does not.
  Feed(const TrainOptions& options, int rank_count);

  const ImageRows& test() const { return store_->test(); }
  std::uint32_t steps_per_epoch() const { return sampler_->steps_per_epoch(); }

  /// From now on the batches of steps 0 to `steps` are made.
  void start(std::uint64_t steps);
  const LoadedBatch& next() { return loader_->next(); }
  Nanos stall_ns() const { return loader_->stall_ns(); }

 private:
  void fill(std::uint64_t step, LoadedBatch& batch);

  const TrainOptions& options_;
  std::unique_ptr<ImageStore> store_;
  std::unique_ptr<Sampler> sampler_;  // the loader's, once that has started
  std::vector<std::unique_ptr<PinnedBatch>> memory_;
  std::unique_ptr<Loader> loader_;  // ends before its memory goes
};

}  // namespace sluice::train

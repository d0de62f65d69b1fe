// Which rank sees which sample when: a new permutation for every epoch, cut into global batches,
// each shared out in contiguous parts. For any number of ranks each sample comes exactly once per
// epoch, and the *set* of samples of a global batch depends only on seed, epoch and global batch
// size: N ranks of batch B train what 1 rank of batch N*B does.
//
// Ranks with samples of their own (own_counts) permute and cut those by themselves, spread evenly
// over as many steps as the rank with the most samples needs, so that all have the same number of
// steps. Each sample still comes once per epoch, but global batches depend on who has what.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::train {

/// How far a job is in its data: so many epochs are over, and `offset` samples of the next one;
/// where ranks have samples of their own, `offset` steps of it.
struct DataPosition {
  std::uint64_t epoch = 0;
  std::uint64_t offset = 0;

  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

struct SamplerOptions {
  std::uint32_t sample_count = 0;
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 1;
  std::uint32_t batch = 1;  // per rank
  std::uint64_t seed = 0;
  /// Where every rank has samples of its own: how many each has. Then sample_count is the rank's,
  /// and samples are numbered from 0 in each rank.
  std::vector<std::uint32_t> own_counts = {};
  /// Where step 0 begins. What is left of that epoch is cut into global batches of this job's size,
  /// whoever trained what came before.
  DataPosition first = {};
  /// How much of each global batch is whose: a number for every rank, of which its part is the
  /// share. Empty = equal parts. Not with own_counts.
  std::vector<int> weights = {};
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);

  std::uint32_t steps_per_epoch() const;
  /// Where step `steps` begins.
  DataPosition position_after(std::uint64_t steps) const;
  /// Steps from the first one on until `epochs` epochs are over; 0 when they are.
  std::uint64_t steps_until(std::uint64_t epochs) const;
  /// Most samples that a rank has in a step.
  std::uint32_t part_max() const;

  /// This rank's samples of global step `step` (epochs follow one another) and how many all ranks
  /// have together. The last global batch of an epoch may be short; then a rank may have fewer than
  /// `batch` samples, or none.
  struct Batch {
    std::span<const std::uint32_t> samples;
    std::uint32_t global_count = 0;
  };
  Batch batch_of(std::uint64_t step);

  /// A rank's part of a global batch of `count` samples: parts differ by at most one sample, and a
  /// full global batch gives everyone exactly `batch`.
  struct Part {
    std::uint32_t begin = 0;
    std::uint32_t count = 0;
  };
  static Part part_of(std::uint32_t count, std::uint32_t rank, std::uint32_t rank_count);
  /// As it, with parts in the ratio of the weights, up to a sample.
  static Part part_of(std::uint32_t count, std::uint32_t rank, const std::vector<int>& weights);

 private:
  std::uint64_t global_batch() const;
  /// Of the epoch in which step 0 is, from there on.
  std::uint64_t first_epoch_steps() const;
  Batch own_batch(std::uint64_t step_of_epoch) const;

  SamplerOptions options_;
  std::uint64_t epoch_;
  std::vector<std::uint32_t> order_;
};

}  // namespace sluice::train

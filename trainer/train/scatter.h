// --sharing scatter: rank 0 alone has the data, makes each global batch and sends every other rank
// its part, which is the part that the rank would have taken itself with --sharing index. A part
// that arrives goes through page-locked host memory, as every batch does.
#pragma once

#include "trainer/comm/communicator.h"
#include "trainer/data/loader.h"
#include "trainer/train/feed.h"

namespace sluice::train {

class Scatter {
 public:
  /// part_max: samples of a rank in a step. Everything must outlive this.
  Scatter(Communicator& comm, Stream& stream, const RankPlace& place, int part_max,
          const SampleShape& sample);

  /// Rank 0: sends the parts of a batch that has all samples, and gives its own.
  LoadedBatch send(const LoadedBatch& whole);
  /// The other ranks: waits for their part of a batch of `global_count` samples.
  LoadedBatch receive(std::uint32_t global_count);
  /// How long the last of these took.
  Nanos taken_ns() const { return taken_ns_; }

 private:
  Communicator& comm_;
  Stream& stream_;
  const RankPlace& place_;
  const SampleShape sample_;
  Nanos taken_ns_ = 0;
  // Of the whole batch on rank 0, of a part elsewhere.
  DeviceArray<std::uint32_t> inputs_;
  DeviceArray<int> targets_;
  PinnedBatch arrived_;
};

}  // namespace sluice::train

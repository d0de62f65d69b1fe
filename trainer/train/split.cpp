// See split.h.
#include "trainer/train/split.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trainer/job/statistics.h"
#include "trainer/train/fault_options.h"
#include "trainer/train/feed.h"

namespace sluice::train {
namespace {

constexpr int kPasses = 3;

}  // namespace

std::vector<int> split_of(std::span<const float> times) {
  const float least = *std::min_element(times.begin(), times.end());
  std::vector<int> weights;
  for (const float time : times) {
    const float share = time > 0 ? least / time : 1.0f;
    weights.push_back(
        std::max(1, static_cast<int>(std::lround(share * static_cast<float>(kSplitWeightMax)))));
  }
  return weights;
}

float pass_ms(Stream& stream, Network& network, const Source& source, int batch) {
  const int count = std::min(batch, static_cast<int>(source.train_count()));
  std::vector<std::uint32_t> samples(static_cast<std::size_t>(count));
  std::iota(samples.begin(), samples.end(), 0u);
  PinnedBatch memory(samples.size(), network.sample());
  source.train_put(samples, memory.inputs.data(), memory.targets.data());
  Event begin, end;
  std::vector<Nanos> took;
  for (int pass = 0; pass < kPasses; ++pass) {
    begin.record(stream);
    network.batch_upload(memory.inputs.data(), memory.targets.data(), count);
    network.forward(count);
    // Not the last part: nobody is to begin to reduce it.
    network.backward(count, count, {.first = true, .last = false});
    end.record(stream);
    stream.synchronize();
    took.push_back(end.since(begin));
  }
  return static_cast<float>(millis_of(percentile(took, 50)));
}

std::vector<float> times_gather(Communicator& comm, Stream& stream, float mine, int rank,
                                int rank_count) {
  std::vector<float> all(static_cast<std::size_t>(rank_count));
  const DeviceArray<float> through(all.size());
  const auto place = static_cast<std::size_t>(rank);
  stream.upload(through.at(place), &mine, sizeof mine);
  comm.all_gather(stream, through.at(place), through.at(), 1);
  stream.download(all.data(), through.at(), through.bytes());
  stream.synchronize();
  return all;
}

}  // namespace sluice::train

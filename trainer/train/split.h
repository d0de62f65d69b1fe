// `--split`: unequal parts of every global batch for ranks that are not equally fast. The gradients
// are those of the mean over the global batch whoever computed them, so what is trained does not
// depend on the split, up to rounding.
#pragma once

#include <span>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/data/source.h"
#include "trainer/model/network.h"

namespace sluice::train {

/// Numbers in the ratio of the ranks' speeds, from what the same work took each; the fastest gets
/// kSplitWeightMax, and nobody less than 1.
std::vector<int> split_of(std::span<const float> times);

/// What a forward and backward pass over `batch` samples takes this rank: the median of a few, by
/// the device's clock, in milliseconds. Gradients are lost; the network must accumulate.
float pass_ms(Stream& stream, Network& network, const Source& source, int batch);

/// A collective: everyone's, by rank.
std::vector<float> times_gather(Communicator& comm, Stream& stream, float mine, int rank,
                                int rank_count);

}  // namespace sluice::train

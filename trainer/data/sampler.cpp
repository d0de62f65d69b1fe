// See sampler.h.
#include "trainer/data/sampler.h"

#include <algorithm>
#include <cassert>

#include "trainer/base/random.h"

namespace sluice::train {
namespace {

std::vector<std::uint32_t> epoch_order(const SamplerOptions& options, std::uint64_t epoch) {
  return permutation_draw(options.sample_count, Random(options.seed, 0x65706f6368 + epoch));
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options)
    : options_(options), order_(epoch_order(options, 0)) {
  assert(options.sample_count > 0 && options.batch > 0);
  assert(options.rank < options.rank_count);
}

std::uint32_t Sampler::steps_per_epoch() const {
  const std::uint64_t global = static_cast<std::uint64_t>(options_.batch) * options_.rank_count;
  return static_cast<std::uint32_t>((options_.sample_count + global - 1) / global);
}

Sampler::Batch Sampler::batch_of(std::uint64_t step) {
  const std::uint64_t epoch = step / steps_per_epoch();
  if (epoch != epoch_) {
    order_ = epoch_order(options_, epoch);
    epoch_ = epoch;
  }
  const std::uint64_t global = static_cast<std::uint64_t>(options_.batch) * options_.rank_count;
  const std::uint64_t begin = (step % steps_per_epoch()) * global;
  const std::uint64_t count = std::min<std::uint64_t>(global, options_.sample_count - begin);
  // Parts differ by at most one sample; a full global batch gives everyone exactly `batch`.
  const std::uint64_t from = count * options_.rank / options_.rank_count;
  const std::uint64_t to = count * (options_.rank + 1) / options_.rank_count;
  return {std::span<const std::uint32_t>(order_).subspan(begin + from, to - from),
          static_cast<std::uint32_t>(count)};
}

}  // namespace sluice::train

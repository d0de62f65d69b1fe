// See sampler.h.
#include "trainer/data/sampler.h"

#include <algorithm>
#include <cassert>

#include "trainer/base/random.h"

namespace sluice::train {
namespace {

std::vector<std::uint32_t> epoch_order(const SamplerOptions& options, std::uint64_t epoch) {
  if (!options.own_counts.empty()) {
    const std::uint64_t rank = options.rank + 1;
    return permutation_draw(options.sample_count,
                            Random(options.seed, (rank << 48) + 0x65706f6368 + epoch));
  }
  return permutation_draw(options.sample_count, Random(options.seed, 0x65706f6368 + epoch));
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options)
    : options_(options), order_(epoch_order(options, 0)) {
  assert(options.sample_count > 0 && options.batch > 0);
  assert(options.rank < options.rank_count);
  assert(options.own_counts.empty() || (options.own_counts.size() == options.rank_count &&
                                        options.own_counts[options.rank] == options.sample_count));
}

std::uint32_t Sampler::steps_per_epoch() const {
  if (!options_.own_counts.empty()) {
    const std::uint32_t most =
        *std::max_element(options_.own_counts.begin(), options_.own_counts.end());
    return (most + options_.batch - 1) / options_.batch;
  }
  const std::uint64_t global = static_cast<std::uint64_t>(options_.batch) * options_.rank_count;
  return static_cast<std::uint32_t>((options_.sample_count + global - 1) / global);
}

Sampler::Batch Sampler::batch_of(std::uint64_t step) {
  const std::uint64_t epoch = step / steps_per_epoch();
  if (epoch != epoch_) {
    order_ = epoch_order(options_, epoch);
    epoch_ = epoch;
  }
  if (!options_.own_counts.empty()) return own_batch(step % steps_per_epoch());
  const std::uint64_t global = static_cast<std::uint64_t>(options_.batch) * options_.rank_count;
  const std::uint64_t begin = (step % steps_per_epoch()) * global;
  const std::uint64_t count = std::min<std::uint64_t>(global, options_.sample_count - begin);
  const auto all = static_cast<std::uint32_t>(count);
  const Part part = part_of(all, options_.rank, options_.rank_count);
  return {std::span<const std::uint32_t>(order_).subspan(begin + part.begin, part.count), all};
}

Sampler::Part Sampler::part_of(std::uint32_t count, std::uint32_t rank, std::uint32_t rank_count) {
  const auto cut = [&](std::uint64_t before) {
    return static_cast<std::uint32_t>(count * before / rank_count);
  };
  return {cut(rank), cut(std::uint64_t{rank} + 1) - cut(rank)};
}

Sampler::Batch Sampler::own_batch(std::uint64_t step_of_epoch) const {
  const std::uint64_t steps = steps_per_epoch();
  // No part is above `batch`: no rank has more than steps * batch samples.
  const auto begin = [&](std::uint64_t count, std::uint64_t step) { return count * step / steps; };
  std::uint64_t together = 0;
  for (const std::uint64_t count : options_.own_counts)
    together += begin(count, step_of_epoch + 1) - begin(count, step_of_epoch);
  const std::uint64_t from = begin(options_.sample_count, step_of_epoch);
  const std::uint64_t to = begin(options_.sample_count, step_of_epoch + 1);
  return {std::span<const std::uint32_t>(order_).subspan(from, to - from),
          static_cast<std::uint32_t>(together)};
}

}  // namespace sluice::train

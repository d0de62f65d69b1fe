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
    : options_(options),
      epoch_(options.first.epoch),
      order_(epoch_order(options, options.first.epoch)) {
  assert(options.sample_count > 0 && options.batch > 0);
  assert(options.rank < options.rank_count);
  assert(options.own_counts.empty() || (options.own_counts.size() == options.rank_count &&
                                        options.own_counts[options.rank] == options.sample_count));
  assert(options.weights.empty() || options.weights.size() == options.rank_count);
}

std::uint64_t Sampler::global_batch() const {
  return static_cast<std::uint64_t>(options_.batch) * options_.rank_count;
}

std::uint64_t Sampler::first_epoch_steps() const {
  if (!options_.own_counts.empty()) return steps_per_epoch() - options_.first.offset;
  const std::uint64_t left = options_.sample_count - options_.first.offset;
  return (left + global_batch() - 1) / global_batch();
}

DataPosition Sampler::position_after(std::uint64_t steps) const {
  const std::uint64_t first = first_epoch_steps();
  const bool own = !options_.own_counts.empty();
  const std::uint64_t unit = own ? 1 : global_batch();
  if (steps < first) return {options_.first.epoch, options_.first.offset + steps * unit};
  const std::uint64_t later = steps - first;
  return {options_.first.epoch + 1 + later / steps_per_epoch(), later % steps_per_epoch() * unit};
}

std::uint64_t Sampler::steps_until(std::uint64_t epochs) const {
  if (epochs <= options_.first.epoch) return 0;
  return first_epoch_steps() + (epochs - options_.first.epoch - 1) * steps_per_epoch();
}

std::uint32_t Sampler::part_max() const {
  if (options_.weights.empty()) return options_.batch;
  // A share of a smaller batch is at most a sample larger than that of a smaller share.
  std::int64_t sum = 0;
  for (const int weight : options_.weights) sum += weight;
  const auto mine = static_cast<std::uint64_t>(options_.weights[options_.rank]);
  const std::uint64_t share = global_batch() * mine / static_cast<std::uint64_t>(sum) + 1;
  return static_cast<std::uint32_t>(std::min(share, global_batch()));
}

std::uint32_t Sampler::steps_per_epoch() const {
  if (!options_.own_counts.empty()) {
    const std::uint32_t most =
        *std::max_element(options_.own_counts.begin(), options_.own_counts.end());
    return (most + options_.batch - 1) / options_.batch;
  }
  const std::uint64_t global = global_batch();
  return static_cast<std::uint32_t>((options_.sample_count + global - 1) / global);
}

Sampler::Batch Sampler::batch_of(std::uint64_t step) {
  const DataPosition at = position_after(step);
  if (at.epoch != epoch_) {
    order_ = epoch_order(options_, at.epoch);
    epoch_ = at.epoch;
  }
  if (!options_.own_counts.empty()) return own_batch(at.offset);
  const std::uint64_t begin = at.offset;
  const std::uint64_t count = std::min(global_batch(), options_.sample_count - begin);
  const auto all = static_cast<std::uint32_t>(count);
  const Part part = options_.weights.empty() ? part_of(all, options_.rank, options_.rank_count)
                                             : part_of(all, options_.rank, options_.weights);
  return {std::span<const std::uint32_t>(order_).subspan(begin + part.begin, part.count), all};
}

Sampler::Part Sampler::part_of(std::uint32_t count, std::uint32_t rank, std::uint32_t rank_count) {
  const auto cut = [&](std::uint64_t before) {
    return static_cast<std::uint32_t>(count * before / rank_count);
  };
  return {cut(rank), cut(std::uint64_t{rank} + 1) - cut(rank)};
}

Sampler::Part Sampler::part_of(std::uint32_t count, std::uint32_t rank,
                               const std::vector<int>& weights) {
  std::uint64_t before = 0, sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (i < rank) before += static_cast<std::uint64_t>(weights[i]);
    sum += static_cast<std::uint64_t>(weights[i]);
  }
  const auto cut = [&](std::uint64_t of) { return static_cast<std::uint32_t>(count * of / sum); };
  const std::uint32_t begin = cut(before);
  return {begin, cut(before + static_cast<std::uint64_t>(weights[rank])) - begin};
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

// See link.h.
#include "trainer/comm/link.h"

#include <bit>
#include <cassert>

namespace sluice::train {

const char* algorithm_name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kHalvingDoubling:
      return "halving-doubling";
    case Algorithm::kBcube:
      return "bcube";
  }
  return "unknown";
}

std::optional<Algorithm> algorithm_parse(const std::string& name) {
  for (const Algorithm one : {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kBcube}) {
    if (name == algorithm_name(one)) return one;
  }
  return std::nullopt;
}

AllreduceCost allreduce_cost(Algorithm algorithm, int ranks, std::uint64_t bytes) {
  assert(ranks >= 1);
  if (ranks == 1) return {0, 0};
  const auto size = static_cast<double>(bytes);
  if (algorithm == Algorithm::kRing) return {2.0 * (ranks - 1), 2 * size * (ranks - 1) / ranks};
  const auto number = static_cast<unsigned>(ranks);
  const double largest = std::bit_floor(number);
  const double steps = 2.0 * (std::bit_width(number) - 1);
  const int blocks = std::popcount(number);
  if (blocks > 2) return {steps, 2 * size};
  return {steps, 2 * size * (largest - 1) / largest + (blocks == 2 ? size / largest : 0)};
}

Nanos LinkModel::transfer_ns(double messages, double bytes) const {
  const double wire_ns = gigabits_per_s > 0 ? bytes * 8.0 / gigabits_per_s : 0.0;
  return static_cast<Nanos>(messages * alpha_us * 1e3 + wire_ns);
}

Nanos LinkModel::allreduce_ns(Algorithm algorithm, int ranks, std::uint64_t bytes) const {
  const AllreduceCost cost = allreduce_cost(algorithm, ranks, bytes);
  return transfer_ns(cost.steps, cost.bytes);
}

Nanos LinkModel::half_ring_ns(int ranks, std::uint64_t bytes) const {
  return transfer_ns(ranks - 1, static_cast<double>(bytes) * (ranks - 1) / ranks);
}

Nanos LinkModel::broadcast_ns(int ranks, std::uint64_t bytes) const {
  return transfer_ns(ranks - 1, static_cast<double>(bytes) * (ranks - 1));
}

}  // namespace sluice::train

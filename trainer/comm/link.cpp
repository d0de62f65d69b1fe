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
  const double share = static_cast<double>(ranks - 1) / ranks;
  double sent = 2.0 * static_cast<double>(bytes) * share;
  if (algorithm == Algorithm::kRing) return {2.0 * (ranks - 1), sent};
  const int doublings = std::bit_width(static_cast<unsigned>(ranks - 1));
  if (!std::has_single_bit(static_cast<unsigned>(ranks))) sent += static_cast<double>(bytes);
  return {2.0 * doublings, sent};
}

Nanos LinkModel::transfer_ns(double messages, double bytes) const {
  const double wire_ns = gigabits_per_s > 0 ? bytes * 8.0 / gigabits_per_s : 0.0;
  return static_cast<Nanos>(messages * alpha_us * 1e3 + wire_ns);
}

Nanos LinkModel::allreduce_ns(Algorithm algorithm, int ranks, std::uint64_t bytes) const {
  const AllreduceCost cost = allreduce_cost(algorithm, ranks, bytes);
  return transfer_ns(cost.steps, cost.bytes);
}

Nanos LinkModel::broadcast_ns(int ranks, std::uint64_t bytes) const {
  return transfer_ns(ranks - 1, static_cast<double>(bytes) * (ranks - 1));
}

}  // namespace sluice::train

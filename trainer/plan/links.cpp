// See links.h.
#include "trainer/plan/links.h"

#include <algorithm>
#include <cmath>

#include "trainer/base/failure.h"
#include "trainer/plan/rates.h"

namespace sluice::train::planner {

void line_fit(std::span<const LinkSample> samples, CollectiveRate& out) {
  const auto fit = [&](bool alpha, bool beta) {
    std::vector<Amounts> rows;
    for (const LinkSample& one : samples) {
      const double ns = std::max(one.ns, 1.0);
      rows.push_back({alpha ? 1 / ns : 0, beta ? one.bytes / ns : 0});
    }
    return least_squares(rows);
  };
  Amounts line = fit(true, true);
  if (line[0] < 0) line = fit(false, true);
  if (line[1] < 0) line = fit(true, false);
  out.alpha_ns = line[0];
  out.ns_per_byte = line[1];
  out.samples = static_cast<int>(samples.size());
  out.residual = 0;
  for (const LinkSample& one : samples) {
    const double predicted = out.alpha_ns + out.ns_per_byte * one.bytes;
    out.residual = std::max(out.residual, std::fabs(predicted / std::max(one.ns, 1.0) - 1));
  }
}

const CollectiveRate* LinkRates::find(Operation operation, Algorithm algorithm, int ranks) const {
  const bool any = operation != Operation::kAllReduce;
  const auto found = std::find_if(rates.begin(), rates.end(), [&](const CollectiveRate& one) {
    return one.operation == operation && one.ranks == ranks && (any || one.algorithm == algorithm);
  });
  return found == rates.end() ? nullptr : &*found;
}

double LinkRates::ns(Operation operation, Algorithm algorithm, int ranks, double bytes) const {
  if (ranks == 1 || bytes <= 0) return 0;
  const CollectiveRate* rate = find(operation, algorithm, ranks);
  if (rate == nullptr) {
    const bool named = operation == Operation::kAllReduce;
    throw Failure(
        text_format("the calibration has no %s%s%s of %d ranks; make it anew with "
                    "sluice-train calibrate --ranks %d",
                    operation_name(operation), named ? " by " : "",
                    named ? algorithm_name(algorithm) : "", ranks, ranks));
  }
  return rate->alpha_ns + rate->ns_per_byte * bytes;
}

double LinkRates::message_ns(int one, int other, double bytes) const {
  const auto found = std::find_if(pairs.begin(), pairs.end(), [&](const PairRate& pair) {
    return pair.low == std::min(one, other) && pair.high == std::max(one, other);
  });
  if (found == pairs.end()) return ns(Operation::kPointToPoint, Algorithm::kRing, 2, bytes);
  return found->line.alpha_ns + found->line.ns_per_byte * bytes;
}

double LinkRates::stages_message_ns(int data, int tensor, int pipeline, double bytes) const {
  double slowest = 0;
  for (int rank = 0; rank + tensor < data * pipeline * tensor; ++rank) {
    const bool last = rank / tensor % pipeline == pipeline - 1;
    if (!last) slowest = std::max(slowest, message_ns(rank, rank + tensor, bytes));
  }
  return slowest;
}

}  // namespace sluice::train::planner

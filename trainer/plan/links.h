// How long the ranks of a job take for a collective: alpha + bytes x beta, a line for each
// operation, algorithm and number of ranks, as `sluice-train calibrate` fits it. So no algorithm's
// steps are assumed; the formulas of comm/link.h are what the lines are compared with. Hockney's
// model ("The communication challenge for MPP", 1994). Pure arithmetic.
#pragma once

#include <span>
#include <vector>

#include "trainer/comm/link.h"
#include "trainer/comm/operation.h"

namespace sluice::train::planner {

struct CollectiveRate {
  Operation operation = Operation::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;  // of all-reduce; the others have one
  int ranks = 2;
  double alpha_ns = 0;
  double ns_per_byte = 0;  // bytes as Communicator::link_ns counts them
  double residual = 0;     // largest relative error of the line
  double spread = 0;       // largest (most - least) / median of a size's repetitions
  int samples = 0;
};

/// A message between two ranks of the calibration, which are on the GPUs that a job's ranks of
/// these numbers are on: `line` is of kPointToPoint.
struct PairRate {
  int low = 0;
  int high = 1;
  CollectiveRate line;
};
/// More ranks than this are too many to measure every two of them.
inline constexpr int kPairRanksMax = 16;

struct LinkSample {
  double bytes;
  double ns;
};
/// alpha and beta by least squares of the relative error; neither below 0.
void line_fit(std::span<const LinkSample> samples, CollectiveRate& out);

struct LinkRates {
  std::vector<CollectiveRate> rates;
  std::vector<PairRate> pairs;

  bool knows(Operation operation, Algorithm algorithm, int ranks) const {
    return find(operation, algorithm, ranks) != nullptr;
  }
  /// 0 for one rank. Throws Failure where it was never measured.
  double ns(Operation operation, Algorithm algorithm, int ranks, double bytes) const;
  /// A message between two ranks of a job; where that pair was not measured, what the first two
  /// ranks took.
  double message_ns(int one, int other, double bytes) const;
  /// The slowest message between neighbouring stages, whichever copy of the model they belong to:
  /// all others wait for it. Ranks are numbered as in trainer/train/grid.h.
  double stages_message_ns(int data, int tensor, int pipeline, double bytes) const;

 private:
  const CollectiveRate* find(Operation operation, Algorithm algorithm, int ranks) const;
};

}  // namespace sluice::train::planner

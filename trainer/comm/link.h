// The alpha-beta model of a link between GPUs: a message of S bytes takes alpha + S/beta. From it
// and the algorithm's steps and bytes per rank follows what an all-reduce takes; on software GPUs
// that time is charged to the device clock, so that compute and communication happen in the same
// time. Pure arithmetic.
//   P ranks, S bytes                    steps             bytes sent by the busiest rank
//   ring (chunked)                      2 (P-1)           2 S (P-1)/P
//   halving-doubling, bcube; P = 2^k    2 k               2 S (P-1)/P
//   halving-doubling, P in binary blocks (5 = 4 + 1, 7 = 4 + 2 + 1; B is the largest)
//                                       2 log2 B          2 S - S/B with two blocks, 2 S with more
// A step is a message that can be sent only after the one before it has arrived; Gloo's ring has
// two chunks under way in each. In binary blocks a block halves its sums among its ranks, gets what
// the next smaller block has, and returns the result; a rank of a middle block does both, and sends
// 2 S (b-1)/b within its b ranks and S/b to each neighbour. The transport's counts agree with all
// of these (tests/trainer/wire_count_test.cpp). Source: R. Thakur, R. Rabenseifner, W. Gropp,
// "Optimization of collective communication operations in MPICH", 2005.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trainer/base/clock.h"

namespace sluice::train {

enum class Algorithm : std::uint8_t { kRing, kHalvingDoubling, kBcube };

const char* algorithm_name(Algorithm algorithm);
std::optional<Algorithm> algorithm_parse(const std::string& name);

struct LinkModel {
  double alpha_us = 20.0;  // latency of one message: a switched Ethernet hop with its software
  double gigabits_per_s = 10.0;  // bandwidth of one direction; 0 = infinitely fast

  Nanos transfer_ns(double messages, double bytes) const;
  Nanos allreduce_ns(Algorithm algorithm, int ranks, std::uint64_t bytes) const;
  /// A reduce-scatter or an all-gather of `bytes` in all: N-1 steps, and each rank sends all parts
  /// but one.
  Nanos half_ring_ns(int ranks, std::uint64_t bytes) const;
  /// Rank 0 sends to each of the others in turn (BroadcastOneToAll).
  Nanos broadcast_ns(int ranks, std::uint64_t bytes) const;
};

/// Messages one after the other, and bytes each rank sends, of one all-reduce.
struct AllreduceCost {
  double steps;
  double bytes;
};
AllreduceCost allreduce_cost(Algorithm algorithm, int ranks, std::uint64_t bytes);

}  // namespace sluice::train

// What Gloo's algorithms really send, counted below them, against the formulas of
// trainer/comm/link.h.
#include <algorithm>
#include <atomic>

#include "tests/trainer/ranks.h"
#include "trainer/base/clock.h"
#include "trainer/comm/counted_transport.h"
#include "trainer/comm/gloo_wire.h"

namespace sluice::tests {
namespace {

using namespace sluice::train;

struct Counted {
  std::vector<WireCount> ranks;
  int steps = 0;
};

/// One run of what `make` sets up, by itself.
Counted counted(int ranks, Algorithm algorithm, Operation operation,
                const std::function<Exchange&(GlooWire&)>& make) {
  Counted out;
  out.ranks.resize(static_cast<std::size_t>(ranks));
  std::vector<std::vector<WireEvent>> events(out.ranks.size());
  ranks_run(ranks, [&](int rank, const std::string& directory) {
    WireOptions options;
    options.rank = rank;
    options.rank_count = ranks;
    options.directory = directory;
    options.algorithm = algorithm;
    options.timeout_s = 20;
    GlooWire wire(options);
    const Together together;
    Exchange& exchange = make(wire);
    exchange.run();  // the first and the second are alike
    const WireCount before = wire.traffic().of(operation);
    wire.barrier();
    wire.trace(true);
    exchange.run();
    const auto at = static_cast<std::size_t>(rank);
    out.ranks[at] = wire.traffic().of(operation) - before;
    events[at] = wire.trace_take();
  });
  out.steps = wire_steps(events);
  return out;
}

std::uint64_t busiest(const Counted& counts) {
  std::uint64_t most = 0;
  for (const WireCount& one : counts.ranks) most = std::max(most, one.bytes);
  return most;
}

class AllReduceCount : public testing::TestWithParam<std::tuple<Algorithm, int>> {
 protected:
  Counted run(std::size_t floats) {
    return counted(std::get<1>(GetParam()), std::get<0>(GetParam()), Operation::kAllReduce,
                   [&](GlooWire& wire) -> Exchange& {
                     Exchange& sum = wire.all_reduce(floats, DataType::kFloat32, Reduction::kSum);
                     std::fill_n(sum.input(), floats * sizeof(float), std::byte{0});
                     return sum;
                   });
  }
};

TEST_P(AllReduceCount, StepsAndBytesAreThoseOfTheFormula) {
  const auto [algorithm, ranks] = GetParam();
  constexpr std::size_t kFloats = 16 * 3 * 5 * 7 * 8;  // every rank's parts are whole
  const Counted counts = run(kFloats);
  const AllreduceCost cost = allreduce_cost(algorithm, ranks, kFloats * sizeof(float));
  EXPECT_EQ(counts.steps, cost.steps);
  EXPECT_EQ(static_cast<double>(busiest(counts)), cost.bytes);
  if (algorithm == Algorithm::kRing) {
    for (const WireCount& one : counts.ranks) {
      EXPECT_EQ(static_cast<double>(one.bytes), cost.bytes);  // all are alike
      EXPECT_EQ(one.messages, 4u * static_cast<unsigned>(ranks - 1));
    }
  }
}

TEST_P(AllReduceCount, PartsThatDoNotDivideCostAtMostTheirRounding) {
  const auto [algorithm, ranks] = GetParam();
  constexpr std::size_t kFloats = 10'007;
  const Counted counts = run(kFloats);
  const AllreduceCost cost = allreduce_cost(algorithm, ranks, kFloats * sizeof(float));
  EXPECT_EQ(counts.steps, cost.steps);
  // Each message is of whole chunks, and a chunk is rounded up by less than one float for each
  // doubling of ranks within it.
  const double rounding = 2.0 * sizeof(float) * 16 * ranks;
  EXPECT_NEAR(static_cast<double>(busiest(counts)), cost.bytes, rounding);
}

INSTANTIATE_TEST_SUITE_P(
    Algorithms, AllReduceCount,
    testing::Values(std::tuple{Algorithm::kRing, 2}, std::tuple{Algorithm::kRing, 3},
                    std::tuple{Algorithm::kRing, 4}, std::tuple{Algorithm::kRing, 5},
                    std::tuple{Algorithm::kRing, 6}, std::tuple{Algorithm::kRing, 7},
                    std::tuple{Algorithm::kRing, 8}, std::tuple{Algorithm::kHalvingDoubling, 2},
                    std::tuple{Algorithm::kHalvingDoubling, 3},
                    std::tuple{Algorithm::kHalvingDoubling, 4},
                    std::tuple{Algorithm::kHalvingDoubling, 5},
                    std::tuple{Algorithm::kHalvingDoubling, 6},
                    std::tuple{Algorithm::kHalvingDoubling, 7},
                    std::tuple{Algorithm::kHalvingDoubling, 8}, std::tuple{Algorithm::kBcube, 2},
                    std::tuple{Algorithm::kBcube, 4}, std::tuple{Algorithm::kBcube, 8}));

class HalfRingCount : public testing::TestWithParam<int> {};

TEST_P(HalfRingCount, ReduceScatterAndAllGatherSendAllPartsButOne) {
  const int ranks = GetParam();
  constexpr std::size_t kFloats = 1001;
  const auto steps = static_cast<std::uint64_t>(ranks - 1);
  for (const Operation operation : {Operation::kReduceScatter, Operation::kAllGather}) {
    const Counted counts =
        counted(ranks, Algorithm::kRing, operation, [&](GlooWire& wire) -> Exchange& {
          if (operation == Operation::kAllGather) return wire.all_gather(kFloats * sizeof(float));
          Exchange& part = wire.reduce_scatter(kFloats, DataType::kFloat32, Reduction::kSum);
          std::fill_n(part.input(), kFloats * sizeof(float) * static_cast<std::size_t>(ranks),
                      std::byte{0});
          return part;
        });
    EXPECT_EQ(counts.steps, ranks - 1);
    for (const WireCount& one : counts.ranks) {
      EXPECT_EQ(one.messages, steps);
      EXPECT_EQ(one.bytes, steps * kFloats * sizeof(float));
    }
  }
}

TEST_P(HalfRingCount, OneRankSendsABroadcastAndAllOthersAReduction) {
  const int ranks = GetParam();
  constexpr std::size_t kBytes = 4004;
  const int root = ranks - 1;
  const Counted copies =
      counted(ranks, Algorithm::kRing, Operation::kBroadcast,
              [&](GlooWire& wire) -> Exchange& { return wire.broadcast(kBytes, root); });
  const Counted sums =
      counted(ranks, Algorithm::kRing, Operation::kReduce, [&](GlooWire& wire) -> Exchange& {
        Exchange& sum =
            wire.reduce(kBytes / sizeof(float), DataType::kFloat32, Reduction::kSum, root);
        std::fill_n(sum.input(), kBytes, std::byte{0});
        return sum;
      });
  for (int rank = 0; rank < ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    EXPECT_EQ(copies.ranks[at].bytes, rank == root ? kBytes * static_cast<unsigned>(root) : 0);
    EXPECT_EQ(sums.ranks[at].bytes, rank == root ? 0 : kBytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, HalfRingCount, testing::Range(2, 9));

TEST(WireThrottle, MessagesLeaveNoFasterThanTheLinkLetsThem) {
  constexpr std::size_t kFloats = 8192;
  constexpr double kMegabytesPerSecond = 2;
  std::atomic<Nanos> shortest{INT64_MAX};
  ranks_run(2, [&](int rank, const std::string& directory) {
    WireOptions options;
    options.rank = rank;
    options.rank_count = 2;
    options.directory = directory;
    options.throttle = {.alpha_us = 1000, .megabytes_per_s = kMegabytesPerSecond};
    GlooWire wire(options);
    const Together together;
    Exchange& sum = wire.all_reduce(kFloats, DataType::kFloat32, Reduction::kSum);
    std::fill_n(sum.input(), kFloats * sizeof(float), std::byte{0});
    const Nanos begin = now_ns();
    sum.run();
    const Nanos took = now_ns() - begin;
    for (Nanos least = shortest; took < least && !shortest.compare_exchange_weak(least, took);) {
    }
  });
  // Four messages, and all bytes once.
  const double least_ms = 4 * 1.0 + kFloats * sizeof(float) / kMegabytesPerSecond / 1e3;
  EXPECT_GE(millis_of(shortest), least_ms);
}

TEST(WireSteps, AChainIsAsLongAsItsMessagesWaitForEachOther) {
  using Kind = WireEvent::Kind;
  // 0 tells 1, 1 tells 2; 0 also tells 2 directly, which is not longer. Control counts nothing.
  const std::vector<std::vector<WireEvent>> chain = {
      {{Kind::kSend, 1, 7, 4, true}, {Kind::kSend, 2, 7, 4, true}},
      {{Kind::kReceive, 0, 7, 0, false}, {Kind::kSend, 2, 9, 4, true}},
      {{Kind::kReceive, 0, 7, 0, false},
       {Kind::kReceive, 1, 9, 0, false},
       {Kind::kSend, 0, 1, 4, false}}};
  EXPECT_EQ(wire_steps(chain), 2);
  EXPECT_EQ(wire_steps({}), 0);
}

}  // namespace
}  // namespace sluice::tests

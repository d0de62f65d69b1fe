// Every collective between 2..5 ranks against plain sums, for even and uneven sizes, bit for bit;
// and what the transport counted against the algorithms' formulas.
#include "trainer/comm/gloo_wire.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/trainer/ranks.h"
#include "trainer/base/bfloat16.h"
#include "trainer/base/clock.h"
#include "trainer/comm/counted_transport.h"

namespace sluice::tests {
namespace {

using namespace sluice::train;

constexpr std::size_t kSizes[] = {1, 2, 5, 7, 64, 1000, 4096, 10007};

// Whole numbers, so that sums are exact in whatever order they are made.
float wire_value(int rank, std::size_t i) {
  return static_cast<float>((i * 37 + static_cast<std::size_t>(rank) * 101) % 503) - 250;
}

float wire_sum_of(int ranks, std::size_t i) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += wire_value(rank, i);
  return sum;
}

WireOptions wire_options(int rank, int ranks, const std::string& directory,
                         Algorithm algorithm = Algorithm::kRing) {
  WireOptions options;
  options.rank = rank;
  options.rank_count = ranks;
  options.directory = directory;
  options.algorithm = algorithm;
  options.timeout_s = 20;
  return options;
}

float* floats(std::byte* memory) { return reinterpret_cast<float*>(memory); }

class WireTest : public testing::TestWithParam<int> {};

TEST_P(WireTest, AllReduceIsTheSumForEveryAlgorithm) {
  const int ranks = GetParam();
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kBcube}) {
    const bool power_of_two = (ranks & (ranks - 1)) == 0;
    if (algorithm == Algorithm::kBcube && !power_of_two) continue;
    SCOPED_TRACE(algorithm_name(algorithm));
    ranks_run(ranks, [&](int rank, const std::string& directory) {
      GlooWire wire(wire_options(rank, ranks, directory, algorithm));
      const Together together;
      for (int round = 0; round < 3; ++round) {
        for (const std::size_t count : kSizes) {
          Exchange& sum = wire.all_reduce(count, DataType::kFloat32, Reduction::kSum);
          for (std::size_t i = 0; i < count; ++i) floats(sum.input())[i] = wire_value(rank, i);
          sum.run();
          for (std::size_t i = 0; i < count; ++i)
            ASSERT_EQ(floats(sum.output())[i], wire_sum_of(ranks, i)) << count << " at " << i;
        }
      }
    });
  }
}

TEST_P(WireTest, AllRanksHaveTheSameBitsWhereTheOrderOfAdditionShows) {
  const int ranks = GetParam();
  constexpr std::size_t kCount = 3001;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling}) {
    std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
    ranks_run(ranks, [&](int rank, const std::string& directory) {
      GlooWire wire(wire_options(rank, ranks, directory, algorithm));
      const Together together;
      Exchange& sum = wire.all_reduce(kCount, DataType::kFloat32, Reduction::kSum);
      for (std::size_t i = 0; i < kCount; ++i)
        floats(sum.input())[i] = std::exp(wire_value(rank, i) / 20);
      sum.run();
      results[static_cast<std::size_t>(rank)].assign(floats(sum.output()),
                                                     floats(sum.output()) + kCount);
    });
    for (const auto& one : results)
      EXPECT_EQ(std::memcmp(one.data(), results[0].data(), kCount * sizeof(float)), 0);
  }
}

TEST_P(WireTest, ReduceScatterGivesEachRankItsPartOfTheSum) {
  const int ranks = GetParam();
  ranks_run(ranks, [&](int rank, const std::string& directory) {
    GlooWire wire(wire_options(rank, ranks, directory));
    const Together together;
    for (int round = 0; round < 3; ++round) {
      for (const std::size_t count : kSizes) {
        Exchange& part = wire.reduce_scatter(count, DataType::kFloat32, Reduction::kSum);
        const std::size_t all = count * static_cast<std::size_t>(ranks);
        for (std::size_t i = 0; i < all; ++i) floats(part.input())[i] = wire_value(rank, i);
        part.run();
        const std::size_t first = count * static_cast<std::size_t>(rank);
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(floats(part.output())[i], wire_sum_of(ranks, first + i))
              << count << " at " << i;
      }
    }
  });
}

TEST_P(WireTest, AllGatherPutsEveryRanksPartInItsPlace) {
  const int ranks = GetParam();
  ranks_run(ranks, [&](int rank, const std::string& directory) {
    GlooWire wire(wire_options(rank, ranks, directory));
    const Together together;
    for (int round = 0; round < 3; ++round) {
      for (const std::size_t count : kSizes) {
        Exchange& all = wire.all_gather(count * sizeof(float));
        for (std::size_t i = 0; i < count; ++i)
          floats(all.input())[i] = wire_value(rank, i + static_cast<std::size_t>(round));
        all.run();
        for (int from = 0; from < ranks; ++from) {
          const float* part = floats(all.output()) + count * static_cast<std::size_t>(from);
          for (std::size_t i = 0; i < count; ++i)
            ASSERT_EQ(part[i], wire_value(from, i + static_cast<std::size_t>(round)));
        }
      }
    }
  });
}

TEST_P(WireTest, BroadcastAndReduceWorkFromEveryRoot) {
  const int ranks = GetParam();
  ranks_run(ranks, [&](int rank, const std::string& directory) {
    GlooWire wire(wire_options(rank, ranks, directory));
    const Together together;
    for (int root = 0; root < ranks; ++root) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{4099}}) {
        Exchange& copy = wire.broadcast(count * sizeof(float), root);
        for (std::size_t i = 0; i < count; ++i) floats(copy.input())[i] = wire_value(rank, i);
        copy.run();
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(floats(copy.output())[i], wire_value(root, i));
        Exchange& sum = wire.reduce(count, DataType::kFloat32, Reduction::kSum, root);
        for (std::size_t i = 0; i < count; ++i) floats(sum.input())[i] = wire_value(rank, i);
        sum.run();
        for (std::size_t i = 0; i < count && rank == root; ++i)
          ASSERT_EQ(floats(sum.output())[i], wire_sum_of(ranks, i));
      }
    }
  });
}

TEST_P(WireTest, LeastAndMostInEveryType) {
  const int ranks = GetParam();
  constexpr std::size_t kCount = 77;
  ranks_run(ranks, [&](int rank, const std::string& directory) {
    GlooWire wire(wire_options(rank, ranks, directory));
    const Together together;
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMin, Reduction::kMax}) {
      // Small whole numbers have the same bits order in bfloat16 and are exact there.
      Exchange& narrow = wire.all_reduce(kCount, DataType::kBfloat16, reduction);
      auto* values = reinterpret_cast<Bfloat16*>(narrow.input());
      const auto value = [&](int of, std::size_t i) {
        return static_cast<float>((i + static_cast<std::size_t>(of) * 3) % 17) - 8;
      };
      for (std::size_t i = 0; i < kCount; ++i) values[i] = Bfloat16(value(rank, i));
      narrow.run();
      const auto* results = reinterpret_cast<Bfloat16*>(narrow.output());
      for (std::size_t i = 0; i < kCount; ++i) {
        float expected = value(0, i);
        for (int of = 1; of < ranks; ++of) {
          const float one = value(of, i);
          expected = reduction == Reduction::kSum   ? expected + one
                     : reduction == Reduction::kMin ? std::min(expected, one)
                                                    : std::max(expected, one);
        }
        ASSERT_EQ(results[i].value(), expected);
      }
    }
    EXPECT_THROW(wire.all_reduce(3, DataType::kByte, Reduction::kSum), Failure);
  });
}

TEST_P(WireTest, RanksSendInARingAllAtOnce) {
  const int ranks = GetParam();
  ranks_run(ranks, [&](int rank, const std::string& directory) {
    GlooWire wire(wire_options(rank, ranks, directory));
    const Together together;
    const int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    for (const std::size_t count : {std::size_t{1}, std::size_t{300'000}}) {
      std::vector<float> first(count, static_cast<float>(rank)), second(count, -1.0f);
      std::vector<float> got_first(count), got_second(count);
      const auto bytes = [](std::vector<float>& v) {
        return reinterpret_cast<std::byte*>(v.data());
      };
      const std::size_t size = count * sizeof(float);
      wire.transfer(
          std::vector<Transfer>{{Transfer::Way::kSend, right, bytes(first), size},
                                {Transfer::Way::kSend, right, bytes(second), size},
                                {Transfer::Way::kReceive, left, bytes(got_first), size},
                                {Transfer::Way::kReceive, left, bytes(got_second), size}});
      EXPECT_EQ(got_first, std::vector<float>(count, static_cast<float>(left)));
      EXPECT_EQ(got_second, second);
    }
    EXPECT_EQ(wire.traffic().of(Operation::kPointToPoint).messages, 4u);
    EXPECT_EQ(wire.traffic().of(Operation::kPointToPoint).bytes, 2 * 300'001 * sizeof(float));
  });
}

// Else Gloo's thread spins for those who come later, and takes the core that they need.
TEST_P(WireTest, NobodyBeginsBeforeAllHaveSetUp) {
  const int ranks = GetParam();
  std::atomic<int> arrived{0};
  ranks_run(ranks, [&](int rank, const std::string& directory) {
    GlooWire wire(wire_options(rank, ranks, directory));
    const Together together;
    for (int round = 1; round <= 5; ++round) {
      if (round % ranks == rank) sleep_until(now_ns() + 2 * kNanosPerMilli);
      ++arrived;
      wire.all_reduce(static_cast<std::size_t>(round), DataType::kFloat32, Reduction::kSum);
      EXPECT_GE(arrived.load(), round * ranks);
    }
  });
}

/// The least send buffer of this process's TCP connections.
int send_buffer_least() {
  int least = INT_MAX;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0 ||
        peer.sin_family != AF_INET)
      continue;
    int bytes = 0;
    length = sizeof bytes;
    if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length) == 0) least = std::min(least, bytes);
  }
  return least;
}

// A ring with chunks of 4 KiB after smaller messages waited for a delayed acknowledgement, 40 ms,
// in every round: its two chunks did not fit into what Gloo had made of the send buffer.
TEST_P(WireTest, SmallMessagesLeaveTheSendBuffersWide) {
  const int ranks = GetParam();
  ranks_run(ranks, [&](int rank, const std::string& directory) {
    GlooWire wire(wire_options(rank, ranks, directory));
    const Together together;
    wire.barrier();
    Exchange& sum = wire.all_reduce(1024, DataType::kFloat32, Reduction::kSum);
    std::fill_n(sum.input(), 4096, std::byte{0});
    sum.run();
    wire.barrier();
    if (rank == 0) {
      const int least = send_buffer_least();
      EXPECT_NE(least, INT_MAX) << "no connection found";
      EXPECT_GE(least, 256 * 1024);
    }
    wire.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, WireTest, testing::Range(2, 6));

}  // namespace
}  // namespace sluice::tests

// The Communicator's contract on device memory, for both engines and `alone`: each operation
// against plain sums, bit for bit, for 1..5 ranks and sizes that do not divide.
#include <atomic>

#include "tests/trainer/device_fixture.h"
#include "tests/trainer/ranks.h"
#include "trainer/base/bfloat16.h"
#include "trainer/comm/communicator.h"

namespace sluice::tests {
namespace {

using namespace sluice::train;

struct CommCase {
  const char* engine;
  int ranks;
};

float comm_value(int rank, std::size_t i) {
  return static_cast<float>((i * 29 + static_cast<std::size_t>(rank) * 71) % 401) - 200;
}

/// One rank in its thread: on a GPU of its own where NCCL wants that, as ranks of one process are
/// of one host; else a stream of its own on the one software GPU.
struct CommRank {
  CommRank(const CommCase& which, int of_rank, const std::string& directory)
      : rank(of_rank), ranks(which.ranks), device(gpu_of(which, of_rank)), stream(device) {
    CommOptions options;
    options.rank = rank;
    options.rank_count = ranks;
    options.directory = directory;
    options.timeout_s = 20;
    const Engine engine = *engine_parse(which.engine);
    comm = comm_make(options, engine, true, true);
  }

  static int gpu_of(const CommCase& which, int rank) {
    return std::string(which.engine) == "nccl" ? rank : 0;
  }
  Floats download(const DeviceArray<float>& from) {
    Floats values(from.size());
    stream.download(values.data(), from.at(), from.bytes());
    stream.synchronize();
    return values;
  }
  void fill(const DeviceArray<float>& to, int as_rank) {
    Floats values(to.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = comm_value(as_rank, i);
    stream.upload(to.at(), values.data(), to.bytes());
    stream.synchronize();
  }
  float sum(std::size_t i) const {
    float all = 0;
    for (int r = 0; r < ranks; ++r) all += comm_value(r, i);
    return all;
  }

  const int rank, ranks;
  Device device;
  Stream stream;
  std::unique_ptr<Communicator> comm;
  const Together together;
};

class CommTest : public testing::TestWithParam<CommCase> {
 protected:
  void SetUp() override {
    SLUICE_NEEDS_DRIVER();
    if (std::string(GetParam().engine) == "nccl" && !nccl_missing().empty())
      GTEST_SKIP() << nccl_missing();
  }
  void each_rank(const std::function<void(CommRank&)>& work) {
    ranks_run(GetParam().ranks, [&](int rank, const std::string& directory) {
      CommRank one(GetParam(), rank, directory);
      work(one);
    });
  }
};

constexpr std::size_t kCommSizes[] = {1, 3, 1000, 70'001};

TEST_P(CommTest, CollectivesAreThePlainSums) {
  each_rank([&](CommRank& r) {
    const auto ranks = static_cast<std::size_t>(r.ranks);
    const auto rank = static_cast<std::size_t>(r.rank);
    for (const std::size_t count : kCommSizes) {
      SCOPED_TRACE(count);
      DeviceArray<float> all(count * ranks), one(count);
      r.fill(one, r.rank);
      r.comm->all_reduce(r.stream, one.at(), count);
      Floats got = r.download(one);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], r.sum(i)) << i;

      r.fill(all, r.rank);
      r.comm->reduce_scatter(r.stream, all.at(), one.at(), count);
      got = r.download(one);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], r.sum(rank * count + i)) << i;
      // In place: the own part of what is sent.
      r.fill(all, r.rank);
      r.comm->reduce_scatter(r.stream, all.at(), all.at(rank * count), count);
      got = r.download(all);
      for (std::size_t i = rank * count; i < (rank + 1) * count; ++i) ASSERT_EQ(got[i], r.sum(i));

      r.fill(one, r.rank);
      r.comm->all_gather(r.stream, one.at(), all.at(), count);
      got = r.download(all);
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], comm_value(static_cast<int>(i / count), i % count)) << i;

      for (int root = 0; root < r.ranks; ++root) {
        r.fill(one, r.rank);
        r.comm->broadcast(r.stream, one.at(), count, DataType::kFloat32, root);
        got = r.download(one);
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], comm_value(root, i));
        r.fill(one, r.rank);
        r.comm->reduce(r.stream, one.at(), count, DataType::kFloat32, Reduction::kMax, root);
        got = r.download(one);
        for (std::size_t i = 0; i < count; ++i) {
          float expected = comm_value(r.rank, i);
          for (int of = 0; of < r.ranks && r.rank == root; ++of)
            expected = std::max(expected, comm_value(of, i));
          ASSERT_EQ(got[i], expected);
        }
      }
    }
    r.comm->all_reduce(r.stream, 0, 0);  // nothing to do, and no address to look at
  });
}

TEST_P(CommTest, NarrowTypesAreReducedInTheirType) {
  constexpr std::size_t kCount = 515;
  each_rank([&](CommRank& r) {
    DeviceArray<Bfloat16> device(kCount);
    std::vector<Bfloat16> values(kCount);
    for (std::size_t i = 0; i < kCount; ++i)
      values[i] = Bfloat16(static_cast<float>(i % 9) + static_cast<float>(r.rank));
    r.stream.upload(device.at(), values.data(), device.bytes());
    r.comm->all_reduce(r.stream, device.at(), kCount, DataType::kBfloat16);
    r.stream.download(values.data(), device.at(), device.bytes());
    r.stream.synchronize();
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(values[i].value(), static_cast<float>(i % 9) * static_cast<float>(r.ranks) +
                                       static_cast<float>(r.ranks * (r.ranks - 1) / 2));
  });
}

TEST_P(CommTest, InAGroupAllSendToAllAtOnce) {
  if (GetParam().ranks == 1) {
    each_rank([](CommRank& r) {
      EXPECT_THROW(r.comm->send(r.stream, 0, 1, DataType::kByte, 0), Failure);
    });
    return;
  }
  each_rank([&](CommRank& r) {
    const std::size_t count = 90'001;  // more than fits into a socket
    DeviceArray<float> mine(count);
    r.fill(mine, r.rank);
    std::vector<std::unique_ptr<DeviceArray<float>>> theirs;
    r.comm->group_begin();
    for (int peer = 0; peer < r.ranks; ++peer) {
      theirs.push_back(std::make_unique<DeviceArray<float>>(count));
      if (peer == r.rank) continue;
      r.comm->send(r.stream, mine.at(), count, DataType::kFloat32, peer);
      r.comm->receive(r.stream, theirs.back()->at(), count, DataType::kFloat32, peer);
    }
    r.comm->group_end();
    for (int peer = 0; peer < r.ranks; ++peer) {
      if (peer == r.rank) continue;
      const Floats got = r.download(*theirs[static_cast<std::size_t>(peer)]);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], comm_value(peer, i));
    }
    // Without a group: a chain.
    if (r.rank > 0) r.comm->receive(r.stream, mine.at(), 5, DataType::kFloat32, r.rank - 1);
    if (r.rank + 1 < r.ranks) r.comm->send(r.stream, mine.at(), 5, DataType::kFloat32, r.rank + 1);
    EXPECT_EQ(r.download(mine)[3], comm_value(0, 3));
  });
}

TEST_P(CommTest, NobodyLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> arrived{0};
  each_rank([&](CommRank& r) {
    for (int round = 1; round <= 20; ++round) {
      if (round % r.ranks == r.rank) sleep_until(now_ns() + kNanosPerMilli);
      ++arrived;
      r.comm->barrier(r.stream);
      EXPECT_GE(arrived.load(), round * r.ranks);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Engines, CommTest,
                         testing::Values(CommCase{"gloo", 1}, CommCase{"gloo", 2},
                                         CommCase{"gloo", 3}, CommCase{"gloo", 4},
                                         CommCase{"gloo", 5}, CommCase{"nccl", 2},
                                         CommCase{"nccl", 3}, CommCase{"nccl", 5}),
                         [](const auto& which) {
                           return std::string(which.param.engine) +
                                  std::to_string(which.param.ranks);
                         });

TEST(CommFailure, ARankThatNeverComesIsAFailureAndNotAHang) {
  SLUICE_NEEDS_DRIVER();
  ranks_run(2, [](int rank, const std::string& directory) {
    Device device(0);
    Stream stream(device);
    CommOptions options;
    options.rank = rank;
    options.rank_count = 2;
    options.directory = directory;
    options.timeout_s = 1;
    const auto comm = gloo_comm(options);
    const Together together;
    DeviceArray<float> data(10);
    comm->all_reduce(stream, data.at(), data.size());
    if (rank == 1) return;
    EXPECT_THROW(comm->all_reduce(stream, data.at(), data.size()), PeerFailure);
  });
}

/// What two ranks on GPU 0 hear from NCCL; empty = they met.
std::string shared_gpu_complaint(const char* host, bool own_gpu_each) {
  if (host != nullptr) setenv("NCCL_HOSTID", host, 1);
  std::string complaint;
  std::mutex mutex;
  ranks_run(2, [&](int rank, const std::string& directory) {
    const Device device(0);
    CommOptions options;
    options.rank = rank;
    options.rank_count = 2;
    options.directory = directory;
    try {
      const auto comm = comm_make(options, Engine::kNccl, own_gpu_each, true);
    } catch (const Failure& failure) {
      const std::lock_guard lock(mutex);
      complaint = failure.what();
    }
  });
  unsetenv("NCCL_HOSTID");
  return complaint;
}

// That they do with different ones is NcclSharingTest, with processes.
TEST(CommFailure, NcclRefusesTwoRanksOfOneHostOnOneGpu) {
  SLUICE_NEEDS_DRIVER();
  if (!nccl_missing().empty()) GTEST_SKIP() << nccl_missing();
  EXPECT_NE(shared_gpu_complaint(nullptr, true).find("NCCL says invalid usage"), std::string::npos);
  EXPECT_NE(shared_gpu_complaint("one", false).find("NCCL says invalid usage"), std::string::npos);
  const std::string ours = shared_gpu_complaint(nullptr, false);
  EXPECT_NE(ours.find("an NCCL_HOSTID each"), std::string::npos) << ours;
}

}  // namespace
}  // namespace sluice::tests

// Programs whose kernels wait for each other. Plain closing would lock them out of their own GPUs:
// one member's kernel spins until another one's runs, and that one waits at a closed gate. The
// broker lets the members that are empty and wait through, window by window, until all are empty
// together; this is the shim's part of it, with a broker of a few lines. Each case is a process of
// its own.
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "tests/interpose/gang_ranks.h"
#include "tests/interpose/softgpu_fixture.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;
using sluice::test::eventually;
using sluice::test::Rank;

void pause_us(int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

class GangTest : public sluice::test::SoftGpuTest {
 protected:
  GangTest() : SoftGpuTest(Options{.gpus = 2}) {}
  void ranks_make(int device_a, int device_b) {
    ASSERT_TRUE(sluice::test::rank_make(device_a, &a));
    ASSERT_TRUE(sluice::test::rank_make(device_b, &b));
    ASSERT_TRUE(sluice::test::ranks_join(&a, &b));
  }
  std::thread rank_run(const Rank& rank, unsigned rounds, unsigned seed) {
    return std::thread([=, this] {
      std::mt19937 random(seed);
      EXPECT_EQ(cuCtxSetCurrent(rank.context), CUDA_SUCCESS);
      for (unsigned k = 1; k <= rounds; ++k) {
        EXPECT_EQ(sluice::test::rank_meet(rank, k), CUDA_SUCCESS);
        if (random() % 4 == 0) pause_us(static_cast<int>(random() % 3000));
        if (random() % 16 == 0) {
          EXPECT_EQ(cuStreamSynchronize(rank.stream), CUDA_SUCCESS);
        }
      }
      EXPECT_EQ(cuStreamSynchronize(rank.stream), CUDA_SUCCESS);
      ++ended;
    });
  }
  bool drained(std::uint32_t gpu) {
    return broker->account(0, gpu).drained_epoch.load() == broker->epoch(gpu);
  }
  bool wanted(std::uint32_t gpu) {
    for (const sluice::test::Note& note : broker->notes()) {
      if (note.type == MessageType::kGateWant && note.gpu == gpu &&
          note.epoch == broker->epoch(gpu)) {
        return true;
      }
    }
    return false;
  }
  void gang_store(std::uint32_t flags) {
    broker->lease_store(flags, 0);
    broker->lease_store(flags, 1);
  }
  // The broker's rule (broker/core/lease.cpp): after a moment of patience the gates at which a
  // member waits that is empty are opened for a window, again and again, until all are empty.
  bool gang_close() {
    gang_store(0);
    for (int round = 0; round < 2000; ++round) {
      for (int i = 0; i < 8 && !(drained(0) && drained(1)); ++i) pause_us(500);
      if (drained(0) && drained(1)) return true;
      for (std::uint32_t gpu = 0; gpu < 2; ++gpu) {
        if (!drained(gpu) || !wanted(gpu)) continue;
        broker->lease_store(kLeaseOpen, gpu);
        pause_us(1000);
        broker->lease_store(0, gpu);
        ++let_through;
      }
    }
    return false;
  }
  Rank a, b;
  std::atomic<int> ended{0};
  int let_through = 0;
};

TEST_F(GangTest, AMemberThatSpinsOnOneAtTheGateEndsWhenThatOneIsLetThrough) {
  ranks_make(0, 1);
  broker->lease_store(kLeaseOpen, 0);
  std::thread first = rank_run(a, 1, 1);
  ASSERT_TRUE(eventually([&] { return broker->account(0, 0).in_flight.load() == 1; }));
  broker->lease_store(0, 0);
  std::thread second = rank_run(b, 1, 2);
  ASSERT_TRUE(eventually([&] { return wanted(1) && drained(1); }));
  // Closed as they are, neither would ever end.
  pause_us(300'000);
  EXPECT_FALSE(drained(0));
  EXPECT_EQ(ended, 0);
  broker->lease_store(kLeaseOpen, 1);
  ASSERT_TRUE(eventually([&] { return ended == 2; }));
  broker->lease_store(0, 1);
  first.join();
  second.join();
  EXPECT_TRUE(eventually([&] { return drained(0) && drained(1); }));
  // The time over the lease's end is charged.
  EXPECT_GT(broker->account(0, 0).busy_ns.load(), 300'000'000u);
}

TEST_F(GangTest, RanksThatMeetAtEveryKernelEndUnderLeasesThatCloseAtAnyMoment) {
  ranks_make(0, 1);
  std::thread first = rank_run(a, 150, 3), second = rank_run(b, 150, 4);
  std::mt19937 random(5);
  for (int turn = 0; turn < 1000 && ended < 2 && !HasFailure(); ++turn) {
    gang_store(kLeaseOpen);
    pause_us(static_cast<int>(random() % 6000));
    EXPECT_TRUE(gang_close()) << "turn " << turn;
    pause_us(2000);
  }
  EXPECT_EQ(ended, 2);
  gang_store(kLeaseOpen);
  first.join();
  second.join();
  printf("%d windows let through\n", let_through);
  EXPECT_GT(let_through, 0);
}

// The same with one GPU and an open lease: there it is the window that the second one waits for.
TEST_F(GangTest, TheWindowLetsThroughWhatItsOwnWorkMayWaitFor) {
  ranks_make(0, 0);
  broker->window_set(1'000'000);
  gang_store(kLeaseOpen);
  std::thread first = rank_run(a, 5, 1), second = rank_run(b, 5, 2);
  EXPECT_TRUE(eventually([&] { return ended == 2; }));
  first.join();
  second.join();
}

// And the launch that ends it comes behind others in the stream that waits for it.
TEST_F(GangTest, TheWindowLetsThroughWhatIsBehindWorkThatWaitsForTheProgram) {
  ranks_make(0, 0);
  broker->window_set(1'000'000);
  gang_store(kLeaseOpen);
  ASSERT_EQ(cuCtxSetCurrent(a.context), CUDA_SUCCESS);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(sluice::test::rank_meet(a, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(b.context), CUDA_SUCCESS);
  ASSERT_EQ(sluice::test::rank_meet(b, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(b.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(a.stream), CUDA_SUCCESS);
}

}  // namespace

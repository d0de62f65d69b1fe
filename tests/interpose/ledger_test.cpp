// The slot protocol: several processes' slots on one claims page never pass the quota, never refuse
// what fits, and survive a kill at any instant.
#include "interpose/ledger.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace sluice::interpose {
namespace {

using protocol::ClaimsPage;
using protocol::ClaimsSlot;

constexpr uint64_t kMiB = 1 << 20;

// A page that forked children share, and a counter that plays the device.
struct Shared {
  ClaimsPage page;
  uint64_t device_bytes;
  uint64_t device_peak;
  uint64_t refusals;
  uint64_t over;
};

class LedgerTest : public ::testing::Test {
 protected:
  LedgerTest() {
    shared = static_cast<Shared*>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  }
  ~LedgerTest() override { munmap(shared, sizeof(Shared)); }
  std::unique_ptr<Ledger> ledger(uint32_t slot) {
    auto made = std::make_unique<Ledger>();
    made->attach(&shared->page, slot);
    return made;
  }
  // Takes and returns random amounts; every grant is checked against the true sum.
  void churn(Ledger& mine, uint64_t quota, uint64_t most, int rounds, unsigned seed) {
    for (int i = 0; i < rounds; ++i) {
      seed = seed * 1664525u + 1013904223u;
      const uint64_t bytes = 1 + (seed >> 8) % most;
      if (!mine.reserve(0, bytes, quota)) {
        __atomic_add_fetch(&shared->refusals, 1, __ATOMIC_SEQ_CST);
        continue;
      }
      const uint64_t now = __atomic_add_fetch(&shared->device_bytes, bytes, __ATOMIC_SEQ_CST);
      if (now > quota) __atomic_add_fetch(&shared->over, 1, __ATOMIC_SEQ_CST);
      mine.hold(0, bytes);
      __atomic_sub_fetch(&shared->device_bytes, bytes, __ATOMIC_SEQ_CST);
      mine.release(0, bytes);
    }
  }
  Shared* shared;
};

TEST_F(LedgerTest, GrantsToTheLastByteAndNotOneMore) {
  auto a = ledger(0);
  ASSERT_TRUE(a->reserve(0, 10 * kMiB, 10 * kMiB));
  EXPECT_EQ(a->reserved(0), 10 * kMiB);
  a->hold(0, 10 * kMiB);
  EXPECT_EQ(a->held(0), 10 * kMiB);
  EXPECT_EQ(a->reserved(0), 0u);
  EXPECT_FALSE(a->reserve(0, 1, 10 * kMiB));
  a->release(0, 1);
  EXPECT_TRUE(a->reserve(0, 1, 10 * kMiB));
  a->abort(0, 1);
  EXPECT_EQ(a->total(0), 10 * kMiB - 1);
}

TEST_F(LedgerTest, CountsWhatOtherProcessesHold) {
  auto a = ledger(0), b = ledger(5);
  ASSERT_TRUE(a->reserve(0, 6 * kMiB, 10 * kMiB));
  a->hold(0, 6 * kMiB);
  EXPECT_FALSE(b->reserve(0, 5 * kMiB, 10 * kMiB));
  EXPECT_TRUE(b->reserve(0, 4 * kMiB, 10 * kMiB));
  EXPECT_EQ(shared->page.slots_used.load(), 6u);
}

TEST_F(LedgerTest, KeepsGpusApartAndZeroMeansNoQuota) {
  auto a = ledger(0);
  ASSERT_TRUE(a->reserve(0, 10, 10));
  EXPECT_TRUE(a->reserve(1, 10, 10));
  EXPECT_TRUE(a->reserve(2, ~uint64_t{0} / 2, 0));
}

TEST_F(LedgerTest, ANonsenseSlotDoesNotWrapTheSum) {
  auto a = ledger(0);
  ledger(1);
  shared->page.slots[1].gpus[0].held_bytes.store(~uint64_t{0} - 5);
  EXPECT_FALSE(a->reserve(0, 100, 10 * kMiB));
}

// A process that a broker knows has a slot on two pages, one that does not on the second alone.
TEST_F(LedgerTest, WhatIsOnTwoPagesFitsOnBoth) {
  auto second = std::make_unique<Shared>();
  auto known = ledger(0), other = ledger(1);
  auto unknown = std::make_unique<Ledger>();
  unknown->attach(&second->page, 4);
  ASSERT_TRUE(known->reserve(0, 3, 10));
  known->hold(0, 3);
  // Its first GPU is the second page's third, its second GPU is not there.
  const int8_t gpus[protocol::kTenantGpusMax] = {2, -1, -1, -1, -1, -1, -1, -1};
  known->attach_second(&second->page, 5, gpus);
  EXPECT_EQ(unknown->total(2), 3u) << "what it held before";
  ASSERT_TRUE(unknown->reserve(2, 5, 10));
  EXPECT_EQ(known->total(0), 8u);
  EXPECT_FALSE(known->reserve(0, 3, 10)) << "the second page is full";
  EXPECT_EQ(known->reserved(0), 0u) << "and the first one has it back";
  EXPECT_EQ(second->page.slots[5].gpus[2].reserved_bytes.load(), 0u);
  ASSERT_TRUE(known->reserve(0, 2, 10));
  known->abort(0, 1);
  known->hold(0, 1);
  known->hold_unasked(0, 2);
  known->release(0, 3);
  EXPECT_EQ(second->page.slots[5].gpus[2].held_bytes.load(), 3u);
  EXPECT_EQ(second->page.slots[5].gpus[2].reserved_bytes.load(), 0u);
  EXPECT_EQ(known->held(0), 3u);
  ASSERT_TRUE(other->reserve(0, 6, 10));
  EXPECT_FALSE(known->reserve(0, 2, 10)) << "the first page is full";
  EXPECT_EQ(claims_total(second->page, 2), 8u);
  EXPECT_TRUE(known->reserve(1, 10, 10)) << "a GPU that is on the first page alone";
}

TEST_F(LedgerTest, RefusesAfterPatienceWhenADeadAskStays) {
  auto a = ledger(0);
  ledger(1);
  shared->page.slots[1].gpus[0].asked_bytes.store(10 * kMiB);
  a->patience_ns = 20'000'000;
  EXPECT_FALSE(a->reserve(0, 1, 10 * kMiB));
  memset(&shared->page.slots[1], 0,
         sizeof(ClaimsSlot));  // what the broker does with a dead process's slot
  EXPECT_TRUE(a->reserve(0, 1, 10 * kMiB));
}

// Others who ask all the time for what is there, and never at a moment of its own: after its
// patience a reservation is refused though it would fit, is nobody's, and leaves nothing behind.
TEST_F(LedgerTest, GivesUpAfterItsPatienceOfCollisionsThoughItWouldFit) {
  auto a = ledger(0);
  ledger(1);
  auto& other = shared->page.slots[1].gpus[0];
  other.asked_bytes.store(10 * kMiB);
  a->patience_ns = 50'000'000;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(a->reserve(0, 4 * kMiB, 10 * kMiB));
  const auto waited = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(waited, std::chrono::milliseconds(50)) << "it has not been patient";
  EXPECT_EQ(a->total(0), 0u);
  EXPECT_EQ(shared->page.slots[0].gpus[0].asked_bytes.load(), 0u);
  // What is surely too much is refused at once, whoever asks.
  other.held_bytes.store(8 * kMiB);
  a->patience_ns = 3'600'000'000'000;
  EXPECT_FALSE(a->reserve(0, 4 * kMiB, 10 * kMiB));
  // And an ask that goes away in time was worth the wait.
  std::thread asker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    other.asked_bytes.store(0);
  });
  EXPECT_TRUE(a->reserve(0, 2 * kMiB, 10 * kMiB));
  asker.join();
}

TEST_F(LedgerTest, WaitsForAChangeInTheMiddleInsteadOfRefusing) {
  auto a = ledger(0);
  ledger(1);
  auto& other = shared->page.slots[1].gpus[0];
  // Killed between two words of a move: held counted already, reserved still there.
  other.version.store(1);
  other.held_bytes.store(6 * kMiB);
  other.reserved_bytes.store(6 * kMiB);
  std::thread broker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    memset(&shared->page.slots[1], 0, sizeof(ClaimsSlot));
  });
  EXPECT_TRUE(a->reserve(0, 8 * kMiB, 10 * kMiB));
  broker.join();
}

TEST_F(LedgerTest, ThreadsOfOneProcessAndOthersNeverPassTheQuota) {
  constexpr uint64_t kQuota = 1000;
  auto a = ledger(0), b = ledger(1);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { churn(i < 2 ? *a : *b, kQuota, 600, 4000, i + 1); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(shared->over, 0u);
  EXPECT_EQ(a->total(0), 0u);
}

TEST_F(LedgerTest, WhatFitsIsNeverRefusedHoweverManyAsk) {
  // Four processes of at most 250 each: their sum always fits.
  constexpr uint64_t kQuota = 1000;
  std::vector<pid_t> children;
  for (uint32_t i = 0; i < 4; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      auto mine = ledger(i);
      churn(*mine, kQuota, 250, 4000, i + 1);
      _exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) waitpid(pid, nullptr, 0);
  EXPECT_EQ(shared->over, 0u);
  EXPECT_EQ(shared->refusals, 0u);
  EXPECT_EQ(claims_total(shared->page, 0), 0u);
}

TEST_F(LedgerTest, AKillAnywhereLeavesARightSum) {
  constexpr uint64_t kQuota = 1000;
  auto survivor = ledger(0);
  for (int round = 0; round < 25; ++round) {
    const pid_t pid = fork();
    if (pid == 0) {
      auto mine = ledger(1);
      for (unsigned i = 0;; ++i) {
        if (!mine->reserve(0, 400, kQuota)) continue;
        mine->hold(0, 400);
        mine->release(0, 400);
      }
    }
    usleep(static_cast<useconds_t>(200 + round * 37));
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    memset(&shared->page.slots[1], 0, sizeof(ClaimsSlot));
    ASSERT_TRUE(survivor->reserve(0, kQuota, kQuota));
    survivor->abort(0, kQuota);
  }
  EXPECT_EQ(survivor->total(0), 0u);
}

}  // namespace
}  // namespace sluice::interpose

// Stopping the account while threads are within scopes, which may ask for the same themselves.
#include "interpose/account.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace sluice::interpose {
namespace {

constexpr uint64_t kPatienceNs = 5'000'000;
constexpr uint64_t kForEverNs = 60'000'000'000;

class AccountPauseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    alarm(10);  // who waits for ever
    threads_prepare();
    process.mode = Mode::kOffline;  // scopes count, without pages
  }
  static void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
};

// As an allocation that meets its quota and looks for memory that was freed in stream order.
TEST_F(AccountPauseTest, AScopeThatPausesItselfIsWaitedForAndNotWithheldTheLock) {
  std::atomic<int> within{0};
  std::atomic<bool> passed{false};
  std::thread asking([&] {
    const AccountScope scope;
    EXPECT_TRUE(scope.active());
    within = 1;
    sleep_ms(200);  // the other has stopped the account by now
    within = 2;
    EXPECT_TRUE(accounts_pause_for(kPatienceNs));
    EXPECT_FALSE(passed);
    accounts_resume();
    within = 3;
  });
  while (within == 0) sleep_ms(1);
  ASSERT_TRUE(accounts_pause(kForEverNs));
  passed = true;
  EXPECT_EQ(within, 3);
  accounts_resume();
  asking.join();
}

// As a free that waits for a kernel: who pauses does so in vain, and holds nobody up for it.
TEST_F(AccountPauseTest, AScopeThatLastsKeepsNobody) {
  std::atomic<bool> within{false}, ends{false};
  std::thread lasting([&] {
    const AccountScope scope;
    within = true;
    while (!ends) sleep_ms(1);
  });
  while (!within) sleep_ms(1);
  EXPECT_FALSE(accounts_pause(kPatienceNs));
  { const AccountScope begins; }
  ends = true;
  lasting.join();
  EXPECT_TRUE(accounts_pause(kForEverNs));
  accounts_resume();
}

// The same of several at once, who wait for each other no longer than they say.
TEST_F(AccountPauseTest, SoAreSeveral) {
  std::atomic<int> rounds{0};
  std::atomic<bool> stop{false};
  const auto ask = [&] {
    while (!stop) {
      const AccountScope scope;
      (void)accounts_pause_for(1'000'000);
      accounts_resume();
      ++rounds;
    }
  };
  std::thread one(ask), two(ask), three(ask);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(accounts_pause(kForEverNs));
    const int before = rounds;
    sleep_ms(20);
    EXPECT_EQ(rounds, before);
    accounts_resume();
    while (rounds == before) sleep_ms(1);
  }
  stop = true;
  one.join();
  two.join();
  three.join();
}

}  // namespace
}  // namespace sluice::interpose

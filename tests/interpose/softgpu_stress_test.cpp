// Eight processes with four threads each at the limit of one tenant: the device never holds a byte
// more than the quota, by its own record of the most it ever held; what fits is never refused, and
// whoever is killed leaves nothing behind.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "tests/interpose/softgpu_fixture.h"
#include "tests/interpose/softgpu_partner.h"

namespace {

using namespace sluice::test;

constexpr int kProcesses = 8, kThreads = 4;
constexpr size_t kSmallContext = kMiB;
constexpr size_t kEach = 300'007;  // of one thread, at a time
constexpr size_t kAll = kProcesses * (kSmallContext + kThreads * kEach);

class SoftGpuStressTest : public SoftGpuTest {
 protected:
  explicit SoftGpuStressTest(size_t quota = kAll)
      : SoftGpuTest({.quota = quota, .context_told = kSmallContext, .uses_cuda = false}) {
    setenv("SOFTGPU_CONTEXT", "1MiB", 1);
  }
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
    for (Partner& partner : partners) {
      partner.start();
      ASSERT_EQ(partner.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
    }
    ASSERT_EQ(device_total(), kProcesses * kSmallContext);
  }
  // All at the same time; `extra` as in softgpu_partner.cpp. Those who are to be killed do not end.
  void churn_begin(size_t bytes, int rounds, bool same_size, bool every_other_endless = false) {
    for (size_t i = 0; i < partners.size(); ++i) {
      const bool endless = every_other_endless && i % 2 == 0;
      partners[i].send({.op = PartnerOp::kChurn,
                        .a = bytes,
                        .b = endless ? UINT64_MAX : static_cast<uint64_t>(rounds),
                        .value = i,
                        .extra = same_size ? 1u : 0u});
    }
  }
  // The same by every way to take memory, after each process has met the driver's ways once.
  void churn_all_ways(size_t bytes, int rounds, bool same_size, uint64_t* refused) {
    PartnerMessage request{.op = PartnerOp::kChurnAllWays, .a = bytes, .extra = 1};
    for (Partner& partner : partners) {
      const PartnerMessage met = partner.ask(request);
      EXPECT_EQ(met.value + met.extra, 0u);
    }
    watch_begin();
    request.b = static_cast<uint64_t>(rounds);
    request.extra = same_size ? 1 : 0;
    for (size_t i = 0; i < partners.size(); ++i) {
      request.value = i;
      partners[i].send(request);
    }
    *refused = 0;
    for (Partner& partner : partners) {
      const PartnerMessage done = partner.receive();
      EXPECT_EQ(done.result, CUDA_SUCCESS);
      EXPECT_EQ(done.extra, 0u) << "wrong answers";
      *refused += done.value;
    }
    watch_end();
    agrees("quiet again");
    EXPECT_EQ(held_total(), kProcesses * kSmallContext);
  }
  void watch_begin() { ASSERT_LE(device_peak(), options.quota) << "before the work"; }
  // Exact: the device notes the most it holds within every call that takes memory.
  void watch_end() {
    printf("the device held at most %zu of %zu bytes\n", size_t{device_peak()}, options.quota);
    EXPECT_LE(device_peak(), options.quota);
    EXPECT_GT(device_peak(), kProcesses * kSmallContext) << "nothing was noted";
  }
  // The same by looking as often as one can, for tests that kill: the device knows of a death by
  // the process table and the broker by its socket, so that what a dead process held may be given
  // to another just before the device hears of it.
  void look_begin() {
    watcher = std::thread([this] {
      while (!stop) {
        device_most = std::max<size_t>(device_most, device_total());
        ++looks;
      }
    });
  }
  void look_end() {
    stop = true;
    watcher.join();
    EXPECT_GT(looks, 10);
    printf("%d looks, the device held at most %zu of %zu bytes\n", looks.load(), device_most,
           options.quota);
    EXPECT_LE(device_most, options.quota);
  }

  std::array<Partner, kProcesses> partners;
  std::thread watcher;
  std::atomic<bool> stop{false};
  std::atomic<int> looks{0};
  size_t device_most = 0;
};

TEST_F(SoftGpuStressTest, WhatFitsIsNeverRefused) {
  // Every thread has one allocation at a time, and all of them together fill the quota exactly.
  watch_begin();
  churn_begin(kEach, 600, true);
  for (Partner& partner : partners) {
    const PartnerMessage done = partner.receive();
    EXPECT_EQ(done.result, CUDA_SUCCESS);
    EXPECT_EQ(done.value, 0u) << "refused though it fits";
    EXPECT_EQ(done.extra, 0u) << "wrong answers";
  }
  watch_end();
  agrees("quiet again");
}

// Room for what each thread has at a time, whichever way it takes it, and not a byte more.
constexpr size_t kGrain = 2 * kMiB;
class SoftGpuAllWaysTest : public SoftGpuStressTest {
 protected:
  SoftGpuAllWaysTest() : SoftGpuStressTest(kProcesses * (kSmallContext + kThreads * kGrain)) {}
};

TEST_F(SoftGpuAllWaysTest, WhatFitsIsNeverRefused) {
  uint64_t refused = 0;
  churn_all_ways(kGrain, 130, true, &refused);
  EXPECT_EQ(refused, 0u) << "refused though it fits";
}

// Each wants up to eight times that.
TEST_F(SoftGpuAllWaysTest, TheDeviceNeverHoldsAByteMoreThanTheQuota) {
  uint64_t refused = 0;
  churn_all_ways(8 * kGrain, 130, false, &refused);
  EXPECT_GT(refused, 0u);
}

// Half of what they want.
class SoftGpuScarceTest : public SoftGpuStressTest {
 protected:
  SoftGpuScarceTest()
      : SoftGpuStressTest(kProcesses * kSmallContext + kProcesses * kThreads * kEach / 2) {}
};

TEST_F(SoftGpuScarceTest, TheDeviceNeverHoldsAByteMoreThanTheQuota) {
  watch_begin();
  churn_begin(2 * kEach, 600, false);
  uint64_t refused = 0;
  for (Partner& partner : partners) {
    const PartnerMessage done = partner.receive();
    EXPECT_EQ(done.result, CUDA_SUCCESS);
    EXPECT_EQ(done.extra, 0u) << "wrong answers";
    refused += done.value;
  }
  watch_end();
  EXPECT_GT(refused, 0u);
  agrees("quiet again");
  // What is left is there to the last byte.
  EXPECT_EQ(partners[0].ask(PartnerOp::kAlloc, options.quota - kProcesses * kSmallContext).result,
            CUDA_SUCCESS);
  EXPECT_EQ(partners[1].ask(PartnerOp::kAlloc, 1).result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(device_peak(), options.quota);
}

TEST_F(SoftGpuScarceTest, WhoIsKilledInTheMiddleLeavesNothing) {
  look_begin();
  churn_begin(2 * kEach, 400, false, true);
  // At moments of their work that nobody chose; those who live go on to the end.
  for (size_t i = 0; i < partners.size(); i += 2) {
    const int pid = partners[i].pid();
    const uint64_t version = broker->account(static_cast<uint32_t>(i)).version.load();
    EXPECT_TRUE(eventually([&] {
      return broker->account(static_cast<uint32_t>(i)).version.load() > version + 50 + 13 * i;
    }));
    partners[i].end(SIGKILL);
    EXPECT_TRUE(broker->wait_for_end(pid, 10000));
  }
  for (size_t i = 1; i < partners.size(); i += 2) {
    const PartnerMessage done = partners[i].receive();
    EXPECT_EQ(done.result, CUDA_SUCCESS);
    EXPECT_EQ(done.extra, 0u) << "wrong answers";
  }
  look_end();
  agrees("quiet again");
  EXPECT_EQ(held_total(), kProcesses / 2 * kSmallContext);
}

}  // namespace

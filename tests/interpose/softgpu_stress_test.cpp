// Eight processes with four threads each at the limit of one tenant: the device never holds a byte
// more than the quota, by its own record of the most it ever held; what fits is never refused, and
// whoever is killed leaves nothing behind.
#include "tests/interpose/softgpu_stress.h"

namespace {

using namespace sluice::test;

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
class SoftGpuAllWaysTest : public SoftGpuStressTest {
 protected:
  SoftGpuAllWaysTest() : SoftGpuStressTest(kProcesses * (kSmallContext + kThreads * kGrain)) {}
};

TEST_F(SoftGpuAllWaysTest, WhatFitsIsNeverRefused) {
  uint64_t refused = 0;
  churn_all_ways(kGrain, 130, kChurnSameSize, &refused);
  EXPECT_EQ(refused, 0u) << "refused though it fits";
}

// Each wants up to eight times that.
TEST_F(SoftGpuAllWaysTest, TheDeviceNeverHoldsAByteMoreThanTheQuota) {
  uint64_t refused = 0;
  churn_all_ways(8 * kGrain, 130, 0, &refused);
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
    EXPECT_TRUE(broker->wait_for_end(pid));
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

// The limit under loads, limits and memory of other processes, by eight processes with four threads
// each. A load is measured when it is made: until then it may pass the quota, and nothing else may.
// What is refused then would not have fitted beside the loads in progress; where there is room for
// all of them, nothing is refused.
#include "tests/interpose/softgpu_stress.h"

#include <utility>

namespace {

using namespace sluice::test;

constexpr size_t kOwnBytes = 64 << 10;  // that a process has for its neighbour, beside kGrain

class SoftGpuLoadsTest : public SoftGpuStressTest {
 protected:
  explicit SoftGpuLoadsTest(size_t quota = kProcesses * (kSmallContext + kThreads * kGrain))
      : SoftGpuStressTest(quota) {}
  // Each has memory that the next one opens.
  void neighbours_meet() {
    for (size_t i = 0; i < partners.size(); ++i) {
      Partner& maker = partners[i];
      const uint64_t pointer = must(maker.ask(PartnerOp::kAlloc, kOwnBytes)).value;
      const uint64_t handle = must(maker.ask(PartnerOp::kVmmCreate, kGrain)).value;
      PartnerMessage given = must(maker.ask(PartnerOp::kIpcGet, pointer));
      must(maker.ask(PartnerOp::kVmmExport, handle));
      given.op = PartnerOp::kNeighbour;
      exported.push_back(std::exchange(maker.fd, -1));
      must(partners[(i + 1) % partners.size()].ask(given, exported.back()));
    }
  }
  static PartnerMessage must(const PartnerMessage& answer) {
    EXPECT_EQ(answer.result, CUDA_SUCCESS);
    return answer;
  }
  ~SoftGpuLoadsTest() override { exported_close(); }
  void exported_close() {
    for (const int fd : std::exchange(exported, {})) close(fd);
  }
  std::vector<int> exported;  // a descriptor of each partner's physical memory
};

TEST_F(SoftGpuLoadsTest, WhereAllLoadsFitNothingIsRefused) {
  uint64_t refused = 0;
  churn_all_ways(kGrain, 60, kChurnSameSize | kChurnLoads, &refused);
  EXPECT_EQ(refused, 0u) << "refused though it fits";
  EXPECT_LE(device_peak(), options.quota);
}

TEST_F(SoftGpuLoadsTest, NothingButLoadsInProgressPassesTheQuota) {
  uint64_t refused = 0;
  churn_all_ways(8 * kGrain, 60, kChurnLoads, &refused);
  EXPECT_GT(refused, 0u);
  EXPECT_LE(held_total(), options.quota);
}

// Half of what all of them keep.
class SoftGpuKeptLoadsTest : public SoftGpuLoadsTest {
 protected:
  SoftGpuKeptLoadsTest()
      : SoftGpuLoadsTest(kProcesses * kSmallContext + kProcesses * kThreads * kGrain / 2) {}
};

TEST_F(SoftGpuKeptLoadsTest, WhatWasLoadedAtTheSameTimeStaysWithinTheQuota) {
  uint64_t refused = 0;
  watch_begin();
  for (uint64_t round = 0; round < 30; ++round) {
    for (size_t i = 0; i < partners.size(); ++i)
      partners[i].send({.op = PartnerOp::kKeep, .a = kGrain, .value = round + i});
    for (Partner& partner : partners) {
      const PartnerMessage done = partner.receive();
      EXPECT_EQ(done.extra, 0u) << "wrong answers";
      refused += done.value;
    }
    quiet("kept");
    ASSERT_LE(device_total(), options.quota) << "round " << round;
    ASSERT_EQ(held_total(), device_total());
    for (Partner& partner : partners) must(partner.ask(PartnerOp::kLetGo));
    quiet("let go");
    ASSERT_EQ(held_total(), kProcesses * kSmallContext);
  }
  watch_end();
  EXPECT_GT(refused, 0u);
}

class SoftGpuSharesTest : public SoftGpuLoadsTest {
 protected:
  SoftGpuSharesTest()
      : SoftGpuLoadsTest(kProcesses * (kSmallContext + kOwnBytes + kGrain + kThreads * kGrain)) {}
};

TEST_F(SoftGpuSharesTest, WhatIsImportedTakesNothingAndWhatFitsIsNotRefused) {
  neighbours_meet();
  uint64_t refused = 0;
  churn_all_ways(kGrain, 60, kChurnSameSize | kChurnShares, &refused);
  EXPECT_EQ(refused, 0u) << "refused though it fits";
  EXPECT_LE(device_peak(), options.quota);
}

TEST_F(SoftGpuSharesTest, NothingButLoadsInProgressPassesTheQuota) {
  neighbours_meet();
  uint64_t refused = 0;
  churn_all_ways(8 * kGrain, 60, kChurnLoads | kChurnShares, &refused);
  EXPECT_GT(refused, 0u);
  EXPECT_LE(held_total(), options.quota);
}

// Those who live go on to the end, and have in the end what the device says that they have.
TEST_F(SoftGpuSharesTest, WhoIsKilledInTheMiddleOfAnyWayLeavesNothing) {
  neighbours_meet();
  PartnerMessage request{.op = PartnerOp::kChurnAllWays,
                         .a = 4 * kGrain,
                         .extra = kChurnLoads | kChurnShares | kChurnMortal};
  for (size_t i = 0; i < partners.size(); ++i) {
    request.b = i % 2 == 0 ? UINT64_MAX : 120;
    request.value = i;
    partners[i].send(request);
  }
  for (size_t i = 0; i < partners.size(); i += 2) {
    const int pid = partners[i].pid();
    const auto& account = broker->account(static_cast<uint32_t>(i));
    const uint64_t version = account.version.load();
    EXPECT_TRUE(eventually([&] { return account.version.load() > version + 150 + 37 * i; }));
    partners[i].end(SIGKILL);
    EXPECT_TRUE(broker->wait_for_end(pid));
  }
  for (size_t i = 1; i < partners.size(); i += 2) {
    const PartnerMessage done = partners[i].receive();
    EXPECT_EQ(done.result, CUDA_SUCCESS);
    EXPECT_EQ(done.extra, 0u) << "wrong answers";
  }
  // Of what the dead exported, a descriptor of a survivor's holds the physical memory. It is in no
  // process's figure, and this broker does not look at the device: an import charges it. Most
  // survivors have imported it once more after the death, which then charges it no second time.
  for (size_t i = 1; i < partners.size(); i += 2) {
    const uint64_t import =
        must(partners[i].ask({.op = PartnerOp::kVmmImport}, exported[i - 1])).value;
    must(partners[i].ask(PartnerOp::kVmmRelease, import));
  }
  constexpr uint64_t kLeft = kProcesses / 2 * (kSmallContext + kOwnBytes + 2 * kGrain);
  EXPECT_TRUE(eventually([&] { return held_total() == kLeft && device_total() == kLeft; }))
      << held_total() << ", " << device_total() << " of " << kLeft;
  for (size_t i = 1; i < partners.size(); i += 2) {
    const int pid = partners[i].pid();
    partners[i].end(SIGKILL);
    EXPECT_TRUE(broker->wait_for_end(pid));
  }
  exported_close();
  EXPECT_TRUE(eventually([&] { return held_total() == 0 && device_total() == 0; }));
}

}  // namespace

// Tenants with several GPUs: whole or not at all, no deadlock, and let through when they lock each
// other out.
#include "tests/broker/core/harness.h"

namespace sluice::core {
namespace {

TenantId gang_admit(Harness& core, std::vector<GpuUuid> gpus, std::uint32_t percent = 50) {
  TenantAsked asked = core.ask();
  asked.gpu_count = static_cast<std::uint32_t>(gpus.size());
  asked.pinned = std::move(gpus);
  asked.sm_percent = percent;
  return core.admit(asked);
}

TenantId single_admit(Harness& core, std::uint8_t gpu,
                      TenantClass tenant_class = TenantClass::kBatch, std::uint32_t percent = 50) {
  TenantAsked asked = core.ask(tenant_class);
  asked.pinned = {uuid_of(gpu)};
  asked.sm_percent = percent;
  return core.admit(asked);
}

TEST(Gang, OpensAndClosesOnAllGpusInOneStep) {
  Harness core(policy_usual(), 2);
  const TenantId gang = gang_admit(core, {uuid_of(1), uuid_of(2)});
  const TenantId single = single_admit(core, 2);
  core.want(gang, 0);
  EXPECT_TRUE(core.open(gang, 0));
  EXPECT_TRUE(core.open(gang, 1));
  core.want(single);
  core.pass(12 * kMs);
  EXPECT_FALSE(core.open(gang, 0));
  EXPECT_FALSE(core.open(gang, 1));
  core.drain(gang, 1);
  EXPECT_FALSE(core.open(single)) << "drained on one of two";
  core.drain(gang, 0);
  EXPECT_TRUE(core.open(single));
}

TEST(Gang, WaitsForBothAndGetsBoth) {
  Harness core(policy_usual(), 2);
  const TenantId left = single_admit(core, 1);
  const TenantId right = single_admit(core, 2);
  const TenantId gang = gang_admit(core, {uuid_of(1), uuid_of(2)});
  core.want(left);
  core.pass(3 * kMs);
  core.want(right);
  core.want(gang, 1);
  for (int i = 0; i < 60 && !core.open(gang, 0); ++i) {
    core.pass(kMs);
    for (TenantId t : {left, right}) {
      if (core.open(t)) continue;
      core.drain(t);
      core.want(t);
    }
  }
  EXPECT_TRUE(core.open(gang, 0));
  EXPECT_TRUE(core.open(gang, 1));
}

/// A single that uses every millisecond on the GPU.
struct Busy {
  TenantId tenant;
  Nanos used = 0;
  void go_on(Harness& core) {
    if (core.open(tenant)) {
      used += kMs;
      return;
    }
    core.drain(tenant);
    core.step(UsageSeen{tenant, 0, used});
    core.want(tenant);
  }
};

// While its lease drains, each of its GPUs is charged as if it were used. What one of them gives
// back is no debt of the others: 3.5 of 50 % were left to the neighbours here.
TEST(Gang, AnIdleRankBesideALongKernelEarnsNothing) {
  Policy policy = policy_usual();
  policy.drain_timeout_ns = kSecond;
  Harness core(policy, 2);
  const TenantId gang = gang_admit(core, {uuid_of(1), uuid_of(2)}, 10);
  Busy left{single_admit(core, 1, TenantClass::kBatch, 90)};
  Busy right{single_admit(core, 2, TenantClass::kBatch, 90)};
  core.want(gang, 0);
  core.want(left.tenant);
  core.want(right.tenant);
  constexpr Nanos kKernel = 500 * kMs, kAll = 20 * kSecond;
  Nanos kernels = 0;
  for (const Nanos end = core.now + kAll; core.now < end;) {
    if (!core.open(gang, 0)) {
      core.pass(kMs);
      left.go_on(core);
      right.go_on(core);
      continue;
    }
    const Nanos over = core.now + kKernel;
    while (core.open(gang, 0)) core.pass(kMs);
    core.drain(gang, 1);
    core.pass(over - core.now);
    core.drain(gang, 0);
    core.step(UsageSeen{gang, 0, kernels += kKernel});
    core.step(UsageSeen{gang, 1, 0});
    core.want(gang, 0);
  }
  EXPECT_LE(kernels, kAll / 10 + 2 * kKernel);
  EXPECT_GE(kernels, kAll / 10 - kKernel);
  EXPECT_GE(std::min(left.used, right.used), kAll * 9 / 10 - 2 * kKernel);
}

TEST(Gang, InferencePreemptsItWhole) {
  Harness core(policy_usual(), 2);
  const TenantId gang = gang_admit(core, {uuid_of(1), uuid_of(2)});
  const TenantId serve = single_admit(core, 2, TenantClass::kInference);
  core.want(gang, 0);
  core.want(serve);
  EXPECT_FALSE(core.open(gang, 0));
  core.drain(gang, 0);
  core.drain(gang, 1);
  EXPECT_TRUE(core.open(serve));
}

TEST(Gang, MembersLockedOutAreLetThroughUntilAllAreEmpty) {
  Harness core(policy_usual(), 2);
  const TenantId gang = gang_admit(core, {uuid_of(1), uuid_of(2)});
  core.step(ProcessJoined{gang, 7});
  const TenantId single = single_admit(core, 1);
  core.want(gang, 0);
  core.want(single);
  core.pass(12 * kMs);
  ASSERT_FALSE(core.open(gang, 0));
  // Process 7 waits at the gate of GPU index 1; the other one spins on index 0 for it and cannot
  // drain.
  core.step(Drained{Harness::process(gang), 1, core.epoch(gang, 1)});
  core.step(Drained{7, 0, core.epoch(gang, 0)});
  core.step(Drained{7, 1, core.epoch(gang, 1)});
  core.step(GateWanted{7, 1, core.epoch(gang, 1)});
  core.pass(1500 * kUs);
  EXPECT_TRUE(core.open(gang, 1)) << "let through";
  EXPECT_FALSE(core.open(gang, 0));
  core.pass(kMs);
  EXPECT_FALSE(core.open(gang, 1)) << "for one window";
  core.drain(gang, 0);
  core.step(Drained{7, 1, core.epoch(gang, 1)});
  EXPECT_FALSE(core.open(single)) << "each process drains the new epoch";
  core.step(Drained{Harness::process(gang), 1, core.epoch(gang, 1)});
  EXPECT_TRUE(core.open(single));
}

/// A gang that is idle within its turn lends its GPUs. What a single has in flight then is bounded
/// by the pause, as learned, and is what it usually is once the gang stays away for longer.
TEST(Gang, APauseWithinItsTurnIsLentForKernelsThatFit) {
  Policy policy = policy_usual();
  for (ClassPolicy& c : policy.classes) c.window_ns = 20 * kMs;
  Harness core(policy, 2);
  const TenantId gang = gang_admit(core, {uuid_of(1), uuid_of(2)});
  const TenantId single = single_admit(core, 1);
  core.want(gang, 0);
  core.want(single);
  core.pass(kMs);
  ASSERT_TRUE(core.open(gang, 0));
  EXPECT_EQ(core.lease(gang).idle_grace_ns, policy.idle_grace_ns);
  core.idle(gang, 0);
  core.drain(gang, 0);
  core.drain(gang, 1);
  ASSERT_TRUE(core.open(single));
  EXPECT_EQ(core.lease(single).window_ns, 10 * kMs) << "a pause of ten is expected at first";
  core.pass(3 * kMs);
  core.want(gang, 0);
  EXPECT_FALSE(core.open(single)) << "its turn goes on";
  core.drain(single);
  core.want(single);
  ASSERT_TRUE(core.open(gang, 0));
  core.idle(gang, 0);
  core.drain(gang, 0);
  core.drain(gang, 1);
  ASSERT_TRUE(core.open(single));
  EXPECT_LT(core.lease(single).window_ns, 10 * kMs) << "learned";
  core.pass(12 * kMs);
  ASSERT_TRUE(core.open(single));
  EXPECT_EQ(core.lease(single).window_ns, 20 * kMs);
}

/// On a busy host who waits at a gate looks late: windows that nobody used are followed by longer
/// ones, and there are many before the drain times out.
TEST(Gang, WindowsThatItIsLetThroughGrowAndAreMany) {
  Policy policy = policy_usual();
  policy.drain_timeout_ns = kSecond;
  Harness core(policy, 2);
  const TenantId gang = gang_admit(core, {uuid_of(1), uuid_of(2)});
  const TenantId single = single_admit(core, 1);
  core.want(gang, 0);
  core.want(single);
  core.pass(12 * kMs);
  std::vector<Nanos> windows;
  for (Nanos began = 0; core.state().tenants.at(gang)->phase == Phase::kClosing;) {
    if (core.open(gang, 1)) {
      core.pass(500 * kUs);
      continue;
    }
    if (began != 0) windows.push_back(core.now - began);
    core.drain(gang, 1);
    core.want(gang, 1);
    while (!core.open(gang, 1) && core.state().tenants.at(gang)->phase == Phase::kClosing)
      core.pass(500 * kUs);
    began = core.now;
  }
  ASSERT_GE(windows.size(), 20U);
  EXPECT_LE(windows.size(), 40U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_LE(windows[i], 2 * kMs);
  EXPECT_GE(windows[19], 16 * kMs);
  for (std::size_t i = 4; i < windows.size() - 1; ++i) EXPECT_GE(windows[i], windows[i - 4]);
}

TEST(Gang, ARunawayGangIsOpenedAgainInItsTurn) {
  Harness core(policy_usual(), 2);
  const TenantId gang = gang_admit(core, {uuid_of(1), uuid_of(2)});
  const TenantId single = single_admit(core, 1);
  core.want(gang, 0);
  core.want(single);
  core.pass(12 * kMs);
  core.pass(100 * kMs);
  ASSERT_TRUE(core.open(single));
  core.want(gang, 1);
  core.pass(15 * kMs);
  EXPECT_TRUE(core.open(single)) << "the overrun was charged";
  // The gang is ahead by its turn and its overrun, 110 ms. Beside it the single gets half of the
  // device, so it has caught up after 220 ms.
  for (int i = 0; i < 25 && !core.open(gang, 0); ++i) {
    core.pass(10 * kMs);
    if (!core.open(single)) core.drain(single);
  }
  EXPECT_TRUE(core.open(gang, 0)) << "its members may be waiting for each other";
}

TEST(Gang, ARingOfGangsKeepsMoving) {
  Harness core(policy_usual(), 3);
  const std::vector<TenantId> gangs = {gang_admit(core, {uuid_of(1), uuid_of(2)}),
                                       gang_admit(core, {uuid_of(2), uuid_of(3)}),
                                       gang_admit(core, {uuid_of(3), uuid_of(1)})};
  std::map<TenantId, Nanos> held;
  for (TenantId g : gangs) core.want(g, 0);
  for (int i = 0; i < 3000; ++i) {
    for (TenantId g : gangs)
      if (core.open(g)) held[g] += kMs;
    core.pass(kMs);
    for (TenantId g : gangs) {
      if (core.open(g)) continue;
      core.drain(g, 0);
      core.drain(g, 1);
      core.want(g, 0);
    }
  }
  for (TenantId g : gangs) EXPECT_NEAR(static_cast<double>(held[g]) / 3e9, 1.0 / 3, 0.05);
}

}  // namespace
}  // namespace sluice::core

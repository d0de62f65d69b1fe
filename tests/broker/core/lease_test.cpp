// Opening, closing, draining, idling, runaways: the protocol between core and shim.
#include <algorithm>
#include <utility>
#include <vector>

#include "tests/broker/core/harness.h"

namespace sluice::core {
namespace {

TEST(Lease, GoesOnlyToThoseWhoWant) {
  Harness core;
  const TenantId tenant = core.admit();
  EXPECT_FALSE(core.open(tenant));
  core.want(tenant);
  EXPECT_TRUE(core.open(tenant));
  EXPECT_EQ(core.epoch(tenant), 2U);
  EXPECT_FALSE(core.has(tenant, protocol::kLeaseContended));
}

TEST(Lease, AStaleWantIsIgnored) {
  Harness core;
  const TenantId tenant = core.admit();
  core.step(GateWanted{Harness::process(tenant), 0, 7});
  EXPECT_FALSE(core.open(tenant));
  core.step(GateWanted{Harness::process(tenant), 5, 1});
  EXPECT_FALSE(core.open(tenant));
}

TEST(Lease, AloneThereAreNoQuanta) {
  Harness core;
  const TenantId tenant = core.admit();
  core.want(tenant);
  core.pass(10 * kSecond);
  EXPECT_TRUE(core.open(tenant));
  EXPECT_EQ(core.epoch(tenant), 2U);
}

TEST(Lease, ContentionIsToldAndEndsTheSliceAtTheQuantum) {
  Harness core;
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.want(b);
  EXPECT_TRUE(core.has(a, protocol::kLeaseContended));
  EXPECT_EQ(core.epoch(a), 2U) << "the flag alone keeps the epoch";
  core.pass(9 * kMs);
  EXPECT_TRUE(core.open(a));
  core.pass(3 * kMs);
  EXPECT_FALSE(core.open(a));
  EXPECT_FALSE(core.open(b)) << "not before the drain";
  core.drain(a);
  EXPECT_TRUE(core.open(b));
}

TEST(Lease, WhatStandsInForTheFounderKeepsTheTenantAndItsPromise) {
  Harness core;
  const TenantId a = core.admit();
  core.step(FounderGone{a});
  core.step(FounderAdopted{a});
  core.step(ProcessGone{Harness::process(a), true});
  ASSERT_TRUE(core.state().tenants.contains(a)) << "the device still has memory of its process";
  core.step(core.ask(TenantClass::kExclusive, 0));
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kDrain);
  core.step(FounderGone{a});
  EXPECT_FALSE(core.state().tenants.contains(a));
}

TEST(Lease, AClosedSocketRevokesItAndTheDrainIsAwaited) {
  Harness core;
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  EXPECT_TRUE(core.open(a));
  core.step(ProcessDetached{Harness::process(a)});
  EXPECT_FALSE(core.open(a));
  core.want(b);
  core.pass(kMs);
  EXPECT_FALSE(core.open(b)) << "a has not drained";
  core.drain(a);
  EXPECT_TRUE(core.open(b));
  core.want(a);
  core.step(ProcessDetached{Harness::process(a)});
  core.pass(kSecond);
  EXPECT_FALSE(core.has(b, protocol::kLeaseContended)) << "who cannot ask does not wait";
  core.want(a);
  EXPECT_TRUE(core.has(b, protocol::kLeaseContended)) << "until it is back";
}

TEST(Lease, EveryProcessMustDrainOrDie) {
  Harness core;
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.step(ProcessJoined{a, 7});
  core.step(ProcessJoined{a, 8});
  core.want(a);
  core.want(b);
  core.pass(12 * kMs);
  core.drain(a);
  EXPECT_FALSE(core.open(b));
  core.step(Drained{7, 0, core.epoch(a) - 1});
  EXPECT_FALSE(core.open(b)) << "a drain of an older epoch does not count";
  core.step(Drained{7, 0, core.epoch(a)});
  EXPECT_FALSE(core.open(b));
  core.step(ProcessGone{8});
  EXPECT_TRUE(core.open(b));
}

TEST(Lease, AProcessThatJoinsAnOpenLeaseJoinsTheDrain) {
  Harness core;
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.step(ProcessJoined{a, 7});
  core.want(b);
  core.pass(12 * kMs);
  core.drain(a);
  EXPECT_FALSE(core.open(b));
  core.step(Drained{7, 0, core.epoch(a)});
  EXPECT_TRUE(core.open(b));
}

TEST(Lease, AProcessThatJoinsWhileClosingIsNotWaitedFor) {
  Harness core;
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.want(b);
  core.pass(12 * kMs);
  core.step(ProcessJoined{a, 7});
  core.drain(a);
  EXPECT_TRUE(core.open(b));
}

TEST(Lease, IdleGivesBackOnlyWhenOthersWait) {
  Harness core;
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.idle(a);
  EXPECT_TRUE(core.open(a));
  core.want(b);
  EXPECT_FALSE(core.open(a)) << "it had said that it was idle";
  core.drain(a);
  EXPECT_TRUE(core.open(b));
}

TEST(Lease, IdleTakesEveryActiveProcess) {
  Harness core;
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.step(ProcessJoined{a, 7});
  core.want(b);  // b holds while both processes of a come to wait
  core.want(a);
  core.step(GateWanted{7, 0, core.epoch(a)});
  core.pass(12 * kMs);
  core.drain(b);
  ASSERT_TRUE(core.open(a));
  core.want(b);
  core.idle(a);
  EXPECT_TRUE(core.open(a));
  core.step(GateIdle{7, 0, core.epoch(a)});
  EXPECT_FALSE(core.open(a));
}

TEST(Lease, TheDeathOfTheHolderPassesTheGpuOnAtOnce) {
  Harness core;
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.want(b);
  core.end(a);
  EXPECT_TRUE(core.open(b));
}

TEST(Lease, TheDeathOfAWaiterTakesTheContentionBack) {
  Harness core;
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.want(b);
  core.end(b);
  EXPECT_TRUE(core.open(a));
  EXPECT_FALSE(core.has(a, protocol::kLeaseContended));
  core.pass(kSecond);
  EXPECT_TRUE(core.open(a));
}

TEST(Lease, ALeaseWithoutProcessesIsGivenUp) {
  Harness core;
  const TenantId a = core.admit();
  core.want(a);
  core.step(ProcessGone{Harness::process(a)});
  EXPECT_FALSE(core.open(a));
  EXPECT_EQ(core.state().gpus[0]->holder, nullptr);
  EXPECT_TRUE(core.all<TenantEnded>().empty()) << "its founder lives";
}

TEST(Runaway, IsReportedOnceAndOthersGoOn) {
  Harness core;
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.want(b);
  core.pass(12 * kMs);
  ASSERT_FALSE(core.open(a));
  EXPECT_FALSE(core.open(b));
  core.pass(100 * kMs);
  EXPECT_TRUE(core.open(b));
  auto view = state_view(core.state(), core.now);
  EXPECT_EQ(view.gpus[0].overruns, 1U);
  EXPECT_EQ(view.tenants[0].runaway, 1);
  EXPECT_GE(view.gpus[0].lease_overrun_ns, 100U * kMs);
  core.want(a);
  core.pass(kSecond);
  EXPECT_FALSE(core.open(a)) << "a runaway gets nothing until it has drained";
  core.drain(a);
  EXPECT_EQ(state_view(core.state(), core.now).tenants[0].runaway, 0);
  core.pass(50 * kMs);
  EXPECT_TRUE(core.open(b)) << "half of the second was the runaway's";
  core.pass(200 * kMs);
  core.drain(b);
  EXPECT_TRUE(core.open(a)) << "it had not stopped wanting";
}

/// What is told of runaways while time passes, and when.
struct RunawayLog {
  explicit RunawayLog(Harness& h) : core(h) {}
  void pass(Nanos ns) {
    const Nanos end = core.now + ns;
    while (core.now < end) {
      const Nanos next = core.alarm() > core.now ? core.alarm() : kNever;  // else it has rung
      core.now = std::min(next, end);
      core.step(Tick{});
      for (const RunawaySeen& action : core.all<RunawaySeen>()) seen.emplace_back(core.now, action);
    }
  }
  std::size_t count(RunawayStep step) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(seen, [&](const auto& s) { return s.second.step == step; }));
  }
  Harness& core;
  std::vector<std::pair<Nanos, RunawaySeen>> seen;
};

TEST(Runaway, IsWarnedAndEndedOnceOthersHaveWaitedForItLongEnough) {
  Policy policy = policy_usual();
  policy.runaway_after_ns = 400 * kMs;
  Harness core(policy);
  const TenantId a = core.admit();
  core.want(a);
  core.want(core.admit());
  RunawayLog log(core);
  log.pass(12 * kMs);
  ASSERT_FALSE(core.open(a));
  const Nanos closed = core.state().tenants.at(a)->closed_at;
  log.pass(700 * kMs);
  ASSERT_EQ(log.seen.size(), 3U);
  const RunawayStep steps[] = {RunawayStep::kSeen, RunawayStep::kWarned, RunawayStep::kEnded};
  const Nanos at[] = {100 * kMs, 400 * kMs, 600 * kMs};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(log.seen[i].second.step, steps[i]);
    EXPECT_EQ(log.seen[i].second.tenant, a);
    EXPECT_EQ(log.seen[i].first - closed, at[i]);
    EXPECT_EQ(log.seen[i].second.overrun_ns, at[i]);
    EXPECT_EQ(log.seen[i].second.delayed_ns, at[i]);
  }
}

TEST(Runaway, ThatDelaysNobodyIsNotEnded) {
  Policy policy = policy_usual();
  policy.runaway_after_ns = 400 * kMs;
  Harness core(policy);
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.want(b);
  RunawayLog log(core);
  log.pass(200 * kMs);
  ASSERT_TRUE(core.open(b));
  core.idle(b);  // it is told that the GPU is contended, so it gives it back
  core.drain(b);
  log.pass(100 * kSecond);
  EXPECT_EQ(log.count(RunawayStep::kSeen), 1U);
  EXPECT_EQ(log.count(RunawayStep::kWarned), 0U) << "a night alone harms none";
  core.want(b);
  log.pass(kSecond);
  EXPECT_EQ(log.count(RunawayStep::kEnded), 1U);
}

TEST(Runaway, ThatDrainsAfterTheWarningIsSpared) {
  Policy policy = policy_usual();
  policy.runaway_after_ns = 400 * kMs;
  Harness core(policy);
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.want(b);
  RunawayLog log(core);
  log.pass(450 * kMs);
  ASSERT_EQ(log.count(RunawayStep::kWarned), 1U);
  core.drain(a);
  EXPECT_EQ(core.one<RunawaySeen>().step, RunawayStep::kSpared);
  EXPECT_EQ(core.one<RunawaySeen>().tenant, a);
  log.pass(kSecond);
  EXPECT_EQ(log.count(RunawayStep::kEnded), 0U) << "it has given its GPU back";
}

TEST(Runaway, ThatWasWarnedIsSparedByAPolicyThatOnlyReports) {
  Policy policy = policy_usual();
  policy.runaway_after_ns = 400 * kMs;
  Harness core(policy);
  core.want(core.admit());
  core.want(core.admit());
  RunawayLog log(core);
  log.pass(450 * kMs);
  ASSERT_EQ(log.count(RunawayStep::kWarned), 1U);
  policy.runaway = RunawayPolicy::kReport;
  core.step(PolicyChanged{policy});
  EXPECT_EQ(core.one<RunawaySeen>().step, RunawayStep::kSpared);
  log.pass(kSecond);
  EXPECT_EQ(log.count(RunawayStep::kEnded), 0U);
}

/// One more process registers while those that were killed end: their job lives on.
TEST(Runaway, OfWhichAProcessOutlivesTheKillIsEndedAgain) {
  Policy policy = policy_usual();
  policy.runaway_after_ns = 400 * kMs;
  Harness core(policy);
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.want(b);
  RunawayLog log(core);
  log.pass(700 * kMs);
  ASSERT_EQ(log.count(RunawayStep::kEnded), 1U);
  const ProcessId next = 1000;
  core.step(ProcessJoined{a, next});
  core.step(ProcessGone{Harness::process(a)});
  core.drain(b);
  core.step(GateWanted{next, 0, core.epoch(a)});
  for (int i = 0; i < 100 && !core.open(a); ++i) {
    log.pass(100 * kMs);
    if (core.open(b)) continue;
    core.drain(b);
    core.want(b);
  }
  ASSERT_TRUE(core.open(a));
  core.want(b);
  log.pass(2 * kSecond);
  EXPECT_EQ(log.count(RunawayStep::kSpared), 0U) << "each warning was followed by an end";
  EXPECT_GE(log.count(RunawayStep::kWarned), 2U);
  EXPECT_GE(log.count(RunawayStep::kEnded), 2U);
}

TEST(Runaway, IsOnlyReportedIfThatIsThePolicy) {
  Policy policy = policy_usual();
  policy.runaway = RunawayPolicy::kReport;
  Harness core(policy);
  const TenantId a = core.admit();
  core.want(a);
  core.want(core.admit());
  RunawayLog log(core);
  log.pass(60 * kSecond);
  EXPECT_EQ(log.seen.size(), 1U);
}

TEST(Runaway, IsChargedInFullAndLeavesItsDebtToItsUser) {
  Policy policy = policy_usual();
  policy.runaway_after_ns = kSecond;
  Harness core(policy);
  const auto ask = [&](std::uint32_t uid, std::uint32_t percent) {
    TenantAsked asked = core.ask();
    asked.uid = uid;
    asked.sm_percent = percent;
    asked.sm_mode = SmMode::kFixed;
    asked.sm_mode_given = true;
    return core.admit(asked);
  };
  const TenantId a = ask(1, 10);
  const TenantId b = ask(2, 50);
  core.want(a);
  core.want(b);
  core.pass(1200 * kMs);  // its process is killed
  core.step(FounderGone{a});
  core.step(ProcessGone{Harness::process(a), true});
  const TenantId other = ask(3, 10);
  const TenantId next = ask(1, 10);
  const auto tokens = [&](TenantId t) { return core.state().tenants.at(t)->shares[0].tokens_ns; };
  EXPECT_GT(tokens(other), 0) << "another user owes nothing";
  // 110 ms alone, then half of the time beside the other one, less what its share is of it.
  EXPECT_NEAR(tokens(next), -(0.11 + 0.5 * 1.09 - 0.1 * 1.2) * 1e9, 30e6);
  core.pass(kSecond);
  const double later = tokens(ask(1, 10));
  EXPECT_NEAR(later, tokens(next) + 0.1e9, 60e6) << "the clock pays it back, whoever is sent ahead";
}

TEST(Window, NarrowsWhileAnInferenceTenantIsAdmitted) {
  Policy policy = policy_usual();
  policy.classes[static_cast<std::size_t>(TenantClass::kBatch)].window_ns = 8 * kMs;
  policy.classes[static_cast<std::size_t>(TenantClass::kInference)].window_ns = 3 * kMs;
  Harness core(policy);
  const TenantId batch = core.admit();
  const TenantId other = core.admit();
  EXPECT_EQ(core.lease(batch).window_ns, 8 * kMs);
  core.want(batch);
  const std::uint32_t word = core.lease(batch).word;
  const TenantId inference = core.admit(TenantClass::kInference);
  EXPECT_EQ(core.lease(batch).window_ns, kMs);
  EXPECT_EQ(core.lease(batch).word, word) << "a window alone does not change the lease";
  EXPECT_EQ(core.lease(inference).window_ns, 3 * kMs);
  policy.inference_window_ns = 2 * kMs;
  core.step(PolicyChanged{policy});
  EXPECT_EQ(core.lease(batch).window_ns, 2 * kMs);
  core.end(inference);
  EXPECT_EQ(core.lease(batch).window_ns, 8 * kMs);
  EXPECT_EQ(core.lease(other).window_ns, 8 * kMs);
}

// What is in flight when another comes is drained in time, even if it takes twice as long as it
// was thought to.
TEST(Window, OfATenantThatIsAloneIsHalfOfTheDrainTimeout) {
  Policy policy = policy_usual();
  policy.classes[static_cast<std::size_t>(TenantClass::kBatch)].window_ns = 8 * kMs;
  policy.classes[static_cast<std::size_t>(TenantClass::kInference)].window_ns = 0;
  Harness core(policy);
  const TenantId first = core.admit();
  const Nanos alone = policy.drain_timeout_ns / 2;
  ASSERT_GT(alone, 8 * kMs);
  EXPECT_EQ(core.lease(first).window_ns, alone);
  const TenantId second = core.admit();
  EXPECT_EQ(core.lease(first).window_ns, 8 * kMs);
  EXPECT_EQ(core.lease(second).window_ns, 8 * kMs);
  core.end(first);
  EXPECT_EQ(core.lease(second).window_ns, alone);
  TenantAsked asked = core.ask();
  asked.window_ns = 2 * alone;
  const TenantId third = core.admit(asked);
  core.end(second);
  EXPECT_EQ(core.lease(third).window_ns, 2 * alone) << "never narrower than among others";
  core.end(third);
  EXPECT_EQ(core.lease(core.admit(TenantClass::kInference)).window_ns, 0) << "none is none";
}

TEST(Window, TheTenantsOwnIsUsedWhereItIsNarrower) {
  Harness core;
  TenantAsked asked = core.ask();
  asked.window_ns = 500 * kUs;
  const TenantId batch = core.admit(asked);
  core.admit(TenantClass::kInference);
  EXPECT_EQ(core.lease(batch).window_ns, 500 * kUs);
}

}  // namespace
// The word has 29 bits for the epoch. A server opened and closed a hundred times a second gets
// there in a month, and must go on being served.
TEST(Lease, EpochsGoRound) {
  Harness h;
  const TenantId a = h.admit();
  h.state().tenants.at(a)->shares[0].epoch = protocol::kLeaseEpochMax - 1;
  h.step(PolicyChanged{policy_usual()});  // tells the word again
  ASSERT_EQ(h.epoch(a), protocol::kLeaseEpochMax - 1);
  for (int round = 0; round < 3; ++round) {
    h.want(a);
    ASSERT_TRUE(h.open(a)) << round;
    const TenantId b = h.admit();
    h.want(b);
    h.idle(a);
    ASSERT_FALSE(h.open(a)) << round;
    EXPECT_NE(h.epoch(a), 0u) << "0 is what a slot says that never drained";
    h.drain(a);
    ASSERT_TRUE(h.open(b)) << round;
    h.end(b);
  }
}

/// A gang whose budget keeps it out until after the warning, when the others leave it its GPUs.
TEST(Runaway, OfAGangWhoseTurnComesAfterTheWarningIsSpared) {
  Policy policy = policy_usual();
  policy.runaway_after_ns = 400 * kMs;
  Harness core(policy, 2);
  TenantAsked asked = core.ask();
  asked.gpu_count = 2;
  asked.sm_mode = SmMode::kFixed;
  asked.sm_mode_given = true;
  asked.sm_percent = 22;
  const TenantId gang = core.admit(asked);
  asked = core.ask();
  asked.pinned = {uuid_of(1)};
  const TenantId single = core.admit(asked);
  core.want(gang, 0);
  core.want(gang, 1);
  core.want(single);
  RunawayLog log(core);
  log.pass(150 * kMs);
  ASSERT_EQ(log.count(RunawayStep::kSeen), 2U);
  core.want(gang, 0);
  log.pass(400 * kMs);
  ASSERT_EQ(log.count(RunawayStep::kWarned), 2U);
  ASSERT_TRUE(core.open(single));
  core.idle(single);
  core.drain(single);
  ASSERT_TRUE(core.open(gang, 0)) << "its turn has come";
  EXPECT_EQ(core.one<RunawaySeen>().step, RunawayStep::kSpared);
  log.pass(kSecond);
  EXPECT_EQ(log.count(RunawayStep::kEnded), 0U);
}

}  // namespace sluice::core

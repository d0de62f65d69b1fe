// Who is admitted, who waits with which reason, who is refused with which words.
#include <gmock/gmock.h>

#include "broker/core/admission.h"
#include "broker/core/backfill.h"
#include "tests/broker/core/harness.h"

namespace sluice::core {
namespace {

using ::testing::HasSubstr;

TEST(Admission, GivesWhatWasAskedAndIntroducesAClosedLease) {
  Harness core;
  TenantAsked asked = core.ask(TenantClass::kBatch, 512 * kMiB);
  asked.sm_percent = 25;
  asked.memory_min = 128 * kMiB;
  core.step(asked);
  const auto admitted = core.one<TenantAdmitted>();
  EXPECT_EQ(admitted.request, asked.request);
  EXPECT_EQ(admitted.memory_max, 512 * kMiB);
  EXPECT_EQ(admitted.memory_min, 128 * kMiB);
  EXPECT_EQ(admitted.sm_percent, 25U);
  ASSERT_EQ(admitted.gpus.size(), 1U);
  EXPECT_EQ(admitted.gpus[0], uuid_of(1));
  const auto lease = core.one<LeaseSet>();
  EXPECT_EQ(lease.word, protocol::lease_word(1, 0));
}

TEST(Admission, ClassDefaultsFillWhatWasNotAsked) {
  Policy policy = policy_usual();
  policy.classes[static_cast<std::size_t>(TenantClass::kDebug)] = {2 * kMs, 20, SmMode::kFixed,
                                                                   128 * kMiB};
  Harness core(policy);
  core.admit();
  core.step(core.ask(TenantClass::kDebug, 0));
  const auto admitted = core.one<TenantAdmitted>();
  EXPECT_EQ(admitted.memory_max, 128 * kMiB);
  EXPECT_EQ(admitted.sm_percent, 20U);
  EXPECT_EQ(admitted.sm_mode, SmMode::kFixed);
  EXPECT_EQ(core.lease(admitted.tenant).window_ns, 2 * kMs);
}

TEST(Admission, QuotaBelowContextNamesTheMinimum) {
  Harness core;
  core.step(core.ask(TenantClass::kBatch, 16 * kMiB));
  const auto refused = core.one<TenantRefused>();
  EXPECT_EQ(refused.code, RefusalCode::kMemoryBelowContext);
  EXPECT_EQ(refused.minimum, 32 * kMiB);
  EXPECT_EQ(refused.text,
            "a quota of 16 MiB is less than what a context alone takes on this GPU (32 MiB), so no "
            "program could "
            "start; ask for at least 32 MiB");
}

TEST(Admission, NoQuotaAndNoDefaultIsRefused) {
  Harness core;
  core.step(core.ask(TenantClass::kBatch, 0));
  EXPECT_EQ(core.one<TenantRefused>().code, RefusalCode::kMemoryBelowContext);
  EXPECT_THAT(core.one<TenantRefused>().text, HasSubstr("class batch has no default"));
}

TEST(Admission, LargerThanAnyGpuIsRefusedNotQueued) {
  Harness core;
  core.step(core.ask(TenantClass::kBatch, 5 * kGiB));
  const auto refused = core.one<TenantRefused>();
  EXPECT_EQ(refused.code, RefusalCode::kMemoryTooLarge);
  EXPECT_EQ(refused.text,
            "a quota of 5 GiB is more than any GPU here can promise (4 GiB), so waiting would not "
            "help; ask for at "
            "most 4 GiB");
}

TEST(Admission, UnknownAndDoubledPinsAreRefused) {
  Harness core;
  TenantAsked asked = core.ask();
  asked.pinned = {uuid_of(9)};
  core.step(asked);
  EXPECT_EQ(core.one<TenantRefused>().code, RefusalCode::kNoSuchGpu);
  EXPECT_THAT(core.one<TenantRefused>().text,
              HasSubstr("GPU-09000000-0000-0000-0000-000000000000"));
  asked = core.ask();
  asked.pinned = {uuid_of(1), uuid_of(1)};
  core.step(asked);
  EXPECT_THAT(core.one<TenantRefused>().text, HasSubstr("named twice"));
}

TEST(Admission, ShapeRefusals) {
  Harness core;
  TenantAsked asked = core.ask();
  asked.gpu_count = 2;
  core.step(asked);
  EXPECT_EQ(core.one<TenantRefused>().code, RefusalCode::kTooManyGpus);
  EXPECT_EQ(core.one<TenantRefused>().text,
            "2 GPUs asked for, but this machine has 1 GPU; ask for at most 1");
  asked = core.ask();
  asked.sm_percent = 101;
  core.step(asked);
  EXPECT_THAT(core.one<TenantRefused>().text, HasSubstr("101 %"));
  asked = core.ask();
  asked.memory_min = 300 * kMiB;
  core.step(asked);
  EXPECT_THAT(core.one<TenantRefused>().text, HasSubstr("300 MiB"));
  Harness empty(policy_usual(), 0);
  empty.step(empty.ask());
  EXPECT_EQ(empty.one<TenantRefused>().code, RefusalCode::kNoSuchGpu);
}

TEST(Admission, MinimumNeverExceedsCapacityAndMaximumTheOversellLimit) {
  Policy policy = policy_usual();
  policy.oversell_memory = 1.5;
  policy.swap = true;
  Harness core(policy);
  TenantAsked asked = core.ask(TenantClass::kBatch, 3 * kGiB);
  asked.memory_min = kGiB;
  asked.swap = true;
  core.step(asked);
  EXPECT_TRUE(core.one<TenantAdmitted>().swap);
  asked.request = 50;
  core.step(asked);  // min 2, and 2 more for either to fill its quota; max 6 of 6
  EXPECT_EQ(core.all<TenantAdmitted>().size(), 1U);
  asked.request = 51;
  asked.memory_max = 64 * kMiB;
  asked.memory_min = 32 * kMiB;
  core.step(asked);
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kResources);
  EXPECT_EQ(core.one<TenantQueued>().promised, 2 * kGiB);
  EXPECT_EQ(core.one<TenantQueued>().capacity, 4 * kGiB);
}

TEST(Admission, MemoryThatStaysIsPromisedWhole) {
  Policy policy = policy_usual();
  policy.oversell_memory = 4;
  Harness core(policy);
  TenantAsked asked = core.ask(TenantClass::kBatch, 3 * kGiB);
  asked.memory_min = kGiB;
  asked.swap = true;  // but the policy has no swap
  core.step(asked);
  EXPECT_FALSE(core.one<TenantAdmitted>().swap);
  EXPECT_EQ(core.one<TenantAdmitted>().memory_min, kGiB);
  asked.request = 50;
  core.step(asked);
  EXPECT_EQ(core.one<TenantQueued>().promised, 3 * kGiB);
}

TEST(Admission, ASwappableQuotaCanBeFilledBesideWhatIsPromised) {
  Policy policy = policy_usual();
  policy.oversell_memory = 4;
  policy.swap = true;
  Harness core(policy);  // 4 GiB
  TenantAsked asked = core.ask(TenantClass::kBatch, 3 * kGiB);
  asked.swap = true;
  core.step(asked);
  EXPECT_EQ(core.one<TenantAdmitted>().memory_min, 32 * kMiB) << "by default, a context";
  const TenantAsked stays = core.ask(TenantClass::kBatch, 2 * kGiB);
  core.step(stays);
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kResources)
      << "the other could never hold its 3 GiB beside these 2";
  core.step(core.ask(TenantClass::kBatch, kGiB / 2));
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kPriority);
  core.step(RequestGone{stays.request});
  EXPECT_EQ(core.all<TenantAdmitted>().size(), 1U);
  for (int i = 0; i < 5; ++i) {
    asked = core.ask(TenantClass::kBatch, 2 * kGiB);
    asked.swap = true;
    core.step(asked);
    EXPECT_EQ(core.all<TenantAdmitted>().size(), 1U) << "they take turns";
  }
}

TEST(Admission, PackedTenantsFillTheFullestGpuThatHasRoom) {
  Policy policy = policy_usual();
  policy.classes[static_cast<std::size_t>(TenantClass::kBatch)].placement = PlacementRule::kPack;
  Harness core(policy, 2);
  TenantAsked asked = core.ask(TenantClass::kBatch, 3 * kGiB);
  asked.pinned = {uuid_of(2)};
  core.step(asked);
  core.step(core.ask(TenantClass::kBatch, kGiB));
  EXPECT_EQ(core.one<TenantAdmitted>().gpus[0], uuid_of(2));
  core.step(core.ask(TenantClass::kBatch, kGiB));
  EXPECT_EQ(core.one<TenantAdmitted>().gpus[0], uuid_of(1));
}

TEST(Admission, QueueIsFirstComeFirstServedAndAnnouncesChanges) {
  Harness core;
  const TenantId first = core.admit(core.ask(TenantClass::kBatch, 4 * kGiB));
  const TenantAsked second = core.ask(TenantClass::kBatch, 3 * kGiB);
  const TenantAsked third = core.ask(TenantClass::kBatch, 3 * kGiB);
  const TenantAsked small = core.ask(TenantClass::kBatch, 64 * kMiB);
  core.step(second);
  EXPECT_EQ(core.one<TenantQueued>().position, 1U);
  core.step(third);
  EXPECT_EQ(core.one<TenantQueued>().position, 2U);
  EXPECT_EQ(core.one<TenantQueued>().ahead, second.name);
  core.step(small);
  EXPECT_EQ(core.one<TenantQueued>().position, 3U);
  core.end(first);
  EXPECT_EQ(core.one<TenantAdmitted>().request, second.request);
  EXPECT_TRUE(core.all<TenantQueued>().empty()) << "who else fits is not known yet";
  core.pass(1);
  const auto moved = core.all<TenantQueued>();
  ASSERT_EQ(moved.size(), 2U);
  EXPECT_EQ(moved[0].position, 1U);
  EXPECT_EQ(moved[1].position, 2U);
  EXPECT_EQ(moved[1].reason, QueueReason::kPriority)
      << "it would fit, but would take the room of the one ahead";
}

TEST(Admission, BackfillUsesOnlyGpusThatNobodyAheadWaitsFor) {
  Harness core(policy_usual(), 2);
  TenantAsked asked = core.ask(TenantClass::kBatch, 3 * kGiB);
  asked.pinned = {uuid_of(1)};
  core.step(asked);
  asked = core.ask(TenantClass::kBatch, 2 * kGiB);
  asked.pinned = {uuid_of(1)};
  core.step(asked);
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kResources);
  core.step(core.ask(TenantClass::kBatch, 512 * kMiB));
  EXPECT_EQ(core.one<TenantAdmitted>().gpus[0], uuid_of(2));
  asked = core.ask(TenantClass::kBatch, 512 * kMiB);
  asked.pinned = {uuid_of(1)};
  core.step(asked);
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kPriority);
}

TEST(Admission, GangWaitsForEnoughGpusAtTheSameTime) {
  Harness core(policy_usual(), 2);
  TenantAsked asked = core.ask(TenantClass::kBatch, 3 * kGiB);
  core.admit(asked);
  asked = core.ask(TenantClass::kBatch, 2 * kGiB);
  asked.gpu_count = 2;
  core.step(asked);
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kGang);
}

TEST(Admission, NoWaitAndDryRun) {
  Harness core;
  core.admit(core.ask(TenantClass::kBatch, 4 * kGiB));
  TenantAsked asked = core.ask(TenantClass::kBatch, kGiB);
  asked.no_wait = true;
  core.step(asked);
  EXPECT_EQ(core.one<TenantRefused>().code, RefusalCode::kNoRoom);
  EXPECT_EQ(core.one<TenantRefused>().text,
            "it would have to wait, 1st in line: the quotas on GPU 0 add up to 4 GiB of "
            "4 GiB, and this job asks for 1 GiB; job 1 (job-1) of user 1000 has all of it: 4 "
            "GiB{idle 1}; allow waiting, or ask for less");
  asked.no_wait = false;
  asked.dry_run = true;
  core.step(asked);
  EXPECT_THAT(core.one<TenantRefused>().text, HasSubstr("nothing was changed"));
  EXPECT_TRUE(core.state().queue.empty());
  Harness free;
  asked.request = 1;
  free.step(asked);
  EXPECT_TRUE(free.one<TenantAdmitted>().dry_run);
  EXPECT_TRUE(free.state().tenants.empty());
}

TEST(Admission, WaitingTooLongIsRefusedWithTheReason) {
  Harness core;
  core.admit(core.ask(TenantClass::kBatch, 4 * kGiB));
  TenantAsked asked = core.ask(TenantClass::kBatch, kGiB);
  asked.wait_ns_max = 2 * kSecond;
  core.step(asked);
  EXPECT_EQ(core.alarm(), core.now + 2 * kSecond);
  core.pass(2 * kSecond);
  EXPECT_EQ(core.one<TenantRefused>().code, RefusalCode::kTimeout);
  EXPECT_EQ(
      core.one<TenantRefused>().text,
      "it waited 2 s and is still 1st in line: the quotas on GPU 0 add up to 4 "
      "GiB of 4 GiB, and this job asks for 1 GiB; job 1 (job-1) of user 1000 has all of it: 4 "
      "GiB{idle 1}; wait longer, or ask for less");
}

TEST(Admission, UserLimitHoldsOneUserBackAndNobodyElse) {
  Policy policy = policy_usual();
  policy.tenants_per_user_max = 1;
  Harness core(policy);
  const TenantId first = core.admit();
  core.step(core.ask());
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kUserLimit);
  TenantAsked other = core.ask();
  other.uid = 1001;
  core.step(other);
  EXPECT_EQ(core.all<TenantAdmitted>().size(), 1U);
  TenantAsked third = core.ask();
  core.step(third);
  EXPECT_EQ(core.one<TenantRefused>().code, RefusalCode::kUserLimit);
  third.no_wait = true;
  core.step(third);
  EXPECT_THAT(core.one<TenantRefused>().text,
              HasSubstr("user 1000 has 1 job, as many as one user may have"));
  EXPECT_EQ(core.one<TenantRefused>().code, RefusalCode::kNoRoom) << "sluice run ends with 124";
  core.end(first);
  EXPECT_EQ(core.all<TenantAdmitted>().size(), 1U);
}

TEST(Admission, BrokerWideLimit) {
  Policy policy = policy_usual();
  policy.tenants_max = 1;
  Harness core(policy);
  core.admit();
  core.step(core.ask());
  EXPECT_EQ(core.one<TenantRefused>().code, RefusalCode::kNoRoom);
}

TEST(Admission, AGoneAskerLeavesTheQueue) {
  Harness core;
  const TenantId first = core.admit(core.ask(TenantClass::kBatch, 4 * kGiB));
  const TenantAsked waits = core.ask(TenantClass::kBatch, kGiB);
  core.step(waits);
  core.step(RequestGone{waits.request});
  core.end(first);
  EXPECT_TRUE(core.all<TenantAdmitted>().empty());
  EXPECT_TRUE(core.state().users.empty());
}

TEST(Exclusive, GetsEmptyGpusWholeAndOpenAtOnce) {
  Harness core(policy_usual(), 2);
  TenantAsked asked = core.ask(TenantClass::kExclusive, 0);
  asked.gpu_count = 2;
  const TenantId tenant = core.admit(asked);
  for (std::uint32_t index : {0U, 1U}) {
    EXPECT_TRUE(core.open(tenant, index));
    EXPECT_TRUE(core.has(tenant, protocol::kLeaseExclusive, index));
    EXPECT_EQ(core.lease(tenant, index).window_ns, 0);
  }
  core.step(core.ask());
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kDrain);
  core.end(tenant);
  EXPECT_EQ(core.all<TenantAdmitted>().size(), 1U);
}

TEST(Exclusive, WhileItWaitsItsGpusDrainEmpty) {
  Harness core(policy_usual(), 2);
  TenantAsked pinned = core.ask();
  pinned.pinned = {uuid_of(1)};
  const TenantId shared = core.admit(pinned);
  pinned = core.ask();
  pinned.pinned = {uuid_of(2)};
  core.admit(pinned);
  pinned = core.ask();
  pinned.pinned = {uuid_of(2)};
  core.admit(pinned);
  TenantAsked whole = core.ask(TenantClass::kExclusive, 0);
  whole.uid = 1001;
  core.step(whole);
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kDrain);
  core.pass(kHoldAfterNs);
  EXPECT_EQ(state_view(core.state(), core.now).gpus[0].draining, 1)
      << "the GPU with fewest tenants";
  core.step(core.ask());
  EXPECT_EQ(core.one<TenantAdmitted>().gpus[0], uuid_of(2))
      << "no new tenant onto the GPU being emptied";
  core.end(shared);
  EXPECT_EQ(core.one<TenantAdmitted>().request, whole.request);
}

TEST(Exclusive, ReleaseHandsBackAfterTheDrain) {
  Harness core;
  const TenantId tenant = core.admit(core.ask(TenantClass::kExclusive, 0));
  const TenantAsked next = core.ask();
  core.step(next);
  core.step(JobReleased{tenant});
  EXPECT_FALSE(core.open(tenant));
  EXPECT_TRUE(core.all<TenantAdmitted>().empty());
  core.drain(tenant);
  EXPECT_EQ(core.one<TenantAdmitted>().request, next.request);
  core.want(tenant);
  EXPECT_FALSE(core.open(tenant)) << "over is over";
  core.end(tenant);
  EXPECT_EQ(core.one<TenantEnded>().tenant, tenant);
}

TEST(Exclusive, TheLossOfARankIsToldAndByPolicyTheEndOfTheOthers) {
  for (const RankLoss rule : {RankLoss::kKeep, RankLoss::kEnd}) {
    Policy policy = policy_usual();
    policy.rank_loss = rule;
    Harness core(policy, 2);
    const TenantId whole = core.admit(core.ask(TenantClass::kExclusive, 0));
    const TenantId shared = core.admit();
    core.step(ProcessJoined{whole, 7});
    core.step(ProcessJoined{whole, 8});
    core.step(ProcessJoined{shared, 9});
    core.step(ProcessGone{8, false});
    EXPECT_TRUE(core.all<RankLost>().empty()) << "it ended in good order";
    core.step(ProcessGone{9, true});
    EXPECT_TRUE(core.all<RankLost>().empty()) << "of a job that shares";
    core.step(ProcessGone{7, true});
    EXPECT_EQ(core.one<RankLost>().tenant, whole);
    EXPECT_EQ(core.one<RankLost>().end, rule == RankLoss::kEnd);
    EXPECT_TRUE(core.open(whole)) << "those that live have the GPUs";
    core.step(ProcessGone{Harness::process(whole), true});
    EXPECT_TRUE(core.all<RankLost>().empty()) << "nobody is left to be told";
  }
}

TEST(Deaths, FounderAndAllProcessesGoneEndsATenant) {
  Harness core;
  const TenantId tenant = core.admit();
  core.step(ProcessJoined{tenant, 7});
  core.step(FounderGone{tenant});
  core.step(ProcessGone{Harness::process(tenant)});
  EXPECT_TRUE(core.all<TenantEnded>().empty());
  core.step(ProcessGone{7});
  EXPECT_EQ(core.one<TenantEnded>().tenant, tenant);
  EXPECT_TRUE(core.state().tenants.empty());
  EXPECT_TRUE(core.state().users.empty());
  EXPECT_EQ(core.state().gpus[0]->promised_min, 0U);
}

TEST(Deaths, UnknownNamesAreIgnored) {
  Harness core;
  core.step(FounderGone{99});
  core.step(ProcessGone{99});
  core.step(ProcessJoined{99, 1});
  core.step(GateWanted{99, 0, 1});
  core.step(Drained{99, 3, 1});
  core.step(UsageSeen{99, 0, 1});
  core.step(JobReleased{99});
  core.step(RequestGone{99});
  EXPECT_TRUE(core.state().processes.empty());
}

TEST(Admission, PolicyChangeAdmitsWhoFitsNow) {
  Policy policy = policy_usual();
  policy.swap = true;
  Harness core(policy);
  TenantAsked asked = core.ask(TenantClass::kBatch, 3 * kGiB);
  asked.memory_min = kGiB;
  asked.swap = true;
  core.admit(asked);
  asked.request = 77;
  core.step(asked);
  EXPECT_EQ(core.all<TenantQueued>().size(), 1U);
  policy.oversell_memory = 2;
  core.step(PolicyChanged{policy});
  EXPECT_EQ(core.one<TenantAdmitted>().request, 77U);
}

/// A line whose requests each fit, behind a tenant that has the whole GPU: 40 of them, of more
/// kinds than a glance remembers, of which 35 fit beside each other.
struct LongLine {
  LongLine() : h(policy()) {
    first = h.admit(h.ask(TenantClass::kBatch, 4 * kGiB));
    for (Bytes i = 0; i < 40; ++i) {
      h.step(h.ask(TenantClass::kBatch, (100 + i) * kMiB));
      requests.push_back(h.one<TenantQueued>().request);
    }
  }
  static Policy policy() {
    Policy policy = policy_usual();
    policy.tenants_per_user_max = 100;
    return policy;
  }
  /// One step: what came of it, which is never more than a step may do.
  void take(std::size_t own_notes = 0) {
    EXPECT_LE(h.all<TenantAdmitted>().size(), kAdmissionsPerStep);
    EXPECT_LE(h.all<TenantQueued>().size(), kNotesPerStep + own_notes);
    for (const TenantAdmitted& action : h.all<TenantAdmitted>()) {
      admitted.push_back(action.request);
      told.erase(action.request);
    }
    for (const TenantQueued& action : h.all<TenantQueued>()) told[action.request] = action;
  }
  /// The steps that follow at once.
  void settle() {
    for (int i = 0; h.alarm() <= h.now + 1; ++i) {
      ASSERT_LT(i, 100);
      h.pass(1);
      invariants_check(h.state(), h.now);
      take();
    }
  }
  Harness h;
  TenantId first = 0;
  std::vector<RequestId> requests;
  std::vector<RequestId> admitted;
  std::map<RequestId, TenantQueued> told;
};

TEST(LongQueue, OneEndAdmitsAllThatFitAndTellsTheOthersWhereTheyStand) {
  LongLine line;
  line.h.end(line.first);
  line.take();
  line.settle();
  ASSERT_EQ(line.admitted.size(), 35U) << "100 + ... + 134 MiB are 4095";
  for (std::size_t i = 0; i < 35; ++i) EXPECT_EQ(line.admitted[i], line.requests[i]);
  ASSERT_EQ(line.told.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    const TenantQueued& queued = line.told.at(line.requests[35 + i]);
    EXPECT_EQ(queued.position, i + 1);
    EXPECT_EQ(queued.ahead, i == 0 ? "" : "job-" + std::to_string(36 + i));
    EXPECT_EQ(queued.promised, line.h.state().gpus[0]->promised_min);
  }
}

// What one step leaves to the next is still in order: nobody passes those who were not looked at.
TEST(LongQueue, NobodyPassesThoseWhoWereNotLookedAtYet) {
  LongLine line;
  line.h.end(line.first);
  line.take();
  ASSERT_EQ(line.admitted.size(), kAdmissionsPerStep);
  TenantAsked late = line.h.ask(TenantClass::kBatch, 100 * kMiB);
  line.h.step(late);
  line.take(1);
  EXPECT_EQ(line.told.count(late.request), 1U) << "there is room, but not for who comes last";
  line.settle();
  ASSERT_EQ(line.admitted.size(), 35U);
  for (std::size_t i = 0; i < 35; ++i) EXPECT_EQ(line.admitted[i], line.requests[i]);
  EXPECT_EQ(line.told.at(late.request).position, 6U);
}

}  // namespace
}  // namespace sluice::core

// Tenants taken over from a broker that died, and limits that change while a tenant runs.
#include <gmock/gmock.h>

#include "harness.h"

namespace sluice::core {
namespace {

using protocol::SnapshotTenantGpu;

TenantRestored restored(TenantId tenant, Bytes memory = kGiB,
                        std::vector<GpuUuid> gpus = {uuid_of(1)}) {
  TenantRestored event;
  event.tenant = tenant;
  event.uid = 1000;
  event.memory_max = event.memory_min = memory;
  event.gpus = std::move(gpus);
  event.name = "old";
  return event;
}

TenantRestored whole(TenantId tenant, std::vector<GpuUuid> gpus = {uuid_of(1)}) {
  TenantRestored event = restored(tenant, 4 * kGiB, std::move(gpus));
  event.tenant_class = TenantClass::kExclusive;
  return event;
}

TEST(Restore, KeepsNumberPromiseAndGpu) {
  Harness h(policy_usual(), 2);
  TenantRestored event = restored(41, kGiB, {uuid_of(2)});
  event.memory_min = kGiB / 2;
  event.sm_percent = 30;
  event.admitted_at = 5;
  h.step(event);
  const LimitsSet limits = h.one<LimitsSet>();
  EXPECT_EQ(limits.tenant, 41U);
  EXPECT_EQ(limits.memory_max, kGiB);
  const View view = state_view(h.state(), h.now);
  ASSERT_EQ(view.tenants.size(), 1U);
  EXPECT_EQ(view.tenants[0].tenant, 41U);
  EXPECT_EQ(view.tenants[0].admitted_ns, 5U);
  EXPECT_EQ(view.gpus[0].promised_bytes, 0U);
  EXPECT_EQ(view.gpus[1].promised_bytes, kGiB) << "what it holds stays where it is";
  EXPECT_EQ(view.gpus[1].promised_max_bytes, kGiB);
  EXPECT_EQ(view.tenant_gpus[0].sm_percent, 30U);
  EXPECT_FALSE(h.open(41)) << "a lease is asked for anew";
}

TEST(Restore, AReleasedJobThatIsOutNeedsNoRoom) {
  Harness h;
  h.step(restored(40, 4 * kGiB));
  TenantRestored event = restored(41);
  event.swap = event.swapped = event.released = true;
  h.step(event);
  const View view = state_view(h.state(), h.now);
  ASSERT_EQ(view.tenants.size(), 2U);
  EXPECT_EQ(view.tenant_gpus[1].memory_min_bytes, kGiB) << "it lost nothing to the other";
  EXPECT_EQ(view.gpus[0].promised_bytes, 4 * kGiB);
}

TEST(Restore, NobodyIsAdmittedIntoItsMemory) {
  Harness h;
  h.step(restored(3, 3 * kGiB));
  TenantAsked asked = h.ask(TenantClass::kBatch, 2 * kGiB);
  asked.no_wait = true;
  h.step(asked);
  EXPECT_EQ(h.one<TenantRefused>().code, RefusalCode::kNoRoom);
  h.step(FounderGone{3});
  EXPECT_THAT(h.all<TenantEnded>(), testing::SizeIs(1));
  asked.request++;
  h.step(asked);
  EXPECT_NE(h.one<TenantAdmitted>().tenant, 0U);
}

TEST(Restore, NumbersAreNeverGivenTwice) {
  Harness h;
  h.step(restored(7));
  EXPECT_EQ(h.admit(), 8U);
  h.step(TenantsNumbered{100});
  EXPECT_EQ(h.admit(), 100U);
  h.step(TenantsNumbered{50});
  EXPECT_EQ(h.admit(), 101U);
}

TEST(Restore, TheSameOneTwiceIsOnce) {
  Harness h;
  h.step(restored(7));
  h.step(restored(7));
  EXPECT_EQ(state_view(h.state(), h.now).gpus[0].promised_bytes, kGiB);
}

TEST(Restore, LivesByItsProcessesOnceTheFounderIsGone) {
  Harness h;
  h.step(restored(7));
  h.step(ProcessJoined{7, 107});
  h.step(FounderGone{7});
  EXPECT_TRUE(h.all<TenantEnded>().empty());
  h.want(7);
  EXPECT_TRUE(h.open(7));
  h.step(ProcessGone{107});
  EXPECT_THAT(h.all<TenantEnded>(), testing::SizeIs(1));
}

TEST(Restore, TheQueueAndTheUserLimitDoNotConcernIt) {
  Policy policy = policy_usual();
  policy.tenants_per_user_max = 1;
  policy.tenants_max = 1;
  Harness h(policy);
  h.step(restored(1));
  h.step(restored(2));
  EXPECT_EQ(state_view(h.state(), h.now).tenants.size(), 2U);
}

TEST(Restore, WhatTheGpuHasNoLongerIsCutFromTheGuarantee) {
  Harness h;  // 4 GiB
  h.step(restored(1, 3 * kGiB));
  h.step(restored(2, 2 * kGiB));
  const LimitsSet limits = h.one<LimitsSet>();
  EXPECT_EQ(limits.memory_max, 2 * kGiB);
  EXPECT_EQ(limits.memory_min, kGiB);
  h.step(restored(3, 9 * kGiB));
  EXPECT_EQ(h.one<LimitsSet>().memory_max, 4 * kGiB) << "no quota beyond the GPU";
}

TEST(Restore, AGpuThatIsGoneEndsIt) {
  Harness h;
  h.step(restored(1, kGiB, {uuid_of(1), uuid_of(9)}));
  EXPECT_EQ(h.one<TenantEnded>().tenant, 1U);
  h.step(restored(2, kGiB, {uuid_of(1), uuid_of(1)}));
  EXPECT_EQ(h.one<TenantEnded>().tenant, 2U);
  h.step(restored(3, kGiB, {}));
  EXPECT_EQ(h.one<TenantEnded>().tenant, 3U);
  EXPECT_TRUE(state_view(h.state(), h.now).tenants.empty());
}

TEST(Restore, WholeGpusAreOpenAtOnceAndHaveNoCompany) {
  Harness h(policy_usual(), 2);
  h.step(whole(5, {uuid_of(1), uuid_of(2)}));
  EXPECT_TRUE(h.open(5, 0) && h.open(5, 1));
  EXPECT_TRUE(h.has(5, protocol::kLeaseExclusive));
  h.step(restored(6));
  EXPECT_EQ(h.one<TenantEnded>().tenant, 6U);
  Harness other;
  other.step(restored(6));
  other.step(whole(7));
  EXPECT_EQ(other.one<TenantEnded>().tenant, 7U);
}

TEST(Restore, AReleasedOneStaysWithoutItsGpus) {
  Harness h;
  TenantRestored event = whole(5);
  event.released = true;
  h.step(event);
  EXPECT_FALSE(h.open(5));
  EXPECT_EQ(state_view(h.state(), h.now).gpus[0].promised_bytes, 0U);
  EXPECT_NE(h.admit(), 0U);
  h.step(FounderGone{5});
  EXPECT_EQ(h.one<TenantEnded>().tenant, 5U);
}

TEST(Restore, AnInferenceTenantNarrowsTheWindowsOfTheOthers) {
  Policy policy = policy_usual();
  policy.classes[static_cast<std::size_t>(TenantClass::kBatch)].window_ns = 20 * kMs;
  Harness h(policy);
  h.step(restored(1));
  h.step(restored(3));
  EXPECT_EQ(h.lease(1).window_ns, 20 * kMs);
  TenantRestored event = restored(2);
  event.tenant_class = TenantClass::kInference;
  h.step(event);
  EXPECT_EQ(h.lease(1).window_ns, kMs);
}

TEST(Restore, WhatIsOutWaitsForItsProcesses) {
  using protocol::kHoldIn, protocol::kHoldOut, protocol::kHoldSet;
  Policy policy = policy_usual();
  policy.swap = true;
  Harness h(policy);
  TenantRestored event = restored(1);
  event.swap = event.swapped = true;
  h.step(event);
  h.pass(10 * kSecond);
  EXPECT_EQ(h.hold(1) & 7U, kHoldSet | kHoldOut) << "nobody is there who could bring it back";
  h.step(ProcessJoined{1, h.process(1)});
  h.pass(kSecond);
  EXPECT_EQ(h.hold(1) & 7U, kHoldSet | kHoldOut) << "it has not said that it stands still";
  h.step(HoldAcked{h.process(1), 0, protocol::hold_epoch(h.hold(1))});
  h.step(MemorySeen{1, 0, 100 * kMiB, 60 * kMiB, 60 * kMiB});
  h.step(MoveDone{h.process(1), 0, h.hold(1), 0, 0, 0});
  h.pass(kSecond);
  EXPECT_EQ(h.hold(1) & 7U, kHoldSet | kHoldIn) << "there is room";
  h.step(MemorySeen{1, 0, 100 * kMiB, 60 * kMiB, 0});
  h.step(MoveDone{h.process(1), 0, h.hold(1), 0, 60 * kMiB, 0});
  EXPECT_EQ(h.hold(1) & 7U, 0U);
}

LimitsChanged limits(TenantId tenant, Bytes max, Bytes min, std::uint32_t percent = 100) {
  return {tenant, percent, max, min};
}

TEST(Limits, LoweredAtOnceAndTheRoomIsThere) {
  Harness h;
  const TenantId tenant = h.admit(h.ask(TenantClass::kBatch, 3 * kGiB));
  h.step(h.ask(TenantClass::kBatch, 2 * kGiB));
  EXPECT_EQ(h.all<TenantQueued>().size(), 1U);
  h.step(limits(tenant, kGiB, kGiB, 40));
  const LimitsSet set = h.one<LimitsSet>();
  EXPECT_EQ(set.memory_max, kGiB);
  EXPECT_EQ(set.memory_min, kGiB);
  EXPECT_EQ(set.sm_percent, 40U);
  EXPECT_EQ(h.all<MemoryLookWanted>().size(), 1U) << "it may hold more than it may have now";
  h.step(MemorySeen{tenant, 0, kGiB, 0, 0});
  EXPECT_EQ(h.all<TenantAdmitted>().size(), 1U) << "the request that waited for the room has it";
}

TEST(Limits, MemoryHeldBeyondALoweredQuotaStaysPromised) {
  Harness h;
  const TenantId tenant = h.admit(h.ask(TenantClass::kBatch, 3 * kGiB));
  h.step(MemorySeen{tenant, 0, 2 * kGiB, 0, 0});
  h.step(limits(tenant, kGiB, kGiB));
  h.step(MemorySeen{tenant, 0, 2 * kGiB, 0, 0});
  EXPECT_EQ(state_view(h.state(), h.now).gpus[0].promised_bytes, 2 * kGiB);
  TenantAsked asked = h.ask(TenantClass::kBatch, 2 * kGiB + kMiB);
  h.step(asked);
  EXPECT_TRUE(h.all<TenantAdmitted>().empty()) << "this memory is not there";
  h.pass(kSecond);
  h.step(MemorySeen{tenant, 0, 2 * kGiB - kMiB, 0, 0});
  EXPECT_EQ(h.all<TenantAdmitted>().size(), 1U) << "it gave back what the request needs";
  h.step(MemorySeen{tenant, 0, 3 * kGiB, 0, 0});
  EXPECT_EQ(state_view(h.state(), h.now).gpus[0].promised_bytes, 4 * kGiB)
      << "what is back is not promised to it again";
}

TEST(Limits, ClaimsBeyondALoweredQuotaAreLookedAtAgain) {
  Harness h;
  const TenantId tenant = h.admit(h.ask(TenantClass::kBatch, 3 * kGiB));
  h.step(limits(tenant, kGiB, kGiB));
  EXPECT_NE(h.alarm(), kNever);
  h.step(MemorySeen{tenant, 0, 2 * kGiB, 0, 0});
  const Nanos look = h.alarm();
  ASSERT_NE(look, kNever);
  h.now = look;
  h.step(Tick{});
  EXPECT_EQ(h.all<MemoryLookWanted>().size(), 1U);
  h.step(MemorySeen{tenant, 0, kGiB, 0, 0});
  h.pass(2 * kSecond);
  EXPECT_EQ(h.alarm(), kNever) << "nothing is left to look for";
}

TEST(Limits, MovableMemoryBeyondALoweredQuotaHasRoomToComeBack) {
  Policy policy = policy_usual();
  policy.swap = true;
  policy.oversell_memory = 8;
  Harness h(policy);
  TenantAsked asked = h.ask(TenantClass::kBatch, 3 * kGiB);
  asked.swap = true;
  const TenantId tenant = h.admit(asked);
  h.step(MemorySeen{tenant, 0, 2 * kGiB, kGiB, 0});
  h.step(limits(tenant, kGiB, 32 * kMiB));
  h.step(MemorySeen{tenant, 0, 2 * kGiB, kGiB, 0});
  h.step(h.ask(TenantClass::kBatch, 2 * kGiB + kMiB));
  EXPECT_TRUE(h.all<TenantAdmitted>().empty()) << "the whole of it could not come back beside this";
}

TEST(Limits, RaisedAsFarAsThePromisesAllow) {
  Harness h;
  const TenantId one = h.admit(h.ask(TenantClass::kBatch, kGiB));
  h.admit(h.ask(TenantClass::kBatch, kGiB));
  h.step(limits(one, 4 * kGiB, 4 * kGiB));
  EXPECT_EQ(h.one<LimitsSet>().memory_max, 3 * kGiB);
  EXPECT_EQ(h.one<LimitsSet>().memory_min, 3 * kGiB);
  h.step(limits(one, 4 * kGiB, 4 * kGiB));
  EXPECT_TRUE(h.all<LimitsSet>().empty()) << "no news is not told";
}

TEST(Limits, NeverBelowAContext) {
  Harness h;
  const TenantId tenant = h.admit();
  h.step(limits(tenant, 1, 1));
  EXPECT_EQ(h.one<LimitsSet>().memory_max, 32 * kMiB);
  EXPECT_EQ(h.one<LimitsSet>().memory_min, 32 * kMiB);
}

TEST(Limits, TheWeightCountsFromThenOn) {
  Harness h;
  const TenantId one = h.admit(TenantClass::kBatch, 50);
  const TenantId two = h.admit(TenantClass::kInference, 50);
  h.step(limits(one, 256 * kMiB, 256 * kMiB, 10));
  h.step(limits(two, 256 * kMiB, 256 * kMiB, 90));
  EXPECT_EQ(admitted_weight(*h.state().gpus[0]), 100.0);
  EXPECT_EQ(inference_weight(*h.state().gpus[0]), 90.0);
}

TEST(Limits, OfWholeGpusAndOfTheUnknownStay) {
  Harness h;
  const TenantId tenant = h.admit(h.ask(TenantClass::kExclusive));
  h.step(limits(tenant, kGiB, kGiB));
  EXPECT_TRUE(h.all<LimitsSet>().empty());
  h.step(limits(99, kGiB, kGiB));
  EXPECT_TRUE(h.all<LimitsSet>().empty());
}

}  // namespace
}  // namespace sluice::core

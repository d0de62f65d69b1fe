// Shared tenants step aside for whole-GPU use, and come back.
#include <gmock/gmock.h>

#include "memory_harness.h"

namespace sluice::core {
namespace {

using protocol::CommandVerb;
using protocol::kHoldIn;
using protocol::kHoldOut;
using protocol::TenantState;
using testing::IsEmpty;
using testing::SizeIs;

Policy policy_aside() {
  Policy policy = policy_swapping();
  policy.exclusive_room = ExclusiveRoom::kSuspend;
  return policy;
}

TEST(Aside, SharedTenantsGoOutForAWholeGpuAndComeBackAfterIt) {
  MemoryHarness h(policy_aside());
  const TenantId swapped = h.holder(kGiB);
  const TenantId stays = h.holder(kGiB, false);
  h.step(h.ask(TenantClass::kExclusive));
  EXPECT_EQ(h.one<TenantQueued>().reason, QueueReason::kDrain);
  EXPECT_TRUE(h.held(swapped) && h.held(stays));
  h.out(swapped);
  EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty());
  h.ack(stays);
  h.step(frozen(stays));
  const TenantAdmitted whole = h.one<TenantAdmitted>();
  EXPECT_EQ(whole.memory_max, 4 * kGiB - 32 * kMiB) << "a context of the swapped one stays";
  EXPECT_TRUE(h.open(whole.tenant));
  EXPECT_EQ(promised(h, 0), whole.memory_max);
  h.want(swapped);
  h.pass(kSecond);
  EXPECT_TRUE(h.held(swapped, kHoldOut)) << "it waits for the whole-GPU job's end";
  EXPECT_EQ(state_view(h.state(), h.now).tenants[0].state, TenantState::kSuspended);
  h.step(h.command(CommandVerb::kResume, swapped));
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNoRoom);
  h.step(ProcessJoined{whole.tenant, h.process(whole.tenant)});
  h.end(whole.tenant);
  EXPECT_EQ(promised(h, 0), kGiB + 32 * kMiB);
  h.look();
  EXPECT_TRUE(h.held(swapped, kHoldIn));
  EXPECT_EQ(h.residence(stays), Residence::kRestoring);
  h.moved(swapped);
  h.step(thawed(stays));
  EXPECT_TRUE(h.open(swapped));
  EXPECT_EQ(h.residence(stays), Residence::kIn);
}

TEST(Aside, WhoCannotIsWaitedForAndWhoseRequestLeavesComesBack) {
  MemoryHarness h(policy_aside());
  const TenantId swapped = h.holder(kGiB);
  const TenantId fixed = h.holder(kGiB, false);
  const TenantAsked whole = h.ask(TenantClass::kExclusive);
  h.step(whole);
  h.out(swapped);
  h.ack(fixed);
  h.step(frozen(fixed, false));
  EXPECT_FALSE(h.held(fixed));
  h.want(fixed);
  EXPECT_TRUE(h.open(fixed));
  h.step(RequestGone{whole.request});
  h.look();
  EXPECT_TRUE(h.held(swapped, kHoldIn));
}

TEST(Aside, WhomTheHostHasNoRoomForIsWaitedForWithoutTrying) {
  Policy policy = policy_aside();
  policy.swap_host_bytes_per_user = kGiB + 256 * kMiB;
  MemoryHarness h(policy);
  const TenantId one = h.holder(kGiB);
  const TenantId two = h.holder(kGiB);
  TenantAsked whole = h.ask(TenantClass::kExclusive, 0);
  h.step(whole);
  EXPECT_TRUE(h.held(one));
  EXPECT_FALSE(h.held(two)) << "both together are more than their user may have there";
  h.out(one);
  h.pass(kSecond);
  EXPECT_FALSE(h.held(two));
  h.end(one);
  h.look();  // what it would take there now is asked first
  EXPECT_TRUE(h.held(two)) << "now there is room";
}

TEST(Aside, NobodyIsAskedAgainBeforeItHadItsGpuForAsLongAsItWasAway) {
  MemoryHarness h(policy_aside());
  const TenantId shared = h.holder(kGiB);
  h.step(h.ask(TenantClass::kExclusive));
  h.out(shared);
  const TenantId first = h.one<TenantAdmitted>().tenant;
  h.step(h.ask(TenantClass::kExclusive));
  h.pass(10 * kSecond);
  h.step(FounderGone{first});
  EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty()) << "first who made room";
  h.look();
  h.moved(shared);
  EXPECT_EQ(h.residence(shared), Residence::kIn);
  h.pass(9 * kSecond);
  EXPECT_EQ(h.residence(shared), Residence::kIn);
  h.pass(kSecond + kMs);
  EXPECT_TRUE(h.held(shared));
}

// The rest was shorter than the copies: jobs that end at once, one after the other, left another
// user's job nothing.
TEST(Aside, TheCopiesAreTimeInWhichItWasAway) {
  MemoryHarness h(policy_aside());
  const TenantId shared = h.holder(kGiB);
  h.step(h.ask(TenantClass::kExclusive));
  h.pass(2 * kSecond);  // the way out,
  h.out(shared);
  const TenantId first = h.one<TenantAdmitted>().tenant;
  h.step(h.ask(TenantClass::kExclusive));
  h.step(FounderGone{first});
  h.look();
  EXPECT_TRUE(h.held(shared, kHoldIn));
  h.pass(2 * kSecond);  // and back
  EXPECT_TRUE(h.held(shared, kHoldIn)) << "it is on its way";
  h.moved(shared);
  EXPECT_EQ(h.residence(shared), Residence::kIn);
  h.pass(4 * kSecond - kMs);
  EXPECT_EQ(h.residence(shared), Residence::kIn);
  h.pass(2 * kMs);
  EXPECT_TRUE(h.held(shared));
}

TEST(Aside, ARequestThatIsWithdrawnLeavesARestAsWell) {
  MemoryHarness h(policy_aside());
  const TenantId shared = h.holder(kGiB);
  TenantAsked whole = h.ask(TenantClass::kExclusive);
  h.step(whole);
  h.ack(shared);
  h.pass(kSecond);  // on its way out
  h.step(RequestGone{whole.request});
  h.moved(shared);
  h.look();
  EXPECT_TRUE(h.held(shared, kHoldIn));
  h.step(h.ask(TenantClass::kExclusive));
  h.pass(kSecond);
  h.moved(shared);
  EXPECT_EQ(h.residence(shared), Residence::kIn) << "first it comes back";
  h.pass(2 * kSecond - kMs);
  EXPECT_EQ(h.residence(shared), Residence::kIn);
  h.pass(2 * kMs);
  EXPECT_TRUE(h.held(shared));
}

// With kernels longer than drain_timeout a request waited for the end of its hold, a minute, and
// again.
TEST(Aside, ARunawayIsAskedAgainOnceItHasDrained) {
  MemoryHarness h(policy_aside());
  const TenantId shared = h.holder(kGiB);
  h.want(shared);
  h.step(h.ask(TenantClass::kExclusive));
  h.pass(3 * kSecond);  // a kernel of it runs
  EXPECT_EQ(h.residence(shared), Residence::kIn);
  EXPECT_EQ(h.state().tenants.at(shared)->phase, Phase::kRunaway);
  h.drain(shared);
  EXPECT_TRUE(h.held(shared));
  h.out(shared);
  EXPECT_THAT(h.all<TenantAdmitted>(), SizeIs(1));
}

Policy policy_moving() {
  Policy policy = policy_aside();
  policy.exclusive_room = ExclusiveRoom::kMove;
  for (ClassPolicy& of_class : policy.classes) of_class.placement = PlacementRule::kPack;
  return policy;
}
/// A request for all of the first GPU.
TenantAsked first_whole(Harness& h) {
  TenantAsked whole = h.ask(TenantClass::kExclusive);
  whole.pinned = {uuid_of(1)};
  return whole;
}

// What a suspended job has left on the other GPU is not free there for several together either.
TEST(AsideMove, NoMoreAreSentElsewhereThanHaveRoomBesideWhatOthersHaveLeft) {
  MemoryHarness h(policy_moving(), 2);
  const TenantId first = h.holder(2 * kGiB, false);  // packed: both on the first GPU
  const TenantId second = h.holder(2 * kGiB, false);
  h.pinned = {uuid_of(2)};
  const TenantId suspended = h.holder(kGiB);
  h.step(h.command(protocol::CommandVerb::kSuspend, suspended));
  h.out(suspended);
  ASSERT_EQ(promised(h, 1), 0U);
  h.step(first_whole(h));
  const auto goes = [&](TenantId t) { return h.state().tenants.at(t)->move_to != kNoGpu; };
  EXPECT_NE(goes(first), goes(second)) << "its context is on the other GPU";
}

TEST(AsideMove, WhoFindsRoomGoesOnElsewhereAndTheOthersGoOut) {
  MemoryHarness h(policy_moving(), 2);
  const TenantId large = h.holder(3 * kGiB, false);  // packed: all on the first GPU
  const TenantId small = h.holder(kGiB, false);
  h.pinned = {uuid_of(2)};
  h.holder(2 * kGiB, false);
  h.step(first_whole(h));
  h.ack(large);
  h.step(frozen(large));
  EXPECT_THAT(h.all<TenantMoved>(), IsEmpty()) << "there is no room for 3 GiB on the second";
  EXPECT_EQ(h.residence(large), Residence::kOut);
  h.ack(small);
  h.step(frozen(small));
  EXPECT_EQ(h.one<TenantMoved>().to, uuid_of(2));
  EXPECT_EQ(h.residence(small), Residence::kRestoring) << "it does not wait for the exclusive job";
  const TenantAdmitted whole = h.one<TenantAdmitted>();
  EXPECT_EQ(whole.memory_max, 4 * kGiB);
  EXPECT_EQ(promised(h, 1), 3 * kGiB);
  h.step(thawed(small));
  h.want(small);
  EXPECT_TRUE(h.open(small)) << "beside the exclusive job";
  h.end(whole.tenant);
  EXPECT_EQ(h.residence(large), Residence::kRestoring);
  EXPECT_EQ(h.residence(small), Residence::kIn) << "it stays where it is";
}

TEST(AsideMove, TheNewGpuIsChosenAsAtAdmission) {
  for (const PlacementRule rule : {PlacementRule::kPack, PlacementRule::kSpread}) {
    Policy policy = policy_moving();
    for (ClassPolicy& of_class : policy.classes) of_class.placement = rule;
    MemoryHarness h(policy, 3);
    const TenantId moves = h.holder(kGiB, false);
    h.pinned = {uuid_of(2)};
    h.holder(2 * kGiB, false);
    h.pinned = {uuid_of(3)};
    h.holder(kGiB, false);
    h.step(first_whole(h));
    h.ack(moves);
    h.step(frozen(moves));
    EXPECT_EQ(h.one<TenantMoved>().to, uuid_of(rule == PlacementRule::kPack ? 2 : 3));
  }
}

TEST(AsideMove, PromisesOnTheirWayCountAndThePinnedStay) {
  MemoryHarness h(policy_moving(), 2);
  h.pinned = {uuid_of(1)};
  const TenantId pinned = h.holder(kGiB, false);
  h.pinned = {};
  const TenantId one = h.holder(3 * kGiB / 2, false);
  const TenantId two = h.holder(3 * kGiB / 2, false);
  h.pinned = {uuid_of(2)};
  h.holder(2 * kGiB, false);
  h.step(first_whole(h));
  for (const TenantId tenant : {pinned, one, two}) {
    h.ack(tenant);
    h.step(frozen(tenant));
    EXPECT_THAT(h.all<TenantMoved>(), SizeIs(tenant == one ? 1 : 0));
  }
  EXPECT_THAT(h.all<TenantAdmitted>(), SizeIs(1));
  EXPECT_EQ(promised(h, 1), 2 * kGiB + 3 * kGiB / 2);
}

TEST(AsideMove, WhatFailsToMoveIsSuspendedAndWhoseRequestLeavesStays) {
  MemoryHarness h(policy_moving(), 2);
  const TenantId tenant = h.holder(kGiB);
  TenantAsked whole = first_whole(h);
  h.step(whole);
  h.ack(tenant);
  EXPECT_THAT(h.all<CheckpointWanted>(), SizeIs(1));
  h.step(RequestGone{whole.request});
  h.step(frozen(tenant));
  EXPECT_THAT(h.all<TenantMoved>(), IsEmpty());
  EXPECT_EQ(h.residence(tenant), Residence::kRestoring);
  h.step(thawed(tenant));
  h.step(first_whole(h));
  h.ack(tenant);
  h.step(frozen(tenant, false));
  EXPECT_EQ(h.residence(tenant), Residence::kIn);
  h.pass(kSecond);
  h.ack(tenant);
  EXPECT_TRUE(h.held(tenant, kHoldOut)) << "by swap: the driver could not";
  h.moved(tenant);
  EXPECT_THAT(h.all<TenantAdmitted>(), SizeIs(1));
}

TEST(AsideMove, NobodyIsMovedOntoWhatOthersWaitFor) {
  MemoryHarness h(policy_moving(), 2);
  const TenantId tenant = h.holder(kGiB, false);
  h.pinned = {uuid_of(2)};
  h.holder(2 * kGiB, false);
  TenantAsked waits = h.ask(TenantClass::kBatch, 3 * kGiB);
  waits.pinned = {uuid_of(2)};
  h.step(waits);
  h.step(first_whole(h));
  h.ack(tenant);
  h.step(frozen(tenant));
  EXPECT_THAT(h.all<TenantMoved>(), IsEmpty());
  EXPECT_EQ(state_view(h.state(), h.now).tenants[0].state, TenantState::kSuspended);
}

TEST(Aside, ARestoredWholeGpuTenantHasThoseAsideWhoseMemoryIsOut) {
  MemoryHarness h(policy_aside());
  TenantRestored shared;
  shared.tenant = 4;
  shared.memory_max = kGiB;
  shared.memory_min = 32 * kMiB;
  shared.gpus = {uuid_of(1)};
  shared.swap = shared.swapped = true;
  h.step(shared);
  TenantRestored whole;
  whole.tenant = 5;
  whole.tenant_class = TenantClass::kExclusive;
  whole.memory_max = whole.memory_min = 4 * kGiB;
  whole.gpus = {uuid_of(1)};
  h.step(whole);
  EXPECT_THAT(h.all<TenantEnded>(), IsEmpty());
  EXPECT_TRUE(h.open(5));
  EXPECT_EQ(promised(h, 0), 4 * kGiB);
  h.step(FounderGone{5});
  EXPECT_EQ(promised(h, 0), 32 * kMiB);
}

}  // namespace
}  // namespace sluice::core

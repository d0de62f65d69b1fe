// Who makes room for whom, in which order, and what is answered where nobody can.
#include <gmock/gmock.h>

#include "memory_harness.h"

namespace sluice::core {
namespace {

using protocol::kHoldIn;
using protocol::kHoldOut;
using protocol::kHoldSet;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::uint32_t kRoom = 2;            // the first answer
constexpr std::uint32_t kNoRoom = kRoom | 1;  // of either kind

TEST(Room, AnIdleTenantIsHeldThenOrderedOutAndTheRoomIsAnnounced) {
  MemoryHarness h;
  const TenantId idle = h.holder(3 * kGiB);
  const TenantId asks = h.holder(kGiB);
  h.pass(200 * kMs);
  h.room_want(asks, kGiB);
  EXPECT_EQ(h.hold(idle), protocol::hold_word(1, kHoldSet)) << "first it is to stop";
  EXPECT_THAT(h.all<RoomSet>(), IsEmpty());
  h.ack(idle);
  EXPECT_EQ(h.hold(idle), protocol::hold_word(1, kHoldSet | kHoldOut));
  EXPECT_EQ(h.host_bytes(), 3 * kGiB - 32 * kMiB);
  h.moved(idle);
  EXPECT_EQ(h.room(asks), kRoom);
  EXPECT_EQ(h.residence(idle), Residence::kOut);
  h.pass(kSecond);
  EXPECT_EQ(h.residence(idle), Residence::kOut) << "it does not want back";
}

TEST(Room, WhoIsOutAndWantsComesBackWhenThereIsRoom) {
  MemoryHarness h;
  const TenantId idle = h.holder(3 * kGiB);
  const TenantId asks = h.holder(kGiB, true, 1, 2 * kGiB);
  h.pass(200 * kMs);
  h.room_want(asks, kGiB);
  h.out(idle);
  h.seen(asks, 2 * kGiB, 0, 0);  // what it took cannot be moved
  h.want(idle);
  EXPECT_FALSE(h.open(idle));
  h.pass(kSecond);
  EXPECT_TRUE(h.held(idle, kHoldOut)) << "there is no room";
  h.end(asks);
  h.look();
  EXPECT_EQ(h.hold(idle), protocol::hold_word(1, kHoldSet | kHoldIn));
  EXPECT_FALSE(h.open(idle)) << "not before it is in";
  h.moved(idle);
  EXPECT_EQ(h.hold(idle), protocol::hold_word(2, 0));
  EXPECT_TRUE(h.open(idle)) << "at once: it has been waiting";
  EXPECT_EQ(h.host_bytes(), 0U);
}

TEST(Room, WhoIsOnItsWayInIsWaitedFor) {
  MemoryHarness h;
  const TenantId idle = h.holder(3 * kGiB);
  const TenantId first = h.holder(kGiB);
  h.pass(200 * kMs);
  h.room_want(first, kGiB);
  h.out(idle);
  h.want(idle);
  h.end(first);
  h.look();
  EXPECT_TRUE(h.held(idle, kHoldIn));
  const TenantId second = h.holder(512 * kMiB, true, 1, 3 * kGiB);
  h.room_want(second, kGiB);
  EXPECT_EQ(h.room(second), 0U) << "no answer yet: what comes in can go out again";
  h.moved(idle);
  for (int i = 0; i < 10; ++i) {
    h.pass(50 * kMs);
    h.look();
    h.drain(idle);
  }
  EXPECT_TRUE(h.held(idle)) << "and does, when it has had its time";
}

TEST(Room, NobodyWhoCouldMoveIsToldAtOnce) {
  MemoryHarness h;
  h.holder(3 * kGiB, false);
  const TenantId asks = h.holder(512 * kMiB, false);
  h.pass(kSecond);
  h.room_want(asks, kGiB);
  EXPECT_EQ(h.room(asks), kNoRoom);
}

TEST(Room, AsMuchAsAllTogetherCouldNotFreeIsToldAtOnceAndNobodyMoves) {
  MemoryHarness h;
  h.holder(3 * kGiB, false);
  const TenantId small = h.holder(256 * kMiB);
  const TenantId asks = h.holder(512 * kMiB);
  h.pass(kSecond);
  h.room_want(asks, 512 * kMiB);
  EXPECT_EQ(h.room(asks), kNoRoom);
  EXPECT_EQ(h.residence(small), Residence::kIn);
}

TEST(Room, AnAnswerThatCrossedTheQuestionStands) {
  MemoryHarness h;
  h.holder(3 * kGiB, false);
  const TenantId asks = h.holder(512 * kMiB, false);
  h.room_want(asks, kGiB);
  h.step(MemoryWanted{h.process(asks), 0, 0, kGiB});
  EXPECT_THAT(h.all<RoomSet>(), IsEmpty()) << "the thread has the answer already";
}

TEST(Room, WhoWorksIsLeftAloneForAQuantum) {
  MemoryHarness h;
  const TenantId busy = h.holder(3 * kGiB);
  const TenantId asks = h.holder(kGiB);
  h.want(busy);
  h.room_want(asks, kGiB);
  EXPECT_TRUE(h.open(busy));
  EXPECT_TRUE(h.has(busy, protocol::kLeaseContended)) << "it is to say when it is idle";
  h.pass(99 * kMs);
  EXPECT_TRUE(h.open(busy));
  h.look();
  h.pass(2 * kMs);
  EXPECT_FALSE(h.open(busy)) << "its lease is closed first";
  EXPECT_FALSE(h.held(busy));
  h.drain(busy);
  EXPECT_TRUE(h.held(busy)) << "then it is held";
}

TEST(Room, WhoSaysThatItIsIdleGoesBeforeItsQuantum) {
  MemoryHarness h;
  const TenantId open = h.holder(3 * kGiB);
  const TenantId asks = h.holder(kGiB);
  h.want(open);
  h.room_want(asks, kGiB);
  h.idle(open);
  EXPECT_FALSE(h.open(open));
  h.drain(open);
  EXPECT_FALSE(h.held(open)) << "a pause is not idleness";
  h.look();
  h.pass(11 * kMs);
  EXPECT_TRUE(h.held(open)) << "a tenth of the quantum is";
}

TEST(Room, TheLongestIdleOneThatSufficesGoesAndNobodyElse) {
  MemoryHarness h;
  const TenantId small = h.holder(512 * kMiB);
  h.pass(10 * kMs);
  const TenantId old = h.holder(kGiB + 256 * kMiB);
  h.pass(10 * kMs);
  const TenantId young = h.holder(kGiB + 256 * kMiB);
  const TenantId asks = h.holder(kGiB);
  h.pass(kSecond);
  h.room_want(asks, kGiB);
  EXPECT_TRUE(h.held(old));
  EXPECT_FALSE(h.held(young));
  EXPECT_FALSE(h.held(small)) << "alone it would not do";
}

TEST(Room, IdleOnesGoBeforeThoseThatWork) {
  MemoryHarness h;
  const TenantId busy = h.holder(kGiB);
  const TenantId idle = h.holder(2 * kGiB);
  const TenantId asks = h.holder(kGiB);
  h.want(busy);
  h.pass(kSecond);
  h.room_want(asks, 512 * kMiB);
  EXPECT_TRUE(h.held(idle));
  EXPECT_TRUE(h.open(busy));
}

TEST(Room, SeveralGoWhereOneIsNotEnough) {
  MemoryHarness h;
  const TenantId one = h.holder(kGiB);
  const TenantId two = h.holder(kGiB);
  const TenantId three = h.holder(kGiB);
  const TenantId asks = h.holder(kGiB);
  h.pass(kSecond);
  h.room_want(asks, kGiB + 256 * kMiB);
  EXPECT_EQ(h.held(one) + h.held(two) + h.held(three), 2);
  h.out(one);
  EXPECT_EQ(h.room(asks), 0U);
  h.out(two);
  EXPECT_EQ(h.room(asks), kRoom);
}

TEST(Room, ReservedForWhoAskedUntilItIsUsed) {
  MemoryHarness h;
  const TenantId gone = h.holder(2 * kGiB, false);
  const TenantId out = h.holder(kGiB + 512 * kMiB);
  const TenantId asks = h.holder(256 * kMiB);
  h.pass(kSecond);
  h.room_want(asks, kGiB);  // 256 MiB are free
  h.out(out);
  EXPECT_EQ(h.room(asks), kRoom);
  h.want(out);
  h.look();
  EXPECT_TRUE(h.held(out, kHoldOut)) << "the room is not taken back before it is used";
  h.end(gone);
  h.look();
  EXPECT_TRUE(h.held(out, kHoldIn)) << "there is enough for both";
}

TEST(Room, FirstComeFirstServed) {
  MemoryHarness h;
  const TenantId fat = h.holder(3 * kGiB, false);
  const TenantId first = h.holder(256 * kMiB);
  const TenantId idle = h.holder(512 * kMiB);
  h.pass(kSecond);
  h.step(MemoryWanted{h.process(first), 0, 0, 512 * kMiB});
  h.look();
  EXPECT_TRUE(h.held(idle));
  const TenantId second = h.holder(64 * kMiB);
  h.step(MemoryWanted{h.process(second), 0, 0, 192 * kMiB});
  EXPECT_EQ(h.room(second), 0U) << "what is free is kept for who came first";
  h.out(idle);
  EXPECT_EQ(h.room(first), kRoom);
  h.end(fat);
  h.look();
  h.pass(200 * kMs);
  EXPECT_EQ(h.room(second), kRoom);
}

TEST(Room, WhereTheDriverHasLessThanTheClaimsSayMoreIsMade) {
  MemoryHarness h;
  const TenantId idle = h.holder(2 * kGiB);
  const TenantId asks = h.holder(kGiB);
  h.pass(kSecond);
  h.room_want(asks, 512 * kMiB);  // 1 GiB should be free
  EXPECT_TRUE(h.held(idle));
  h.out(idle);
  EXPECT_EQ(h.room(asks), kRoom);
}

TEST(Room, WhoIsOnTheWayBackCanMakeRoomLater) {
  MemoryHarness h;
  const TenantId first = h.holder(2 * kGiB);
  const TenantId second = h.holder(2 * kGiB);
  const TenantId asks = h.holder(64 * kMiB, true, 1, 2 * kGiB);
  h.pass(kSecond);
  h.seen(asks, 0, 0, 0);
  h.step(h.command(protocol::CommandVerb::kSuspend, first));
  h.out(first);
  h.step(h.command(protocol::CommandVerb::kResume, first));
  h.look();
  EXPECT_EQ(h.residence(first), Residence::kSwappingIn);
  h.seen(second, 2 * kGiB, 0, 0);
  h.step(MemoryWanted{h.process(asks), 0, 0, kGiB});
  EXPECT_EQ(h.room(asks), 0U) << "it can go out again after a quantum";
  h.moved(first);
  h.pass(200 * kMs);
  h.look();
  EXPECT_TRUE(h.held(first));
}

TEST(Room, AProcessThatDiesWantsNothing) {
  MemoryHarness h;
  const TenantId busy = h.holder(3 * kGiB);
  const TenantId asks = h.holder(kGiB);
  h.want(busy);
  h.room_want(asks, kGiB);
  EXPECT_THAT(h.state().wants, SizeIs(1));
  h.step(ProcessGone{h.process(asks)});
  EXPECT_THAT(h.state().wants, IsEmpty());
  h.pass(kSecond);
  EXPECT_FALSE(h.held(busy));
}

TEST(Room, ABoastfulClaimCountsNoMoreThanItsQuota) {
  MemoryHarness h;
  const TenantId liar = h.holder(kGiB);
  h.seen(liar, 100 * kGiB, 100 * kGiB, 0);
  EXPECT_EQ(h.state().tenants.at(liar)->shares[0].held, kGiB);
  h.seen(liar, kGiB / 2, kGiB, 2 * kGiB);
  EXPECT_EQ(h.state().tenants.at(liar)->shares[0].swapped, kGiB / 2);
  const TenantId asks = h.holder(kGiB);
  h.pass(kSecond);
  h.step(MemoryWanted{h.process(asks), 0, 0, 100 * kGiB});
  EXPECT_EQ(h.state().wants.empty() ? 0U : h.state().wants[0].bytes, kGiB);
}

TEST(Room, AGangIsHeldAndComesBackOnAllItsGpus) {
  MemoryHarness h(policy_swapping(), 2);
  const TenantId gang = h.holder(3 * kGiB, true, 2);
  const TenantId asks = h.holder(kGiB);
  h.pass(kSecond);
  h.room_want(asks, kGiB);
  EXPECT_TRUE(h.held(gang, kHoldSet, 0) && h.held(gang, kHoldSet, 1));
  h.ack(gang, 0);
  EXPECT_FALSE(h.held(gang, kHoldOut, 0)) << "not before it has stopped on both";
  h.ack(gang, 1);
  EXPECT_TRUE(h.held(gang, kHoldOut, 0) && h.held(gang, kHoldOut, 1));
  h.moved(gang, 0, 0);
  EXPECT_EQ(h.residence(gang), Residence::kSwappingOut);
  h.moved(gang, 0, 1);
  EXPECT_EQ(h.residence(gang), Residence::kOut);
  h.want(gang, 1);
  h.pass(kSecond);
  EXPECT_EQ(h.residence(gang), Residence::kSwappingIn) << "1 GiB was asked for and not taken";
  h.moved(gang, 0, 0);
  h.moved(gang, 0, 1);
  EXPECT_TRUE(h.open(gang, 0) && h.open(gang, 1));
}

TEST(Room, RoomThatIsNeverUsedIsNotKeptForEver) {
  MemoryHarness h;
  const TenantId idle = h.holder(3 * kGiB);
  const TenantId asks = h.holder(512 * kMiB, true, 1, 2 * kGiB);
  h.pass(kSecond);
  h.room_want(asks, 2 * kGiB);
  h.out(idle);
  EXPECT_EQ(h.room(asks), kRoom);
  h.want(idle);
  h.pass(90 * kMs);
  EXPECT_TRUE(h.held(idle, kHoldOut));
  h.pass(20 * kMs);
  h.look();
  EXPECT_TRUE(h.held(idle, kHoldIn));
}

TEST(Room, TwoThatAskAtOnceForMoreThanThereIsBothGetIt) {
  MemoryHarness h;
  const TenantId a = h.holder(64 * kMiB, true, 1, 3 * kGiB);
  const TenantId b = h.holder(64 * kMiB, true, 1, 3 * kGiB);
  const TenantId full = h.holder(3 * kGiB + 512 * kMiB);
  h.pass(kSecond);
  h.room_want(a, 2 * kGiB);
  h.step(MemoryWanted{h.process(b), 0, 0, 2 * kGiB});
  h.out(full);
  EXPECT_EQ(h.room(a), kRoom);
  EXPECT_EQ(h.room(b), 0U) << "what the other has been granted can be moved once it is there";
  h.seen(a, 2 * kGiB + 64 * kMiB, 2 * kGiB + 32 * kMiB, 0);
  h.pass(kSecond);
  EXPECT_TRUE(h.held(a));
  h.out(a);
  EXPECT_EQ(h.room(b), kRoom);
}

/// Users who may have only so much in the host.
Policy policy_host(Bytes bytes) {
  Policy policy = policy_swapping();
  policy.swap_host_bytes_per_user = bytes;
  return policy;
}

TEST(RoomInTheHost, WhatTwoOfOneUserNeedTogetherIsNotThereForBoth) {
  MemoryHarness h(policy_host(kGiB + 256 * kMiB));
  const TenantId one = h.holder(kGiB);
  const TenantId two = h.holder(kGiB);
  const TenantId asks = h.holder(kGiB, true, 1, 3 * kGiB);
  h.pass(kSecond);
  h.room_want(asks, 2 * kGiB + 512 * kMiB);
  EXPECT_EQ(h.room(asks), kNoRoom);
  EXPECT_FALSE(h.held(one) || h.held(two)) << "nobody is moved in vain";
  h.room_want(asks, kGiB + 512 * kMiB);
  EXPECT_TRUE(h.held(one)) << "for one of them there is room";
}

TEST(RoomInTheHost, EachUserHasItsOwn) {
  MemoryHarness h(policy_host(kGiB));
  const TenantId one = h.holder(kGiB);
  h.uid = 1001;
  const TenantId two = h.holder(kGiB);
  const TenantId asks = h.holder(kGiB, true, 1, 3 * kGiB);
  h.pass(kSecond);
  h.room_want(asks, 2 * kGiB + 512 * kMiB);
  EXPECT_TRUE(h.held(one) && h.held(two));
}

TEST(RoomInTheHost, NobodyIsLeftWaitingForWhoCouldNotGoTheNextTimeEither) {
  MemoryHarness h(policy_host(kGiB));
  const TenantId idle = h.holder(kGiB);
  const TenantId busy = h.holder(kGiB);
  const TenantId asks = h.holder(kGiB, true, 1, 3 * kGiB);
  h.pass(kSecond);
  h.step(h.command(protocol::CommandVerb::kSuspend, busy));
  h.out(busy);
  h.step(h.command(protocol::CommandVerb::kResume, busy));
  h.moved(busy);  // in again just now
  h.want(busy);
  h.room_want(asks, 2 * kGiB + 512 * kMiB);
  EXPECT_EQ(h.room(asks), kNoRoom);
  EXPECT_FALSE(h.held(idle));
}

TEST(RoomInTheHost, TheBestChoiceIsFoundWhereTheLargestIsNotPartOfIt) {
  MemoryHarness h(policy_host(2 * kGiB));
  const TenantId large = h.holder(kGiB + 512 * kMiB);
  const TenantId one = h.holder(kGiB);
  const TenantId two = h.holder(kGiB);
  const TenantId asks = h.holder(512 * kMiB, true, 1, 3 * kGiB);
  h.pass(kSecond);
  h.room_want(asks, kGiB + 896 * kMiB);
  EXPECT_FALSE(h.held(large));
  EXPECT_TRUE(h.held(one) && h.held(two));
  h.out(one);
  h.out(two);
  EXPECT_EQ(h.room(asks), kRoom);
}

TEST(RoomInTheHost, WhoHasGrownSinceItWasAskedToLeaveIsNotHeldForIt) {
  MemoryHarness h(policy_host(kGiB));
  const TenantId grows = h.holder(512 * kMiB, true, 1, 3 * kGiB);
  h.pass(kSecond);
  h.step(h.command(protocol::CommandVerb::kSuspend, grows));
  EXPECT_EQ(h.one<MemoryLookWanted>().gpu, uuid_of(1));
  EXPECT_FALSE(h.held(grows));
  h.seen(grows, 2 * kGiB, 2 * kGiB - 32 * kMiB, 0);
  const CommandAnswered answer = h.one<CommandAnswered>();
  EXPECT_EQ(answer.code, RefusalCode::kHostMemoryLimit);
  EXPECT_FALSE(h.held(grows)) << "nobody is stopped for what cannot be";
  EXPECT_EQ(h.residence(grows), Residence::kIn);
  EXPECT_EQ(state_view(h.state(), h.now).tenant_gpus[0].moves_failed, 0U) << "nor has it failed";
  h.want(grows);
  EXPECT_TRUE(h.open(grows));
}

TEST(RoomInTheHost, WhatIsOnItsWayInReturnsItAndIsWaitedFor) {
  MemoryHarness h(policy_host(kGiB), 2);
  h.pinned = {uuid_of(2)};
  const TenantId elsewhere = h.holder(kGiB);
  h.pinned = {uuid_of(1)};
  h.holder(2 * kGiB + 512 * kMiB, false);
  const TenantId here = h.holder(kGiB);
  const TenantId asks = h.holder(256 * kMiB, true, 1, kGiB);
  h.pass(kSecond);
  h.step(h.command(protocol::CommandVerb::kSuspend, elsewhere));
  h.look();  // it is asked what it has now
  h.out(elsewhere);
  h.step(h.command(protocol::CommandVerb::kResume, elsewhere));
  h.look();
  ASSERT_EQ(h.residence(elsewhere), Residence::kSwappingIn);
  h.room_want(asks, 768 * kMiB);
  EXPECT_EQ(h.room(asks), 0U) << "no answer yet";
  EXPECT_FALSE(h.held(here)) << "and nobody is moved who would not get there";
  h.moved(elsewhere);
  h.pass(kSecond);
  EXPECT_TRUE(h.held(here));
  h.out(here);
  EXPECT_EQ(h.room(asks), kRoom);
}

TEST(RoomInTheHost, WhoLeavesElsewhereHasItFirst) {
  MemoryHarness h(policy_host(kGiB));
  const TenantId suspended = h.holder(kGiB);
  const TenantId idle = h.holder(kGiB);
  const TenantId asks = h.holder(kGiB, true, 1, 3 * kGiB);
  h.pass(kSecond);
  h.step(h.command(protocol::CommandVerb::kSuspend, suspended));
  h.room_want(asks, 2 * kGiB + 512 * kMiB);  // with what the suspended one will free, and more
  EXPECT_EQ(h.room(asks), kNoRoom);
  EXPECT_FALSE(h.held(idle)) << "its user has the host's memory full before it would get there";
}

/// A gang whose lease is closing while one of its processes waits for memory; `idle` is to make
/// room.
struct StuckGang {
  MemoryHarness h{policy_swapping(), 2};
  TenantId idle, gang, single;
  StuckGang() {
    h.pinned = {uuid_of(1)};
    idle = h.holder(3 * kGiB);
    h.pinned = {};
    gang = h.holder(kGiB, true, 2, 2 * kGiB);
    h.pinned = {uuid_of(2)};
    single = h.holder(kGiB, false);
    h.pass(200 * kMs);
    h.want(gang, 0);
    h.want(single);
    h.pass(12 * kMs);
    EXPECT_FALSE(h.open(gang));
    h.room_want(gang, kGiB);
    EXPECT_TRUE(h.held(idle));
  }
  std::size_t runaways_within(Nanos ns) {
    std::size_t seen = 0;
    for (const Nanos end = h.now + ns; h.now < end; h.pass(10 * kMs)) {
      h.step(Tick{});
      seen += h.all<RunawaySeen>().size();
    }
    return seen;
  }
};

TEST(Room, AGangOfWhichOneWaitsForMemoryIsNoRunawayBeforeThatIsAnswered) {
  StuckGang stuck;
  EXPECT_EQ(stuck.runaways_within(500 * kMs), 0U) << "its drain timeout is 100 ms";
  stuck.h.out(stuck.idle);
  EXPECT_NE(stuck.h.room(stuck.gang), 0U);
  EXPECT_EQ(stuck.runaways_within(80 * kMs), 0U);
  stuck.runaways_within(50 * kMs);
  EXPECT_EQ(stuck.h.state().tenants.at(stuck.gang)->phase, Phase::kRunaway)
      << "now it has no reason";
}

TEST(Room, NobodyHoldsAGpuForEverByWaitingForMemory) {
  StuckGang stuck;
  stuck.runaways_within(750 * kMs);
  EXPECT_EQ(stuck.h.state().tenants.at(stuck.gang)->phase, Phase::kClosing);
  stuck.runaways_within(70 * kMs);
  EXPECT_EQ(stuck.h.state().tenants.at(stuck.gang)->phase, Phase::kRunaway) << "eight timeouts";
}

TEST(Room, AGangThatCannotStopGoesBeforeWhoWaitsForItsMemory) {
  MemoryHarness h(policy_swapping(), 2);
  h.pinned = {uuid_of(1)};
  const TenantId back = h.holder(3 * kGiB);
  const TenantId idle = h.holder(kGiB / 2);
  h.pinned = {};
  const TenantId gang = h.holder(kGiB / 2, true, 2, 2 * kGiB);
  h.pass(200 * kMs);
  h.room_want(gang, kGiB);
  h.out(back);  // it made room, the gang has taken it
  h.seen(gang, kGiB + kGiB / 2, kGiB, 0);
  h.pass(200 * kMs);
  h.want(gang, 0);
  ASSERT_TRUE(h.open(gang));
  h.want(back);
  h.look();
  EXPECT_EQ(h.state().tenants.at(gang)->residence, Residence::kLeaving) << "for who wants back";
  EXPECT_FALSE(h.open(gang));
  h.step(MemoryWanted{h.process(gang), 0, h.room(gang), 2 * kGiB});
  const std::uint32_t asked = h.room(gang);
  h.out(idle);
  EXPECT_NE(h.room(gang), asked) << "else it would never stop";
  h.drain(gang, 0);
  h.drain(gang, 1);
  EXPECT_TRUE(h.held(gang));
}

DeviceSeen device(Bytes used, Bytes claimed = 0) { return {uuid_of(1), used, claimed, claimed}; }
ProcessGone gone(TenantId tenant, Bytes held) { return {Harness::process(tenant), false, {held}}; }

TEST(Returning, NobodyIsPromisedWhatTheDeviceDoesNotShowFree) {
  MemoryHarness h;
  h.step(device(100 * kMiB));
  const TenantId first = h.holder(3 * kGiB, false);
  const TenantAsked next = h.ask(TenantClass::kBatch, 3 * kGiB);
  h.step(next);
  h.step(FounderGone{first});
  h.step(gone(first, 3 * kGiB));
  EXPECT_THAT(h.all<TenantEnded>(), SizeIs(1));
  EXPECT_THAT(h.all<DeviceLookWanted>(), SizeIs(1)) << "asked at once";
  EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty());
  for (const Bytes used : {3 * kGiB, 2 * kGiB}) {
    h.pass(5 * kMs);
    h.step(device(used + 100 * kMiB));
    EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty()) << used;
  }
  h.step(device(kGiB + 100 * kMiB));
  EXPECT_THAT(h.all<TenantAdmitted>(), SizeIs(1)) << "what is left is not in its way";
  EXPECT_EQ(h.state().gpus[0]->returning, kGiB);
}

TEST(Returning, AnExclusiveJobAndAnAllocationWaitForItToo) {
  MemoryHarness h;
  h.step(device(0));
  const TenantId first = h.holder(2 * kGiB, false);
  const TenantId other = h.holder(kGiB, true, 1, 2 * kGiB);
  h.step(FounderGone{first});
  h.step(gone(first, 2 * kGiB));
  h.step(MemoryWanted{h.process(other), 0, h.room(other), 2 * kGiB});
  EXPECT_THAT(h.all<RoomSet>(), IsEmpty());
  h.step(device(kGiB, kGiB));
  EXPECT_THAT(h.all<RoomSet>(), SizeIs(1));
  h.step(FounderGone{other});
  h.step(gone(other, kGiB));
  const TenantAsked whole = h.ask(TenantClass::kExclusive);
  h.step(whole);
  EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty());
  h.step(device(0));
  EXPECT_EQ(h.one<TenantAdmitted>().memory_max, 4 * kGiB);
}

TEST(Returning, OfAProcessWhoseTenantLivesToo) {
  MemoryHarness h;
  h.step(device(0));
  const TenantId tenant = h.holder(2 * kGiB, false);
  h.step(gone(tenant, kGiB));
  h.step(h.ask(TenantClass::kBatch, kGiB + kGiB / 2));
  EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty());
  h.step(device(kGiB, 0));
  EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty());
  h.step(device(kGiB, kGiB));
  EXPECT_THAT(h.all<TenantAdmitted>(), SizeIs(1)) << "what is in use is claimed by the living";
}

TEST(Returning, WhatAReleasedExclusiveJobStillHasIsNobodyElses) {
  MemoryHarness h;
  const TenantId whole = h.admit(h.ask(TenantClass::kExclusive));
  h.seen(whole, 3 * kGiB, 0, 0);
  h.step(JobReleased{whole});
  h.drain(whole);
  h.step(h.ask(TenantClass::kBatch, 2 * kGiB));
  EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty());
  h.now += 100 * kMs;
  h.step(Tick{});
  EXPECT_THAT(h.all<MemoryLookWanted>(), SizeIs(1));
  h.seen(whole, kGiB, 0, 0);
  EXPECT_THAT(h.all<TenantAdmitted>(), SizeIs(1)) << "it has freed some";
}

TEST(Returning, WhatNeverComesBackIsGivenUpAndSaid) {
  MemoryHarness h;
  h.step(device(0));
  const TenantId first = h.holder(3 * kGiB, false);
  h.step(FounderGone{first});
  h.step(gone(first, 3 * kGiB));
  h.step(h.ask(TenantClass::kBatch, 3 * kGiB));
  h.pass(4 * kSecond);
  h.step(device(2 * kGiB));
  EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty());
  h.pass(4 * kSecond);
  EXPECT_EQ(h.state().gpus[0]->returning, 2 * kGiB) << "it had come nearer";
  h.now += kSecond + kMs;
  h.step(Tick{});
  EXPECT_EQ(h.one<MemoryNotReturned>().bytes, 2 * kGiB);
  EXPECT_THAT(h.all<TenantAdmitted>(), SizeIs(1));
}

TEST(Returning, WithoutTheDevicesFigureNothingIsHeldBack) {
  MemoryHarness h;
  const TenantId first = h.holder(3 * kGiB, false);
  h.step(FounderGone{first});
  h.step(gone(first, 3 * kGiB));
  h.step(h.ask(TenantClass::kBatch, 3 * kGiB));
  EXPECT_THAT(h.all<TenantAdmitted>(), SizeIs(1));
}

TEST(Returning, WhatIsNobodysIsLearntOnlyWhileTheClaimsStandStill) {
  MemoryHarness h;
  h.step(device(0));
  h.step(DeviceSeen{uuid_of(1), 3 * kGiB, 0, 3 * kGiB});  // an allocation under the question
  const TenantId first = h.holder(3 * kGiB, false);
  h.step(FounderGone{first});
  h.step(gone(first, 3 * kGiB));
  h.step(device(3 * kGiB));
  h.step(h.ask(TenantClass::kBatch, 3 * kGiB));
  EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty());
}

}  // namespace
}  // namespace sluice::core

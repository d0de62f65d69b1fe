// Holds and moves step by step: deaths and joins in the middle of each, failures, and what a broker
// finds of them when it starts anew.
#include <gmock/gmock.h>

#include "memory_harness.h"

namespace sluice::core {
namespace {

using protocol::hold_word;
using protocol::kHoldIn;
using protocol::kHoldOut;
using protocol::kHoldSet;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::int32_t kOutOfMemory = 2;
constexpr std::int32_t kUnknownError = 999;

/// One idle tenant with two processes, ordered to make room for another one.
struct Pair : MemoryHarness {
  explicit Pair(const Policy& policy = policy_swapping()) : MemoryHarness(policy) {
    idle = holder(3 * kGiB);
    step(ProcessJoined{idle, other});
    asks = holder(kGiB);
    pass(kSecond);
    room_want(asks, kGiB);
    EXPECT_EQ(hold(idle), hold_word(1, kHoldSet));
  }
  void moved_other(std::int32_t result = 0) { step(MoveDone{other, 0, hold(idle), result, 0, 0}); }
  TenantId idle = 0;
  TenantId asks = 0;
  ProcessId other = 500;
};

TEST(Stay, NothingIsOrderedBeforeEveryProcessHasAcknowledged) {
  Pair h;
  h.ack(h.idle);
  EXPECT_FALSE(h.held(h.idle, kHoldOut));
  h.step(HoldAcked{h.other, 0, 7});
  EXPECT_FALSE(h.held(h.idle, kHoldOut)) << "of another hold";
  h.step(MoveDone{h.other, 0, h.hold(h.idle), 0, 0, 0});
  EXPECT_FALSE(h.held(h.idle, kHoldOut)) << "nothing was ordered";
  h.ack(h.idle, 0, h.other);
  EXPECT_TRUE(h.held(h.idle, kHoldOut));
}

TEST(Stay, AMoveIsAwaitedOnceForEachOrder) {
  Pair h;
  const auto awaited = [&](ProcessId id, std::uint32_t word, std::uint32_t gpu = 0) {
    return move_awaited(h.state(), id, gpu, word);
  };
  const ProcessId first = h.process(h.idle);
  EXPECT_FALSE(awaited(first, h.hold(h.idle))) << "a hold, and no order yet";
  h.ack(h.idle);
  h.ack(h.idle, 0, h.other);
  const std::uint32_t order = h.hold(h.idle);
  EXPECT_TRUE(awaited(first, order));
  EXPECT_TRUE(awaited(h.other, order));
  EXPECT_FALSE(awaited(first, hold_word(1, kHoldSet))) << "another word";
  EXPECT_FALSE(awaited(first, order, 1)) << "no such GPU";
  EXPECT_FALSE(awaited(12345, order)) << "no such process";
  h.moved(h.idle);
  EXPECT_FALSE(awaited(first, order)) << "it has answered";
  EXPECT_TRUE(awaited(h.other, order));
}

TEST(Stay, WhoDiesIsNotWaitedForAtAnyStep) {
  Pair h;
  h.ack(h.idle);
  h.step(ProcessGone{h.other});
  EXPECT_TRUE(h.held(h.idle, kHoldOut)) << "died before it acknowledged";
  Pair moving;
  moving.ack(moving.idle);
  moving.ack(moving.idle, 0, moving.other);
  moving.moved(moving.idle);
  EXPECT_EQ(moving.residence(moving.idle), Residence::kSwappingOut);
  moving.step(ProcessGone{moving.other});
  EXPECT_EQ(moving.residence(moving.idle), Residence::kOut) << "died while it moved";
  moving.want(moving.idle);
  moving.end(moving.asks);
  moving.look();
  EXPECT_EQ(moving.residence(moving.idle), Residence::kSwappingIn);
  moving.step(ProcessGone{Harness::process(moving.idle)});
  EXPECT_EQ(moving.residence(moving.idle), Residence::kIn) << "died on the way in";
}

TEST(Stay, TheLastOneThatDiesEndsTheTenantAndReturnsEverything) {
  for (int steps = 0; steps < 3; ++steps) {
    Pair h;
    if (steps > 0) {
      h.ack(h.idle);
      h.ack(h.idle, 0, h.other);
    }
    if (steps > 1) {
      h.moved_other();
      h.moved(h.idle);
    }
    h.step(FounderGone{h.idle});
    h.step(ProcessGone{h.other});
    h.step(ProcessGone{Harness::process(h.idle)});
    EXPECT_THAT(h.all<TenantEnded>(), SizeIs(1)) << steps;
    EXPECT_EQ(h.host_bytes(), 0U) << steps;
    h.look();
    h.pass(200 * kMs);
    EXPECT_NE(h.room(h.asks), 0U) << "the room is there, after " << steps;
    EXPECT_THAT(h.state().moving, IsEmpty());
  }
}

TEST(Stay, WhoJoinsInTheMiddleHasToAcknowledgeAndToAnswer) {
  Pair h;
  h.ack(h.idle);
  h.step(ProcessJoined{h.idle, 501});
  h.ack(h.idle, 0, h.other);
  EXPECT_FALSE(h.held(h.idle, kHoldOut)) << "joined before the order";
  h.ack(h.idle, 0, 501);
  EXPECT_TRUE(h.held(h.idle, kHoldOut));
  h.step(ProcessJoined{h.idle, 502});
  h.moved(h.idle);
  h.moved_other();
  h.step(MoveDone{501, 0, h.hold(h.idle), 0, 0, 0});
  EXPECT_EQ(h.residence(h.idle), Residence::kSwappingOut) << "joined after it";
  h.step(MoveDone{502, 0, h.hold(h.idle), 0, 0, 0});
  EXPECT_EQ(h.residence(h.idle), Residence::kSwappingOut) << "an order is for who has stopped";
  h.ack(h.idle, 0, 502);
  h.step(MoveDone{502, 0, h.hold(h.idle), 0, 0, 0});
  EXPECT_EQ(h.residence(h.idle), Residence::kOut);
  h.step(ProcessJoined{h.idle, 503});
  h.want(h.idle);
  h.end(h.asks);
  h.look();
  EXPECT_EQ(h.residence(h.idle), Residence::kOut) << "joined while it was out";
  h.ack(h.idle, 0, 503);
  h.step(MoveDone{503, 0, h.hold(h.idle), 0, 0, 0});
  EXPECT_EQ(h.residence(h.idle), Residence::kSwappingIn);
}

TEST(Stay, TimeOnTheWayOutAndOnTheWayInIsCountedApart) {
  Pair h;
  std::uint64_t out_ms = 0, in_ms = 0, held_ms = 0;
  const auto look = [&] {
    const View view = state_view(h.state(), h.now);
    out_ms = view.tenant_gpus[0].suspending_ns / kMs;
    in_ms = view.tenant_gpus[0].restoring_ns / kMs;
    held_ms = view.tenant_gpus[0].moving_ns / kMs;
  };
  h.now += 3 * kMs;
  h.ack(h.idle);
  h.ack(h.idle, 0, h.other);
  h.now += 4 * kMs;
  look();
  EXPECT_EQ(out_ms, 7U) << "up to this moment";
  h.moved(h.idle);
  h.moved_other();
  ASSERT_EQ(h.residence(h.idle), Residence::kOut);
  h.now += 5 * kMs;
  h.want(h.idle);
  h.end(h.asks);
  h.look();
  ASSERT_EQ(h.residence(h.idle), Residence::kSwappingIn);
  h.now += 6 * kMs;
  h.moved(h.idle);
  h.moved_other();
  ASSERT_EQ(h.residence(h.idle), Residence::kIn);
  h.now += 8 * kMs;
  look();
  EXPECT_EQ(out_ms, 7U);
  EXPECT_EQ(in_ms, 6U);
  EXPECT_EQ(held_ms, 18U) << "with the time outside";
}

TEST(Stay, AFailureToGoOutIsUndoneAndCounted) {
  Pair h;
  h.ack(h.idle);
  h.ack(h.idle, 0, h.other);
  h.moved(h.idle);
  h.moved_other(-1);
  EXPECT_EQ(h.hold(h.idle), hold_word(1, kHoldSet | kHoldIn)) << "who had moved comes back";
  h.moved(h.idle);
  h.moved_other();
  EXPECT_EQ(h.hold(h.idle), hold_word(2, 0));
  EXPECT_EQ(h.residence(h.idle), Residence::kIn);
  EXPECT_EQ(h.one<MoveFailed>().failures, 1U);
  EXPECT_EQ(h.host_bytes(), 0U);
  h.want(h.idle);
  EXPECT_TRUE(h.open(h.idle));
  const View view = state_view(h.state(), h.now);
  EXPECT_EQ(view.tenant_gpus[0].moves_failed, 1);
  EXPECT_EQ(view.tenant_gpus[1].moves_failed, 0);
}

TEST(Stay, ThreeFailuresInARowAndNobodyAsksItAgain) {
  Pair h;
  for (std::uint32_t i = 1; i <= 3; ++i) {
    h.ack(h.idle);
    h.ack(h.idle, 0, h.other);
    h.moved(h.idle, kOutOfMemory);
    h.moved_other(kOutOfMemory);
    h.moved(h.idle);
    h.moved_other();
    EXPECT_EQ(h.one<MoveFailed>().failures, i);
    const Nanos again = h.state().tenants.at(h.idle)->retry_at;
    EXPECT_EQ(again - h.now, (100 * kMs) << (i - 1)) << "each time after twice as long";
    if (i == 3) break;
    while (h.now < again) {
      EXPECT_EQ(h.residence(h.idle), Residence::kIn);
      h.pass(std::min<Nanos>(again - h.now, 50 * kMs));
      h.look();
    }
  }
  h.look();
  EXPECT_EQ(h.room(h.asks), 3U) << "there is nobody else";
}

TEST(Stay, AHoldThatIsNotAcknowledgedIsGivenUp) {
  Pair h;
  h.ack(h.idle);
  h.pass(5 * kSecond - 1);
  EXPECT_TRUE(h.held(h.idle));
  h.pass(1);
  EXPECT_FALSE(h.held(h.idle));
  EXPECT_EQ(h.state().tenants.at(h.idle)->move_failures, 1U);
}

TEST(Stay, ARunawayIsNotHeld) {
  MemoryHarness h;
  const TenantId busy = h.holder(3 * kGiB);
  const TenantId asks = h.holder(kGiB);
  h.want(busy);
  h.pass(kSecond);
  h.room_want(asks, kGiB);
  EXPECT_FALSE(h.open(busy));
  h.pass(kSecond);
  EXPECT_FALSE(h.held(busy)) << "it has not drained";
  EXPECT_EQ(h.residence(busy), Residence::kIn);
  EXPECT_EQ(h.room(asks), 3U);
  h.drain(busy);
  h.want(busy);
  EXPECT_TRUE(h.open(busy)) << "and it goes on when it has";
}

/// Ordered to come back.
struct ComingPair : Pair {
  ComingPair() {
    out(idle);
    want(idle);
    seen(asks, kGiB, 0, 0);
    pass(kSecond);
    look();
    pass(2 * kMs);
    EXPECT_EQ(residence(idle), Residence::kSwappingIn);
  }
  void out(TenantId tenant) {
    ack(tenant);
    ack(tenant, 0, other);
    moved(tenant);
    moved_other();
  }
};

TEST(Stay, WhoFindsNoRoomAfterAllHasNotFailedAndKeepsItsPlace) {
  ComingPair h;
  const Nanos since = h.state().tenants.at(h.idle)->back_since;
  EXPECT_NE(since, 0);
  h.moved(h.idle, kOutOfMemory);
  h.moved_other();
  EXPECT_EQ(h.hold(h.idle), hold_word(1, kHoldSet | kHoldOut)) << "whoever of it was in goes out";
  h.room_want(h.asks, kGiB / 2);
  h.moved(h.idle);
  h.moved_other();
  EXPECT_EQ(h.residence(h.idle), Residence::kOut);
  EXPECT_THAT(h.all<MoveFailed>(), IsEmpty());
  EXPECT_EQ(h.state().tenants.at(h.idle)->move_failures, 0U);
  ASSERT_FALSE(h.state().wants.empty());
  EXPECT_EQ(h.state().wants.front().tenant, h.idle) << "before who asked later";
  EXPECT_EQ(h.state().wants.front().since, since);
  h.end(h.asks);
  for (int i = 0; i < 40 && h.residence(h.idle) != Residence::kSwappingIn; ++i) {
    h.pass(20 * kMs);  // until what must have taken the room is believed to have gone
    h.look();
  }
  EXPECT_EQ(h.residence(h.idle), Residence::kSwappingIn);
  h.moved(h.idle);
  h.moved_other();
  EXPECT_EQ(h.residence(h.idle), Residence::kIn);
  EXPECT_EQ(h.state().tenants.at(h.idle)->back_since, 0) << "its next place is a new one";
}

TEST(Stay, AFailureToComeBackGoesOutAgainAndIsTriedWithMoreRoom) {
  ComingPair h;
  h.moved(h.idle, kUnknownError);
  h.moved_other();
  EXPECT_EQ(h.hold(h.idle), hold_word(1, kHoldSet | kHoldOut));
  EXPECT_EQ(h.one<MoveFailed>().failures, 1U);
  h.moved(h.idle);
  h.moved_other();
  EXPECT_EQ(h.residence(h.idle), Residence::kOut);
  EXPECT_FALSE(h.open(h.idle));
  int tries = 0;
  for (int i = 0; i < 40 && h.residence(h.idle) != Residence::kSwappingIn; ++i) {
    h.pass(20 * kMs);
    h.look();
    tries = i;
  }
  EXPECT_GT(tries, 3) << "not at once";
  EXPECT_EQ(h.residence(h.idle), Residence::kSwappingIn);
  h.moved(h.idle);
  h.moved_other();
  EXPECT_TRUE(h.open(h.idle));
}

TEST(Stay, WhatCanNeitherGoNorComeBackIsTriedAgainUnderAnotherHold) {
  Pair h;
  h.ack(h.idle);
  h.ack(h.idle, 0, h.other);
  h.moved(h.idle);
  h.moved_other(-1);
  h.moved(h.idle, kOutOfMemory);  // others have taken its room
  h.moved_other();
  EXPECT_EQ(h.residence(h.idle), Residence::kOut);
  h.end(h.asks);
  for (int i = 0; i < 20 && h.hold(h.idle) != hold_word(2, kHoldSet); ++i) {
    h.pass(50 * kMs);
    h.look();
  }
  EXPECT_EQ(h.hold(h.idle), hold_word(2, kHoldSet)) << "the same order twice would be no news";
  h.ack(h.idle);
  h.ack(h.idle, 0, h.other);
  h.look();
  EXPECT_EQ(h.hold(h.idle), hold_word(2, kHoldSet | kHoldIn));
  h.moved(h.idle);
  h.moved_other();
  EXPECT_EQ(h.residence(h.idle), Residence::kIn);
}

TEST(Stay, AMoveThatNeverAnswersHoldsUpNobodyElseForEver) {
  Policy policy = policy_swapping();
  policy.move_timeout_ns = kSecond;
  Pair h(policy);
  const TenantId second = h.holder(64 * kMiB);
  h.seen(second, 64 * kMiB, 32 * kMiB, 0);
  h.ack(h.idle);
  h.ack(h.idle, 0, h.other);
  h.pass(kSecond - kMs);
  h.look();
  EXPECT_EQ(h.room(h.asks), 0U);
  for (int i = 0; i < 4; ++i) {
    h.pass(50 * kMs);
    h.look();
  }
  EXPECT_EQ(h.room(h.asks), 3U);
  EXPECT_EQ(h.residence(h.idle), Residence::kSwappingOut) << "it is touched no more";
}

TEST(Stay, HostMemoryOfAUserIsCheckedBeforeTheOrder) {
  Policy policy = policy_swapping();
  policy.swap_host_bytes_per_user = kGiB;
  MemoryHarness h(policy);
  const TenantId large = h.holder(2 * kGiB);
  const TenantId small = h.holder(kGiB);
  const TenantId asks = h.holder(kGiB - 64 * kMiB);
  h.pass(kSecond);
  h.room_want(asks, 512 * kMiB);
  EXPECT_FALSE(h.held(large));
  EXPECT_TRUE(h.held(small)) << "the only one that its user has room for";
  h.seen(small, kGiB, kGiB, 0);
  policy.swap_host_bytes_per_user = kMiB;
  h.step(PolicyChanged{policy});
  h.ack(small);
  EXPECT_FALSE(h.held(small)) << "it grew meanwhile";
  EXPECT_EQ(h.host_bytes(), 0U);
  EXPECT_EQ(h.state().tenants.at(small)->move_failures, 0U) << "which is no failure of its own";
}

TenantRestored restored(TenantId tenant, bool swapped, bool suspended, bool frozen) {
  TenantRestored event;
  event.tenant = tenant;
  event.uid = 1000;
  event.memory_max = 2 * kGiB;
  event.memory_min = 32 * kMiB;
  event.gpus = {uuid_of(1)};
  event.name = "old";
  event.swap = !frozen;
  event.swapped = swapped;
  event.suspended = suspended;
  event.frozen = frozen;
  return event;
}

TEST(Stay, ARestoredTenantWhoseMemoryIsOutIsHeldAndBroughtBack) {
  MemoryHarness h;
  h.step(restored(7, true, false, false));
  EXPECT_EQ(h.hold(7), hold_word(1, kHoldSet | kHoldOut)) << "before any process can register";
  h.step(ProcessJoined{7, h.process(7)});
  h.seen(7, 2 * kGiB, 2 * kGiB - 32 * kMiB, 2 * kGiB - 32 * kMiB);
  EXPECT_FALSE(h.held(7, kHoldIn));
  h.ack(7);
  h.moved(7);
  h.look();
  EXPECT_TRUE(h.held(7, kHoldIn));
  h.moved(7);
  EXPECT_FALSE(h.held(7));
}

TEST(Stay, ARestoredTenantWhoseClaimsTellOfMemoryThatIsOutIsBroughtBackToo) {
  MemoryHarness h;
  h.step(restored(7, false, false, false));
  h.step(ProcessJoined{7, h.process(7)});
  EXPECT_FALSE(h.held(7));
  h.seen(7, 2 * kGiB, 2 * kGiB - 32 * kMiB, kGiB);
  EXPECT_EQ(h.hold(7), hold_word(1, kHoldSet));
  h.ack(7);
  h.moved(7);
  h.look();
  EXPECT_TRUE(h.held(7, kHoldIn)) << h.hold(7);
  h.moved(7);
  EXPECT_FALSE(h.held(7));
}

TEST(Stay, ARestoredSuspendedTenantStaysSuspended) {
  MemoryHarness h;
  h.step(restored(7, true, true, false));
  h.step(ProcessJoined{7, h.process(7)});
  h.ack(7);
  h.seen(7, kGiB, kGiB - 32 * kMiB, kGiB - 32 * kMiB);
  h.moved(7);
  h.want(7);
  h.pass(10 * kSecond);
  EXPECT_TRUE(h.held(7, kHoldOut));
  h.step(h.command(protocol::CommandVerb::kResume, 7));
  h.look();
  EXPECT_TRUE(h.held(7, kHoldIn));
}

TEST(Stay, ARestoredFrozenTenantIsRestoredFromTheCheckpoint) {
  MemoryHarness h;
  h.step(restored(7, false, false, true));
  h.step(ProcessJoined{7, h.process(7)});
  EXPECT_EQ(h.hold(7), hold_word(1, kHoldSet)) << "its calls would not return";
  h.ack(7);
  h.look();
  EXPECT_EQ(h.residence(7), Residence::kRestoring);
  h.step(CheckpointDone{7, CheckpointStep::kBack, true, kMs, ""});
  EXPECT_FALSE(h.held(7));
}

}  // namespace
}  // namespace sluice::core

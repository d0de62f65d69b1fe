// When the core believes a shim that the driver has no room where the claims show some.
#include <gmock/gmock.h>

#include "memory_harness.h"

namespace sluice::core {
namespace {

using protocol::kHoldIn;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Nanos kPeriod = kSecond;  // ten swap quanta: a user is believed once in them

DeviceSeen figure(Bytes used) { return {uuid_of(1), used, used, used}; }

/// A neighbour of 2 GiB on a GPU of 4 GiB, and a tenant that may allocate 3 GiB and has nothing.
struct Neighbours : MemoryHarness {
  Neighbours() {
    step(figure(2 * kGiB));
    pass(200 * kMs);
  }
  /// Wants until the broker has answered or ordered the neighbour out; true = the latter.
  bool wants_and_moves(Bytes bytes) {
    const std::uint32_t before = room(asker);
    room_want(asker, bytes);
    step(figure(2 * kGiB));
    for (int i = 0; i < 20 && room(asker) == before && !stops(); ++i) pass(10 * kMs);
    return stops();
  }
  /// The neighbour drains where it has to; true = it is to go out.
  bool stops() {
    if (!open(neighbour)) drain(neighbour);
    return held(neighbour);
  }
  /// The neighbour goes out, and comes back as it has work.
  void round_trip() {
    out(neighbour);
    want(neighbour);
    for (int i = 0; i < 100 && !held(neighbour, kHoldIn); ++i) {
      pass(10 * kMs);
      look();
    }
    ASSERT_TRUE(held(neighbour, kHoldIn));
    moved(neighbour);
  }

  TenantId neighbour = holder(2 * kGiB);
  TenantId asker = holder(64 * kMiB, true, 1, 3 * kGiB);
};

TEST(Refusal, ADeviceThatShowsRoomIsToBeAskedAgainAndMovesNobody) {
  Neighbours h;
  h.room_want(h.asker, kGiB);
  EXPECT_THAT(h.all<DeviceLookWanted>(), SizeIs(1));
  EXPECT_THAT(h.all<RoomSet>(), IsEmpty()) << "the device is asked first";
  h.pass(kMs);
  h.step(figure(2 * kGiB));
  EXPECT_EQ(h.one<RoomSet>().word & protocol::kRoomNone, 0U);
  EXPECT_FALSE(h.held(h.neighbour));
}

TEST(Refusal, ADeviceThatShowsNoRoomIsBelievedEachTime) {
  Neighbours h;
  for (int i = 0; i < 3; ++i) {
    h.room_want(h.asker, kGiB);
    h.pass(kMs);
    h.step(figure(3 * kGiB + 512 * kMiB));  // a program that makes no claims has the rest
    ASSERT_TRUE(h.stops()) << i;
    h.out(h.neighbour);
    h.step(h.command(protocol::CommandVerb::kResume, h.neighbour));
    h.want(h.neighbour);
    h.pass(300 * kMs);
    h.look();
    ASSERT_TRUE(h.held(h.neighbour, kHoldIn)) << i;
    h.moved(h.neighbour);
    h.pass(200 * kMs);
  }
}

TEST(Refusal, RoomInPiecesIsBelievedAtTheSecondTime) {
  Neighbours h;
  EXPECT_FALSE(h.wants_and_moves(kGiB));
  EXPECT_TRUE(h.wants_and_moves(kGiB));
  h.out(h.neighbour);
  EXPECT_EQ(h.room(h.asker), 4U) << "then there is room";
  h.seen(h.asker, kGiB + 64 * kMiB, kGiB, 0);
}

TEST(Refusal, RoomInPiecesIsMadeUntilThereIsNothingLeftToMove) {
  Neighbours h;
  const TenantId second = h.holder(512 * kMiB);
  h.pass(200 * kMs);
  h.wants_and_moves(kGiB);
  ASSERT_TRUE(h.wants_and_moves(kGiB));
  h.out(h.neighbour);
  h.wants_and_moves(kGiB);
  ASSERT_TRUE(h.held(second)) << "it is still refused: more goes out";
  h.out(second);
  h.wants_and_moves(kGiB);
  EXPECT_NE(h.room(h.asker) & protocol::kRoomNone, 0U) << "it gets the driver's error";
}

TEST(Refusal, ALiarMovesANeighbourOnceInTenQuanta) {
  Neighbours h;
  int moves = 0;
  const Nanos end = h.now + 5 * kPeriod;
  while (h.now < end) {
    if (h.wants_and_moves(kGiB)) {
      ++moves;
      const Nanos out_at = h.now;
      h.round_trip();
      EXPECT_LE(h.now - out_at, 150 * kMs) << "a grant that is not used does not keep it out";
    }
    h.pass(5 * kMs);
  }
  EXPECT_GE(moves, 1) << "it is not starved";
  EXPECT_LE(moves, 6);
}

TEST(Refusal, JobsOfOneUserAreBelievedTogetherThoseOfAnotherAlone) {
  Neighbours h;
  const TenantId second = h.holder(64 * kMiB, true, 1, 3 * kGiB);
  h.uid = 1001;
  const TenantId other = h.holder(64 * kMiB, true, 1, 3 * kGiB);
  for (const TenantId tenant : {h.asker, second, other}) h.seen(tenant, 64 * kMiB, 0, 0);
  h.wants_and_moves(kGiB);
  ASSERT_TRUE(h.wants_and_moves(kGiB));
  h.round_trip();
  h.pass(200 * kMs);
  h.asker = second;
  EXPECT_FALSE(h.wants_and_moves(kGiB));
  EXPECT_FALSE(h.wants_and_moves(kGiB)) << "its user has been believed";
  h.asker = other;
  EXPECT_FALSE(h.wants_and_moves(kGiB));
  EXPECT_TRUE(h.wants_and_moves(kGiB));
}

TEST(Refusal, WhoIsNotBelievedKeepsNoRoomFromItsNeighbour) {
  Neighbours h;
  h.wants_and_moves(3 * kGiB - 64 * kMiB);
  ASSERT_TRUE(h.wants_and_moves(kGiB + 512 * kMiB));
  h.out(h.neighbour);
  h.want(h.neighbour);
  int asked = 0;
  while (!h.held(h.neighbour, kHoldIn) && ++asked < 50) {
    h.step(MemoryWanted{h.process(h.asker), 0, h.room(h.asker), 3 * kGiB - 64 * kMiB});
    h.pass(10 * kMs);
    h.step(figure(64 * kMiB));
    h.look();
  }
  EXPECT_LT(asked, 15) << "a grant of 0.1 s, and no second one";
}

TEST(Refusal, ADeviceThatDoesNotAnswerIsNotWaitedForLong) {
  Neighbours h;
  h.room_want(h.asker, kGiB);
  h.pass(19 * kMs);
  EXPECT_FALSE(h.held(h.neighbour));
  h.pass(2 * kMs);
  EXPECT_TRUE(h.held(h.neighbour)) << "believed, as where the device has no figure";
}

}  // namespace
}  // namespace sluice::core

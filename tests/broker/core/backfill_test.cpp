// Requests that wait, and others that fit beside what runs: neither keeps the other out for ever.
#include <gmock/gmock.h>

#include <set>

#include "broker/core/backfill.h"
#include "tests/broker/core/harness.h"

namespace sluice::core {
namespace {

constexpr std::uint32_t kOne = 1001;
constexpr std::uint32_t kOther = 1002;
constexpr std::uint32_t kVictim = 1003;

/// Several users in virtual time. Requests are answered whenever the core says so.
struct Crowd {
  explicit Crowd(std::uint8_t gpus = 1, const Policy& policy = policy_usual()) : h(policy, gpus) {}

  TenantAsked request(std::uint32_t uid, Bytes memory, TenantClass kind = TenantClass::kBatch) {
    TenantAsked asked = h.ask(kind, memory);
    asked.uid = uid;
    return asked;
  }
  TenantAsked whole(std::uint32_t uid) { return request(uid, 0, TenantClass::kExclusive); }
  TenantAsked on(TenantAsked asked, int gpu) {
    asked.pinned = {uuid_of(static_cast<std::uint8_t>(gpu))};
    return asked;
  }

  RequestId put(const TenantAsked& asked) {
    h.step(asked);
    take();
    return asked.request;
  }
  /// Admitted at once.
  TenantId start(const TenantAsked& asked) {
    put(asked);
    EXPECT_TRUE(in(asked.request));
    return tenants[asked.request];
  }
  void end(TenantId tenant) {
    h.step(FounderGone{tenant});
    take();
  }
  void give_up(RequestId request) {
    h.step(RequestGone{request});
    take();
  }
  void pass(Nanos ns) {
    const Nanos until = h.now + ns;
    while (h.alarm() <= until) {
      h.pass(std::max<Nanos>(h.alarm() - h.now, 0));
      take();
    }
    h.now = until;
  }
  /// How long the request waits from now on; `most` where it has not been admitted by then.
  Nanos wait_for(RequestId request, Nanos most) {
    const Nanos from = h.now;
    while (!in(request) && h.now - from < most) pass(kSecond);
    return h.now - from;
  }
  bool in(RequestId request) const { return tenants.contains(request); }
  void take() {
    for (const TenantAdmitted& action : h.all<TenantAdmitted>())
      tenants[action.request] = action.tenant;
  }

  Harness h;
  std::map<RequestId, TenantId> tenants;
};

// Its own job is in its way: that wait is its user's alone.
TEST(Backfill, ARequestThatItsUsersOwnJobKeepsOutHoldsNoOtherUserBack) {
  for (const bool exclusive : {true, false}) {
    Crowd crowd;  // 4 GiB
    crowd.start(crowd.request(kOne, kGiB));
    const RequestId large =
        crowd.put(exclusive ? crowd.whole(kOne) : crowd.request(kOne, 4 * kGiB));
    for (int i = 0; i < 100; ++i) {
      crowd.end(crowd.start(crowd.request(kVictim, kGiB / 2)));
      crowd.pass(7 * kSecond);
    }
    EXPECT_FALSE(crowd.in(large));
  }
}

TEST(Backfill, AUsersOwnRequestsKeepTheirOrder) {
  Crowd crowd;
  const TenantId sleeper = crowd.start(crowd.request(kOther, kGiB));
  const RequestId large = crowd.put(crowd.request(kOne, 4 * kGiB));
  const RequestId small = crowd.put(crowd.request(kOne, kGiB));
  EXPECT_EQ(crowd.h.one<TenantQueued>().reason, QueueReason::kPriority);
  crowd.pass(1000 * kSecond);
  EXPECT_FALSE(crowd.in(small));
  crowd.end(sleeper);
  EXPECT_TRUE(crowd.in(large));
}

TenantAsked with_share(TenantAsked asked, SmKind kind, std::uint32_t percent) {
  asked.sm_weight = kind == SmKind::kWeight;
  asked.sm_percent = percent;
  return asked;
}

Policy policy_of_shares() {
  Policy policy = policy_usual();
  for (ClassPolicy& one : policy.classes) one.sm = SmRule::kAsked;
  return policy;
}

// Whether those ahead are another user's, who holds the GPU, or its own.
TEST(Backfill, AWeightIsNotKeptOutByThoseThatLackOnlyAShare) {
  for (const std::uint32_t uid : {kVictim, kOne}) {
    Crowd crowd(1, policy_of_shares());
    const TenantId holder =
        crowd.start(with_share(crowd.request(kOther, kGiB), SmKind::kGuaranteed, 80));
    const RequestId ahead =
        crowd.put(with_share(crowd.request(kOne, kGiB), SmKind::kGuaranteed, 40));
    EXPECT_EQ(crowd.h.one<TenantQueued>().reason, QueueReason::kShare);
    for (int i = 0; i < 60; ++i) {
      crowd.end(crowd.start(with_share(crowd.request(uid, kGiB), SmKind::kWeight, 10)));
      crowd.pass(kSecond);
    }
    const RequestId guaranteed =
        crowd.put(with_share(crowd.request(uid, kGiB), SmKind::kGuaranteed, 10));
    if (uid == kOne) {
      EXPECT_FALSE(crowd.in(guaranteed)) << "it would take what the other one waits for";
    }
    crowd.end(holder);
    EXPECT_TRUE(crowd.in(ahead));
  }
}

// There is memory for the one that waits and one weight, of 4 GiB.
TEST(Backfill, AWeightLeavesTheMemoryOfThoseThatItPasses) {
  Crowd crowd(1, policy_of_shares());
  const TenantId holder =
      crowd.start(with_share(crowd.request(kOther, kGiB), SmKind::kGuaranteed, 80));
  const RequestId ahead =
      crowd.put(with_share(crowd.request(kOne, 2 * kGiB), SmKind::kGuaranteed, 40));
  crowd.pass(kHoldAfterNs + kSecond);  // it holds the GPU now
  crowd.start(with_share(crowd.request(kVictim, kGiB / 2), SmKind::kWeight, 10));
  const RequestId large = crowd.put(with_share(crowd.request(kVictim, kGiB), SmKind::kWeight, 10));
  EXPECT_FALSE(crowd.in(large));
  crowd.end(holder);
  EXPECT_TRUE(crowd.in(ahead));
}

// Whenever the small one comes, it waits no longer than one hold.
TEST(Backfill, ARequestThatFitsWaitsAtMostOneHold) {
  Nanos longest = 0;
  for (Nanos after = 0; after < 900 * kSecond; after += 13 * kSecond) {
    Crowd crowd;
    crowd.start(crowd.request(kOther, kGiB));  // and never ends
    const RequestId large = crowd.put(crowd.whole(kOne));
    crowd.pass(after);
    const Nanos waited = crowd.wait_for(crowd.put(crowd.request(kVictim, kGiB)), 1000 * kSecond);
    EXPECT_LE(waited, kHoldMostNs + kSecond) << "after " << after / kSecond << " s";
    if (after == 0) {
      EXPECT_EQ(waited, 0);
    }
    longest = std::max(longest, waited);
    EXPECT_FALSE(crowd.in(large));
  }
  EXPECT_GT(longest, kSecond) << "the large one has its precedence too";
}

// One user's requests take turns in holding; together they hold no longer than one would.
TEST(Backfill, ManyRequestsThatCannotBeServedHoldNoLongerThanOne) {
  for (Nanos after = 0; after < 600 * kSecond; after += 29 * kSecond) {
    Crowd crowd(2);
    for (const int gpu : {1, 2}) crowd.start(crowd.on(crowd.request(kOther, kGiB), gpu));
    for (std::uint32_t user = 0; user < 6; ++user)
      for (int i = 0; i < 3; ++i) {
        crowd.put(crowd.on(crowd.whole(2000 + user), user % 2 == 0 ? 1 : 2));
        crowd.pass(3 * kSecond);
      }
    crowd.pass(after);
    TenantAsked two = crowd.request(kVictim, kGiB);
    two.gpu_count = 2;
    const Nanos waited = crowd.wait_for(crowd.put(two), 1000 * kSecond);
    EXPECT_LE(waited, kHoldMostNs + kSecond) << "after " << after / kSecond << " s";
  }
}

/// Users that always have something to run, each job for five seconds: without an end the GPU is
/// never empty.
struct Stream {
  explicit Stream(Crowd& c) : crowd(c) {}
  void second() {
    for (std::uint32_t user = 0; user < 3; ++user)
      if (!waiting.contains(user)) {
        waiting[user] = crowd.put(crowd.request(3000 + user, kGiB));
        until[user] = 0;
      }
    for (auto it = waiting.begin(); it != waiting.end();) {
      if (crowd.in(it->second) && until[it->first] == 0) {
        ++served;
        until[it->first] = crowd.h.now + 5 * kSecond + it->first * 700 * kMs;
      }
      if (until[it->first] != 0 && crowd.h.now >= until[it->first]) {
        crowd.end(crowd.tenants[it->second]);
        it = waiting.erase(it);
      } else {
        ++it;
      }
    }
    crowd.pass(kSecond);
  }
  Crowd& crowd;
  std::map<std::uint32_t, RequestId> waiting;
  std::map<std::uint32_t, Nanos> until;
  int served = 0;
};

TEST(Backfill, ALargeRequestIsServedAmongAStreamOfSmallOnes) {
  for (const bool exclusive : {true, false}) {
    Crowd crowd;
    Stream stream(crowd);
    for (int i = 0; i < 20; ++i) stream.second();
    const RequestId large =
        crowd.put(exclusive ? crowd.whole(kOne) : crowd.request(kOne, 7 * kGiB / 2));
    int seconds = 0;
    for (; !crowd.in(large) && seconds < 600; ++seconds) stream.second();
    EXPECT_LE(seconds, 30) << "ten until it is first, and as long as the others need to end";
    EXPECT_GE(stream.served, 3);
    crowd.end(crowd.tenants[large]);
    const int before = stream.served;
    for (int i = 0; i < 20; ++i) stream.second();
    EXPECT_GE(stream.served, before + 6);
  }
}

TEST(Backfill, RequestsThatCannotBeServedKeepAnotherNotFromItsTurn) {
  Crowd crowd(2);
  Stream stream(crowd);
  crowd.start(crowd.on(crowd.request(kOther, kGiB / 4), 1));  // and never ends
  for (std::uint32_t user = 0; user < 3; ++user) {
    TenantAsked both = crowd.whole(2000 + user);
    both.gpu_count = 2;
    crowd.put(both);
  }
  crowd.pass(200 * kSecond);
  for (int i = 0; i < 20; ++i) stream.second();
  const RequestId large = crowd.put(crowd.on(crowd.whole(kOne), 2));
  int seconds = 0;
  for (; !crowd.in(large) && seconds < 3000; ++seconds) stream.second();
  EXPECT_LT(seconds, 3 * 2 * kHoldMostNs / kSecond);
}

// Holds that have brought nothing become longer: jobs that run for a minute end within one.
TEST(Backfill, JobsThatRunForLongEndWithinALongerHold) {
  Crowd crowd;
  const RequestId first = crowd.put(crowd.request(kOther, kGiB));
  const RequestId large = crowd.put(crowd.whole(kOne));
  std::map<RequestId, Nanos> ends{{first, crowd.h.now + 60 * kSecond}};
  std::set<RequestId> asked;
  Nanos began = crowd.h.now;
  for (int i = 0; i < 1000 && !crowd.in(large); ++i) {
    if (i % 10 == 0 && asked.size() < 2)
      asked.insert(crowd.put(crowd.request(kOther + static_cast<std::uint32_t>(i), kGiB)));
    for (const RequestId request : std::set<RequestId>(asked))
      if (crowd.in(request)) {
        ends[request] = crowd.h.now + 60 * kSecond;
        asked.erase(request);
      }
    for (auto it = ends.begin(); it != ends.end();) {
      if (crowd.h.now < it->second) {
        ++it;
        continue;
      }
      crowd.end(crowd.tenants[it->first]);
      it = ends.erase(it);
    }
    crowd.pass(kSecond);
  }
  EXPECT_TRUE(crowd.in(large)) << (crowd.h.now - began) / kSecond;
}

// Room that others make for it comes within a bounded time: it need not wait to be first.
TEST(Backfill, AWholeGpuRequestThatOthersMakeRoomForHoldsAtOnce) {
  Policy policy = policy_usual();
  policy.exclusive_room = ExclusiveRoom::kSuspend;
  Crowd crowd(1, policy);
  crowd.start(crowd.request(kOther, kGiB));
  crowd.put(crowd.whole(kOne));
  EXPECT_TRUE(crowd.h.state().gpus[0]->step_aside);
  const RequestId small = crowd.put(crowd.request(kVictim, kGiB));
  EXPECT_FALSE(crowd.in(small));
  EXPECT_LE(crowd.wait_for(small, 1000 * kSecond), policy.move_timeout_ns + kSecond);
}

// A job that is moved onto the GPU just before it is free was a way round the line.
TEST(Backfill, NoJobOfAnotherUserIsMovedOntoAGpuThatARequestHolds) {
  Crowd crowd(2);
  const TenantId long_one = crowd.start(crowd.on(crowd.request(kOther, 2 * kGiB), 2));
  const TenantId mover = crowd.start(crowd.on(crowd.request(kOne, kGiB), 1));
  const RequestId victim = crowd.put(crowd.on(crowd.request(kVictim, 4 * kGiB), 2));
  crowd.pass(kHoldAfterNs + kSecond);
  CommandAsked move;
  move.request = 1000;
  move.verb = protocol::CommandVerb::kMove;
  move.tenant = mover;
  move.gpu = uuid_of(2);
  move.uid = kOne;
  crowd.h.step(move);
  EXPECT_EQ(crowd.h.one<CommandAnswered>().code, protocol::RefusalCode::kNoRoom);
  EXPECT_THAT(crowd.h.one<CommandAnswered>().text, testing::HasSubstr("goes first"));
  crowd.end(long_one);
  EXPECT_TRUE(crowd.in(victim));
}

TEST(Backfill, AHoldEndsWithItsRequest) {
  Crowd crowd;
  crowd.start(crowd.request(kOther, kGiB));
  const RequestId large = crowd.put(crowd.whole(kOne));
  crowd.pass(kHoldAfterNs + kSecond);
  const RequestId small = crowd.put(crowd.request(kVictim, kGiB));
  EXPECT_FALSE(crowd.in(small));
  crowd.give_up(large);
  EXPECT_TRUE(crowd.in(small));
}

}  // namespace
}  // namespace sluice::core

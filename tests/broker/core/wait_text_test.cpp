// What a request that waits is told, and why a job does not run.
#include <gmock/gmock.h>

#include "broker/core/texts.h"
#include "memory_harness.h"

namespace sluice::core {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(WaitText, NamesTheSumThatBindsAndItsHolder) {
  Policy policy = policy_swapping();
  policy.oversell_memory = 2;
  MemoryHarness h(policy);
  TenantAsked movable = h.ask(TenantClass::kBatch, 3 * kGiB);
  movable.swap = true;
  movable.name = "notebook";
  const TenantId holder = h.admit(movable);
  movable.request += 100;
  h.admit(movable);
  movable.request += 100;
  h.step(movable);
  const std::string owner = "; 2 jobs have it, the largest part 3 GiB: job " +
                            std::to_string(holder) + " (notebook) of user " +
                            std::to_string(movable.uid) + "{idle " + std::to_string(holder) + "}";
  EXPECT_EQ(h.waits_for(),
            "the quotas on GPU 0 add up to 6 GiB of 8 GiB (oversell 2 of 4 GiB), and this job asks "
            "for 3 GiB" +
                owner);
  TenantAsked fixed = h.ask(TenantClass::kBatch, 2 * kGiB);
  fixed.no_wait = true;
  h.step(fixed);
  EXPECT_THAT(h.one<TenantRefused>().text,
              HasSubstr("of 4 GiB on GPU 0, 64 MiB is promised, 2.97 GiB is kept for memory that "
                        "comes back from the host, and this job asks for 2 GiB" +
                        owner));
}

TEST(WaitText, AGangHearsOfTheGpuThatLacksRoom) {
  Harness h(policy_swapping(), 2, 4 * kGiB);
  TenantAsked first = h.ask(TenantClass::kBatch, 3 * kGiB);
  first.pinned = {h.state().gpus[1]->uuid};
  h.admit(first);
  TenantAsked gang = h.ask(TenantClass::kBatch, 2 * kGiB);
  gang.gpu_count = 2;
  h.step(gang);
  EXPECT_EQ(h.one<TenantQueued>().reason, QueueReason::kGang);
  EXPECT_THAT(h.waits_for(),
              StartsWith("fewer than 2 GPUs have room at once: of 4 GiB on GPU 1, 3 GiB is "
                         "promised, and this job asks for 2 GiB on each of 2 GPUs; job "));
}

TEST(WaitText, MostIsMoreThanHalf) {
  MemoryHarness h;
  h.admit(h.ask(TenantClass::kBatch, 2 * kGiB));
  TenantAsked large = h.ask(TenantClass::kBatch, 1536 * kMiB);
  h.admit(large);
  h.step(h.ask(TenantClass::kBatch, kGiB));
  EXPECT_THAT(h.waits_for(),
              HasSubstr("; job 1 (job-1) of user 1000 has most of it: 2 GiB{idle 1}"));
  MemoryHarness four;
  for (int i = 0; i < 4; ++i) four.admit(four.ask(TenantClass::kBatch, kGiB));
  four.step(four.ask(TenantClass::kBatch, kGiB));
  EXPECT_THAT(four.waits_for(), HasSubstr("; 4 jobs have it, the largest part 1 GiB: job 1 (job-1) "
                                          "of user 1000{idle 1}"));
}

TEST(WaitText, SaysHowManyOtherGpusLackRoom) {
  Harness h(policy_usual(), 4, 4 * kGiB);
  for (int i = 0; i < 3; ++i) h.admit(h.ask(TenantClass::kBatch, 4 * kGiB));
  h.admit(h.ask(TenantClass::kExclusive, 0));
  TenantAsked ask = h.ask(TenantClass::kBatch, kGiB);
  h.step(ask);
  EXPECT_THAT(h.waits_for(), EndsWith("4 GiB{idle 1}; 3 more GPUs have no room for it"));
  ask.request += 100;
  ask.pinned = {uuid_of(1)};
  h.step(ask);
  EXPECT_THAT(h.waits_for(), EndsWith("4 GiB{idle 1}")) << "it wants none of the others";
}

TEST(WaitText, OfWholeGpusSaysWhatIsOnEach) {
  Harness h(policy_usual(), 4, 4 * kGiB);
  for (int i = 0; i < 4; ++i) h.admit(h.ask(TenantClass::kBatch, kGiB));
  TenantAsked whole = h.ask(TenantClass::kExclusive, 0);
  whole.no_wait = true;
  const std::string first = "GPU 0 is not empty yet: job 1 (job-1) of user 1000 is on it{idle 1}";
  h.step(whole);
  EXPECT_THAT(h.one<TenantRefused>().text,
              HasSubstr(first + "; 3 more GPUs are not empty; this job asks for 1 whole GPU"));
  h.admit(h.ask(TenantClass::kBatch, kGiB));
  CommandAsked drain{1, protocol::CommandVerb::kDrain, 0, uuid_of(2), 7, true, false, {}};
  h.step(drain);
  whole.gpu_count = 2;
  h.step(whole);
  EXPECT_THAT(h.one<TenantRefused>().text,
              HasSubstr(first + ", and 1 more job; 1 more GPU is drained; 2 more GPUs are not "
                                "empty; this job asks for 2 whole GPUs"));
}

TEST(WaitText, ALoweredQuotaNamesWhatIsPromised) {
  for (const bool swap : {false, true}) {
    MemoryHarness h;
    TenantAsked first = h.ask(TenantClass::kBatch, 3 * kGiB);
    first.swap = swap;
    const TenantId lowered = h.admit(first);
    h.step(LimitsChanged{lowered, 100, kGiB, swap ? 64 * kMiB : kGiB});
    h.step(h.ask(TenantClass::kBatch, 2 * kGiB));
    EXPECT_THAT(h.waits_for(),
                HasSubstr(swap ? "64 MiB is promised, 2.94 GiB is kept for memory that comes "
                                 "back from the host, and this job asks for 2 GiB; job "
                               : "3 GiB is promised, and this job asks for 2 GiB; job "));
    EXPECT_THAT(h.waits_for(), HasSubstr(" has all of it: 3 GiB{idle"));
  }
}

TEST(WaitText, OfADrainedGpu) {
  MemoryHarness h;
  CommandAsked drain{1, protocol::CommandVerb::kDrain, 0, h.state().gpus[0]->uuid, 7, true, false,
                     {}};
  drain.drain = {7, "new fans", 1000, "18:00"};
  h.step(drain);
  EXPECT_EQ(h.one<GpuNoted>().drain.reason, "new fans");
  h.step(h.ask(TenantClass::kBatch, kGiB));
  EXPECT_EQ(h.waits_for(), "GPU 0 is drained by user 7 (new fans), until 18:00");
  const View view = state_view(h.state(), h.now);
  EXPECT_EQ(view.drains, std::vector<std::string>{"drained by user 7 (new fans), until 18:00"});
  EXPECT_EQ(view.waits,
            std::vector<std::string>{"GPU 0 is drained by user 7 (new fans), until 18:00"});
  drain.drain = {};
  h.step(drain);
  EXPECT_TRUE(h.one<GpuNoted>().drain.reason.empty()) << "a second one has the last word";
}

TEST(WaitText, AdviceFitsWhatIsWaitedFor) {
  Policy policy = policy_usual();
  policy.classes[static_cast<std::size_t>(TenantClass::kBatch)].sm = SmRule::kAsked;
  Harness h(policy, 2, 4 * kGiB);
  TenantAsked full = h.ask(TenantClass::kBatch, 4 * kGiB);
  full.pinned = {uuid_of(1)};
  h.admit(full);
  const auto refused = [&](TenantAsked ask) {
    ask.request += 100;
    ask.no_wait = true;
    h.step(ask);
    return h.one<TenantRefused>().text;
  };
  TenantAsked ask = h.ask(TenantClass::kBatch, kGiB);
  ask.pinned = {uuid_of(1)};
  EXPECT_THAT(refused(ask),
              EndsWith("; without --gpu it would get GPU 1 now; allow waiting, or ask "
                       "for less, or leave --gpu out"));
  ask.joins = true;
  EXPECT_THAT(refused(ask), EndsWith("GiB{idle 1}; allow waiting, or ask for less"));
  CommandAsked drain{1, protocol::CommandVerb::kDrain, 0, uuid_of(2), 7, true, false, {}};
  drain.drain.uid = 7;
  h.step(drain);
  ask.pinned = {uuid_of(2)};
  EXPECT_THAT(refused(ask), EndsWith("GPU 1 is drained by user 7; allow waiting"));
  drain.verb = protocol::CommandVerb::kUndrain;
  h.step(drain);
  TenantAsked part = h.ask(TenantClass::kBatch, kGiB);
  part.sm_percent = 80;
  h.admit(part);
  part.request += 1;
  EXPECT_THAT(refused(part),
              EndsWith("; allow waiting, or ask for less, or for a weight (--weight)"));
}

TEST(WaitText, WhoMakesRoomForWholeGpusIsSaid) {
  Policy policy = policy_swapping();
  policy.exclusive_room = ExclusiveRoom::kSuspend;
  MemoryHarness h(policy);
  h.holder(kGiB);
  TenantAsked whole = h.ask(TenantClass::kExclusive, 0);
  whole.no_wait = true;
  h.step(whole);
  EXPECT_THAT(h.one<TenantRefused>().text,
              HasSubstr("; jobs with movable memory make room for it; this job asks for 1 "
                        "whole GPU; allow waiting"));
}

TEST(WaitText, AheadIsWhoHasPrecedence) {
  Policy policy = policy_usual();
  policy.groups["student"].per_user.tenants_max = 1;
  policy.groups["student"].all.tenants_max = 2;
  Harness h(policy);
  const auto ask = [&](std::uint32_t uid, const char* name) {
    TenantAsked asked = h.ask(TenantClass::kBatch, 256 * kMiB);
    asked.uid = uid;
    asked.group = "student";
    asked.name = name;
    return asked;
  };
  h.admit(ask(1, "x1"));
  h.step(ask(1, "x2"));
  EXPECT_EQ(h.one<TenantQueued>().ahead, "");
  h.admit(ask(2, "y1"));
  h.step(ask(3, "z1"));
  EXPECT_EQ(h.one<TenantQueued>().limit, protocol::QueueLimit::kAllRunning);
  EXPECT_EQ(h.one<TenantQueued>().position, 2U);
  EXPECT_EQ(h.one<TenantQueued>().ahead, "") << "the limit of user 1 is none of user 3's";
  h.step(ask(4, "w1"));
  EXPECT_EQ(h.one<TenantQueued>().ahead, "z1");
  EXPECT_EQ(h.one<TenantQueued>().ahead_uid, 3U);
  h.step(ask(1, "x3"));
  EXPECT_EQ(h.one<TenantQueued>().ahead, "w1");
}

TEST(StoppedText, AnAboutHasTwoDigits) {
  EXPECT_EQ(duration_about(531'870'000), "530 ms");
  EXPECT_EQ(duration_about(1'994'000'000), "2 s");
  EXPECT_EQ(duration_about(12'400'000'000), "12 s");
}

TEST(StoppedText, SaysWhyAJobDoesNotRun) {
  MemoryHarness h;
  const TenantId tenant = h.holder(kGiB);
  EXPECT_EQ(state_view(h.state(), h.now).stops, std::vector<std::string>{""});
  h.step(h.command(protocol::CommandVerb::kSuspend, tenant));
  EXPECT_THAT(state_view(h.state(), h.now).stops,
              ElementsAre(HasSubstr("until `sluice resume " + std::to_string(tenant) + "`")));
}

TEST(WaitText, OfGpusThatAreUsedWholeAndOfAnEarlierRequest) {
  MemoryHarness h;
  const TenantId owner = h.admit(h.ask(TenantClass::kExclusive, 0));
  h.step(h.ask(TenantClass::kBatch, kGiB));
  EXPECT_THAT(h.waits_for(), HasSubstr("GPU 0 is used whole by job " + std::to_string(owner)));
  h.end(owner);
  h.step(h.ask(TenantClass::kExclusive, 0));
  EXPECT_THAT(h.waits_for(), HasSubstr("GPU 0 is not empty yet: job "));
}

TEST(WaitText, OfAnEarlierRequestNamesTheOneThatWaitsForTheGpu) {
  Harness h(policy_usual(), 2, 4 * kGiB);
  const auto pinned = [&](std::uint8_t gpu, Bytes memory, const char* name) {
    TenantAsked asked = h.ask(TenantClass::kBatch, memory);
    asked.pinned = {uuid_of(gpu)};
    asked.name = name;
    return asked;
  };
  h.admit(pinned(1, 3 * kGiB, "here"));
  h.admit(pinned(2, 3 * kGiB, "there"));
  h.step(pinned(1, 2 * kGiB, "elsewhere"));
  h.step(pinned(2, 2 * kGiB, "before"));
  h.step(pinned(2, kGiB, "last"));
  EXPECT_EQ(h.one<TenantQueued>().reason, QueueReason::kPriority);
  EXPECT_THAT(h.waits_for(), StartsWith("there is room, but before of user 1000 asked before"));
}

TEST(WaitText, OfMemoryThatAnEndedJobHasStill) {
  MemoryHarness h;
  h.step(DeviceSeen{uuid_of(1), 0, 0, 0});
  const TenantId first = h.holder(2 * kGiB, false);
  h.step(FounderGone{first});
  h.step(ProcessGone{Harness::process(first), false, {2 * kGiB}});
  h.step(h.ask(TenantClass::kExclusive, 0));
  EXPECT_EQ(h.one<TenantQueued>().reason, QueueReason::kDrain);
  EXPECT_EQ(h.waits_for(),
            "no job is on GPU 0, but 2 GiB of jobs that ended is not free yet; this job asks for 1 "
            "whole GPU");
}

TEST(StoppedText, ARunawayHearsOfItsOwnTime) {
  Harness h(policy_usual(), 2);
  TenantAsked asked = h.ask();
  asked.gpu_count = 2;
  const TenantId gang = h.admit(asked);
  asked = h.ask();
  asked.pinned = {uuid_of(1)};
  const TenantId single = h.admit(asked);
  h.want(gang, 0);
  h.want(gang, 1);
  h.want(single);
  h.pass(50 * kMs);
  ASSERT_FALSE(h.open(gang));
  h.drain(gang, 1);
  h.pass(200 * kMs);
  const auto text = [&] { return state_view(h.state(), h.now).stops.front(); };
  EXPECT_THAT(text(), HasSubstr("ended once others have waited 4 s for it"));
  h.step(ProcessJoined{gang, 900});
  h.step(GateWanted{900, 1, h.epoch(gang, 1)});
  EXPECT_THAT(text(), HasSubstr("ended once others have waited 32 s for it"))
      << "its turn may be all that it lacks";
}

TEST(StoppedText, ASuspendedJobWhoseMemoryIsStillOnItsGpu) {
  MemoryHarness h;
  const TenantId tenant = h.holder(kGiB);
  h.want(tenant);
  h.step(h.command(protocol::CommandVerb::kSuspend, tenant));
  ASSERT_EQ(h.residence(tenant), Residence::kLeaving);
  const auto text = [&] { return state_view(h.state(), h.now).stops.front(); };
  EXPECT_THAT(text(), testing::Not(HasSubstr("is on the host")));
  h.drain(tenant);
  h.out(tenant);
  EXPECT_THAT(text(), HasSubstr("its GPU memory is on the host"));
}

}  // namespace
}  // namespace sluice::core

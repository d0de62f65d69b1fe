// What a request that waits is told, and why a job does not run.
#include <gmock/gmock.h>

#include "memory_harness.h"

namespace sluice::core {
namespace {

using testing::ElementsAre;
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
  const std::string whose = "; job " + std::to_string(holder) + " (notebook) of user " +
                            std::to_string(movable.uid) + " has most of it: 3 GiB{idle " +
                            std::to_string(holder) + "}";
  EXPECT_EQ(h.waits_for(),
            "the quotas on GPU 0 add up to 6 GiB of 8 GiB, and this job asks for 3 GiB" + whose);
  TenantAsked fixed = h.ask(TenantClass::kBatch, 2 * kGiB);
  fixed.no_wait = true;
  h.step(fixed);
  EXPECT_THAT(h.one<TenantRefused>().text,
              HasSubstr("of 4 GiB on GPU 0, 64 MiB is promised, 2.97 GiB is kept for memory that "
                        "comes back from the host, and this job asks for 2 GiB" +
                        whose));
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
  EXPECT_EQ(h.waits_for(), "no job is on GPU 0, but 2 GiB of jobs that ended is not free yet");
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

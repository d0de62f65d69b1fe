// Promised GPU time: it is admitted like memory, and kept beside whatever is not promised.
#include <gmock/gmock.h>

#include "tests/broker/core/harness.h"

namespace sluice::core {
namespace {

using ::testing::HasSubstr;

Policy policy_of(SmRule sm) {
  Policy policy = policy_usual();
  for (ClassPolicy& of_class : policy.classes) of_class.sm = sm;
  return policy;
}

class Promised : public Harness {
 public:
  explicit Promised(SmRule sm = SmRule::kAsked, std::uint8_t gpus = 1)
      : Harness(policy_of(sm), gpus) {}

  TenantAsked percent(std::uint32_t sm, TenantClass tenant_class = TenantClass::kBatch) {
    TenantAsked asked = ask(tenant_class, 64 * kMiB);
    asked.sm_percent = sm;
    return asked;
  }
  TenantAsked weight(std::uint32_t sm, TenantClass tenant_class = TenantClass::kBatch) {
    TenantAsked asked = percent(sm, tenant_class);
    asked.sm_weight = true;
    return asked;
  }
  /// Part of the time that each holds the GPU while all of them always want it.
  std::map<TenantId, double> parts(const std::vector<TenantId>& tenants, Nanos length) {
    std::map<TenantId, Nanos> held;
    for (TenantId t : tenants) want(t);
    for (const Nanos end = now + length; now < end;) {
      for (TenantId t : tenants)
        if (open(t)) held[t] += kMs;
      pass(kMs);
      for (int round = 0; round < 2; ++round) {  // a want may close a lease, which drains at once
        for (TenantId t : tenants) {
          if (open(t)) continue;
          drain(t);
          want(t);
        }
      }
    }
    std::map<TenantId, double> out;
    for (const auto& [t, ns] : held) out[t] = static_cast<double>(ns) / static_cast<double>(length);
    return out;
  }
};

TEST(Guarantee, ThreeHalvesAreOnThreeGpusOrWait) {
  Promised core(SmRule::kAsked, 2);
  std::vector<GpuUuid> gpus;
  for (int i = 0; i < 4; ++i) {
    core.step(core.percent(50));
    EXPECT_EQ(core.one<TenantAdmitted>().sm_kind, SmKind::kGuaranteed);
    gpus.push_back(core.one<TenantAdmitted>().gpus[0]);
  }
  EXPECT_EQ(std::ranges::count(gpus, uuid_of(1)), 2);
  core.step(core.percent(50));
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kShare);
}

TEST(Guarantee, TheJobGoesWhereItFits) {
  Promised core(SmRule::kAsked, 2);
  TenantAsked first = core.percent(80);
  first.pinned = {uuid_of(1)};
  core.admit(first);
  TenantAsked second = core.percent(70);
  second.pinned = {uuid_of(2)};
  core.admit(second);
  core.step(core.percent(30));
  EXPECT_EQ(core.one<TenantAdmitted>().gpus[0], uuid_of(2));
  core.step(core.percent(20));
  EXPECT_EQ(core.one<TenantAdmitted>().gpus[0], uuid_of(1));
}

TEST(Guarantee, AWaitHasItsReasonAndItsNumbersAndEndsWithAPromise) {
  Promised core(SmRule::kAsked, 2);
  TenantAsked pinned = core.percent(90);
  pinned.pinned = {uuid_of(1)};
  const TenantId ends = core.admit(pinned);
  pinned = core.percent(80);
  pinned.pinned = {uuid_of(2)};
  core.admit(pinned);
  const TenantAsked waits = core.percent(30);
  core.step(waits);
  const auto queued = core.one<TenantQueued>();
  EXPECT_EQ(queued.reason, QueueReason::kShare);
  EXPECT_EQ(queued.promised, 80U) << "on the GPU with least";
  EXPECT_EQ(queued.capacity, 100U);
  EXPECT_THAT(core.waits_for(),
              HasSubstr("the guarantees on GPU 1 add up to 80 of 100 %, and this job asks for "
                        "30 %; job "));
  core.end(ends);
  EXPECT_EQ(core.one<TenantAdmitted>().request, waits.request);
}

TEST(Guarantee, NoWaitIsToldWhatBinds) {
  Promised core;
  core.admit(core.percent(80));
  TenantAsked asked = core.percent(30);
  asked.no_wait = true;
  core.step(asked);
  EXPECT_EQ(core.one<TenantRefused>().code, RefusalCode::kNoRoom);
  EXPECT_THAT(
      core.one<TenantRefused>().text,
      HasSubstr("the guarantees on GPU 0 add up to 80 of 100 %, and this job asks for 30 %"));
}

TEST(Guarantee, AWaitNamesTheGpuThatLacksNothingElseAndItsLargestGuarantee) {
  Promised core(SmRule::kAsked, 2);
  TenantAsked full = core.weight(1);
  full.pinned = {uuid_of(1)};
  full.memory_max = core.state().gpus[0]->capacity;
  core.admit(full);
  TenantAsked part = core.percent(30);
  part.pinned = {uuid_of(2)};
  core.admit(part);
  part.sm_percent = 50;
  part.name = "train";
  part.request += 100;
  const TenantId holder = core.admit(part);
  core.step(core.percent(40));
  const auto queued = core.one<TenantQueued>();
  EXPECT_EQ(queued.reason, QueueReason::kShare);
  EXPECT_EQ(queued.promised, 80U) << "GPU 0 guarantees nothing and has no memory";
  const std::string id = std::to_string(holder);
  EXPECT_EQ(core.waits_for(),
            "the guarantees on GPU 1 add up to 80 of 100 %, and this job asks for 40 %; job " + id +
                " (train) of user " + std::to_string(part.uid) + " has most of it: 50 %{idle " +
                id + "}; 1 more GPU has no room for it");
}

TEST(Guarantee, AWeightNeverWaitsForAShare) {
  Promised core;
  core.admit(core.percent(100));
  core.step(core.weight(50));
  EXPECT_EQ(core.one<TenantAdmitted>().sm_kind, SmKind::kWeight) << "the job said so";
  core.step(core.ask());
  EXPECT_EQ(core.one<TenantAdmitted>().sm_kind, SmKind::kWeight) << "it asked for no percentage";
  Promised by_class(SmRule::kWeight);
  by_class.step(by_class.percent(80));
  EXPECT_EQ(by_class.one<TenantAdmitted>().sm_kind, SmKind::kWeight);
  by_class.step(by_class.percent(80));
  EXPECT_EQ(by_class.one<TenantAdmitted>().sm_kind, SmKind::kWeight);
}

TEST(Guarantee, AClassCanGuaranteeItsDefault) {
  Policy policy = policy_of(SmRule::kGuaranteed);
  policy.classes[static_cast<std::size_t>(TenantClass::kBatch)].sm_percent = 60;
  Harness core(policy);
  core.step(core.ask());
  EXPECT_EQ(core.one<TenantAdmitted>().sm_kind, SmKind::kGuaranteed);
  core.step(core.ask());
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kShare);
}

TEST(Guarantee, AnNthPartIsNoPromise) {
  Promised core(SmRule::kGuaranteed);
  for (int i = 0; i < 3; ++i) {
    TenantAsked asked = core.percent(100);
    asked.sm_mode = SmMode::kEqual;
    asked.sm_mode_given = true;
    core.step(asked);
    EXPECT_EQ(core.one<TenantAdmitted>().sm_kind, SmKind::kWeight);
  }
}

TEST(Guarantee, ThirtyStudentsOnFourGpusDoNotQueueForPercentages) {
  Policy policy = policy_of(SmRule::kGuaranteed);
  ClassPolicy& debug = policy.classes[static_cast<std::size_t>(TenantClass::kDebug)];
  debug.sm = SmRule::kWeight;
  debug.sm_percent = 10;
  Harness core(policy, 4, 64 * kGiB);
  for (int i = 0; i < 30; ++i) {
    TenantAsked asked = core.ask(TenantClass::kDebug, 2 * kGiB);
    asked.uid = 2000 + static_cast<std::uint32_t>(i);
    core.step(asked);
    EXPECT_EQ(core.all<TenantAdmitted>().size(), 1U) << i;
  }
  for (int i = 0; i < 4; ++i) {
    TenantAsked asked = core.ask(TenantClass::kBatch, 4 * kGiB);
    asked.sm_percent = 50;
    core.step(asked);
    EXPECT_EQ(core.one<TenantAdmitted>().sm_kind, SmKind::kGuaranteed) << i;
  }
  for (const auto& gpu : state_view(core.state(), core.now).gpus)
    EXPECT_EQ(gpu.sm_guaranteed, 50U) << "spread by promise";
}

TEST(Guarantee, AGangNeedsItOnEachGpu) {
  Promised core(SmRule::kAsked, 2);
  TenantAsked pinned = core.percent(80);
  pinned.pinned = {uuid_of(1)};
  core.admit(pinned);
  TenantAsked gang = core.percent(40);
  gang.gpu_count = 2;
  core.step(gang);
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kShare);
  EXPECT_THAT(core.waits_for(),
              HasSubstr("fewer than 2 GPUs have room at once: the guarantees on GPU 0 add up to 80 "
                        "of 100 %, and this job asks for 40 % on each of 2 GPUs"));
  gang = core.percent(20);
  gang.gpu_count = 2;
  gang.uid = 1001;
  core.step(gang);
  EXPECT_EQ(core.one<TenantAdmitted>().gpus.size(), 2U);
  for (const auto& gpu : state_view(core.state(), core.now).gpus)
    EXPECT_EQ(gpu.sm_guaranteed, gpu.uuid == uuid_of(1) ? 100U : 20U);
}

TEST(Guarantee, MemoryIsTheReasonWhereThereIsNone) {
  Promised core;
  TenantAsked asked = core.percent(80);
  asked.memory_max = 4 * kGiB;
  core.admit(asked);
  core.step(core.percent(80));
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kResources);
}

TEST(Guarantee, IsKeptBesideAnyNumberOfWeights) {
  Promised core;
  const TenantId promised = core.admit(core.percent(40));
  std::vector<TenantId> all{promised};
  for (int i = 0; i < 12; ++i) all.push_back(core.admit(core.weight(20)));
  const auto got = core.parts(all, 5 * kSecond);
  EXPECT_NEAR(got.at(promised), 0.4, 0.01);
  for (std::size_t i = 1; i < all.size(); ++i)
    EXPECT_NEAR(got.at(all[i]), 0.6 / 12, 0.01) << "they divide what is left";
}

TEST(Guarantee, WeightsDoNotStarveWhereAllIsGuaranteed) {
  Promised core;
  const TenantId most = core.admit(core.percent(90));
  const TenantId least = core.admit(core.percent(10));
  const TenantId weight = core.admit(core.weight(100));
  const auto got = core.parts({most, least, weight}, 20 * kSecond);
  EXPECT_GE(got.at(most), 0.95 * 0.9);
  EXPECT_GE(got.at(least), 0.95 * 0.1);
  EXPECT_GE(got.at(weight), 0.01);
}

TEST(Guarantee, WeightsBelowWhatIsLeftAreTheirPercentages) {
  Promised core;
  const TenantId promised = core.admit(core.percent(40));
  const TenantId weight = core.admit(core.weight(10));
  const auto got = core.parts({promised, weight}, 20 * kSecond);
  EXPECT_NEAR(got.at(promised), 0.8, 0.01) << "free time goes by the numbers";
  EXPECT_NEAR(got.at(weight), 0.2, 0.01);
}

TEST(Guarantee, IsKeptBesideEqualShares) {
  Promised core;
  const TenantId promised = core.admit(core.percent(60));
  std::vector<TenantId> all{promised};
  for (int i = 0; i < 4; ++i) {
    TenantAsked asked = core.percent(100);
    asked.sm_mode = SmMode::kEqual;
    asked.sm_mode_given = true;
    all.push_back(core.admit(asked));
  }
  const auto got = core.parts(all, 10 * kSecond);
  EXPECT_NEAR(got.at(promised), 0.6, 0.01);
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_NEAR(got.at(all[i]), 0.1, 0.01);
}

TEST(Guarantee, InferenceWithAWeightTakesNothingThatIsGuaranteed) {
  Promised core;
  const TenantId promised = core.admit(core.percent(60));
  const TenantId serves = core.admit(core.weight(100, TenantClass::kInference));
  const auto got = core.parts({promised, serves}, 20 * kSecond);
  EXPECT_GE(got.at(promised), 0.95 * 0.6);
}

TEST(Guarantee, OfAGangIsNotDilutedAndItsWeightIsScaledAsOthersAre) {
  Promised core(SmRule::kAsked, 2);
  TenantAsked asked = core.percent(40);
  asked.gpu_count = 2;
  const TenantId promised = core.admit(asked);
  asked = core.weight(100);
  asked.gpu_count = 2;
  const TenantId weighs = core.admit(asked);
  for (int i = 0; i < 6; ++i) core.admit(core.weight(50));
  core.want(promised);
  core.pass(kMs);
  const auto guarantee = [&](TenantId id) { return core.state().tenants.at(id)->guarantee; };
  EXPECT_NEAR(guarantee(promised), 0.4, 0.001);
  EXPECT_NEAR(guarantee(weighs), 0.6 * 100 / 250, 0.001) << "of what is left, against the others";
}

/// Where it stands in line follows what its percentage is.
TEST(Guarantee, CanBecomeAWeightWhileItsTenantWaits) {
  Promised core;
  const TenantId holder = core.admit(core.percent(50));
  const TenantId a = core.admit(core.percent(40));
  const TenantId b = core.admit(core.percent(10));
  for (const TenantId tenant : {holder, a, b}) core.want(tenant);
  core.step(LimitsChanged{a, 40, 64 * kMiB, 64 * kMiB, false, true});
  EXPECT_EQ(core.one<LimitsSet>().sm_kind, SmKind::kWeight);
  auto parts = core.parts({holder, a, b}, 10 * kSecond);
  EXPECT_NEAR(parts[holder], 0.50, 0.02);
  EXPECT_NEAR(parts[a], 0.40, 0.02);
  core.step(LimitsChanged{a, 40, 64 * kMiB, 64 * kMiB});
  parts = core.parts({holder, a, b}, 10 * kSecond);
  EXPECT_NEAR(parts[a], 0.40, 0.02);
  EXPECT_NEAR(parts[b], 0.10, 0.02);
}

TEST(Guarantee, ANewPercentageIsRaisedAsFarAsThePromisesOfOthersAllow) {
  Promised core;
  const TenantId a = core.admit(core.percent(30));
  core.admit(core.percent(50));
  core.step(LimitsChanged{a, 70, 64 * kMiB, 64 * kMiB});
  EXPECT_EQ(core.one<LimitsSet>().sm_percent, 50U);
  core.step(LimitsChanged{a, 20, 64 * kMiB, 64 * kMiB});
  EXPECT_EQ(core.one<LimitsSet>().sm_percent, 20U);
  EXPECT_EQ(core.one<LimitsSet>().sm_kind, SmKind::kGuaranteed);
}

TEST(Guarantee, AClassThatGuaranteesNoLongerMakesItsJobsWeights) {
  Promised core(SmRule::kGuaranteed);
  const TenantId a = core.admit(core.percent(60));
  core.step(PolicyChanged{policy_of(SmRule::kWeight)});
  core.step(LimitsChanged{a, 60, 64 * kMiB, 64 * kMiB});
  EXPECT_EQ(core.one<LimitsSet>().sm_kind, SmKind::kWeight);
  const TenantId b = core.admit(core.percent(60));
  core.step(PolicyChanged{policy_of(SmRule::kGuaranteed)});
  core.step(LimitsChanged{a, 60, 64 * kMiB, 64 * kMiB});
  EXPECT_EQ(core.one<LimitsSet>().sm_kind, SmKind::kGuaranteed);
  core.step(LimitsChanged{b, 60, 64 * kMiB, 64 * kMiB});
  EXPECT_TRUE(core.all<LimitsSet>().empty()) << "there is no room for the second guarantee";
}

TEST(Guarantee, OfABrokerBeforeIsKeptWhereItFits) {
  Promised core;
  TenantRestored event;
  for (TenantId id : {5, 6}) {
    event.tenant = id;
    event.sm_kind = SmKind::kGuaranteed;
    event.sm_percent = 70;
    event.memory_max = event.memory_min = 64 * kMiB;
    event.gpus = {uuid_of(1)};
    core.step(event);
    EXPECT_EQ(core.one<LimitsSet>().sm_kind, id == 5 ? SmKind::kGuaranteed : SmKind::kWeight);
  }
}

TEST(Guarantee, AMoveNeedsItWhereTheJobGoes) {
  Promised core(SmRule::kAsked, 2);
  TenantAsked asked = core.percent(60);
  asked.pinned = {uuid_of(1)};
  const TenantId a = core.admit(asked);
  asked = core.percent(70);
  asked.pinned = {uuid_of(2)};
  core.admit(asked);
  core.step(CommandAsked{900, protocol::CommandVerb::kMove, a, uuid_of(2), 1000, true});
  EXPECT_EQ(core.one<CommandAnswered>().code, RefusalCode::kNoRoom);
  EXPECT_THAT(core.one<CommandAnswered>().text,
              HasSubstr("guarantees 70 % of its time to others, and the job has 60 % guaranteed"));
}

TEST(Guarantee, ARequestThatItsOwnUsersPromisesKeepOutHoldsNothing) {
  Promised core;
  core.admit(core.percent(80));
  TenantAsked own = core.percent(30);
  core.step(own);
  EXPECT_EQ(core.one<TenantQueued>().reason, QueueReason::kShare);
  core.pass(30 * kSecond);
  TenantAsked other = core.percent(10);
  other.uid = 2000;
  core.step(other);
  EXPECT_EQ(core.all<TenantAdmitted>().size(), 1U);
}

TEST(Guarantee, EverySequenceKeepsTheSumOfAGpuWithinAHundred) {
  Promised core(SmRule::kAsked, 3);
  std::vector<TenantId> living;
  std::uint64_t random = 88172645463325252;
  const auto next = [&random](std::uint64_t n) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random % n;
  };
  for (int i = 0; i < 3000; ++i) {
    if (next(3) == 0 && !living.empty()) {
      const std::size_t at = next(living.size());
      const TenantId gone = living[at];
      living.erase(living.begin() + static_cast<std::ptrdiff_t>(at));
      core.end(gone);
    } else if (next(4) == 0 && !living.empty()) {
      core.step(LimitsChanged{living[next(living.size())],
                              static_cast<std::uint32_t>(1 + next(100)), 64 * kMiB, 64 * kMiB,
                              next(2) == 0, next(2) == 0});
    } else {
      TenantAsked asked = core.percent(static_cast<std::uint32_t>(1 + next(60)));
      asked.sm_weight = next(3) == 0;
      asked.sm_default = next(3) == 0;
      asked.gpu_count = static_cast<std::uint32_t>(1 + next(3) / 2);
      asked.uid = static_cast<std::uint32_t>(1000 + next(4));
      asked.no_wait = next(2) == 0;
      core.step(asked);
    }
    for (const auto& admitted : core.all<TenantAdmitted>()) {
      living.push_back(admitted.tenant);
      core.step(ProcessJoined{admitted.tenant, Harness::process(admitted.tenant)});
    }
    core.pass(kMs);  // invariants_check sums up after every step
  }
}

}  // namespace
}  // namespace sluice::core

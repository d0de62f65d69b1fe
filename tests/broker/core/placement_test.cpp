// Which of the GPUs that have room a tenant gets.
#include "tests/broker/core/harness.h"

namespace sluice::core {
namespace {

Policy policy_placed(PlacementRule rule, SmRule sm = SmRule::kWeight) {
  Policy policy = policy_usual();
  for (ClassPolicy& of_class : policy.classes) {
    of_class.placement = rule;
    of_class.sm = sm;
  }
  return policy;
}

class Placed : public Harness {
 public:
  using Harness::Harness;
  /// The index of the GPU that the request gets.
  int gpu_of(TenantAsked asked) {
    step(asked);
    const auto admitted = one<TenantAdmitted>();
    if (admitted.gpus.empty()) return -1;
    last = admitted.tenant;
    step(ProcessJoined{last, process(last)});
    return admitted.gpus[0].bytes[0] - 1;
  }
  TenantAsked percent(std::uint32_t sm, Bytes memory = 256 * kMiB) {
    TenantAsked asked = ask(TenantClass::kBatch, memory);
    asked.sm_percent = sm;
    return asked;
  }
  TenantId last = 0;
};

TEST(Spread, FourStudentsJobsAreTwoOnEachOfTwoGpus) {
  Placed core(policy_placed(PlacementRule::kSpread), 2);
  std::vector<int> gpus;
  for (int i = 0; i < 4; ++i) gpus.push_back(core.gpu_of(core.ask(TenantClass::kDebug)));
  EXPECT_EQ(gpus, (std::vector<int>{0, 1, 0, 1}));
}

TEST(Spread, LeastPromisedGoesBeforeMostRoom) {
  Placed core(policy_placed(PlacementRule::kSpread, SmRule::kGuaranteed), 2);
  EXPECT_EQ(core.gpu_of(core.percent(50, 64 * kMiB)), 0);
  EXPECT_EQ(core.gpu_of(core.percent(20, 3 * kGiB)), 1);
  EXPECT_EQ(core.gpu_of(core.percent(20, 64 * kMiB)), 1) << "20 % promised, and less room";
}

TEST(Spread, LeastBusyGoesBeforeMostRoomAndWhatWasLongAgoIsForgotten) {
  Placed core(policy_placed(PlacementRule::kSpread), 2);
  EXPECT_EQ(core.gpu_of(core.percent(10, 64 * kMiB)), 0);
  const TenantId works = core.last;
  core.want(works);
  for (Nanos t = 1; t <= 10; ++t) {
    core.pass(kSecond);
    core.step(UsageSeen{works, 0, t * kSecond});
  }
  EXPECT_EQ(core.gpu_of(core.percent(10, 3 * kGiB)), 1);
  EXPECT_EQ(core.gpu_of(core.percent(10, 64 * kMiB)), 1)
      << "GPU 0 has more room, and was busy all the time";
  core.pass(100 * kSecond);
  core.step(UsageSeen{works, 0, 10 * kSecond});
  core.pass(kSecond);
  EXPECT_EQ(core.gpu_of(core.percent(10, 64 * kMiB)), 0);
}

TEST(Spread, IdleTenantsWithLittleMemoryCountAsWell) {
  Placed core(policy_placed(PlacementRule::kSpread), 2);
  EXPECT_EQ(core.gpu_of(core.percent(10, 2 * kGiB)), 0);
  for (int expected : {1, 1, 0})
    EXPECT_EQ(core.gpu_of(core.percent(10, 64 * kMiB)), expected) << "10 and 10, then more room";
}

TEST(Pack, FillsTheFullestGpuThatHasRoom) {
  Placed core(policy_placed(PlacementRule::kPack), 2);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(core.gpu_of(core.ask(TenantClass::kDebug)), 0);
  EXPECT_EQ(core.gpu_of(core.percent(10, 4 * kGiB)), 1) << "a large one finds a whole GPU";
}

TEST(Spread, EachClassHasItsOwnRule) {
  Policy policy = policy_placed(PlacementRule::kSpread);
  policy.classes[static_cast<std::size_t>(TenantClass::kBatch)].placement = PlacementRule::kPack;
  Placed core(policy, 2);
  EXPECT_EQ(core.gpu_of(core.ask(TenantClass::kDebug)), 0);
  EXPECT_EQ(core.gpu_of(core.ask(TenantClass::kBatch)), 0);
  EXPECT_EQ(core.gpu_of(core.ask(TenantClass::kDebug)), 1);
}

TEST(Spread, GangsLeaveWholeGpusFreeWhereThereIsAChoice) {
  Placed core(policy_placed(PlacementRule::kSpread), 4);
  TenantAsked pinned = core.percent(10);
  pinned.pinned = {uuid_of(3)};
  EXPECT_EQ(core.gpu_of(pinned), 2);
  TenantAsked gang = core.percent(10);
  gang.gpu_count = 2;
  core.step(gang);
  EXPECT_EQ(core.one<TenantAdmitted>().gpus, (std::vector<GpuUuid>{uuid_of(1), uuid_of(3)}))
      << "one of them is in use already";
  gang.request = 100;
  core.step(gang);
  TenantAsked whole = core.ask(TenantClass::kExclusive);
  whole.gpu_count = 2;
  core.step(whole);
  EXPECT_EQ(core.one<TenantAdmitted>().gpus, (std::vector<GpuUuid>{uuid_of(2), uuid_of(4)}));
}

TEST(Spread, AGpuThatIsSmallerAndEmptyIsNotBrokenUpByAGang) {
  Placed core(policy_placed(PlacementRule::kSpread), 0);
  core.step(GpuAdded{uuid_of(1), 8 * kGiB, 32 * kMiB});
  core.step(GpuAdded{uuid_of(2), 8 * kGiB, 32 * kMiB});
  core.step(GpuAdded{uuid_of(3), kGiB, 32 * kMiB});
  EXPECT_EQ(core.gpu_of(core.percent(10)), 0);
  EXPECT_EQ(core.gpu_of(core.percent(10)), 1);
  TenantAsked gang = core.percent(10);
  gang.gpu_count = 2;
  core.step(gang);
  EXPECT_EQ(core.one<TenantAdmitted>().gpus, (std::vector<GpuUuid>{uuid_of(1), uuid_of(2)}));
}

}  // namespace
}  // namespace sluice::core

// The order of contended GPU time: weights, the latency band, fixed budgets.
#include "tests/broker/core/harness.h"

namespace sluice::core {
namespace {

/// Holder changes until `until`: everybody always wants and drains at once; who held for how long.
std::map<TenantId, Nanos> saturate(Harness& core, const std::vector<TenantId>& tenants,
                                   Nanos length) {
  std::map<TenantId, Nanos> held;
  for (TenantId t : tenants) core.want(t);
  const Nanos end = core.now + length;
  while (core.now < end) {
    for (TenantId t : tenants)
      if (core.open(t)) held[t] += kMs;
    core.pass(kMs);
    for (int round = 0; round < 2; ++round) {  // a want may close somebody who then drains at once
      for (TenantId t : tenants) {
        if (core.open(t)) continue;
        core.drain(t);
        core.want(t);
      }
    }
  }
  return held;
}

TEST(Fair, TimeFollowsTheWeights) {
  Harness core;
  const TenantId a = core.admit(TenantClass::kBatch, 10);
  const TenantId b = core.admit(TenantClass::kDebug, 30);
  const TenantId c = core.admit(TenantClass::kBatch, 60);
  auto held = saturate(core, {a, b, c}, 20 * kSecond);
  EXPECT_NEAR(static_cast<double>(held[a]) / 20e9, 0.10, 0.01);
  EXPECT_NEAR(static_cast<double>(held[b]) / 20e9, 0.30, 0.01);
  EXPECT_NEAR(static_cast<double>(held[c]) / 20e9, 0.60, 0.01);
}

TEST(Fair, EqualModeIsOneNthWhateverTheOthersWeigh) {
  Harness core;
  TenantAsked asked = core.ask();
  asked.sm_mode = SmMode::kEqual;
  asked.sm_mode_given = true;
  const TenantId equal = core.admit(asked);
  const TenantId b = core.admit(TenantClass::kBatch, 30);
  const TenantId c = core.admit(TenantClass::kBatch, 90);
  auto held = saturate(core, {equal, b, c}, 20 * kSecond);
  EXPECT_NEAR(static_cast<double>(held[equal]) / 20e9, 1.0 / 3, 0.01);
  EXPECT_NEAR(static_cast<double>(held[b]) / 20e9, 2.0 / 3 * 0.25, 0.01);
}

TEST(Fair, ASleeperGetsItsFloorAndNoCredit) {
  Harness core;
  const TenantId a = core.admit(TenantClass::kBatch, 50);
  const TenantId b = core.admit(TenantClass::kBatch, 50);
  saturate(core, {a}, 10 * kSecond);
  auto held = saturate(core, {a, b}, kSecond);
  EXPECT_NEAR(static_cast<double>(held[b]) / 1e9, 0.5, 0.03)
      << "ten seconds of sleep are not made up for";
}

TEST(Band, InferenceCutsBatchShortAtOnce) {
  Harness core;
  const TenantId batch = core.admit(TenantClass::kBatch, 50);
  const TenantId serve = core.admit(TenantClass::kInference, 50);
  core.want(batch);
  core.pass(2 * kMs);
  core.want(serve);
  EXPECT_FALSE(core.open(batch));
  core.drain(batch);
  EXPECT_TRUE(core.open(serve));
}

TEST(Band, BatchDoesNotCutInferenceShort) {
  Harness core;
  const TenantId batch = core.admit(TenantClass::kBatch, 50);
  const TenantId serve = core.admit(TenantClass::kInference, 50);
  core.want(serve);
  core.want(batch);
  core.pass(30 * kMs);
  EXPECT_TRUE(core.open(serve));
}

TEST(Band, SaturatedInferenceLeavesTheOthersTheirFloor) {
  Harness core;
  const TenantId batch = core.admit(TenantClass::kBatch, 40);
  const TenantId serve = core.admit(TenantClass::kInference, 60);
  auto held = saturate(core, {batch, serve}, 20 * kSecond);
  EXPECT_NEAR(static_cast<double>(held[batch]) / 20e9, 0.40, 0.02);
  EXPECT_NEAR(static_cast<double>(held[serve]) / 20e9, 0.60, 0.02);
}

TEST(Band, InferenceTenantsAreFairAmongThemselves) {
  Harness core;
  const TenantId a = core.admit(TenantClass::kInference, 20);
  const TenantId b = core.admit(TenantClass::kInference, 60);
  const TenantId batch = core.admit(TenantClass::kBatch, 20);
  auto held = saturate(core, {a, b, batch}, 20 * kSecond);
  EXPECT_NEAR(static_cast<double>(held[a]) / static_cast<double>(held[b]), 1.0 / 3, 0.03);
  EXPECT_GE(static_cast<double>(held[batch]) / 20e9, 0.18);
}

TEST(Budget, FixedIsCappedOnAnIdleGpu) {
  Harness core;
  TenantAsked asked = core.ask();
  asked.sm_percent = 30;
  asked.sm_mode = SmMode::kFixed;
  asked.sm_mode_given = true;
  const TenantId fixed = core.admit(asked);
  auto held = saturate(core, {fixed}, 20 * kSecond);
  EXPECT_NEAR(static_cast<double>(held[fixed]) / 20e9, 0.30, 0.02);
}

TEST(Budget, FixedKeepsItsFloorUnderContention) {
  Harness core;
  TenantAsked asked = core.ask();
  asked.sm_percent = 30;
  asked.sm_mode = SmMode::kFixed;
  asked.sm_mode_given = true;
  const TenantId fixed = core.admit(asked);
  const TenantId a = core.admit(TenantClass::kBatch, 35);
  const TenantId b = core.admit(TenantClass::kBatch, 35);
  auto held = saturate(core, {fixed, a, b}, 20 * kSecond);
  EXPECT_NEAR(static_cast<double>(held[fixed]) / 20e9, 0.30, 0.02);
}

TEST(Fair, ANewQuantumCountsAtOnce) {
  Policy policy = policy_usual();
  Harness core(policy);
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.want(b);
  policy.quantum_ns = 100 * kMs;
  core.step(PolicyChanged{policy});
  core.pass(12 * kMs);
  core.drain(a);
  ASSERT_TRUE(core.open(b));
  core.want(a);
  core.pass(60 * kMs);
  EXPECT_TRUE(core.open(b));
}

}  // namespace
}  // namespace sluice::core

// The order of contended GPU time: weights, the latency band, fixed budgets.
#include <gmock/gmock.h>

#include "broker/core/binding.h"
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

/// A tenant of 50 % beside another one: a kernel of it runs for so long, and then it drains.
struct Overrunner {
  explicit Overrunner(Nanos kernel, SmMode mode = SmMode::kBestEffort) {
    a = admit(mode);
    b = admit(mode);
    core.want(a);
    core.want(b);
    core.pass(kernel);
    EXPECT_FALSE(core.open(b));
    core.drain(a);
    core.step(UsageSeen{a, 0, kernel});
  }
  TenantId admit(SmMode mode) {
    TenantAsked asked = core.ask();
    asked.sm_percent = 50;
    asked.sm_mode = mode;
    asked.sm_mode_given = true;
    return core.admit(asked);
  }
  static Policy patient() {
    Policy policy = policy_usual();
    policy.drain_timeout_ns = 300 * kSecond;
    return policy;
  }
  Harness core{patient()};
  TenantId a = 0;
  TenantId b = 0;
};

TEST(Fair, AnOverrunIsPaidBackInFull) {
  Overrunner over(20 * kSecond);
  auto held = saturate(over.core, {over.a, over.b}, 19 * kSecond);
  EXPECT_EQ(held[over.a], 0) << "the other one gets its twenty seconds";
  saturate(over.core, {over.a, over.b}, 2 * kSecond);
  held = saturate(over.core, {over.a, over.b}, 2 * kSecond);
  EXPECT_NEAR(static_cast<double>(held[over.a]) / 2e9, 0.5, 0.06) << "and not more";
}

/// The part of `tenant` in a snapshot.
protocol::SnapshotTenantGpu part_of(Harness& core, TenantId tenant) {
  for (const auto& part : state_view(core.state(), core.now).tenant_gpus)
    if (part.tenant == tenant) return part;
  return {};
}

std::string stopped_of(Harness& core, TenantId tenant) {
  return stopped_text(core.state(), *core.state().tenants.at(tenant), core.now);
}

TEST(Fair, AJobThatPaysBackSaysHowMuchAndForHowLong) {
  Overrunner over(20 * kSecond);
  Harness& core = over.core;
  EXPECT_EQ(part_of(core, over.b).owed_ns, 0);
  EXPECT_NEAR(static_cast<double>(part_of(core, over.a).owed_ns), 10e9, 1e8)
      << "half of its twenty seconds were its own";
  EXPECT_EQ(stopped_of(core, over.a), "") << "it does not want the GPU";
  saturate(core, {over.a, over.b}, 10 * kSecond);
  EXPECT_THAT(stopped_of(core, over.a),
              testing::MatchesRegex("it pays back (4.9.?|5|5.0.?) s of GPU time that jobs of user "
                                    "1000 took beyond their share: it runs again in about "
                                    "(9.[89].?|10|10.[01].?) s, or as soon as no other job wants "
                                    "its GPU"));
  const double before = static_cast<double>(part_of(core, over.a).owed_ns);
  EXPECT_EQ(static_cast<double>(part_of(core, over.a).owed_ns), before) << "asking pays nothing";
  saturate(core, {over.a, over.b}, 11 * kSecond);
  EXPECT_EQ(stopped_of(core, over.a), "");
}

TEST(Fair, AFixedJobThatPaysBackWaitsOnAnIdleGpuToo) {
  Overrunner over(5 * kSecond, SmMode::kFixed);
  Harness& core = over.core;
  core.want(over.a);
  EXPECT_THAT(stopped_of(core, over.a), testing::StartsWith("it pays back 2.49 s of GPU time"));
  EXPECT_THAT(stopped_of(core, over.a), testing::EndsWith("it runs again in about 5 s"));
}

TEST(Fair, AnOverrunIsRememberedAsFarAsAMinuteOfDebt) {
  Overrunner over(200 * kSecond);
  auto held = saturate(over.core, {over.a, over.b}, 118 * kSecond);
  EXPECT_EQ(held[over.a], 0) << "sixty seconds of the GPU at 50 % are two minutes";
  saturate(over.core, {over.a, over.b}, 4 * kSecond);
  held = saturate(over.core, {over.a, over.b}, 2 * kSecond);
  EXPECT_NEAR(static_cast<double>(held[over.a]) / 2e9, 0.5, 0.06);
}

TEST(Fair, APauseOfTheOthersIsNoTurnOfADebtor) {
  Overrunner over(5 * kSecond);
  Harness& core = over.core;
  core.want(over.a);
  core.want(over.b);
  ASSERT_TRUE(core.open(over.b));
  core.step(ProcessDetached{Harness::process(over.b)});
  core.drain(over.b);
  core.pass(90 * kMs);
  EXPECT_FALSE(core.open(over.a)) << "the other one has used the GPU a moment ago";
  core.pass(20 * kMs);
  EXPECT_TRUE(core.open(over.a)) << "no GPU idles for one that is away";
}

TEST(Budget, AnOverrunIsPaidBackInFull) {
  Overrunner over(20 * kSecond, SmMode::kFixed);
  auto held = saturate(over.core, {over.a, over.b}, 19 * kSecond);
  EXPECT_EQ(held[over.a], 0);
  EXPECT_GE(held[over.b], 18 * kSecond)
      << "it waited for ten seconds of its own, which it gets back beside its half";
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

TEST(Band, TimeThatInferenceHadAloneIsNoDebtOfIt) {
  Harness core;
  const TenantId batch = core.admit(TenantClass::kBatch, 50);
  const TenantId serve = core.admit(TenantClass::kInference, 50);
  core.want(serve);
  core.pass(3 * kSecond);
  core.idle(serve);
  core.want(batch);
  if (!core.open(batch)) core.drain(serve);
  ASSERT_TRUE(core.open(batch));
  core.want(serve);
  EXPECT_FALSE(core.open(batch)) << "no other job wanted the GPU then";
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

Policy policy_of(Order order) {
  Policy policy = policy_usual();
  policy.order = order;
  return policy;
}

TEST(Order, IsKnownByItsName) {
  EXPECT_EQ(order_named("fair"), Order::kFair);
  EXPECT_EQ(order_named("round-robin"), Order::kRoundRobin);
  EXPECT_EQ(order_named("fifo"), Order::kFifo);
  EXPECT_EQ(order_named("lifo"), std::nullopt);
}

TEST(RoundRobin, OneTurnEachWhateverThePercentages) {
  Harness core(policy_of(Order::kRoundRobin));
  const TenantId a = core.admit(TenantClass::kBatch, 5);
  const TenantId b = core.admit(TenantClass::kBatch, 35);
  const TenantId c = core.admit(TenantClass::kBatch, 60);
  auto held = saturate(core, {a, b, c}, 6 * kSecond);
  for (TenantId t : {a, b, c}) EXPECT_NEAR(static_cast<double>(held[t]) / 6e9, 1.0 / 3, 0.01);
}

TEST(RoundRobin, WhoIsCutShortKeepsItsPlaceAndTheRestOfItsTurn) {
  Harness core(policy_of(Order::kRoundRobin));
  const TenantId a = core.admit(TenantClass::kBatch, 30);
  const TenantId b = core.admit(TenantClass::kBatch, 30);
  const TenantId serve = core.admit(TenantClass::kInference, 40);
  core.want(a);
  core.pass(kMs);
  core.want(b);
  core.pass(3 * kMs);
  core.want(serve);
  core.drain(a);
  core.want(a);
  ASSERT_TRUE(core.open(serve));
  core.pass(kMs);
  core.idle(serve);
  core.drain(serve);
  ASSERT_TRUE(core.open(a));
  core.pass(11 * kMs);  // six of its own are left; slices are of a quantum
  EXPECT_FALSE(core.open(a));
  core.drain(a);
  EXPECT_TRUE(core.open(b));
}

TEST(Fifo, ABurstIsNotCutBeforeTwentyQuanta) {
  Harness core(policy_of(Order::kFifo));
  const TenantId a = core.admit(TenantClass::kBatch, 1);
  const TenantId b = core.admit(TenantClass::kBatch, 99);
  core.want(a);
  core.want(b);
  core.pass(195 * kMs);
  EXPECT_TRUE(core.open(a));
  core.pass(25 * kMs);  // slices of a quantum, and a moment for the meter
  EXPECT_FALSE(core.open(a)) << "one that never pauses does not starve the others";
  core.drain(a);
  EXPECT_TRUE(core.open(b));
}

TEST(Fifo, WhoeverCameFirstIsNextAndIdleIsTheEndOfABurst) {
  Harness core(policy_of(Order::kFifo));
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  const TenantId c = core.admit();
  core.want(a);
  core.pass(kMs);
  core.want(c);
  core.pass(kMs);
  core.want(b);
  core.idle(a);
  core.drain(a);
  core.want(a);  // a new burst: behind both
  EXPECT_TRUE(core.open(c));
  core.idle(c);
  core.drain(c);
  EXPECT_TRUE(core.open(b));
  core.idle(b);
  core.drain(b);
  EXPECT_TRUE(core.open(a));
}

TEST(Fifo, InferenceGoesFirstAllTheSame) {
  Harness core(policy_of(Order::kFifo));
  const TenantId batch = core.admit(TenantClass::kBatch, 50);
  const TenantId serve = core.admit(TenantClass::kInference, 50);
  core.want(batch);
  core.pass(2 * kMs);
  core.want(serve);
  EXPECT_FALSE(core.open(batch));
}

/// What the tenants have used and may still use, to the nanosecond.
std::vector<double> accounts(Harness& core, const std::vector<TenantId>& tenants) {
  std::vector<double> all;
  for (TenantId t : tenants) {
    const Share& share = core.state().tenants.at(t)->shares[0];
    for (Nanos value : {share.lease_ns, share.busy_ns, share.held_ns, share.provisional_ns})
      all.push_back(static_cast<double>(value));
    // A budget fills as time passes; what it is worth now is the same whenever it is looked at.
    const bool fixed = share.tenant->sm_mode == SmMode::kFixed;
    const double rate = fixed ? static_cast<double>(share.tenant->sm_percent) / 100.0 : 0;
    all.push_back(share.tokens_ns + static_cast<double>(core.now - share.tokens_at) * rate);
  }
  all.push_back(core.state().gpus[0]->band_credit_ns);
  all.push_back(static_cast<double>(core.state().gpus[0]->busy_ns));
  return all;
}

TEST(Order, IsChangedLiveWithoutAnAccountLostOrADebtKept) {
  Harness core(policy_of(Order::kRoundRobin));
  TenantAsked asked = core.ask();
  asked.sm_percent = 20;
  asked.sm_mode = SmMode::kFixed;
  asked.sm_mode_given = true;
  const TenantId fixed = core.admit(asked);
  const TenantId a = core.admit(TenantClass::kBatch, 10);
  const TenantId b = core.admit(TenantClass::kBatch, 70);
  const std::vector<TenantId> all{fixed, a, b};
  const TenantId serve = core.admit(TenantClass::kInference, 40);
  core.want(serve);
  core.pass(3 * kMs);
  core.idle(serve);
  core.end(serve);
  auto held = saturate(core, all, 5 * kSecond);
  EXPECT_NEAR(static_cast<double>(held[a]) / static_cast<double>(held[b]), 1, 0.02);
  for (Order order : {Order::kFair, Order::kFifo, Order::kRoundRobin, Order::kFair}) {
    const std::vector<double> before = accounts(core, all);
    core.step(PolicyChanged{policy_of(order)});
    EXPECT_EQ(accounts(core, all), before);
  }
  held = saturate(core, all, kSecond);  // soon enough to show a debt of the five seconds before
  EXPECT_NEAR(static_cast<double>(held[fixed]) / 1e9, 0.20, 0.03);
  EXPECT_NEAR(static_cast<double>(held[a]) / 1e9, 0.10, 0.03);
  EXPECT_NEAR(static_cast<double>(held[b]) / 1e9, 0.70, 0.04);
}

// The other orders keep no percentages: inference that was far ahead goes first all the same.
TEST(Order, InferenceGoesFirstWhateverItHadUnderTheOneBefore) {
  for (const Order order : {Order::kRoundRobin, Order::kFifo}) {
    Policy policy = policy_of(Order::kFair);
    for (ClassPolicy& of_class : policy.classes) of_class.sm = SmRule::kAsked;
    Harness core(policy);
    const TenantId serve = core.admit(TenantClass::kInference, 10);
    const TenantId batch = core.admit(TenantClass::kBatch, 10);
    core.state().tenants.at(serve)->shares[0].vtime = 1e9;
    policy.order = order;
    core.step(PolicyChanged{policy});
    core.want(batch);
    core.pass(kMs);
    core.want(serve);
    EXPECT_FALSE(core.open(batch)) << static_cast<int>(order);
    core.drain(batch);
    EXPECT_TRUE(core.open(serve)) << static_cast<int>(order);
  }
}

// Until they change, its budget fills at the percentage that it had.
TEST(Fixed, NewLimitsPayNothingBackForTheTimeBefore) {
  for (const std::uint32_t percent : {100U, 10U}) {
    Harness core;
    TenantAsked asked = core.ask();
    asked.sm_percent = 10;
    asked.sm_mode = SmMode::kFixed;
    asked.sm_mode_given = true;
    const TenantId fixed = core.admit(asked);
    const TenantId other = core.admit();
    core.want(fixed);
    core.want(other);
    core.pass(kSecond);
    core.drain(fixed);
    core.step(UsageSeen{fixed, 0, kSecond});
    core.want(fixed);
    const auto tokens = [&] { return core.state().tenants.at(fixed)->shares[0].tokens_ns; };
    const double owed = -tokens();
    ASSERT_GT(owed, 0.2e9);
    core.pass(kSecond);
    core.step(LimitsChanged{fixed, percent, 256 * kMiB, 256 * kMiB});
    core.step(LimitsChanged{fixed, 20, 256 * kMiB, 256 * kMiB});
    EXPECT_NEAR(-tokens(), owed - 0.1e9, 1e7) << "a tenth of a second, at 10 %, not at " << percent;
  }
}

// Nor does the next job of a user whose last one has ended; a budget is kept, as of who runs.
TEST(Order, ADebtOfAnEndedJobIsNotCollectedUnderTheNextOne) {
  for (const SmMode mode : {SmMode::kBestEffort, SmMode::kFixed}) {
    Harness core(policy_of(Order::kFair));
    TenantAsked asked = core.ask();
    asked.uid = 7;
    asked.sm_mode = mode;
    asked.sm_mode_given = true;
    asked.sm_percent = 10;
    const TenantId first = core.admit(asked);
    core.want(first);
    core.want(core.admit());
    core.pass(kSecond);
    core.drain(first);
    core.step(UsageSeen{first, 0, kSecond});
    core.end(first);
    core.step(PolicyChanged{policy_of(Order::kRoundRobin)});
    core.step(PolicyChanged{policy_of(Order::kFair)});
    asked.request += 100;
    const Share& next = core.state().tenants.at(core.admit(asked))->shares[0];
    EXPECT_EQ(next.debt_ns, 0);
    EXPECT_EQ(next.vtime, 0);
    EXPECT_EQ(next.tokens_ns < -0.1e9, mode == SmMode::kFixed);
  }
}

// Who is out when another order is chosen owes nothing under the next one either.
TEST(Order, ADebtOfWhoIsOutIsNotCollectedUnderTheNextOne) {
  Harness core(policy_of(Order::kFair));
  const TenantId tenant = core.admit();
  Share& share = core.state().tenants.at(tenant)->shares[0];
  share_unbook(core.state(), share);
  share.debt_ns = 1e9;
  core.state().tenants.at(tenant)->vacated = true;
  Actions out;
  (void)step(core.state(), PolicyChanged{policy_of(Order::kRoundRobin)}, core.now);
  (void)step(core.state(), PolicyChanged{policy_of(Order::kFair)}, core.now);
  EXPECT_EQ(share.debt_ns, 0);
}

}  // namespace
}  // namespace sluice::core

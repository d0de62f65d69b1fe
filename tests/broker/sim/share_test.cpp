// The shares that tenants get, over windows of one second of virtual time.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "broker/sim/scenarios.h"
#include "tests/broker/sim/times.h"

namespace sluice::sim {
namespace {

struct ShareFigures {
  double mean = 0;            // of the windows
  double absolute_error = 0;  // mean over the windows of |share - target|
};

ShareFigures figures(const JobResult& job, double target, Nanos window_ns) {
  const std::vector<Nanos>& windows = job.window_busy_ns[0];
  ShareFigures result;
  for (Nanos busy : windows) {
    const double share = static_cast<double>(busy) / static_cast<double>(window_ns);
    result.mean += share / static_cast<double>(windows.size());
    result.absolute_error += std::abs(share - target) / static_cast<double>(windows.size());
  }
  return result;
}

double share(const JobResult& job, const Experiment& setup) {
  return static_cast<double>(std::accumulate(job.busy_ns.begin(), job.busy_ns.end(), Nanos{0})) /
         static_cast<double>(setup.duration_ns);
}

class Shares : public ::testing::TestWithParam<std::vector<std::uint32_t>> {};

TEST_P(Shares, MeanWithinThreeAndErrorWithinTwoPerCent) {
  Experiment setup = setup_shares(GetParam(), 7);
  setup.duration_ns = 30 * kSecond;
  const Result result = simulate(setup);
  for (std::size_t i = 0; i < GetParam().size(); ++i) {
    const double target = GetParam()[i] / 100.0;
    const ShareFigures got = figures(result.jobs[i], target, setup.window_ns);
    EXPECT_GE(got.mean, 0.97 * target) << result.jobs[i].name;
    EXPECT_LE(got.absolute_error, 0.02) << result.jobs[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Design, Shares,
                         ::testing::Values(std::vector<std::uint32_t>{50, 50},
                                           std::vector<std::uint32_t>{30, 70},
                                           std::vector<std::uint32_t>{10, 90},
                                           std::vector<std::uint32_t>{25, 25, 50},
                                           std::vector<std::uint32_t>{10, 20, 30, 40}));

TEST(Share, KernelsOfUnequalLengthDoNotMoveShares) {
  Experiment setup = setup_shares({50, 50}, 3);
  setup.jobs[0].kernel_ns = 30'000'000;  // three quanta each: charged by time, not by turns
  setup.jobs[1].kernel_ns = 200'000;
  setup.duration_ns = 30 * kSecond;
  const Result result = simulate(setup);
  EXPECT_NEAR(share(result.jobs[0], setup), 0.5, 0.01);
  EXPECT_NEAR(share(result.jobs[1], setup), 0.5, 0.01);
}

TEST(Share, ProcessesOfOneTenantShareItsShare) {
  Experiment setup = setup_shares({50, 50}, 3);
  setup.jobs[0].processes = 5;
  const Result result = simulate(setup);
  EXPECT_NEAR(share(result.jobs[0], setup), 0.5, 0.015);
}

TEST(Share, WhatOneLeavesTheOthersGet) {
  Experiment setup = setup_shares({50, 50}, 3);
  setup.jobs[1].behaviour = Behaviour::kBursts;
  setup.jobs[1].think_ns = 90'000'000;
  setup.duration_ns = 20 * kSecond;
  const Result result = simulate(setup);
  EXPECT_GE(static_cast<double>(result.gpu_busy_ns[0]) / static_cast<double>(setup.duration_ns),
            0.97);
  EXPECT_GE(static_cast<double>(percentile(result.jobs[1].latency_ns, 0.99)), 10e6);
  EXPECT_LE(static_cast<double>(percentile(result.jobs[1].latency_ns, 0.5)), 30e6);
}

TEST(Share, EqualIsOneThirdOfThree) {
  const Experiment setup = *scenario_make("modes", 1);
  const Result result = simulate(setup);
  EXPECT_NEAR(share(result.jobs[0], setup), 1.0 / 3, 0.01);
  EXPECT_NEAR(share(result.jobs[2], setup) / share(result.jobs[1], setup), 70.0 / 30, 0.05);
}

TEST(Share, FixedIsFloorAndCap) {
  Experiment setup = *scenario_make("fixed", 1);
  EXPECT_NEAR(share(simulate(setup).jobs[0], setup), 0.25, 0.01);
  Experiment crowded = setup_shares({25, 40, 35}, 1);
  crowded.jobs[0].sm_mode = SmMode::kFixed;
  EXPECT_NEAR(share(simulate(crowded).jobs[0], crowded), 0.25, 0.01);
}

TEST(Share, FixedThatIsHalfIdleIsChargedWhatItUses) {
  Experiment setup = *scenario_make("fixed", 1);
  setup.jobs[0].sm_percent = 50;
  setup.jobs[0].behaviour = Behaviour::kBursts;
  setup.jobs[0].kernels = 1;
  setup.jobs[0].think_ns = 4'000'000;  // a fifth busy: under its cap
  const Result result = simulate(setup);
  EXPECT_NEAR(share(result.jobs[0], setup), 0.2, 0.02);
  EXPECT_LE(result.jobs[0].longest_wait_ns, 50'000'000);
}

TEST(Share, SaturatedInferenceLeavesBatchItsFloor) {
  Experiment setup = setup_shares({60, 40}, 5);
  setup.jobs[0].tenant_class = TenantClass::kInference;
  setup.duration_ns = 30 * kSecond;
  const Result result = simulate(setup);
  EXPECT_GE(share(result.jobs[1], setup), 0.97 * 0.4);
  EXPECT_GE(share(result.jobs[0], setup), 0.97 * 0.6);
}

TEST(Share, ALiarsTimeCountsAtLeastHalf) {
  Experiment setup = setup_shares({50, 50}, 5);
  setup.jobs[0].meter_factor = 0;
  setup.duration_ns = 20 * kSecond;
  EXPECT_GE(share(simulate(setup).jobs[1], setup), 0.30) << "a third, less the idle grace";
  setup.jobs[0].meter_factor = 5;
  EXPECT_GE(share(simulate(setup).jobs[1], setup), 0.49) << "boasting hurts nobody else";
}

TEST(Priority, P99WithinTenPerCentOfAloneAndBatchKeepsItsFloor) {
  constexpr double kLoad = 0.5;
  std::vector<Nanos> beside;
  std::vector<Nanos> alone;
  double batch = 0;
  constexpr std::uint64_t kSeeds = 5;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Experiment setup = setup_priority(kLoad, true, seed);
    const Result result = simulate(setup);
    const Result reference = simulate(setup_priority(kLoad, false, seed));
    beside.insert(beside.end(), result.jobs[0].latency_ns.begin(), result.jobs[0].latency_ns.end());
    alone.insert(alone.end(), reference.jobs[0].latency_ns.begin(),
                 reference.jobs[0].latency_ns.end());
    batch += share(result.jobs[1], setup) / kSeeds;
  }
  EXPECT_GT(alone.size(), 10'000U);
  EXPECT_LE(static_cast<double>(percentile(beside, 0.99)),
            1.10 * static_cast<double>(percentile(alone, 0.99)));
  EXPECT_GE(batch, 0.9 * (1 - kLoad));
}

}  // namespace
}  // namespace sluice::sim

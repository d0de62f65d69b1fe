// Claims about making room, in virtual time: everybody finishes, the idle go first, whole-GPU use
// and back, lost GPUs and clocks that jump.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "broker/sim/scenarios.h"
#include "broker/sim/units.h"

namespace sluice::sim {
namespace {

Nanos busy_sum(const Result& result) {
  return std::accumulate(result.gpu_busy_ns.begin(), result.gpu_busy_ns.end(), Nanos{0});
}

/// Time until the last one is done, over the time that the work itself takes.
double slowdown(const Result& result) {
  return static_cast<double>(result.makespan_ns) / static_cast<double>(busy_sum(result));
}

void all_done(const Result& result, std::uint64_t kernels) {
  for (const JobResult& job : result.jobs) {
    EXPECT_EQ(job.kernels, kernels) << job.name;
    EXPECT_EQ(job.refused_allocations, 0U) << job.name;
    EXPECT_GT(job.ended_ns, 0) << job.name;
  }
  EXPECT_TRUE(result.view.tenants.empty());
  for (Bytes used : result.memory_used) EXPECT_EQ(used, 0U);
}

TEST(Oversold, EightOfFortyPerCentThatAllWorkFinishWithinABoundedTime) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Result result = simulate(setup_oversold(8, 40, 3000, seed));
    all_done(result, 3000);
    // Two are in at a time. A quantum of a second against two copies of 3.2 GiB, of which the one
    // out and the one in of the same turn overlap with the other's work.
    EXPECT_LE(slowdown(result), 1.3) << seed;
    Nanos longest = 0;
    for (const JobResult& job : result.jobs) {
      EXPECT_GT(job.moved_in_bytes, 0U) << job.name;
      longest = std::max(longest, job.longest_wait_ns);
    }
    EXPECT_LE(longest, 8 * kSecond) << "a turn for each of the others at most";
  }
}

TEST(Oversold, WhatFitsTogetherIsNeverMoved) {
  const Result result = simulate(setup_oversold(2, 40, 1000, 1));
  all_done(result, 1000);
  for (const JobResult& job : result.jobs) EXPECT_EQ(job.moved_out_bytes, 0U);
  EXPECT_LE(slowdown(result), 1.05);
}

TEST(Oversold, OneAtATimeTakesTurnsToo) {
  Experiment setup = setup_oversold(3, 90, 1500, 1);
  const Result result = simulate(setup);
  all_done(result, 1500);
  EXPECT_LE(slowdown(result), 3.0) << "nobody else works while 7.2 GiB are copied out and in";
}

TEST(Oversold, ProcessesThatFailToMoveDelayAndLoseNothing) {
  Experiment setup = setup_oversold(6, 40, 1000, 1);
  for (JobSpec& job : setup.jobs) job.move_fails = 0.2;
  const Result result = simulate(setup);
  EXPECT_GT(result.moves_failed, 0U);
  for (const JobResult& job : result.jobs) {
    // Where three of its moves in a row have failed a tenant is left alone, and whoever would need
    // its room is refused at once instead of waiting for what may never come.
    EXPECT_TRUE(job.kernels == 1000U || job.refused_allocations > 0) << job.name;
    EXPECT_GT(job.ended_ns, 0) << job.name;
  }
  for (Bytes used : result.memory_used) EXPECT_EQ(used, 0U);
}

TEST(Oversold, ADeathInTheMiddleOfAMoveGivesItsRoomToTheOthers) {
  for (Nanos at = kSecond; at < 2 * kSecond; at += 50 * kMs) {
    Experiment setup = setup_oversold(4, 40, 1000, 1);
    setup.jobs[0].crash_at = at;
    const Result result = simulate(setup);
    for (std::size_t i = 1; i < result.jobs.size(); ++i)
      EXPECT_EQ(result.jobs[i].kernels, 1000U) << result.jobs[i].name << " at " << at;
    EXPECT_TRUE(result.view.tenants.empty());
    for (Bytes used : result.memory_used) EXPECT_EQ(used, 0U);
  }
}

TEST(Oversold, TheHostMemoryOfAUserBoundsWhatIsOut) {
  Experiment setup = setup_oversold(4, 40, 1000, 1);
  setup.policy.swap_host_bytes_per_user = Bytes{1} << 30;  // less than any of them has
  const Result result = simulate(setup);
  std::uint32_t refused = 0;
  for (const JobResult& job : result.jobs) {
    EXPECT_EQ(job.moved_out_bytes, 0U);
    refused += job.refused_allocations;
  }
  EXPECT_EQ(refused, 2U) << "two fit, the other two are told that there is no room";
}

TEST(IdleVictim, TheSleeperMakesRoomAndTheWorkersDoNot) {
  const Result result = simulate(*scenario_make("idle-victim", 1));
  EXPECT_EQ(result.jobs[0].moved_out_bytes, 0U);
  EXPECT_EQ(result.jobs[1].moved_out_bytes, 0U);
  EXPECT_GT(result.jobs[2].moved_out_bytes, 0U);
  EXPECT_EQ(result.jobs[2].moved_in_bytes, 0U) << "it sleeps on";
  EXPECT_GT(result.jobs[3].kernels, 1000U);
}

TEST(Aside, SharedTenantsMakeRoomForAGangAndFinishAfterIt) {
  const Result result = simulate(*scenario_make("aside", 1));
  const JobResult& training = result.jobs[4];
  EXPECT_GT(training.admitted_ns, 2 * kSecond);
  EXPECT_LE(training.admitted_ns, 3 * kSecond) << "as long as four times 2 GiB take to copy";
  EXPECT_EQ(training.tasks, 400U);
  EXPECT_EQ(training.longest_wait_ns, 0);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(result.jobs[i].kernels, 4000U) << result.jobs[i].name;
    EXPECT_GT(result.jobs[i].ended_ns, training.ended_ns);
  }
  EXPECT_EQ(result.jobs[3].moved_out_bytes, 0U) << "by the driver's checkpoint";
}

TEST(Aside, WhoFindsRoomOnAnotherGpuGoesOnThereMeanwhile) {
  const Result result = simulate(*scenario_make("aside-move", 1));
  const JobResult& training = result.jobs[4];
  EXPECT_GT(training.admitted_ns, 2 * kSecond);
  EXPECT_LE(training.admitted_ns, 3 * kSecond) << "as long as four times 2 GiB take to copy";
  EXPECT_EQ(training.longest_wait_ns, 0);
  std::vector<std::size_t> moved;
  for (std::size_t i = 0; i < 4; ++i) {
    const JobResult& job = result.jobs[i];
    EXPECT_EQ(job.kernels, 8000U) << job.name;
    const bool elsewhere = job.gpus == std::vector<std::uint32_t>{1};
    if (elsewhere) moved.push_back(i);
    // What it did while the training had its GPU, in windows of a second.
    const auto first = static_cast<std::size_t>(training.admitted_ns / kSecond + 1);
    const auto last = static_cast<std::size_t>(training.ended_ns / kSecond - 1);
    Nanos busy = 0;
    for (std::size_t w = first; w < last; ++w) busy += job.window_busy_ns[0][w];
    EXPECT_EQ(busy > 0, elsewhere) << job.name;
  }
  EXPECT_EQ(moved.size(), 2U) << "the other GPU has 4 GiB promised, and room for two of 2 GiB";
}

/// Jobs that need all of the memory, one after another, some of which are killed; the driver takes
/// up to 200 ms to free what they had.
TEST(Teardown, NobodyIsAdmittedToMemoryThatIsNotFreeYet) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Experiment setup = setup_oversold(12, 60, 20, seed);
    setup.policy.swap = false;
    setup.policy.oversell_memory = 1;
    setup.teardown_ns_max = 200 * kMs;
    for (std::size_t i = 0; i < setup.jobs.size(); i += 3)
      setup.jobs[i].crash_at = 100 * kMs * (i + 1);
    const Result result = simulate(setup);
    for (const JobResult& job : result.jobs) {
      EXPECT_TRUE(job.admitted || job.ended_ns > 0) << job.name;
      EXPECT_EQ(job.room_waits, 0U) << job.name << " of seed " << seed << " found its memory taken";
    }
    EXPECT_GT(result.device_looks, 20U);
    EXPECT_EQ(result.memory_kept, 0U);
  }
}

TEST(Lost, ItsTenantsEndAndTheOthersGoOn) {
  Experiment setup = setup_shares({50, 50}, 1);
  setup.gpus.resize(2);
  setup.jobs[0].pinned = {0};
  setup.jobs[1].pinned = {1};
  setup.losses.push_back({2 * kSecond, 0});
  const Result result = simulate(setup);
  EXPECT_EQ(result.jobs[0].ended_ns, 2 * kSecond);
  EXPECT_EQ(result.jobs[0].lost, 1U);
  EXPECT_EQ(result.jobs[1].ended_ns, 0);
  EXPECT_GE(static_cast<double>(result.gpu_busy_ns[1]), 9.9e9);
}

TEST(Clock, JumpsCostNobodyItsWork) {
  for (Nanos by : {-5 * kSecond, -10 * kMs, 10 * kMs, 3600 * kSecond}) {
    Experiment setup = setup_oversold(4, 40, 1000, 1);
    setup.jumps = {{kSecond, by}, {2500 * kMs, by}};
    setup.policy.drain_timeout_ns = 10 * kSecond;
    const Result result = simulate(setup);
    for (const JobResult& job : result.jobs) EXPECT_EQ(job.kernels, 1000U) << job.name << by;
    EXPECT_TRUE(result.view.tenants.empty());
  }
}

}  // namespace
}  // namespace sluice::sim

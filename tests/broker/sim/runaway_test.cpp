// What tenants with endless or long kernels leave to their neighbours, and what they pay back. The
// bounds follow from the formula in docs/scheduling.md, "Overruns and runaways".
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "broker/sim/scenarios.h"
#include "broker/sim/units.h"

namespace sluice::sim {
namespace {

/// Between the warning and the end of a runaway.
constexpr double kWarningS = 0.2;

double seconds(Nanos ns) { return static_cast<double>(ns) / 1e9; }

/// Device time of all jobs of that name, as a part of the whole.
double part_of(const Result& result, const std::string& name, const Experiment& setup) {
  Nanos busy = 0;
  for (const JobResult& job : result.jobs)
    if (job.name == name) busy += std::accumulate(job.busy_ns.begin(), job.busy_ns.end(), Nanos{0});
  return seconds(busy) / seconds(setup.duration_ns);
}

std::uint32_t runaways(const Result& result, const std::string& name) {
  std::uint32_t sum = 0;
  for (const JobResult& job : result.jobs)
    if (job.name == name) sum += job.runaways;
  return sum;
}

/// Windows in which the job got less than this part.
std::size_t windows_below(const JobResult& job, double part, const Experiment& setup) {
  const double least = part * static_cast<double>(setup.window_ns);
  return static_cast<std::size_t>(std::ranges::count_if(
      job.window_busy_ns[0], [&](Nanos busy) { return static_cast<double>(busy) < least; }));
}

// A process that is stopped does not answer the drain, and no meter sees it. What others wait for
// it is charged all the same.
class Pulses : public ::testing::TestWithParam<Nanos> {};

TEST_P(Pulses, StoppedProcessesTakeNoMoreThanTheirShare) {
  const Experiment setup = setup_pulses(GetParam(), 1);
  const Result result = simulate(setup);
  EXPECT_EQ(runaways(result, "pulses"), 0U) << "each stop is shorter than drain_timeout";
  // A quantum's grace of each stop is free, and the last one is not paid back. The rest is for
  // drains, and for what runs in them.
  const double free = seconds(setup.policy.quantum_ns) / seconds(GetParam());
  EXPECT_GE(part_of(result, "batch-50", setup), 0.5 * (1 - free) - 0.04);
}

INSTANTIATE_TEST_SUITE_P(Lengths, Pulses, ::testing::Values(60 * kMs, 300 * kMs, 900 * kMs));

/// One overrun of a tenant with `contexts` endless kernels, by the formula.
struct Overrun {
  Overrun(const Experiment& setup, double contexts)
      : alone_s(seconds(setup.policy.drain_timeout_ns)),
        divided_s(seconds(setup.policy.runaway_after_ns) - alone_s + kWarningS),
        used_s(alone_s + divided_s * contexts / (contexts + 1)) {}
  double alone_s;    // the neighbour gets nothing,
  double divided_s;  // then the hardware divides the time between it and the contexts,
  double used_s;     // and then this was used
  double length_s() const { return alone_s + divided_s; }
  /// From one overrun to the next: until it is paid back at `rate`.
  double cycle_s(double rate) const { return used_s / rate; }
};

struct Endless {
  const char* name;
  std::uint32_t processes;
};
class RunawayEnds : public ::testing::TestWithParam<Endless> {};

TEST_P(RunawayEnds, AnEndlessKernelGetsItsShareAndTheNeighbourTheRest) {
  const std::uint32_t processes = GetParam().processes;
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    const Experiment setup = setup_endless(processes, true, seed);
    const Result result = simulate(setup);
    const Overrun overrun(setup, processes);
    const double ended = std::ceil(seconds(setup.duration_ns) / overrun.cycle_s(0.05));
    EXPECT_NEAR(runaways(result, "endless"), ended, 1) << "it is ended, and waits its debt out";
    // The last overrun is not paid back at the end of the run.
    const double unpaid = overrun.used_s / seconds(setup.duration_ns);
    const double got = part_of(result, "endless", setup);
    EXPECT_LE(got, 0.05 + unpaid + 0.002);
    EXPECT_GE(got, 0.045) << "the debt is paid back once";
    const auto touched =
        static_cast<std::size_t>(std::ceil(overrun.length_s() / seconds(setup.window_ns)) + 1);
    EXPECT_LE(windows_below(result.jobs[0], 0.97 * 0.90, setup),
              touched * static_cast<std::size_t>(ended))
        << "elsewhere its guarantee holds";
    EXPECT_GE(part_of(result, "batch-90", setup), 0.985 * 0.90)
        << "and it gets back what the overruns took";
  }
}

INSTANTIATE_TEST_SUITE_P(Processes, RunawayEnds,
                         ::testing::Values(Endless{"One", 1}, Endless{"Six", 6}),
                         [](const auto& kind) { return std::string(kind.param.name); });

/// A gang whose other member waits at its gate for ever is no exception, nor is a fresh one each
/// time: what it used is paid back.
TEST(RunawayEnds, AFreshGangForEachEndlessKernelGetsItsShare) {
  for (const std::uint32_t processes : {2U, 8U}) {
    Experiment setup = setup_endless(processes, true, 1);
    for (core::ClassPolicy& c : setup.policy.classes) c.sm = core::SmRule::kAsked;
    setup.gpus.resize(2);
    setup.jobs[0].pinned = {0};
    for (JobSpec& job : setup.jobs) {
      job.sm_mode = SmMode::kBestEffort;
      job.sm_percent = 50;
    }
    JobSpec& endless = setup.jobs[1];
    endless.gpu_count = 2;
    endless.endless_at = 0;
    endless.rank_kernel_ns = {3600 * kSecond, 20'000};
    const Result result = simulate(setup);
    const double contexts = processes / 2.0;
    const double unpaid = Overrun(setup, contexts).used_s / seconds(setup.duration_ns);
    EXPECT_GE(part_of(result, "batch-90", setup), 0.97 * 0.50 - unpaid) << processes;
    EXPECT_GE(runaways(result, "endless"), 5U) << processes << ": it has its share";
  }
}

/// The formula for `report`: the hardware divides the time between the neighbour and the kernels.
TEST(RunawayReport, LeavesTheNeighbourOnePartOfTheContexts) {
  for (const std::uint32_t processes : {1U, 6U}) {
    Experiment setup = setup_endless(processes, false, 1);
    setup.policy.runaway = core::RunawayPolicy::kReport;
    setup.duration_ns = 60 * kSecond;
    const Result result = simulate(setup);
    EXPECT_NEAR(part_of(result, "batch-90", setup), 1.0 / (processes + 1), 0.03);
  }
}

struct Bursts {
  const char* name;
  Nanos burst_ns;
  std::uint32_t tenants;
  SmMode mode;
  Nanos pause_ns;  // of the neighbour, after forty kernels
};
class BurstsRepaid : public ::testing::TestWithParam<Bursts> {};

TEST_P(BurstsRepaid, SharesAreWhatWasPromised) {
  const Bursts& kind = GetParam();
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    Experiment setup = setup_bursts(kind.burst_ns, kind.tenants, seed);
    for (JobSpec& job : setup.jobs) job.sm_mode = kind.mode;
    JobSpec& neighbour = setup.jobs[0];
    if (kind.pause_ns > 0) {
      neighbour.behaviour = Behaviour::kBursts;
      neighbour.kernels = 40;
      neighbour.think_ns = kind.pause_ns;
    }
    const Result result = simulate(setup);
    const double got = part_of(result, "batch-75", setup);
    // A window has one burst of each tenant more than is fair, at most, and what that delays.
    const double late = kind.tenants * seconds(kind.burst_ns) / seconds(setup.window_ns);
    EXPECT_EQ(windows_below(result.jobs[0], 0.75 - late, setup), 0U);
    const double asks = kind.pause_ns > 0 ? 0.95 : 1;  // its pauses are its own
    EXPECT_GE(got, 0.97 * 0.75 * asks);
    for (const JobResult& job : result.jobs) {
      EXPECT_EQ(job.ended_ns, 0) << job.name << ": a long kernel is no reason to be ended";
      if (job.name == "batch-75") continue;
      const double share = 0.25 / kind.tenants;
      EXPECT_LE(part_of(result, job.name, setup), 1.03 * share) << job.name;
      EXPECT_GE(part_of(result, job.name, setup), 0.85 * share) << job.name << ": paid back once";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, BurstsRepaid,
    ::testing::Values(Bursts{"Short", 300 * kMs, 1, SmMode::kBestEffort, 0},
                      Bursts{"Two", 2000 * kMs, 1, SmMode::kBestEffort, 0},
                      Bursts{"Long", 1500 * kMs, 1, SmMode::kBestEffort, 0},
                      Bursts{"LongFixed", 1500 * kMs, 1, SmMode::kFixed, 0},
                      Bursts{"Alternately", 600 * kMs, 2, SmMode::kBestEffort, 0},
                      Bursts{"AlternatelyFixed", 600 * kMs, 2, SmMode::kFixed, 0},
                      Bursts{"BesidePauses", 600 * kMs, 1, SmMode::kBestEffort, 2 * kMs},
                      Bursts{"LongBesidePauses", 1500 * kMs, 1, SmMode::kBestEffort, 2 * kMs}),
    [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace sluice::sim

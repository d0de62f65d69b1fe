// What gangs were promised, and what their neighbours keep, on busy hosts and beside kernels of any
// length.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "broker/sim/scenarios.h"
#include "broker/sim/units.h"

namespace sluice::sim {
namespace {

/// Shares are recorded in parts of this length, and two seconds begin with any of them.
constexpr Nanos kPartNs = 100 * kMs;

/// The least part of a GPU that the job had in any two seconds but those in which it starts.
double worst_window(const JobResult& job) {
  constexpr std::ptrdiff_t kParts = 2 * kSecond / kPartNs;
  Nanos least = 2 * kSecond;
  for (const auto& parts : job.window_busy_ns)
    for (auto from = parts.begin() + kParts / 2; parts.end() - from >= kParts; ++from)
      least = std::min(least, std::accumulate(from, from + kParts, Nanos{0}));
  return static_cast<double>(least) / (2.0 * kSecond);
}

double part(const JobResult& job, Nanos duration_ns) {
  const Nanos busy = std::accumulate(job.busy_ns.begin(), job.busy_ns.end(), Nanos{0});
  return static_cast<double>(busy) /
         static_cast<double>(duration_ns * static_cast<Nanos>(job.busy_ns.size()));
}

struct Neighbours {
  std::uint32_t gpus;
  Nanos kernel_ns;
};
void PrintTo(const Neighbours& n, std::ostream* out) {
  *out << n.gpus << " GPUs, kernels of " << n.kernel_ns / 1000 << " us";
}

class GangPromise : public testing::TestWithParam<Neighbours> {};

/// 40 % beside singles of 40 % that always want, whatever the length of their kernels. On four and
/// eight GPUs with kernels of 30 ms and more the two promises and what a change of turns costs are
/// 98 to 101 % of the time (docs/scheduling.md, What is possible): there is nothing to make up for
/// a change that takes longer than the one before.
TEST_P(GangPromise, IsKeptInEveryTwoSeconds) {
  GangSetup gang;
  gang.gpus = GetParam().gpus;
  gang.load = 0;
  gang.debug_percent = 40;
  gang.debug_think_ns = 0;
  gang.debug_kernel_ns = GetParam().kernel_ns;
  const bool full = gang.gpus >= 4 && GetParam().kernel_ns >= 30 * kMs;
  const double kept = !full ? 0.95 : gang.gpus == 4 ? 0.94 : 0.91;
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    Experiment setup = setup_gang(gang, seed);
    setup.window_ns = kPartNs;
    setup.duration_ns = 12 * kSecond;
    const Result result = simulate(setup);
    EXPECT_GE(part(result.jobs[0], setup.duration_ns), 0.95 * 0.40) << "seed " << seed;
    EXPECT_GE(worst_window(result.jobs[0]), kept * 0.40) << "seed " << seed;
    for (std::size_t i = 1; i < result.jobs.size(); ++i)
      EXPECT_GE(part(result.jobs[i], setup.duration_ns), 0.95 * 0.40) << result.jobs[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GangPromise,
                         testing::Values(Neighbours{2, 100'000}, Neighbours{2, kMs},
                                         Neighbours{2, 10 * kMs}, Neighbours{2, 30 * kMs},
                                         Neighbours{2, 50 * kMs}, Neighbours{4, 10 * kMs},
                                         Neighbours{4, 30 * kMs}, Neighbours{4, 50 * kMs},
                                         Neighbours{8, kMs}, Neighbours{8, 10 * kMs},
                                         Neighbours{8, 30 * kMs}, Neighbours{8, 50 * kMs}));

/// With processes the gang had 17.5 of its 40 % here, and the GPUs were 77 % busy. Inference asks
/// for more than its 40 %.
TEST(GangPromise, IsKeptBesideInferenceWithKernelsLongerThanAQuantum) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Experiment setup = setup_gang(GangSetup{}, seed);
    setup.window_ns = kPartNs;
    const Result result = simulate(setup);
    EXPECT_GE(worst_window(result.jobs[0]), 0.95 * 0.40) << "seed " << seed;
    for (Nanos busy : result.gpu_busy_ns)
      EXPECT_GE(static_cast<double>(busy), 0.82 * static_cast<double>(setup.duration_ns));
    for (std::size_t i = 1; i < result.jobs.size(); i += 2) {
      const double asked = 0.44 * static_cast<double>(setup.duration_ns);
      const double served = static_cast<double>(result.jobs[i].busy_ns[0]);
      EXPECT_GE(served, std::min(0.95 * 0.40 * static_cast<double>(setup.duration_ns), 0.8 * asked))
          << "seed " << seed << " " << result.jobs[i].name;
    }
  }
}

GangSetup gang_beside_requests(double load) {
  GangSetup gang;
  gang.load = load;
  gang.serve_kernel_ns = kMs;
  gang.serve_kernels = 10;
  gang.debug_percent = 0;
  gang.step_kernels = 20;
  gang.collective_host_ns = 0;
  return gang;
}

/// Requests at load 0.25 on each of two GPUs, beside a gang of 40 % over both. A step ends with the
/// last rank, so the gang has the GPUs at most while no request runs on either of them.
TEST(GangPromise, RequestsBesideItAreNearlyAsFastAsAloneAndItHasMostOfWhatTheyLeave) {
  const double most =
      part(simulate(setup_gang(gang_beside_requests(0.001), 1)).jobs[0], 30 * kSecond);
  std::vector<Nanos> beside;
  std::vector<Nanos> alone;
  double gang = 0;
  constexpr std::uint64_t kSeeds = 6;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Experiment setup = setup_gang(gang_beside_requests(0.25), seed);
    setup.window_ns = kPartNs;
    const Result result = simulate(setup);
    EXPECT_GE(worst_window(result.jobs[0]), 0.95 * 0.40) << "seed " << seed;
    gang += part(result.jobs[0], setup.duration_ns) / kSeeds;
    setup.jobs.erase(setup.jobs.begin());
    const Result without = simulate(setup);
    for (const JobResult& job : without.jobs)
      alone.insert(alone.end(), job.latency_ns.begin(), job.latency_ns.end());
    for (std::size_t i = 1; i < result.jobs.size(); ++i)
      beside.insert(beside.end(), result.jobs[i].latency_ns.begin(),
                    result.jobs[i].latency_ns.end());
  }
  EXPECT_LE(static_cast<double>(percentile(beside, 0.99)),
            1.5 * static_cast<double>(percentile(alone, 0.99)));
  EXPECT_GE(gang, 0.85 * 0.75 * 0.75 * most);
}

/// Singles on a busy host: shares and a busy GPU, with kernels of 50 ms beside a tenant of
/// requests.
TEST(BusyHost, KernelsAreNotOverrunsAndTheGpuIsBusyWhileItIsWanted) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    Experiment setup = setup_shares({6, 54}, seed);
    setup.duration_ns = 30 * kSecond;
    for (JobSpec& job : setup.jobs) job.kernel_ns = 50 * kMs;
    setup.jobs.push_back(setup_priority(0.25, false, seed).jobs[0]);
    setup.jobs.back().sm_percent = 40;
    for (JobSpec& job : setup.jobs) job.busy_host = true;
    const Result result = simulate(setup);
    EXPECT_LE(static_cast<double>(result.gpu_idle_wanted_ns[0]), 0.05 * 30e9) << "seed " << seed;
    EXPECT_GE(part(result.jobs[0], setup.duration_ns), 0.95 * 0.06) << "seed " << seed;
    EXPECT_GE(part(result.jobs[1], setup.duration_ns), 0.95 * 0.54) << "seed " << seed;
  }
}

/// What a program is late to ask again does not cost it its share.
TEST(BusyHost, ASleeperThatWakesLateKeepsItsShare) {
  for (const Nanos other_ns : {100'000, 50'000'000}) {
    Experiment setup = setup_shares({30, 70}, 1);
    setup.duration_ns = 30 * kSecond;
    setup.jobs[0].kernel_ns = 20 * kMs;
    setup.jobs[1].kernel_ns = other_ns;
    for (JobSpec& job : setup.jobs) job.busy_host = true;
    for (core::ClassPolicy& c : setup.policy.classes) c.window_ns = 20 * kMs;
    const Result result = simulate(setup);
    EXPECT_GE(part(result.jobs[0], setup.duration_ns), 0.97 * 0.30) << other_ns;
    EXPECT_GE(part(result.jobs[1], setup.duration_ns), 0.97 * 0.70) << other_ns;
  }
}

}  // namespace
}  // namespace sluice::sim

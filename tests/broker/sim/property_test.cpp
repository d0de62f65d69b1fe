// Random situations by seed. Every invariant of the core is checked after every step; a breach
// aborts, and the handler below then says how to replay it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "broker/sim/random.h"
#include "broker/sim/scenarios.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kPropertySeeds = 1000;
constexpr std::uint64_t kWindowSeeds = 100;
std::uint64_t seed_now = 0;

/// The same test with this seed alone is the same run again.
int replay_write(char* text, std::size_t bytes) {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  return std::snprintf(text, bytes,
                       "seed %llu broke an invariant; replay: SLUICE_SIM_SEED=%llu broker_sim_test "
                       "--gtest_filter=%s.%s\n",
                       static_cast<unsigned long long>(seed_now),
                       static_cast<unsigned long long>(seed_now), test->test_suite_name(),
                       test->name());
}

void on_abort(int) {
  char text[256];
  const int n = replay_write(text, sizeof text);
  if (write(STDERR_FILENO, text, static_cast<std::size_t>(n)) < 0) std::_Exit(1);
}

/// Runs `body` for each seed, until one fails; for that of SLUICE_SIM_SEED alone where the
/// environment names one. True when it ran for all.
template <class Body>
bool each_seed(std::uint64_t count, Body body) {
  std::signal(SIGABRT, on_abort);
  const char* only = std::getenv("SLUICE_SIM_SEED");
  const std::uint64_t first = only == nullptr ? 1 : std::strtoull(only, nullptr, 10);
  const std::uint64_t last = only == nullptr ? count : first;
  for (seed_now = first; seed_now <= last && !testing::Test::HasFailure(); ++seed_now) {
    char text[256];
    replay_write(text, sizeof text);
    SCOPED_TRACE(text);
    body(seed_now);
  }
  std::signal(SIGABRT, SIG_DFL);
  return only == nullptr;
}

TEST(Replay, ABrokenInvariantNamesItsSeedAndHowToSeeItAgain) {
  EXPECT_DEATH(each_seed(5,
                         [](std::uint64_t seed) {
                           ASSERT_NE(seed, 0U);
                           if (seed == 3) std::abort();
                         }),
               "seed 3 broke an invariant; replay: SLUICE_SIM_SEED=3 broker_sim_test "
               "--gtest_filter=Replay.ABrokenInvariantNamesItsSeedAndHowToSeeItAgain");
  setenv("SLUICE_SIM_SEED", "7", 1);
  std::vector<std::uint64_t> ran;
  EXPECT_FALSE(each_seed(5, [&](std::uint64_t seed) { ran.push_back(seed); }));
  unsetenv("SLUICE_SIM_SEED");
  EXPECT_EQ(ran, std::vector<std::uint64_t>{7});
}

/// The core's books against the model's truth, for a run in which no meter lies.
void books_check(const Experiment& setup, const Result& result) {
  for (std::size_t g = 0; g < result.gpu_busy_ns.size(); ++g)
    EXPECT_LE(result.view.gpus[g].busy_ns, static_cast<std::uint64_t>(result.gpu_busy_ns[g]));
  for (std::size_t i = 0; i < result.jobs.size(); ++i) {
    const JobResult& job = result.jobs[i];
    EXPECT_TRUE(job.admitted || job.kernels == 0) << "nobody runs who was not admitted";
    EXPECT_TRUE(job.refused.empty() || !job.admitted);
    for (Nanos busy : job.busy_ns) EXPECT_LE(busy, setup.duration_ns);
  }
}

/// Without accidents and without people: what is left is everybody's own work.
void calm(Experiment& setup) {
  setup.check = false;
  setup.commands.clear();
  setup.jumps.clear();
  setup.losses.clear();
  setup.policy_changes.clear();
  setup.limits.clear();
  setup.policy.hold_timeout_ns = setup.policy.move_timeout_ns = 60'000'000'000;
  for (JobSpec& job : setup.jobs) {
    job.crash_at = job.endless_at = job.release_at = job.end_ns = job.wait_ns_max = job.stop_at = 0;
    job.meter_factor = job.claims_factor = 1;
    job.checkpoint_fails = 0;
  }
}

/// Percentages that jobs ask for are guaranteed, from admission on and after every reload.
void guarantee(Experiment& setup) {
  const auto in_each = [](core::Policy& policy) {
    for (core::ClassPolicy& of_class : policy.classes) of_class.sm = core::SmRule::kAsked;
  };
  in_each(setup.policy);
  for (PolicyChange& change : setup.policy_changes) in_each(change.policy);
}

TEST(Chaos, InvariantsHoldForEverySeed) {
  std::uint64_t kernels = 0;
  Bytes moved = 0;
  std::uint64_t failed = 0;
  std::uint64_t commands = 0;
  std::uint64_t lost = 0;
  const bool all = each_seed(kPropertySeeds, [&](std::uint64_t seed) {
    Experiment setup = setup_chaos(seed);
    bool liars = false;
    for (const JobSpec& job : setup.jobs) liars = liars || job.meter_factor > 1;
    if (seed % 2 == 0) guarantee(setup);
    const Result result = simulate(setup);
    if (!liars) books_check(setup, result);
    for (const JobResult& job : result.jobs) {
      kernels += job.kernels;
      moved += job.moved_in_bytes;
      lost += job.lost;
    }
    failed += result.moves_failed;
    commands += result.commands_done;
  });
  if (!all) return;
  EXPECT_GT(kernels, 0U);
  EXPECT_GT(moved, Bytes{50} << 30);
  EXPECT_GT(failed, 20U);
  EXPECT_GT(commands, 100U);
  EXPECT_GT(lost, 10U);
}

/// Who always wants has its percentage in every window of a second, while quanta change,
/// percentages of others change and one of them is stopped: but for the windows in which its own
/// target changes.
TEST(Guarantees, AreMetInEveryWindowWhileTheRulesChange) {
  each_seed(kWindowSeeds, [](std::uint64_t seed) {
    Random random(seed);
    std::vector<std::uint32_t> percents;
    for (int i = 0; i < 4; ++i)
      percents.push_back(static_cast<std::uint32_t>(random.range(10, 25)));
    Experiment setup = setup_shares(percents, seed);
    setup.duration_ns = 10'000'000'000;
    setup.policy.drain_timeout_ns = 20'000'000;  // for so long a stopped holder holds everybody up
    constexpr Nanos kSecondNs = 1'000'000'000;
    for (int i = 1; i <= 4; ++i) {
      PolicyChange change{i * 2 * kSecondNs - kSecondNs / 3, setup.policy};
      change.policy.quantum_ns = random.range(5, 15) * 1'000'000;
      setup.policy_changes.push_back(change);
    }
    const auto lowered = static_cast<std::uint32_t>(random.range(5, 10));
    setup.limits.push_back({5 * kSecondNs + 1, 3, lowered, setup.jobs[3].memory_max});
    setup.jobs[3].stop_at = 7 * kSecondNs + kSecondNs / 2;
    setup.jobs[3].stop_ns = kSecondNs;
    const Result result = simulate(setup);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto& windows = result.jobs[i].window_busy_ns[0];
      for (std::size_t w = 1; w < windows.size(); ++w)
        EXPECT_GE(static_cast<double>(windows[w]), 0.94 * percents[i] / 100 * 1e9)
            << "job " << i << " of " << percents[i] << " % in window " << w;
    }
  });
}

/// Three thousand tenants of all classes on eight GPUs, gangs and exclusive jobs among them; jobs
/// that are killed, stopped, lose their sockets, have long and endless kernels; a broker that dies,
/// reloads, a clock that jumps, a GPU that is lost. With every invariant (looked at every thirty
/// steps: a look at so many is long).
TEST(Multitude, EveryInvariantHolds) {
  Experiment setup = setup_multitude(1);
  // Spread over all GPUs, so many leave none whole.
  for (core::ClassPolicy& of_class : setup.policy.classes)
    of_class.placement = core::PlacementRule::kPack;
  const Result result = simulate(setup);
  std::array<std::uint64_t, 4> admitted{};
  std::size_t gangs = 0;
  std::uint64_t lost = 0;
  std::uint64_t runaways = 0;
  for (std::size_t i = 0; i < result.jobs.size(); ++i) {
    lost += result.jobs[i].lost;
    runaways += result.jobs[i].runaways;
    const JobSpec& spec = setup.jobs[i];
    admitted[static_cast<std::size_t>(spec.tenant_class)] += result.jobs[i].kernels > 0;
    gangs += result.jobs[i].kernels > 0 && result.jobs[i].gpus.size() > 1;
  }
  for (const std::uint64_t of_class : admitted) EXPECT_GT(of_class, 2U);
  EXPECT_GT(gangs, 20U);
  EXPECT_GT(admitted[0] + admitted[1] + admitted[2], 1000U);
  EXPECT_GT(result.steps, 40'000U);
  EXPECT_GT(result.restored, 1000U);
  EXPECT_GT(lost, 10U);
  EXPECT_GT(runaways, 2U);
}

/// The broker is killed one to four times in the middle of it. The invariants hold, and each new
/// broker knows exactly whom the journal has (asserted by the simulator at every restart).
TEST(Restarts, NobodyIsLostAndNobodyOutstaysForAnySeed) {
  std::uint64_t restored = 0;
  std::uint64_t over_away = 0;
  const bool all = each_seed(kPropertySeeds, [&](std::uint64_t seed) {
    Experiment setup = setup_restarts(seed);
    // Whoever is over is forgotten once the last broker's grace is.
    setup.duration_ns =
        setup.broker_dies_at.back() + setup.broker_away_ns + setup.restore_grace_ns + 1'000'000'000;
    std::size_t living = 0;
    const Result result = simulate(setup);
    for (const JobResult& job : result.jobs) living += job.admitted && job.ended_ns == 0;
    std::size_t running = 0;
    for (const auto& tenant : result.view.tenants) running += tenant.tenant != 0;
    EXPECT_EQ(running, living);
    restored += result.restored;
    over_away += result.over_away;
  });
  if (!all) return;
  EXPECT_GT(restored, 100U);
  EXPECT_GT(over_away, 0U) << "some end while nobody looks";
}

/// Everybody who was admitted has finished, and no more is taken.
void all_done_check(const Result& result) {
  for (const JobResult& job : result.jobs) {
    if (!job.refused.empty()) continue;  // perhaps by the death of the broker
    EXPECT_TRUE(job.admitted) << job.name << " waits for ever";
    EXPECT_GT(job.ended_ns, 0) << job.name << " is stuck";
    EXPECT_EQ(job.runaways, 0U) << job.name;
  }
  EXPECT_TRUE(result.view.tenants.empty());
  for (const std::string& stop : result.view.stops) EXPECT_EQ(stop, "");
  for (const std::string& wait : result.view.waits) EXPECT_EQ(wait, "");
  for (Bytes used : result.memory_used) EXPECT_EQ(used, 0U) << "all memory is returned";
}

/// A broker that dies and comes back costs no work: everybody who is admitted finishes.
TEST(Restarts, AllWorkIsDoneAllTheSame) {
  each_seed(kPropertySeeds, [](std::uint64_t seed) {
    Experiment setup = setup_restarts(seed);
    setup.policy.runaway = core::RunawayPolicy::kReport;
    setup.policy.drain_timeout_ns = 1'000'000'000;
    setup.duration_ns = 120'000'000'000;
    calm(setup);
    for (JobSpec& job : setup.jobs) {
      if (job.tasks == 0) job.tasks = 20;
      job.sm_percent = std::max(job.sm_percent, 10U);
    }
    all_done_check(simulate(setup));
  });
}

Experiment setup_calm(std::uint64_t seed) {
  Experiment setup = setup_chaos(seed);
  setup.policy.runaway = core::RunawayPolicy::kReport;
  setup.policy.drain_timeout_ns = 1'000'000'000;
  setup.policy.tenants_per_user_max = 64;
  setup.duration_ns = 120'000'000'000;
  calm(setup);
  for (JobSpec& job : setup.jobs) {
    job.no_wait = false;
    if (job.tasks == 0) job.tasks = 20;
    job.sm_percent =
        std::max(job.sm_percent, 10U);  // a fixed share of 1 % would rightly take hours
  }
  return setup;
}

/// Without accidents, everybody who is admitted finishes what it has to do.
TEST(Chaos, WithoutAccidentsAllWorkIsDone) {
  each_seed(kPropertySeeds, [](std::uint64_t seed) { all_done_check(simulate(setup_calm(seed))); });
}

/// The same where percentages are promised: a job waits for its share, and not for ever.
TEST(Chaos, PromisedTimeIsHadInTheEnd) {
  each_seed(kPropertySeeds, [](std::uint64_t seed) {
    Experiment setup = setup_calm(seed);
    guarantee(setup);
    setup.duration_ns *= 5;
    all_done_check(simulate(setup));
  });
}

/// The same where users may have little in the host: one of several that are to make room, or none.
TEST(Chaos, WithLittleHostMemoryNobodyWaitsForEver) {
  Bytes moved = 0;
  const bool all = each_seed(kPropertySeeds, [&](std::uint64_t seed) {
    Experiment setup = setup_calm(seed);
    setup.policy.swap = true;
    setup.policy.oversell_memory = 3;
    setup.policy.swap_host_bytes_per_user = (Bytes{1} + seed % 8) << 28;
    for (JobSpec& job : setup.jobs) {
      job.uid = 1000 + job.uid % 2;
      job.move_fails = 0;
    }
    const Result result = simulate(setup);
    all_done_check(result);
    EXPECT_EQ(result.moves_failed, 0U)
        << "nobody is held whose user has no room in the host for it";
    for (const JobResult& job : result.jobs) moved += job.moved_out_bytes;
  });
  if (!all) return;
  EXPECT_GT(moved, Bytes{100} << 30) << "there is room for some";
}

}  // namespace
}  // namespace sluice::sim

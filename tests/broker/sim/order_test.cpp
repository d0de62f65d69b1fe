// What each order of the policy promises, and changing it while everybody runs.
#include <gtest/gtest.h>

#include <algorithm>

#include "broker/sim/scenarios.h"
#include "broker/sim/shares.h"
#include "broker/sim/units.h"

namespace sluice::sim {
namespace {

using core::Order;

TEST(RoundRobinOrder, NobodyWaitsLongerThanOneTurnOfEachOther) {
  Experiment setup = setup_shares({1, 9, 30, 60}, 3);
  setup.policy.order = Order::kRoundRobin;
  const Result result = simulate(setup);
  // A turn: the quantum, what the program has in flight at its end (four kernels of at most 1.5
  // ms), and three messages.
  const Nanos turn = setup.policy.quantum_ns + 4 * 1'500'000 + 3 * setup.delay_ns;
  for (const JobResult& job : result.jobs) {
    EXPECT_LE(job.longest_wait_ns, 3 * turn) << job.name;
    EXPECT_NEAR(share_figures(job, 0.25, setup.window_ns).mean, 0.25, 0.01) << job.name;
  }
}

/// The price of counting turns and not time: who has the longer kernels gets more of the GPU.
TEST(RoundRobinOrder, LongKernelsGainWhatFairnessWouldTake) {
  Experiment setup = setup_shares({50, 50}, 3);
  setup.jobs[0].kernel_ns = 30 * kMs;
  setup.jobs[0].queue_depth = 1;
  setup.policy.order = Order::kRoundRobin;
  const double round_robin = share_figures(simulate(setup).jobs[0], 0.5, setup.window_ns).mean;
  setup.policy.order = Order::kFair;
  const double fair = share_figures(simulate(setup).jobs[0], 0.5, setup.window_ns).mean;
  EXPECT_GE(round_robin, 0.66);
  EXPECT_NEAR(fair, 0.5, 0.02);
}

/// Bursts of 40 ms by three tenants, and when the last of each has begun it is never cut: it takes
/// what it takes alone.
TEST(FifoOrder, ABurstOnceBegunIsWhole) {
  Experiment setup = setup_programs({10, 30, 60}, Programs::kBursty, 2);
  for (JobSpec& job : setup.jobs) job.think_ns = 30 * kMs;
  auto longest = [&](Order order) {
    setup.policy.order = order;
    const Result result = simulate(setup);
    Nanos most = 0;
    for (const JobResult& job : result.jobs)
      for (std::size_t i = 0; i < job.latency_ns.size(); ++i)
        most = std::max(most, job.latency_ns[i] - job.starts_ns[i]);
    return most;
  };
  EXPECT_EQ(longest(Order::kFifo), 40 * kMs);
  EXPECT_GT(longest(Order::kFair), 60 * kMs);
}

TEST(FifoOrder, ABurstWithoutEndStarvesNobody) {
  Experiment setup = setup_shares({99, 1}, 1);
  setup.policy.order = Order::kFifo;
  const Result result = simulate(setup);
  for (const JobResult& job : result.jobs) {
    EXPECT_LE(job.longest_wait_ns, 21 * setup.policy.quantum_ns + 10 * kMs) << job.name;
    EXPECT_NEAR(share_figures(job, 0.5, setup.window_ns).mean, 0.5, 0.02) << job.name;
  }
}

/// Priority is the band's affair, whatever the order below it.
TEST(EveryOrder, ARequestStartsWithinOneWindow) {
  for (Order order : {Order::kRoundRobin, Order::kFifo}) {
    Experiment setup = setup_priority(0.5, true, 1);
    setup.policy.order = order;
    const Result result = simulate(setup);
    EXPECT_LE(std::ranges::max(result.jobs[0].starts_ns),
              setup.policy.inference_window_ns + 3 * setup.delay_ns);
  }
}

TEST(EveryOrder, IsTakenUpAtOnceAndNoDebtOfAnotherIsCollected) {
  Experiment setup = setup_shares({10, 90}, 1);
  setup.duration_ns = 40 * kSecond;
  const Order orders[] = {Order::kRoundRobin, Order::kFair, Order::kFifo, Order::kFair};
  for (std::size_t i = 0; i < std::size(orders); ++i) {
    setup.policy.order = orders[i];
    setup.policy_changes.push_back({static_cast<Nanos>(i) * 10 * kSecond, setup.policy});
  }
  const Result result = simulate(setup);
  for (std::size_t window = 0; window < 40; ++window) {
    const double got = static_cast<double>(result.jobs[0].window_busy_ns[0][window]) / 1e9;
    const bool fair = orders[window / 10] == Order::kFair;
    EXPECT_NEAR(got, fair ? 0.1 : 0.5, fair ? 0.03 : 0.11) << "second " << window;
  }
}

}  // namespace
}  // namespace sluice::sim

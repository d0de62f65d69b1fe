// Shares of GPU time in virtual time: processes that always want the GPU, a device that is theirs
// in turns or by slices, and what the bucket lets them have.
#include "interpose/share.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::interpose {
namespace {

constexpr uint64_t kStepNs = 100'000;  // of the simulation
constexpr uint64_t kLookNs = 1'000'000;

struct Simulation {
  explicit Simulation(uint32_t share, int processes)
      : percent(share), uses(static_cast<size_t>(processes)) {
    measured_ns.resize(static_cast<size_t>(processes));
    gate.store(protocol::lease_word(1, protocol::kLeaseOpen));
  }
  bool open() const { return (gate.load() & protocol::kLeaseOpen) != 0; }
  void look() {
    for (size_t i = 0; i < uses.size(); ++i)
      share_step(bucket, gate, uses[i], percent, measured_ns[i], flying, now_ns);
  }
  // Everybody launches whenever the gate is open. On hardware each process measures the time of
  // the others' slices as its own.
  void run(uint64_t for_ns) {
    for (const uint64_t end_ns = now_ns + for_ns; now_ns < end_ns; now_ns += kStepNs) {
      if (now_ns % kLookNs == 0) look();
      const bool flies = open();
      if (flies != flying) {
        flying = flies;
        look();  // beginning to launch wakes the helper
      }
      if (!flying) continue;
      device_ns += kStepNs;
      for (uint64_t& measured : measured_ns) measured += kStepNs;
    }
  }
  uint32_t percent;
  std::vector<ShareUse> uses;
  std::vector<uint64_t> measured_ns;
  ShareBucket bucket{};
  protocol::AtomicU32 gate{};
  uint64_t now_ns = 1'000'000'000;
  uint64_t device_ns = 0;
  bool flying = false;
};

TEST(Share, IsKeptByOneProcessAndByManyThatMeasureTheSameTime) {
  for (const uint32_t percent : {1u, 10u, 50u, 90u, 99u}) {
    for (const int processes : {1, 2, 7}) {
      Simulation simulation(percent, processes);
      simulation.run(2'000'000'000);
      const uint64_t before_ns = simulation.device_ns;
      simulation.run(10'000'000'000);
      const double share = static_cast<double>(simulation.device_ns - before_ns) / 1e10;
      EXPECT_NEAR(share, percent / 100.0, 0.03 * percent / 100.0 + 0.001)
          << percent << " % for " << processes;
    }
  }
}

TEST(Share, SavesUpFivePeriodsAndNoMore) {
  Simulation simulation(50, 1);
  simulation.look();
  simulation.now_ns += 3'600'000'000'000;
  simulation.look();
  EXPECT_EQ(simulation.bucket.balance_ns, 50'000'000);
}

TEST(Share, ALongKernelIsPaidForAfterwards) {
  Simulation simulation(25, 1);
  simulation.look();
  simulation.flying = true;
  simulation.look();
  for (int i = 0; i < 100; ++i) {
    simulation.now_ns += 10'000'000;
    simulation.look();
  }
  EXPECT_TRUE(simulation.open());  // nothing is known of its time yet
  simulation.measured_ns[0] = 1'000'000'000;
  simulation.flying = false;
  simulation.now_ns += kLookNs;
  simulation.look();
  EXPECT_FALSE(simulation.open());
  simulation.now_ns += 2'900'000'000;
  simulation.look();
  EXPECT_FALSE(simulation.open());
  simulation.now_ns += 200'000'000;
  simulation.look();
  EXPECT_TRUE(simulation.open());
}

TEST(Share, SaysWhenToLookAgain) {
  Simulation simulation(50, 1);
  simulation.look();
  simulation.bucket.balance_ns = -10'000'000;
  const uint64_t due_ns = share_step(simulation.bucket, simulation.gate, simulation.uses[0], 50, 0,
                                     false, simulation.now_ns + 1);
  EXPECT_FALSE(simulation.open());
  EXPECT_NEAR(static_cast<double>(due_ns), 40e6, 1e3);  // from -10 to +10 ms at a half
  simulation.now_ns += due_ns + 1000;
  EXPECT_EQ(share_step(simulation.bucket, simulation.gate, simulation.uses[0], 50, 0, false,
                       simulation.now_ns),
            UINT64_MAX);
  EXPECT_TRUE(simulation.open());
}

TEST(Share, WhatWasUsedBeforeTheFirstLookIsNotPaidFor) {
  Simulation simulation(50, 1);
  simulation.measured_ns[0] = 5'000'000'000;
  simulation.look();
  simulation.now_ns += kLookNs;
  simulation.look();
  EXPECT_TRUE(simulation.open());
}

}  // namespace
}  // namespace sluice::interpose

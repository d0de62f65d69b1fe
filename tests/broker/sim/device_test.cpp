// The GPU model itself: order, slices between contexts, collectives, deaths.
#include "broker/sim/device.h"

#include <gtest/gtest.h>

#include "broker/sim/units.h"

namespace sluice::sim {
namespace {

struct Fixture {
  Clock clock;
  std::map<Device::Context, Nanos> used;
  std::vector<std::pair<int, Nanos>> ends;
  Device device{clock, [this](Device::Context c, Nanos from, Nanos to) { used[c] += to - from; }};

  Kernel kernel(int name, Nanos length) {
    Kernel k;
    k.left_ns = length;
    k.done = [this, name] { ends.emplace_back(name, clock.now()); };
    return k;
  }
};

using Ends = std::vector<std::pair<int, Nanos>>;

TEST(Device, RunsOneContextInOrder) {
  Fixture f;
  f.device.submit(1, f.kernel(1, 3 * kMs));
  f.device.submit(1, f.kernel(2, 1 * kMs));
  f.clock.run_until(10 * kMs);
  EXPECT_EQ(f.ends, (Ends{{1, 3 * kMs}, {2, 4 * kMs}}));
  EXPECT_EQ(f.used[1], 4 * kMs);
}

TEST(Device, SlicesBetweenContexts) {
  Fixture f;
  f.device.submit(1, f.kernel(1, 5 * kMs));
  f.device.submit(2, f.kernel(2, 3 * kMs));
  f.clock.run_until(20 * kMs);
  EXPECT_EQ(f.ends, (Ends{{2, 7 * kMs}, {1, 8 * kMs}}));  // 2 ms each in turn
}

TEST(Device, AnEndlessKernelLeavesOthersTheirSlices) {
  Fixture f;
  f.device.submit(1, f.kernel(1, kEndless));
  f.device.submit(2, f.kernel(2, 4 * kMs));
  f.clock.run_until(100 * kMs);
  EXPECT_EQ(f.ends, (Ends{{2, 8 * kMs}}));
  f.device.account();
  EXPECT_EQ(f.used[1], 96 * kMs);
}

TEST(Device, DestroyTakesTheWorkAway) {
  Fixture f;
  f.device.submit(1, f.kernel(1, kEndless));
  f.clock.run_until(3 * kMs);
  f.device.destroy(1);
  f.device.submit(2, f.kernel(2, kMs));
  f.clock.run_until(10 * kMs);
  EXPECT_EQ(f.ends, (Ends{{2, 4 * kMs}}));
}

TEST(Device, ACollectiveSpinsUntilTheLastRankArrives) {
  Clock clock;
  Nanos spun = 0;
  std::vector<Nanos> ends;
  Device left(clock, [&](Device::Context, Nanos from, Nanos to) { spun += to - from; });
  Device right(clock, [](Device::Context, Nanos, Nanos) {});
  auto meet = std::make_shared<Collective>();
  meet->missing = 2;
  meet->length_ns = kMs;
  auto rank = [&] {
    Kernel k;
    k.collective = meet;
    k.done = [&] { ends.push_back(clock.now()); };
    return k;
  };
  left.submit(1, rank());
  clock.run_until(5 * kMs);
  EXPECT_TRUE(ends.empty());
  right.submit(2, rank());
  clock.run_until(20 * kMs);
  EXPECT_EQ(ends, (std::vector<Nanos>{6 * kMs, 6 * kMs}));
  EXPECT_EQ(spun, 6 * kMs);
}

}  // namespace
}  // namespace sluice::sim

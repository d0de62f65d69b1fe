// A host that comes late to an operation does not make it late on the device. The segment's time
// lies before the clock, so that the tests advance it themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "softgpu/device/idle.h"
#include "tests/softgpu/temporary.h"

namespace {

using namespace softgpu::device;
using softgpu_test::TemporaryDevices;

constexpr double kMilli = 1e6, kMicro = 1e3;
constexpr double kBeforeClockNs = 1e13;
constexpr double kNear = 2;  // ns: rounding

class Late : public ::testing::Test {
 protected:
  Late() : devices({{"SOFTGPU_COUNT", "1"}}), device(open(devices)) {
    base = device.segment()->now_ns = clock_ns() + kBeforeClockNs;
    client = device.client_open();
    for (std::uint32_t& queue : queues) queue = device.queue_open(client, base);
  }
  static Segment* open(const TemporaryDevices& devices) {
    std::string error;
    return directory_open(devices.path(), error).at(0);
  }
  void at(double ns) { model_advance(*device.segment(), base + ns); }
  double now() const { return device.segment()->now_ns - base; }
  void begin(int stream, double ready, double width = 16, WorkKind kind = WorkKind::kCompute) {
    widths[stream] = width;
    numbers[stream] =
        device.work_open(queues[stream], {kind, width, base + ready, 0, 0, false}, stop);
  }
  void end(int stream, double cost) {
    double finish = 0;
    (void)device.work_close(queues[stream], numbers[stream], cost * widths[stream], finish);
  }
  /// When it ended; -1: it has not.
  double ended(int stream) {
    double finish = 0;
    return device.work_done(queues[stream], numbers[stream], finish) ? finish - base : -1;
  }
  Account account() const { return device.segment()->clients[client]; }

  const TemporaryDevices devices;
  Device device;
  double base = 0;
  std::uint32_t client = kNone;
  std::array<std::uint32_t, 4> queues{};
  std::array<std::uint64_t, 4> numbers{};
  std::array<double, 4> widths{};
  const std::atomic<bool> stop{false};
};

TEST_F(Late, AKernelEndsAsIfTheHostHadBeenInTime) {
  at(13 * kMilli);
  begin(0, 10 * kMilli);
  at(13 * kMilli + 2 * kMicro);
  end(0, 5 * kMicro);
  at(14 * kMilli);
  EXPECT_NEAR(ended(0), 10 * kMilli + 5 * kMicro, kNear);
  EXPECT_NEAR(account().busy_ns, 5 * kMicro, kNear);
  EXPECT_NEAR(account().sm_ns, 16 * 5 * kMicro, 16 * kNear);
  EXPECT_NEAR(account().lag_ns, 0, kNear);
}

TEST_F(Late, KernelsOfAStreamFollowEachOtherWithoutAGap) {
  at(3 * kMilli);
  for (int i = 1; i <= 100; ++i) {
    begin(0, 0);
    at(now() + 2 * kMicro);
    end(0, 5 * kMicro);
    at(now() + 1 * kMicro);
    ASSERT_NEAR(ended(0), i * 5 * kMicro, i * kNear);
  }
  EXPECT_NEAR(account().busy_ns, 500 * kMicro, 100 * kNear);
}

TEST_F(Late, WhatWasSubmittedFirstHasTheTimeBeforeWhatTheHostCameToFirst) {
  at(1 * kMilli);
  begin(0, 1 * kMilli);
  end(0, 1 * kMilli);
  at(3 * kMilli);
  begin(1, 0);
  end(1, 5 * kMicro);
  at(4 * kMilli);
  EXPECT_NEAR(ended(0), 2 * kMilli, kNear);
  EXPECT_NEAR(ended(1), 5 * kMicro, kNear);
}

TEST_F(Late, AKernelBeginsWhenTheDeviceHasTime) {
  begin(0, 0);
  end(0, 2 * kMilli);
  at(3 * kMilli);
  begin(1, 1 * kMilli);
  end(1, 5 * kMicro);
  at(4 * kMilli);
  EXPECT_NEAR(ended(0), 2 * kMilli, kNear);
  EXPECT_NEAR(ended(1), 2 * kMilli + 5 * kMicro, kNear);
}

TEST_F(Late, AKernelOfSeveralMillisecondsIsNotLateEither) {
  at(3 * kMilli);
  begin(0, 0);
  at(4 * kMilli);
  end(0, 5 * kMilli);
  EXPECT_EQ(ended(0), -1);
  EXPECT_NEAR(account().busy_ns, 4 * kMilli, kNear);
  at(6 * kMilli);
  EXPECT_NEAR(ended(0), 5 * kMilli, kNear);
  EXPECT_NEAR(account().busy_ns, 5 * kMilli, kNear);
}

TEST_F(Late, AnExecutionThatTakesLongerThanItsCostIsLag) {
  at(3 * kMilli);
  begin(0, 0);
  at(3 * kMilli + 400 * kMicro);
  end(0, 100 * kMicro);
  at(4 * kMilli);
  EXPECT_NEAR(ended(0), 400 * kMicro, kNear);
  EXPECT_NEAR(account().busy_ns, 400 * kMicro, kNear);
  EXPECT_NEAR(account().lag_ns, 300 * kMicro, kNear);
}

TEST_F(Late, TheClockOfAKernelAgreesWithItsEnd) {
  at(3 * kMilli);
  begin(0, 1 * kMilli);
  EXPECT_NEAR(device.work_time(queues[0], numbers[0]) - base, 1 * kMilli, kNear);
  at(3 * kMilli + 2 * kMicro);
  EXPECT_NEAR(device.work_time(queues[0], numbers[0]) - base, 1 * kMilli + 2 * kMicro, kNear);
  ASSERT_TRUE(device.work_charge(queues[0], numbers[0], 16 * 5 * kMicro, stop));
  EXPECT_NEAR(device.work_time(queues[0], numbers[0]) - base, 1 * kMilli + 5 * kMicro, kNear);
  end(0, 0);
  EXPECT_NEAR(ended(0), 1 * kMilli + 5 * kMicro, kNear);
}

TEST_F(Late, LinksDelayEachForItself) {
  at(3 * kMilli);
  for (const int stream : {0, 1}) {
    begin(stream, 0, 1, WorkKind::kLink);
    end(stream, 2 * kMilli);
    EXPECT_NEAR(ended(stream), 2 * kMilli, kNear);
  }
  EXPECT_NEAR(account().copy_ns, 4 * kMilli, kNear);
}

TEST_F(Late, AHostThatIsLaterThanIdleTimeIsKeptShows) {
  at(2 * kIdleKeptNs);
  begin(0, 0);
  end(0, 5 * kMicro);
  at(3 * kIdleKeptNs);
  EXPECT_NEAR(ended(0), kIdleKeptNs + 5 * kMicro, kNear);
}

// Whatever the host does: nothing begins before it was ready, the operations of a stream follow
// each other, and the device is never busier than time has passed.
TEST_F(Late, TimesAndAccountsAgree) {
  std::mt19937 random(7);
  const auto below = [&](double most) {
    return std::uniform_real_distribution<double>(0, most)(random);
  };
  struct Running {
    bool open = false;
    double ready = 0, cost = 0, last = 0;
  };
  std::array<Running, 4> streams;
  double costs = 0;
  for (int i = 0; i < 20000; ++i) {
    at(now() + below(100 * kMicro));
    const auto which = static_cast<int>(random() % streams.size());
    Running& stream = streams[which];
    if (!stream.open) {
      if (numbers[which] != 0 && ended(which) < 0) continue;
      stream = {true, std::max(0.0, now() - below(2 * kMilli)), below(60 * kMicro), stream.last};
      begin(which, stream.ready, random() % 2 == 0 ? 16 : 4);
      continue;
    }
    end(which, stream.cost);
    stream.open = false;
    costs += stream.cost;
    while (ended(which) < 0) at(now() + 10 * kMicro);
    ASSERT_LE(ended(which), now());
    ASSERT_GE(ended(which), std::max(stream.ready, stream.last) + stream.cost - kNear);
    stream.last = ended(which);
    ASSERT_LE(account().busy_ns, now() + kNear);
  }
  EXPECT_GT(costs, 0.1 * now());
  EXPECT_GT(account().busy_ns, 0.5 * now());
}

}  // namespace

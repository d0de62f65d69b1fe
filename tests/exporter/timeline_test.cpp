// The pure half of the samples of /proc: lines drawn between looks, and names of kernel functions.
#include "exporter/idle/timeline.h"

#include <gtest/gtest.h>

#include "exporter/idle/proc_wait.h"

namespace sluice::exporter {
namespace {

constexpr std::uint64_t kNotYet = UINT64_MAX;

ThreadSeen seen(std::uint64_t at, WaitKind kind, std::uint64_t run, std::uint64_t wait,
                std::uint64_t turns, bool never_slept = false) {
  ThreadSeen one;
  one.look = {at, kind == WaitKind::kNone ? 'R' : 'S', run, wait, turns};
  one.kind = kind;
  one.never_slept = never_slept;
  return one;
}

struct Drawn {
  std::uint64_t left, woken, back;
  WaitKind kind;
  bool operator==(const Drawn&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Drawn& drawn) {
  return out << drawn.left << ".." << drawn.woken << ".." << drawn.back << " kind "
             << static_cast<int>(drawn.kind);
}

/// Everything drawn from the looks, what goes on last.
std::vector<Drawn> drawn(const std::vector<ThreadSeen>& looks, bool gone = false) {
  std::vector<OffCpu> ended;
  Timeline line(1, 2, looks.front());
  for (std::size_t i = 1; i < looks.size(); ++i) line.seen(looks[i], ended);
  if (gone) line.gone(ended);
  if (line.open()) ended.push_back(*line.open());
  std::vector<Drawn> all;
  for (const OffCpu& period : ended) {
    EXPECT_EQ(period.process, 1U);
    EXPECT_EQ(period.thread, 2U);
    all.push_back({period.left_ns, period.woken_ns, period.back_ns, period.kind});
  }
  return all;
}

using Lines = std::vector<Drawn>;

TEST(TimelineOfLooks, OneLongSleepIsOnePeriod) {
  const auto look = [](std::uint64_t at) { return seen(at, WaitKind::kTimer, 7, 3, 5); };
  EXPECT_EQ(drawn({look(100), look(200), look(300)}),
            (Lines{{100, kNotYet, kNotYet, WaitKind::kTimer}}));
  EXPECT_EQ(drawn({look(100), look(200)}, true), (Lines{{100, 200, 200, WaitKind::kTimer}}));
}

TEST(TimelineOfLooks, SleepWaitRunBySumsOfTheKernel) {
  // Slept, then waited 20, then ran 30, and runs.
  EXPECT_EQ(drawn({seen(100, WaitKind::kLock, 0, 0, 1), seen(200, WaitKind::kNone, 30, 20, 2)}),
            (Lines{{100, 150, 170, WaitKind::kLock}}));
  // Ran 30, then fell asleep.
  EXPECT_EQ(drawn({seen(100, WaitKind::kNone, 0, 0, 1), seen(200, WaitKind::kDisk, 30, 0, 1)}),
            (Lines{{130, kNotYet, kNotYet, WaitKind::kDisk}}));
  // Between two sleeps it ran 20: in the middle.
  EXPECT_EQ(drawn({seen(100, WaitKind::kDisk, 0, 0, 1), seen(200, WaitKind::kLock, 20, 0, 2)}),
            (Lines{{100, 140, 140, WaitKind::kDisk}, {160, kNotYet, kNotYet, WaitKind::kLock}}));
}

TEST(TimelineOfLooks, WaitingForACpuIsNoSleep) {
  // Preempted: ran 60, waited 40.
  EXPECT_EQ(drawn({seen(100, WaitKind::kNone, 0, 0, 1), seen(200, WaitKind::kNone, 60, 40, 3)}),
            (Lines{{100, 100, 140, WaitKind::kNone}}));
}

TEST(TimelineOfLooks, SumsThatComeLateAreNotCountedTwice) {
  // Without a CPU all the time: the kernel adds the wait up when it ends, after 250.
  EXPECT_EQ(drawn({seen(100, WaitKind::kNone, 0, 0, 1), seen(200, WaitKind::kNone, 0, 0, 1, true),
                   seen(300, WaitKind::kNone, 0, 0, 1, true),
                   seen(400, WaitKind::kNone, 50, 250, 2, true)}),
            (Lines{{100, 100, 350, WaitKind::kNone}}));
  // On a CPU all the time: what it ran since the last tick is added with the next.
  EXPECT_EQ(drawn({seen(100, WaitKind::kNone, 0, 0, 1), seen(200, WaitKind::kNone, 96, 0, 1, true),
                   seen(300, WaitKind::kTimer, 150, 0, 1)}),
            (Lines{{250, kNotYet, kNotYet, WaitKind::kTimer}}));
}

// Woken soon after the first look and without a CPU until after the second, as the sum says then.
TEST(TimelineOfLooks, AWaitThatBeganBeforeTheLookBeforeShortensTheSleep) {
  EXPECT_EQ(drawn({seen(100, WaitKind::kLock, 0, 0, 1), seen(200, WaitKind::kNone, 0, 0, 1),
                   seen(300, WaitKind::kNone, 20, 170, 2)}),
            (Lines{{100, 110, 280, WaitKind::kLock}}));
}

TEST(TimelineOfLooks, SumsThatMakeNoSenseStayInBounds) {
  const auto lines =
      drawn({seen(100, WaitKind::kLock, 500, 500, 9), seen(200, WaitKind::kLock, 900, 900, 12),
             seen(150, WaitKind::kNone, 0, 0, 1), seen(300, WaitKind::kNone, 10, 10, 2)},
            true);
  std::uint64_t at = 100;
  for (const Drawn& line : lines) {
    EXPECT_LE(at, line.left);
    EXPECT_LE(line.left, line.woken);
    EXPECT_LE(line.woken, line.back);
    at = line.back;
  }
  EXPECT_LE(at, 300U);
}

TEST(WaitOfFunction, KnowsTheCommonOnes) {
  EXPECT_EQ(wait_of_function("futex_wait_queue", 'S'), WaitKind::kLock);
  EXPECT_EQ(wait_of_function("hrtimer_nanosleep", 'S'), WaitKind::kTimer);
  EXPECT_EQ(wait_of_function("anon_pipe_read", 'S'), WaitKind::kLocal);
  EXPECT_EQ(wait_of_function("unix_stream_read_generic", 'S'), WaitKind::kLocal);
  EXPECT_EQ(wait_of_function("inet_csk_accept", 'S'), WaitKind::kNetwork);
  EXPECT_EQ(wait_of_function("folio_wait_bit_common", 'D'), WaitKind::kDisk);
  EXPECT_EQ(wait_of_function("rwsem_down_read_slowpath", 'D'), WaitKind::kOther);
  EXPECT_EQ(wait_of_function("0", 'D'), WaitKind::kDisk);
  EXPECT_EQ(wait_of_function("", 'S'), WaitKind::kOther);
}

}  // namespace
}  // namespace sluice::exporter

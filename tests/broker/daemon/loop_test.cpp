// The event loop and its timers.
#include "broker/daemon/loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/daemon/timer.h"

namespace sluice::daemon {
namespace {

constexpr int kPatience_ms = 10'000;

struct Pipe {
  devices::Fd reader;
  devices::Fd writer;
  Pipe() {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    reader = devices::Fd(fds[0]);
    writer = devices::Fd(fds[1]);
  }
  void fill() { EXPECT_EQ(write(writer.get(), "x", 1), 1); }
};

TEST(Loop, CallsWhatIsReadable) {
  Loop loop;
  Pipe a;
  Pipe b;
  int calls = 0;
  loop.add(a.reader.get(), [&] { ADD_FAILURE() << "nothing was written here"; });
  loop.add(b.reader.get(), [&] { ++calls; });
  b.fill();
  loop.turn(kPatience_ms);
  EXPECT_EQ(calls, 1);
}

TEST(Loop, HandlerMayRemoveItselfAndOthersOfTheSameTurn) {
  Loop loop;
  Pipe pipes[2];
  Loop::Key keys[2];
  int calls = 0;
  for (int i = 0; i < 2; ++i) {
    keys[i] = loop.add(pipes[i].reader.get(), [&] {
      ++calls;
      loop.remove(keys[0]);
      loop.remove(keys[1]);
    });
    pipes[i].fill();
  }
  loop.turn(kPatience_ms);
  loop.turn(0);
  EXPECT_EQ(calls, 1);
}

TEST(Loop, DeferredTasksRunAfterTheHandler) {
  Loop loop;
  Pipe pipe;
  std::string order;
  loop.add(pipe.reader.get(), [&] {
    loop.defer([&] { order += "deferred "; });
    order += "handler ";
  });
  pipe.fill();
  loop.turn(kPatience_ms);
  EXPECT_EQ(order, "handler deferred ");
}

TEST(Loop, SlowTurnsAreCountedWithTheHandlerThatTookLongest) {
  Loop loop;
  Pipe quick;
  Pipe slow;
  loop.add(
      quick.reader.get(), [] {}, "quick");
  loop.add(
      slow.reader.get(), [] { usleep(20'000); }, "slow");
  std::vector<Loop::SlowTurn> seen;
  loop.slow_watch(10'000'000, [&](const Loop::SlowTurn& turn) { seen.push_back(turn); });
  quick.fill();
  slow.fill();
  loop.turn(kPatience_ms);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_STREQ(seen[0].handler, "slow");
  EXPECT_GE(seen[0].handler_ns, 20'000'000);
  EXPECT_GE(seen[0].turn_ns, seen[0].handler_ns);
  EXPECT_LT(seen[0].cpu_ns, seen[0].turn_ns) << "it slept";
  EXPECT_EQ(loop.slow_turns(), 1u);
}

TEST(Loop, WaitingIsNoSlowTurn) {
  Loop loop;
  Timer timer(loop, [] {});
  loop.slow_watch(INT64_MAX, [](const Loop::SlowTurn&) { ADD_FAILURE(); });
  timer.at(clock_ns() + 30'000'000);
  loop.turn(kPatience_ms);
  loop.slow_watch(25'000'000, [](const Loop::SlowTurn& turn) {
    EXPECT_GT(turn.handler_ns, 25'000'000) << "the wait before it counts";
  });
  timer.at(clock_ns() + 30'000'000);
  loop.turn(kPatience_ms);
}

/// How often this thread has slept.
long sleeps() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

constexpr std::int64_t kRun_ns = 1'000'000;
constexpr std::int64_t kRest_ns = 50'000;

TEST(Loop, SleepsNowAndThenThoughSomethingIsAlwaysDue) {
  Loop loop;
  Pipe pipe;
  pipe.fill();
  loop.add(pipe.reader.get(), [] {});
  loop.rest_after(kRun_ns, kRest_ns);
  for (int round = 0; round < 10; ++round) {
    const long before = sleeps();
    const std::int64_t until_ns = clock_ns() + std::int64_t{kPatience_ms} * 1'000'000;
    while (sleeps() == before && clock_ns() < until_ns) loop.turn(-1);
    ASSERT_GT(sleeps(), before);
  }
}

TEST(Loop, SleepsBetweenTheHandlersOfOneTurn) {
  Loop loop;
  Pipe pipes[Loop::kEventsPerTurn];
  const auto spin = [] {
    for (const std::int64_t until_ns = clock_ns() + kRun_ns; clock_ns() < until_ns;) {
    }
  };
  for (Pipe& pipe : pipes) {
    pipe.fill();
    loop.add(pipe.reader.get(), spin);
  }
  loop.rest_after(kRun_ns, kRest_ns);
  const long before = sleeps();
  loop.turn(-1);
  EXPECT_GE(sleeps() - before, Loop::kEventsPerTurn / 2);
}

TEST(Loop, AWaitThatSleepsIsRestEnough) {
  Loop loop;
  Timer timer(loop, [] {});
  loop.rest_after(0, kRest_ns);
  for (int i = 0; i < 10; ++i) {
    timer.at(clock_ns() + 5 * kRun_ns);
    const long before = sleeps();
    loop.turn(kPatience_ms);
    EXPECT_EQ(sleeps() - before, 1) << "in the wait, or else after the handler";
  }
}

/// Turns a loop in which something is always due, as a real-time thread that the kernel ends when
/// it runs for `limit_us` without a sleep; for ten times as long. Returns how it ended.
int realtime_flood(rlim_t limit_us, bool rests) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{limit_us, limit_us};
    sched_param first = {};
    first.sched_priority = sched_get_priority_min(SCHED_FIFO);
    if (setrlimit(RLIMIT_RTTIME, &limit) != 0 || sched_setscheduler(0, SCHED_FIFO, &first) != 0)
      _exit(77);
    Loop loop;
    Pipe pipe;
    pipe.fill();
    loop.add(pipe.reader.get(), [] {});
    if (rests) loop.rest_after(kRun_ns, kRest_ns);
    const auto cpu_us = [] {
      rusage usage{};
      getrusage(RUSAGE_THREAD, &usage);
      return static_cast<rlim_t>((usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 +
                                 usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    };
    while (cpu_us() < 10 * limit_us) loop.turn(-1);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(Loop, ARealTimeThreadIsNotEndedByAFlood) {
  constexpr rlim_t kLimit_us = 50'000;
  const int without = realtime_flood(kLimit_us, false);
  if (WIFEXITED(without) && WEXITSTATUS(without) == 77) GTEST_SKIP() << "it may not be one";
  ASSERT_TRUE(WIFSIGNALED(without)) << "the kernel counts";
  EXPECT_EQ(realtime_flood(kLimit_us, true), 0);
}

TEST(Loop, StopEndsRun) {
  Loop loop;
  Pipe pipe;
  loop.add(pipe.reader.get(), [&] { loop.stop(); });
  pipe.fill();
  loop.run();
  EXPECT_TRUE(loop.stopped());
}

TEST(Timer, PastMomentFiresAtOnceAndOnce) {
  Loop loop;
  int calls = 0;
  Timer timer(loop, [&] { ++calls; });
  timer.at(clock_ns() - 1'000'000);
  loop.turn(kPatience_ms);
  loop.turn(0);
  EXPECT_EQ(calls, 1);
}

TEST(Timer, ZeroIsAMomentToo) {
  Loop loop;
  int calls = 0;
  Timer timer(loop, [&] { ++calls; });
  timer.at(0);
  loop.turn(kPatience_ms);
  EXPECT_EQ(calls, 1);
}

TEST(Timer, ClearedNeverFires) {
  Loop loop;
  Timer timer(loop, [] { ADD_FAILURE() << "cleared"; });
  timer.at(clock_ns());
  timer.clear();
  loop.turn(20);
}

}  // namespace
}  // namespace sluice::daemon

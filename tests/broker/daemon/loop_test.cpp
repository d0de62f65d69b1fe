// The event loop and its timers.
#include "broker/daemon/loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
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

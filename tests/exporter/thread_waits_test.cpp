// What threads wait for, planted one thing at a time, under both observers of threads. Most of the
// time that the planted thread sleeps has to be of the planted kind; how long that is, is not
// asked.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "exporter/idle/thread_watch.h"
#include "planted.h"
#include "tally.h"

namespace sluice::exporter {
namespace {

constexpr int kRounds = 8;
constexpr unsigned kWaitMs = 40;

/// Who is expected to have woken the thread.
enum class Woken { kNobody, kToldThread, kToldProcess, kAnybody };

struct Plant {
  const char* name;
  WaitKind kind;
  Woken woken;
  Planted::Body body;
  WaitKind coarse = kind;  // what samples of /proc call it
};

void write_byte(int fd) {
  const std::uint64_t one = 1;  // an eventfd takes eight bytes
  (void)!write(fd, &one, sizeof one);
}

void read_some(int fd) {
  char buffer[8];
  (void)!read(fd, buffer, sizeof buffer);
}

/// Runs `wait` until the thread has slept in it kRounds times: on a busy host what it waits for may
/// be there before it comes to wait, and then it does not sleep.
void rounds(const std::function<void()>& wait) {
  const auto sleeps = [] {
    rusage used{};
    getrusage(RUSAGE_THREAD, &used);
    return used.ru_nvcsw;
  };
  for (int slept = 0; slept < kRounds;) {
    const long before = sleeps();
    wait();
    slept += sleeps() != before ? 1 : 0;
  }
}

/// A child process writes to `to` every kWaitMs; `wait` waits for it.
void fed(Told& told, int to, const std::function<void()>& wait) {
  const pid_t feeder = child_start([&] {
    for (;;) {
      nap_ms(kWaitMs);
      write_byte(to);
    }
  });
  told.process = static_cast<std::uint32_t>(feeder);
  rounds(wait);
}

std::array<int, 2> pipe_made() {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) abort();
  return ends;
}

void poll_one(int fd) {
  pollfd one{fd, POLLIN, 0};
  poll(&one, 1, 5000);
  read_some(fd);
}

void select_one(int fd) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  select(fd + 1, &set, nullptr, nullptr, nullptr);
  read_some(fd);
}

/// Waits for all of `fds` at once and empties what is ready.
std::function<void()> epoll_of(std::vector<int> fds) {
  const int set = epoll_create1(0);
  for (const int fd : fds) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
  }
  return [set] {
    epoll_event event{};
    if (epoll_wait(set, &event, 1, 5000) == 1) read_some(event.data.fd);
  };
}

void timers(Told&) {
  rounds([] { nap_ms(kWaitMs); });
}

void timer_descriptor(Told&) {
  const int timer = timerfd_create(CLOCK_MONOTONIC, 0);
  const itimerspec every{{0, kWaitMs * 1'000'000}, {0, kWaitMs * 1'000'000}};
  timerfd_settime(timer, 0, &every, nullptr);
  rounds([&] { read_some(timer); });
}

void lock(Told& told) {
  std::atomic<std::uint32_t> turn{0};
  std::atomic<bool> done{false};
  std::thread other([&] {
    told.thread = thread_number();
    while (!done) {
      nap_ms(kWaitMs);
      ++turn;
      futex_wake(turn);
    }
  });
  rounds([&] { futex_wait(turn, turn); });
  done = true;
  other.join();
}

void unix_socket(Told& told) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) abort();
  fed(told, ends[1], [&] { read_some(ends[0]); });
}

void terminal(Told& told) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (grantpt(master) != 0 || unlockpt(master) != 0) abort();
  const int slave = open(ptsname(master), O_RDONLY | O_NOCTTY);
  const pid_t writer = child_start([&] {
    for (;;) {
      nap_ms(kWaitMs);
      (void)!write(master, "\n", 1);
    }
  });
  told.process = static_cast<std::uint32_t>(writer);
  rounds([&] { read_some(slave); });
}

const std::vector<Plant>& plants() {
  static const std::vector<Plant> all{
      {"sleep", WaitKind::kTimer, Woken::kNobody, timers},
      {"poll_nothing", WaitKind::kTimer, Woken::kNobody,
       [](Told&) { rounds([] { poll(nullptr, 0, kWaitMs); }); }},
      {"timerfd", WaitKind::kTimer, Woken::kNobody, timer_descriptor},
      {"futex", WaitKind::kLock, Woken::kToldThread, lock},
      {"socket", WaitKind::kNetwork, Woken::kAnybody,
       [](Told& told) {
         const Connection made = loopback_connect();
         fed(told, made.there, [&] { read_some(made.here); });
       }},
      {"poll_socket", WaitKind::kNetwork, Woken::kAnybody,
       [](Told& told) {
         const Connection made = loopback_connect();
         fed(told, made.there, [&] { poll_one(made.here); });
       }},
      {"select_socket", WaitKind::kNetwork, Woken::kAnybody,
       [](Told& told) {
         const Connection made = loopback_connect();
         fed(told, made.there, [&] { select_one(made.here); });
       }},
      {"epoll_socket", WaitKind::kNetwork, Woken::kAnybody,
       [](Told& told) {
         const Connection made = loopback_connect();
         fed(told, made.there, epoll_of({made.here}));
       }},
      {"pipe", WaitKind::kLocal, Woken::kToldProcess,
       [](Told& told) {
         const auto ends = pipe_made();
         fed(told, ends[1], [&] { read_some(ends[0]); });
       }},
      {"poll_pipe", WaitKind::kLocal, Woken::kToldProcess,
       [](Told& told) {
         const auto ends = pipe_made();
         fed(told, ends[1], [&] { poll_one(ends[0]); });
       }},
      {"unix_socket", WaitKind::kLocal, Woken::kToldProcess, unix_socket},
      {"eventfd", WaitKind::kLocal, Woken::kToldProcess,
       [](Told& told) {
         const int event = eventfd(0, 0);
         fed(told, event, [&] { read_some(event); });
       }},
      {"epoll_eventfd", WaitKind::kLocal, Woken::kToldProcess,
       [](Told& told) {
         const int event = eventfd(0, 0);
         fed(told, event, epoll_of({event}));
       }},
      {"terminal", WaitKind::kLocal, Woken::kAnybody, terminal},
      // A pipe and an internet connection in one set: who wakes decides, which samples cannot know.
      {"mixed_by_pipe", WaitKind::kLocal, Woken::kToldProcess,
       [](Told& told) {
         const Connection made = loopback_connect();
         const auto ends = pipe_made();
         fed(told, ends[1], epoll_of({ends[0], made.here}));
       },
       WaitKind::kNetwork},
      {"mixed_by_socket", WaitKind::kNetwork, Woken::kAnybody,
       [](Told& told) {
         const Connection made = loopback_connect();
         const auto ends = pipe_made();
         fed(told, made.there, epoll_of({ends[0], made.here}));
       }},
  };
  return all;
}

class Waits : public testing::TestWithParam<std::tuple<std::size_t, bool>> {};

TEST_P(Waits, AreOfTheirKind) {
  const auto& [index, exact] = GetParam();
  const Plant& plant = plants()[index];
  Planted planted(plant.body);
  std::string reason;
  const auto watch = watch_made(exact, &reason);
  if (watch == nullptr) GTEST_SKIP() << reason;
  EXPECT_EQ(watch->is_coarse(), !exact);
  watch->processes_set({planted.pid()});
  planted.go();
  ASSERT_TRUE(planted.done_wait());
  // Until the last look was made, which a busy host puts off.
  std::vector<OffCpu> periods;
  std::uint64_t complete_ns = 0;
  for (int i = 0; i < 100 && complete_ns < planted.told().end_ns; ++i) {
    nap_ms(3 * kSampleNs / 1'000'000);
    // What still goes on is told each time.
    std::erase_if(periods, [](const OffCpu& one) { return one.back_ns == UINT64_MAX; });
    complete_ns = watch->periods_read(periods);
  }
  EXPECT_GE(complete_ns, planted.told().end_ns);
  const Tally sum = tally(periods, planted.pid(), planted.told());
  EXPECT_GE(sum.share(exact ? plant.kind : plant.coarse), exact ? 0.9 : 0.7)
      << "of " << sum.total_ns << " ns in " << sum.periods << " periods";
  // Sleeping is nearly all that it did.
  const std::uint64_t span = planted.told().end_ns - planted.told().begin_ns;
  EXPECT_GE(sum.total_ns, span / 2);
  EXPECT_EQ(watch->lost(), 0U);
  if (!exact) return;
  EXPECT_GE(sum.periods, kRounds);
  const auto of = [](const std::map<std::uint32_t, int>& wakers, std::uint32_t who) {
    const auto found = wakers.find(who);
    return found == wakers.end() ? 0 : found->second;
  };
  // Of kRounds wakings; one may come before the body has slept.
  constexpr int kMost = kRounds - 2;
  if (plant.woken == Woken::kNobody) {
    EXPECT_GE(of(sum.by_process, 0), kMost / 2);
  }
  if (plant.woken == Woken::kToldThread) {
    EXPECT_GE(of(sum.by_thread, planted.told().thread), kMost);
    EXPECT_GE(of(sum.by_process, planted.pid()), kMost);
  }
  if (plant.woken == Woken::kToldProcess) {
    EXPECT_GE(of(sum.by_process, planted.told().process), kMost);
  }
}

INSTANTIATE_TEST_SUITE_P(Planted, Waits,
                         testing::Combine(testing::Range<std::size_t>(0, plants().size()),
                                          testing::Bool()),
                         [](const auto& one) {
                           return std::string(plants()[std::get<0>(one.param)].name) +
                                  (std::get<1>(one.param) ? "_bpf" : "_proc");
                         });

}  // namespace
}  // namespace sluice::exporter

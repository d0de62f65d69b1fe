// Which threads are watched and since when, what is handed out and when, and what is lost.
#include "exporter/idle/thread_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "planted.h"
#include "tally.h"

namespace sluice::exporter {
namespace {

constexpr std::uint64_t kNever = UINT64_MAX;

/// Sleeps and works a little, for as long as it lives.
[[noreturn]] void nap_forever() {
  for (;;) nap_ms(5);
}

std::uint32_t child_of(pid_t pid) { return static_cast<std::uint32_t>(pid); }

class Watches : public testing::TestWithParam<bool> {
 protected:
  bool watch_start(const std::vector<std::uint32_t>& processes) {
    watch_ = watch_made(GetParam(), &reason_);
    if (watch_ != nullptr) watch_->processes_set(processes);
    return watch_ != nullptr;
  }
  std::vector<OffCpu> read() {
    std::vector<OffCpu> periods;
    complete_ns_ = watch_->periods_read(periods);
    return periods;
  }
  /// Whether periods of a thread that began after this call are handed out; false after `seconds`.
  bool is_seen(std::uint32_t thread, int seconds = 20) {
    const std::uint64_t since = now_ns();
    return soon([&] { return has(read(), thread, since); }, seconds);
  }
  static bool has(const std::vector<OffCpu>& periods, std::uint32_t thread, std::uint64_t since) {
    return std::any_of(periods.begin(), periods.end(), [&](const OffCpu& period) {
      return period.thread == thread && period.left_ns >= since;
    });
  }
  static const OffCpu* open_of(const std::vector<OffCpu>& periods, std::uint32_t thread) {
    for (const OffCpu& period : periods) {
      if (period.thread == thread && period.back_ns == kNever) return &period;
    }
    return nullptr;
  }

  std::unique_ptr<ThreadWatch> watch_;
  std::string reason_;
  std::uint64_t complete_ns_ = 0;
};

#define START_OR_SKIP(...) \
  if (!watch_start(__VA_ARGS__)) GTEST_SKIP() << reason_

TEST_P(Watches, DescendantsThatWereThereBefore) {
  Planted planted([](Told& told) {
    told.process = child_of(child_start([&told] {
      told.thread = child_of(child_start(nap_forever));
      nap_forever();
    }));
  });
  planted.go();
  ASSERT_TRUE(planted.done_wait());
  ASSERT_TRUE(soon([&] { return planted.told().thread != 0; }));
  START_OR_SKIP({planted.pid()});
  EXPECT_TRUE(is_seen(planted.told().process));
  EXPECT_TRUE(is_seen(planted.told().thread));
}

TEST_P(Watches, DescendantsAndThreadsThatComeLater) {
  Planted planted([](Told& told) {
    std::thread(nap_forever).detach();
    std::atomic<std::uint32_t> number{0};
    std::thread([&] {
      number = thread_number();
      nap_forever();
    }).detach();
    soon([&] { return number != 0; });
    told.thread = number.load();
    told.process = child_of(child_start(nap_forever));
  });
  START_OR_SKIP({planted.pid()});
  planted.go();
  ASSERT_TRUE(planted.done_wait());
  EXPECT_TRUE(is_seen(planted.told().thread));
  EXPECT_TRUE(is_seen(planted.told().process));
  for (const OffCpu& period : read()) {
    const bool child = period.thread == planted.told().process;
    EXPECT_EQ(period.process, child ? planted.told().process.load() : planted.pid());
  }
}

TEST_P(Watches, WhoseDescendantsAndWhetherTheyRun) {
  Planted planted([](Told& told) {
    told.thread = child_of(child_start([] {
      for (;;) {
      }
    }));
    told.process = child_of(child_start([] {
      for (;;) pause();
    }));
  });
  planted.go();
  ASSERT_TRUE(planted.done_wait());
  const std::uint32_t runs = planted.told().thread, sleeps = planted.told().process;
  START_OR_SKIP({planted.pid()});
  EXPECT_TRUE(soon([&] {
    read();
    return watch_->root_of(runs) == planted.pid() && watch_->root_of(sleeps) == planted.pid();
  }));
  EXPECT_EQ(watch_->root_of(planted.pid()), planted.pid());
  EXPECT_EQ(watch_->root_of(static_cast<std::uint32_t>(getpid())), 0U) << "not watched";
  EXPECT_TRUE(soon([&] { return watch_->letter_of({sleeps, sleeps}) == 'S'; }));
  EXPECT_TRUE(soon([&] { return watch_->letter_of({runs, runs}) == 'R'; }));
  EXPECT_EQ(watch_->letter_of({sleeps, runs}), '\0') << "of another process";
  planted.end();
  EXPECT_TRUE(soon([&] {
    read();
    return watch_->letter_of({sleeps, sleeps}) == '\0';
  }));
}

// A daemon's parent ends, and nothing in /proc tells any more whose descendant it is.
TEST_P(Watches, OrphansStayWatched) {
  Planted planted([](Told& told) {
    const pid_t parent = child_start([&told] {
      const pid_t orphan = fork();
      if (orphan == 0) nap_forever();
      told.process = child_of(orphan);
      nap_ms(1500);  // samples look for descendants once a second
    });
    waitpid(parent, nullptr, 0);
  });
  START_OR_SKIP({planted.pid()});
  planted.go();
  ASSERT_TRUE(planted.done_wait());
  const std::uint32_t orphan = planted.told().process;
  EXPECT_TRUE(is_seen(orphan));
  watch_->processes_set({planted.pid()});
  EXPECT_TRUE(is_seen(orphan));
  EXPECT_EQ(watch_->root_of(orphan), planted.pid());
  kill(static_cast<pid_t>(orphan), SIGKILL);
}

TEST_P(Watches, NothingButWhatIsListed) {
  Planted one([](Told&) { nap_forever(); });
  Planted other([](Told&) { nap_forever(); });
  START_OR_SKIP({one.pid()});
  one.go();
  other.go();
  ASSERT_TRUE(is_seen(one.pid()));
  watch_->processes_set({other.pid()});
  EXPECT_TRUE(is_seen(other.pid()));
  read();
  const std::uint64_t since = now_ns();
  EXPECT_TRUE(is_seen(other.pid()));
  const auto periods = read();
  EXPECT_FALSE(has(periods, one.pid(), since));
  EXPECT_EQ(open_of(periods, one.pid()), nullptr);
  watch_->processes_set({one.pid(), other.pid()});
  EXPECT_TRUE(is_seen(one.pid()));
  watch_->processes_set({});
  read();
  EXPECT_TRUE(read().empty());
}

TEST_P(Watches, EndedProcessesAreForgotten) {
  Planted planted([](Told&) { nap_forever(); });
  const std::uint32_t number = planted.pid();
  START_OR_SKIP({number});
  planted.go();
  ASSERT_TRUE(is_seen(number));
  planted.end();
  EXPECT_TRUE(soon([&] { return read().empty(); }));
  watch_->processes_set({number});  // its number is still listed
  EXPECT_TRUE(read().empty());
}

TEST_P(Watches, WhatGoesOnIsShownWhileItDoes) {
  Planted planted([](Told&) {});  // asleep on a pipe already
  nap_ms(20);
  START_OR_SKIP({planted.pid()});
  nap_ms(30);
  std::vector<OffCpu> periods = read();
  const OffCpu* open = open_of(periods, planted.pid());
  ASSERT_NE(open, nullptr);
  EXPECT_EQ(open->kind, WaitKind::kLocal);
  EXPECT_EQ(open->woken_ns, kNever);
  EXPECT_EQ(open->process, planted.pid());
  EXPECT_LT(open->left_ns, complete_ns_);
  const std::uint64_t left_ns = open->left_ns;
  periods = read();
  open = open_of(periods, planted.pid());
  ASSERT_NE(open, nullptr);
  EXPECT_EQ(open->left_ns, left_ns);
  planted.go();
  ASSERT_TRUE(planted.done_wait());
  nap_ms(30);
  periods = read();
  // Samples do not see that it ran for a moment and sleeps on the same pipe again.
  if (!GetParam()) return;
  const auto first = std::find_if(periods.begin(), periods.end(), [&](const OffCpu& period) {
    return period.thread == planted.pid();
  });
  ASSERT_NE(first, periods.end());
  EXPECT_EQ(first->left_ns, left_ns);
  EXPECT_EQ(first->kind, WaitKind::kLocal);
  EXPECT_NE(first->back_ns, kNever);
  EXPECT_EQ(first->waker_process, static_cast<std::uint32_t>(getpid()));
}

TEST_P(Watches, AThreadThatExecutesTakesItsProcesssNumber) {
  Planted planted([](Told& told) {
    std::thread([&] {
      told.thread = thread_number();
      nap_ms(20);
      execl("/bin/sleep", "sleep", "30", nullptr);
    }).join();
  });
  START_OR_SKIP({planted.pid()});
  planted.go();
  EXPECT_TRUE(soon([&] {
    const auto periods = read();
    const OffCpu* open = open_of(periods, planted.pid());
    return open != nullptr && open->kind == WaitKind::kTimer;
  }));
  EXPECT_EQ(open_of(read(), planted.told().thread), nullptr);
}

TEST_P(Watches, ACallIntoADeviceIsOne) {
  if (access("/dev/kmsg", R_OK) != 0) GTEST_SKIP() << "needs root, to read from /dev/kmsg";
  Planted planted([](Told&) {
    const int fd = open("/dev/kmsg", O_RDONLY);
    lseek(fd, 0, SEEK_END);
    char line[1024];
    while (::read(fd, line, sizeof line) > 0) {
    }
  });
  START_OR_SKIP({planted.pid()});
  planted.go();
  EXPECT_TRUE(soon([&] {
    const auto periods = read();
    const OffCpu* open = open_of(periods, planted.pid());
    return open != nullptr && open->kind == WaitKind::kDevice;
  }));
}

/// Two threads hand a word to and fro as fast as they can.
void ping_pong(unsigned milliseconds) {
  std::atomic<std::uint32_t> turn{0};
  std::atomic<bool> stop{false};
  const auto play = [&](std::uint32_t mine) {
    while (!stop) {
      futex_wait(turn, 1 - mine);
      turn = 1 - mine;
      futex_wake(turn);
    }
    turn = 1 - mine;
    futex_wake(turn);
  };
  std::thread other(play, 1);
  std::thread timer([&] {
    nap_ms(milliseconds);
    stop = true;
  });
  play(0);
  other.join();
  timer.join();
}

// The contract of periods_read: nothing that ended before the time it returned comes later, what
// went on at that time was shown, and the periods of a thread follow each other.
TEST_P(Watches, WhatIsCompleteIsComplete) {
  Planted planted([](Told&) { ping_pong(1000); });
  START_OR_SKIP({planted.pid()});
  planted.go();
  struct Thread {
    std::uint64_t back_ns = 0, open_left_ns = 0, open_left_before_ns = 0;
  };
  std::map<std::uint32_t, Thread> threads;
  std::uint64_t complete = 0;
  int ended = 0;
  do {
    for (auto& [number, thread] : threads) {
      thread.open_left_before_ns = thread.open_left_ns;
      thread.open_left_ns = 0;
    }
    const std::uint64_t before = complete;
    const auto periods = read();
    EXPECT_GE(complete_ns_, before);
    complete = complete_ns_;
    for (const OffCpu& period : periods) {
      Thread& thread = threads[period.thread];
      EXPECT_LE(period.left_ns, period.woken_ns);
      EXPECT_LE(period.woken_ns, period.back_ns);
      EXPECT_LE(thread.back_ns, period.left_ns);
      EXPECT_EQ(thread.open_left_ns, 0U) << "after what goes on comes nothing";
      if (period.back_ns == kNever) {
        thread.open_left_ns = period.left_ns;
        continue;
      }
      thread.back_ns = period.back_ns;
      ++ended;
      if (GetParam()) {
        EXPECT_GE(period.back_ns, before) << "handed out too late";
        if (period.left_ns < before) {
          EXPECT_EQ(period.left_ns, thread.open_left_before_ns) << "was not shown while it went on";
        }
      }
    }
    if (HasFailure()) break;
    nap_ms(7);
  } while (planted.told().end_ns == 0);
  EXPECT_GE(ended, GetParam() ? 1000 : 10);
}

TEST_P(Watches, NumbersOfNoProcessAreIgnored) {
  const pid_t gone = child_start([] {});
  waitpid(gone, nullptr, 0);
  START_OR_SKIP({child_of(gone), 0, UINT32_MAX});
  EXPECT_TRUE(read().empty());
  EXPECT_EQ(watch_->lost(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Source, Watches, testing::Bool(),
                         [](const auto& source) { return source.param ? "bpf" : "proc"; });

TEST(ThreadWatchBpf, WhatNobodyReadsIsCountedAsLost) {
  std::string reason;
  const auto watch = thread_watch_bpf(&reason);
  if (watch == nullptr) GTEST_SKIP() << reason;
  Planted planted([](Told&) { ping_pong(60'000); });
  watch->processes_set({planted.pid()});
  planted.go();
  ASSERT_TRUE(soon([&] { return watch->lost() > 100; }, 50));
  const std::uint64_t since = now_ns();
  std::vector<OffCpu> periods;
  watch->periods_read(periods);
  EXPECT_GE(periods.size(), 10'000U);
  // There is room again.
  EXPECT_TRUE(soon([&] {
    periods.clear();
    watch->periods_read(periods);
    return std::any_of(periods.begin(), periods.end(), [&](const OffCpu& period) {
      return period.left_ns > since && period.back_ns != kNever;
    });
  }));
}

/// This process becomes nobody, with these capabilities and no others.
bool become_nobody(std::uint64_t capabilities) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  for (int i = 0; i < 2; ++i)
    data[i].effective = data[i].permitted = static_cast<std::uint32_t>(capabilities >> 32 * i);
  return prctl(PR_SET_KEEPCAPS, 1) == 0 && setresgid(65534, 65534, 65534) == 0 &&
         setresuid(65534, 65534, 65534) == 0 && syscall(SYS_capset, &header, data) == 0;
}

// As the shipped unit grants them; what is watched belongs to somebody else.
TEST(ThreadWatchBpf, TwoCapabilitiesAreEnough) {
  std::string reason;
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give it up";
  if (thread_watch_bpf(&reason) == nullptr) GTEST_SKIP() << reason;
  enum { kSeen = 0, kNotSeen = 1, kNotLoaded = 2, kCannotGiveUp = 3 };
  Planted planted([](Told&) {});
  nap_ms(20);
  const pid_t pid = child_start([&] {
    if (!become_nobody(1ULL << CAP_PERFMON | 1ULL << CAP_BPF)) _exit(kCannotGiveUp);
    const auto watch = thread_watch_bpf(&reason);
    if (watch == nullptr) _exit(kNotLoaded);
    watch->processes_set({planted.pid()});
    std::vector<OffCpu> periods;
    watch->periods_read(periods);
    const bool seen = periods.size() == 1 && periods[0].thread == planted.pid() &&
                      periods[0].kind == WaitKind::kLocal;
    _exit(seen ? kSeen : kNotSeen);
  });
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), kSeen);
}

TEST(ThreadWatchBpf, WithoutRightsOneClearReason) {
  std::string reason;
  if (thread_watch_bpf(&reason) == nullptr && reason.starts_with("built without"))
    GTEST_SKIP() << reason;
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give it up";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = child_start([&] {
    if (!become_nobody(0)) _exit(2);
    std::string why;
    if (thread_watch_bpf(&why) != nullptr) _exit(1);
    (void)!write(ends[1], why.data(), why.size());
  });
  close(ends[1]);
  char text[256];
  const ssize_t size = ::read(ends[0], text, sizeof text);
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(std::string(text, size > 0 ? static_cast<std::size_t>(size) : 0),
            "no permission to load BPF programs; run as root or grant CAP_BPF and CAP_PERFMON");
}

TEST(ThreadWatchProc, WorksWithoutPrivileges) {
  // Exit codes of the child that has none.
  enum { kSeen = 0, kNotSeen = 1, kCannotGiveUp = 2 };
  const pid_t pid = child_start([] {
    if (geteuid() == 0 && !become_nobody(0)) _exit(kCannotGiveUp);
    prctl(PR_SET_DUMPABLE, 1);  // as a program that this user started
    Planted planted([](Told&) {
      for (int i = 0; i < 10; ++i) nap_ms(30);
    });
    const auto watch = thread_watch_proc(kSampleNs);
    watch->processes_set({planted.pid()});
    planted.go();
    const bool done = planted.done_wait();
    nap_ms(30);
    std::vector<OffCpu> periods;
    watch->periods_read(periods);
    const Tally sum = tally(periods, planted.pid(), planted.told());
    _exit(done && sum.share(WaitKind::kTimer) >= 0.7 ? kSeen : kNotSeen);
  });
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), kSeen);
}

}  // namespace
}  // namespace sluice::exporter

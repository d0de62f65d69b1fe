// From what threads did to causes, and from gaps to a tenant's divided time: on times written here,
// in microseconds.
#include <gtest/gtest.h>

#include <random>

#include "exporter/idle/account.h"

namespace sluice::exporter {
namespace {

constexpr std::uint32_t kMain = 100, kWorker = 101, kLoader = 200, kStranger = 900;
constexpr std::uint64_t kForEver = UINT64_MAX / 1000;

HostThread name(std::uint32_t thread) { return {thread / 100 * 100, thread}; }

OffCpu off(std::uint32_t thread, std::uint64_t left, std::uint64_t woken, std::uint64_t back,
           WaitKind kind, std::uint32_t waker = 0) {
  const auto ns = [](std::uint64_t us) { return us == kForEver ? UINT64_MAX : us * 1000; };
  const auto process = [](std::uint32_t number) { return number / 100 * 100; };
  return {thread,   process(thread),
          ns(left), ns(woken),
          ns(back), kind,
          waker,    waker == 0 ? 0 : process(waker)};
}

class CausesTest : public ::testing::Test {
 protected:
  /// The causes of [begin, end) of kMain, as text: "cpu 3, disk 4".
  std::string explain(std::uint64_t begin, std::uint64_t end) {
    return text(history_.explain(name(kMain), begin * 1000, end * 1000, tenant_));
  }
  static std::string text(const CauseTimes& times) {
    std::string out;
    for (std::size_t i = 0; i < kCauses; ++i) {
      if (times[i] == 0) continue;
      EXPECT_EQ(times[i] % 1000, 0u);
      out += (out.empty() ? "" : ", ") + std::string(kCauseNames[i]) + " " +
             std::to_string(times[i] / 1000);
    }
    return out;
  }

  char state_ = 'R';
  ThreadHistory history_{[this](HostThread) { return state_; }};
  const std::set<std::uint32_t> tenant_{100, 200};
};

TEST_F(CausesTest, WhatAThreadDidItself) {
  history_.periods_add(
      {off(kMain, 10, 20, 22, WaitKind::kDisk), off(kMain, 30, 40, 40, WaitKind::kNetwork),
       off(kMain, 50, 50, 57, WaitKind::kNone), off(kMain, 60, 70, 71, WaitKind::kTimer),
       off(kMain, 80, 85, 85, WaitKind::kDevice),
       off(kMain, 90, kForEver, kForEver, WaitKind::kOther)});
  EXPECT_EQ(explain(0, 10), "cpu 10");
  EXPECT_EQ(explain(0, 30), "cpu 18, runqueue 2, disk 10");
  EXPECT_EQ(explain(12, 15), "disk 3");
  EXPECT_EQ(explain(20, 21), "runqueue 1");
  EXPECT_EQ(explain(35, 60), "cpu 13, runqueue 7, network 5");
  EXPECT_EQ(explain(60, 90), "cpu 14, runqueue 1, sync 5, no-work 10");
  EXPECT_EQ(explain(90, 190), "no-work 100");
  EXPECT_EQ(explain(50, 50), "");
}

TEST_F(CausesTest, ThreadsWithoutAHistoryAreAskedForTheirState) {
  EXPECT_EQ(explain(0, 10), "cpu 10");
  state_ = 'S';
  EXPECT_EQ(explain(0, 10), "no-work 10");
}

TEST_F(CausesTest, APeriodThatGoesOnIsReplacedByItsEnd) {
  history_.periods_add({off(kMain, 10, kForEver, kForEver, WaitKind::kDisk)});
  EXPECT_EQ(explain(0, 50), "cpu 10, disk 40");
  history_.periods_add({off(kMain, 10, 40, 41, WaitKind::kDisk)});
  EXPECT_EQ(explain(0, 50), "cpu 19, runqueue 1, disk 30");
}

TEST_F(CausesTest, WhatTheShimToldComesFirst) {
  history_.periods_add({off(kMain, 10, 50, 51, WaitKind::kLock, kStranger)});
  history_.wait_add({name(kMain), 8'000, 20'000, Cause::kSync});
  history_.wait_add({name(kMain), 30'000, 40'000, Cause::kGate});
  EXPECT_EQ(explain(0, 60), "cpu 17, runqueue 1, lock 20, sync 12, gate 10");
  // Told again while it goes on.
  history_.wait_add({name(kMain), 30'000, 45'000, Cause::kGate});
  EXPECT_EQ(explain(30, 50), "lock 5, gate 15");
}

TEST_F(CausesTest, AWaitForAThreadOfTheTenantIsWhatThatOneDid) {
  history_.periods_add({off(kMain, 10, 50, 51, WaitKind::kLock, kWorker),
                        off(kWorker, 15, 35, 36, WaitKind::kDisk)});
  EXPECT_EQ(explain(10, 51), "cpu 19, runqueue 2, disk 20");
  // A pipe from the loader's process, whose thread waited for a slow peer.
  history_.periods_add({off(kMain, 60, 100, 100, WaitKind::kLocal, kLoader),
                        off(kLoader, 55, 95, 95, WaitKind::kNetwork)});
  EXPECT_EQ(explain(60, 100), "cpu 5, network 35");
}

TEST_F(CausesTest, AWakerThatSleptTooExplainsNothing) {
  history_.periods_add({off(kMain, 10, 50, 50, WaitKind::kLock, kWorker),
                        off(kWorker, 10, 40, 40, WaitKind::kTimer),
                        off(kMain, 60, 70, 70, WaitKind::kLocal, kWorker),
                        off(kWorker, 60, 70, 70, WaitKind::kTimer)});
  EXPECT_EQ(explain(10, 50), "cpu 10, lock 30");
  EXPECT_EQ(explain(60, 70), "no-work 10");
}

TEST_F(CausesTest, StrangersAndUnknownWakersAreNotFollowed) {
  history_.periods_add({off(kStranger, 0, 100, 100, WaitKind::kDisk),
                        off(kMain, 10, 20, 20, WaitKind::kLock, kStranger),
                        off(kMain, 30, 40, 40, WaitKind::kLocal, kStranger),
                        off(kMain, 50, 60, 60, WaitKind::kLock),
                        off(kMain, 70, 80, 80, WaitKind::kLock, kMain)});
  EXPECT_EQ(explain(10, 20), "lock 10");
  EXPECT_EQ(explain(30, 40), "no-work 10");
  EXPECT_EQ(explain(50, 60), "lock 10");
  EXPECT_EQ(explain(70, 80), "lock 10");
}

TEST_F(CausesTest, FourAreFollowedAndNotAFifth) {
  const auto chain = [](std::uint32_t k) { return kMain + k; };
  for (std::uint32_t k = 0; k < 6; ++k)
    history_.periods_add({off(chain(k), 10, 20, 20, WaitKind::kLock, chain(k + 1))});
  history_.periods_add({off(chain(6), 10, 20, 20, WaitKind::kDisk)});
  EXPECT_EQ(explain(10, 20), "lock 10");
  history_.periods_add({off(chain(4), 10, 20, 20, WaitKind::kDisk)});
  EXPECT_EQ(explain(10, 20), "disk 10");
}

TEST_F(CausesTest, ThreadsThatWaitForEachOtherEnd) {
  history_.periods_add({off(kMain, 10, 20, 20, WaitKind::kLock, kWorker),
                        off(kWorker, 10, 20, 20, WaitKind::kLock, kMain)});
  EXPECT_EQ(explain(10, 20), "lock 10");
}

TEST_F(CausesTest, ANumberThatWasGivenAgainStartsAfresh) {
  history_.periods_add({off(kMain, 10, 20, 20, WaitKind::kDisk)});
  OffCpu other = off(kMain, 30, 40, 40, WaitKind::kNetwork);
  other.process = 700;
  history_.periods_add({other});
  EXPECT_EQ(text(history_.explain({700, kMain}, 10'000, 40'000, tenant_)), "cpu 20, network 10");
}

TEST_F(CausesTest, AWaitIsOfAThreadOfThatProcessOnly) {
  history_.periods_add({off(kMain, 10, 20, 20, WaitKind::kDisk)});
  history_.wait_add({{kStranger, kMain}, 10'000, 20'000, Cause::kMemory});
  EXPECT_EQ(explain(10, 20), "disk 10");
}

TEST_F(CausesTest, ThreadsThatDoNotExistHaveNoHistory) {
  state_ = '\0';
  history_.wait_add({name(kMain), 10'000, 20'000, Cause::kMemory});
  EXPECT_EQ(explain(10, 20), "no-work 10");
  state_ = 'S';
  history_.wait_add({name(kMain), 10'000, 20'000, Cause::kMemory});
  EXPECT_EQ(explain(10, 20), "memory 10");
}

TEST_F(CausesTest, WaitsThatOverlapAreCutAndStayInOrder) {
  history_.wait_add({name(kMain), 10'000, 90'000, Cause::kGate});
  history_.wait_add({name(kMain), 20'000, 30'000, Cause::kMemory});
  EXPECT_EQ(explain(10, 40), "cpu 10, gate 10, memory 10");
}

TEST_F(CausesTest, OfTooManyPeriodsTheOlderAreDropped) {
  const std::uint64_t count = 2 * kHistoryMax;
  for (std::uint64_t k = 0; k < count; ++k)
    history_.periods_add({off(kMain, k * 10, k * 10 + 5, k * 10 + 5, WaitKind::kDisk)});
  EXPECT_EQ(explain(0, 10), "cpu 10") << "as if it had run";
  EXPECT_EQ(explain(count * 10 - 20, count * 10), "cpu 10, disk 10");
}

TEST_F(CausesTest, ForgettingKeepsWhatIsStillAskedFor) {
  history_.periods_add(
      {off(kMain, 10, 20, 20, WaitKind::kDisk), off(kMain, 30, 40, 40, WaitKind::kDisk)});
  history_.wait_add({name(kMain), 22'000, 24'000, Cause::kGate});
  history_.forget(25'000);
  EXPECT_EQ(explain(20, 50), "cpu 20, disk 10");
  history_.forget(90'000);
  EXPECT_EQ(explain(90, 95), "cpu 5");
}

/// Whatever the periods are, causes add up to the time that was asked for.
TEST_F(CausesTest, CausesAddUpForRandomHistories) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    ThreadHistory history([](HostThread) { return 'S'; });
    for (std::uint32_t thread = kMain; thread < kMain + 4; ++thread) {
      std::uint64_t at = 0;
      while (at < 1000) {
        const std::uint64_t left = at + random() % 50, woken = left + random() % 60;
        at = woken + random() % 10;
        const auto kind = static_cast<WaitKind>(random() % 8);
        history.periods_add({off(thread, left, kind == WaitKind::kNone ? left : woken, at, kind,
                                 random() % 2 == 0 ? 0 : kMain + random() % 4)});
        if (random() % 4 == 0)
          history.wait_add({name(thread), left * 1000, at * 1000, Cause::kSync});
      }
    }
    for (int k = 0; k < 20; ++k) {
      const std::uint64_t begin = random() % 900'000, end = begin + random() % 100'000;
      EXPECT_EQ(times_sum(history.explain(name(kMain), begin, end, tenant_)), end - begin);
    }
  }
}

class AccountTest : public CausesTest {
 protected:
  static GpuTold told(std::vector<GpuTold::Gap> gaps, std::uint64_t settled, bool idle) {
    for (auto& gap : gaps) {
      gap.begin_ns *= 1000;
      gap.end_ns *= 1000;
    }
    GpuTold out;
    out.gaps = std::move(gaps);
    out.settled_ns = settled * 1000;
    out.thread = kMain;
    out.idle = idle;
    return out;
  }
  void advance(std::vector<ProcessTold> processes, std::uint64_t known) {
    account_.advance(std::move(processes), known * 1000, history_, tenant_);
  }
  std::string figures() const {
    return "busy " + std::to_string(account_.figures().busy_ns / 1000) + ", " +
           text(account_.figures().idle_ns);
  }
  IdleAccount account_{10'000};
};

TEST_F(AccountTest, EachMomentIsAccountedOnceAndNotBeforeItIsKnown) {
  history_.periods_add({off(kMain, 15, 25, 25, WaitKind::kDisk)});
  // Work is in flight since 30: no more is known.
  advance({{100, told({{5, 30, kMain}}, 30, false)}}, 60);
  EXPECT_EQ(figures(), "busy 0, cpu 10, disk 10");
  advance({{100, told({}, 30, false)}}, 70);
  EXPECT_EQ(account_.done_ns(), 30'000u);
  // It ended at 50, and nothing since.
  advance({{100, told({}, 50, true)}}, 70);
  EXPECT_EQ(figures(), "busy 20, cpu 30, disk 10");
  // The gap of which a part is accounted is told as a whole.
  advance({{100, told({{50, 80, kMain}}, 95, true)}}, 100);
  EXPECT_EQ(figures(), "busy 35, cpu 45, disk 10");
  EXPECT_EQ(account_.figures().accounted_ns(), account_.done_ns() - 10'000);
}

TEST_F(AccountTest, BusyWhileAnyProcessIsAndIdleForWhomComesFirst) {
  history_.periods_add(
      {off(kMain, 10, 90, 90, WaitKind::kDisk), off(kLoader, 10, 90, 90, WaitKind::kNetwork)});
  advance({{100, told({{10, 40, kMain}, {50, 90, kMain}}, 100, true)},
           {200, told({{10, 30, kLoader}, {45, 70, kLoader}, {80, 90, kLoader}}, 100, true)}},
          100);
  // Both idle: 10-30 (the loader comes first), 50-70 (the loader), 80-90 (both: either).
  EXPECT_EQ(account_.figures().busy_ns, 40'000u);
  EXPECT_EQ(account_.figures().idle_ns[static_cast<int>(Cause::kNetwork)] / 1000, 40u);
  EXPECT_EQ(account_.figures().accounted_ns(), 90'000u);
}

TEST_F(AccountTest, BeforeTheFirstContextItIsTheFirstThreadsTime) {
  history_.periods_add({off(kMain, 10, 40, 40, WaitKind::kDisk)});
  advance({{100, GpuTold{}}}, 50);
  EXPECT_EQ(figures(), "busy 0, cpu 10, disk 30");
  // A process without a context explains nothing where another has one.
  advance({{100, GpuTold{}}, {200, told({}, 50, false)}}, 60);
  EXPECT_EQ(account_.done_ns(), 50'000u);
}

TEST_F(AccountTest, AWaitThatItsWakerWillExplainIsWaitedFor) {
  const std::vector<ProcessTold> idle{{100, told({}, 10, true)}};
  history_.periods_add({off(kMain, 20, kForEver, kForEver, WaitKind::kLocal)});
  advance(idle, 90);
  EXPECT_EQ(figures(), "busy 0, cpu 10");
  history_.periods_add({off(kMain, 20, 80, 80, WaitKind::kLocal, kLoader),
                        off(kLoader, 20, 80, 80, WaitKind::kDisk)});
  advance(idle, 100);
  EXPECT_EQ(figures(), "busy 0, cpu 30, disk 60");
  // But not for ever, and not one that says itself what it is for.
  history_.periods_add({off(kMain, 100, kForEver, kForEver, WaitKind::kLock)});
  advance(idle, 100 + kPatienceNs / 1000 + 30);
  EXPECT_EQ(figures(), "busy 0, cpu 30, disk 60, lock 30");
  history_.periods_add({off(kMain, 100, kForEver, kForEver, WaitKind::kNetwork)});
  advance(idle, 100 + kPatienceNs / 1000 + 40);
  EXPECT_EQ(account_.done_ns(), 100'000 + kPatienceNs + 40'000);
}

TEST_F(AccountTest, NobodyThereIsNoWork) {
  state_ = 'S';
  advance({}, 50);
  EXPECT_EQ(figures(), "busy 0, no-work 40");
}

TEST_F(AccountTest, LostGapsAreNotAccounted) {
  GpuTold::Gap lost{20, 40, 0, true};
  advance({{100, told({lost, {45, 50, kMain}}, 60, true)}}, 60);
  EXPECT_EQ(account_.figures().unseen_ns, 20'000u);
  EXPECT_EQ(account_.figures().accounted_ns(), 30'000u);
}

TEST_F(AccountTest, GapsTooShortToBeToldAreTheLaunchingThreadsTime) {
  GpuTold first = told({}, 20, false);
  first.short_ns = 4'000;  // from before the account began
  advance({{100, first}}, 60);
  GpuTold second = told({}, 60, false);
  second.short_ns = 9'000;
  advance({{100, second}}, 60);
  EXPECT_EQ(figures(), "busy 45, cpu 5");
}

TEST_F(AccountTest, LiesChangeNothingButTheLiarsAccount) {
  advance({{100, told({{50, 20, kMain}, {30, 40, kMain}, {10, 20, kMain}}, 60, true)}}, 60);
  EXPECT_EQ(account_.figures().accounted_ns(), 50'000u);
  // Settled in the future, idle since the future: no more than is known.
  advance({{100, told({{70, 1000, kMain}}, 5000, true)}}, 80);
  EXPECT_EQ(account_.figures().accounted_ns(), 70'000u);
}

TEST_F(AccountTest, GapsThatCannotBeAccountedFillNoMemory) {
  // The other process never says that anything is settled.
  const auto stuck = [&] { return told({}, 10, false); };
  const std::uint64_t kept = kGapsKeptMax / 2, count = kept + 100;
  for (std::uint64_t k = 1; k <= count; ++k)
    advance({{100, told({{k * 10, k * 10 + 5, kMain}}, k * 10 + 5, true)}, {200, stuck()}}, 1);
  EXPECT_EQ(account_.done_ns(), 10'000u);
  advance({{100, told({}, count * 10 + 5, true)}}, count * 10 + 5);
  // 10 to the end of the 101st gap is one of unknown kind; then half of the time is idle.
  EXPECT_EQ(account_.figures().unseen_ns, (101 * 10 + 5 - 10) * 1000u);
  EXPECT_EQ(times_sum(account_.figures().idle_ns), (kept - 1) * 5'000u);
  EXPECT_EQ(account_.figures().busy_ns, (kept - 1) * 5'000u);
}

TEST_F(AccountTest, RandomProcessesAddUp) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    IdleAccount account(0);
    std::map<std::uint32_t, std::uint64_t> at;
    std::uint64_t known = 0;
    for (int look = 0; look < 20; ++look) {
      std::vector<ProcessTold> processes;
      for (const std::uint32_t number : {100u, 200u}) {
        if (random() % 5 == 0) continue;
        GpuTold one;
        for (int k = random() % 4; k > 0; --k) {
          const std::uint64_t begin = at[number] + random() % 1000, end = begin + random() % 1000;
          one.gaps.push_back({begin, end, kMain, random() % 8 == 0});
          at[number] = end;
        }
        one.settled_ns = at[number] += random() % 500;
        one.idle = random() % 2 == 0;
        processes.push_back({number, one});
      }
      known += 1500;
      account.advance(processes, known, history_, tenant_);
      EXPECT_EQ(account.figures().accounted_ns() + account.figures().unseen_ns, account.done_ns());
    }
  }
}

}  // namespace
}  // namespace sluice::exporter

// Who is told, and stopped, as using a GPU beside Sluice; and the file in which the counts travel.
#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "exporter/bypass/figures.h"
#include "exporter/bypass/judge.h"
#include "exporter/bypass/listed.h"
#include "exporter/bypass/options.h"
#include "exporter/bypass/processes.h"

namespace sluice::exporter {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t kBypassSecond = 1'000'000'000;

Seen seen_of(std::uint32_t pid, std::set<FoundBy> by, std::uint32_t uid = 1000) {
  Seen out;
  out.process = {pid, 7 * pid};
  out.uid = uid;
  out.program = "/usr/local/bin/prog";
  out.by = std::move(by);
  return out;
}

BypassRules rules_of(BypassPolicy policy) { return {policy, 5 * kBypassSecond, {0}}; }

TEST(Bypass, IsFoundOnceItIsSettledThatItIsNobodys) {
  BypassJudge judge(rules_of(BypassPolicy::kReport));
  const Seen one = seen_of(10, {FoundBy::kDriver});
  EXPECT_THAT(judge.look({one}, 1 * kBypassSecond).lines, ElementsAre())
      << "it may be about to register";
  EXPECT_EQ(judge.counts().processes, 0U);
  EXPECT_THAT(judge.known(), ElementsAre(one.process));
  const auto verdict = judge.look({seen_of(10, {})}, 1 * kBypassSecond + kSettleNs);
  EXPECT_THAT(
      verdict.lines,
      ElementsAre("process 10 of user 1000 (/usr/local/bin/prog) uses a GPU without Sluice; found "
                  "by calls of the driver library"));
  EXPECT_THAT(verdict.orders, ElementsAre());
  EXPECT_EQ(judge.counts().processes, 1U);
  EXPECT_EQ(judge.counts().found[0], 1U);
  // Seen by NVML as well: that counts, and is not told again.
  Seen more = seen_of(10, {FoundBy::kNvml});
  more.bytes = 64 << 20;
  EXPECT_THAT(judge.look({more}, 20 * kBypassSecond).lines, ElementsAre());
  EXPECT_EQ(judge.counts().bytes, 64U << 20);
  EXPECT_EQ(judge.counts().found[static_cast<int>(FoundBy::kNvml)], 1U);
  judge.look({}, 21 * kBypassSecond);
  EXPECT_EQ(judge.counts().processes, 0U) << "it has ended";
  EXPECT_EQ(judge.counts().found[0], 1U) << "counters never fall";
}

TEST(Bypass, ANameBeginsNoLineOfItsOwn) {
  BypassJudge judge(rules_of(BypassPolicy::kReport));
  Seen one = seen_of(10, {FoundBy::kDevice});
  one.program = "/tmp/a\nsluice-watch: all is well\x1b[2J";
  judge.look({one}, kBypassSecond);
  EXPECT_THAT(
      judge.look({one}, kBypassSecond + kSettleNs).lines,
      ElementsAre("process 10 of user 1000 (/tmp/a?sluice-watch: all is well?[2J) uses a GPU "
                  "without Sluice; found by opening the driver's device"));
}

TEST(Bypass, ManagedOnesAndTheBrokersOwnAreNever) {
  BypassJudge judge(rules_of(BypassPolicy::kStop));
  Seen late = seen_of(1, {FoundBy::kDriver}), helper = seen_of(2, {FoundBy::kNvml});
  helper.is_broker = true;
  judge.look({late, helper}, kBypassSecond);
  late.managed = true;  // it has registered meanwhile
  for (std::uint64_t s = 2; s < 60; ++s) {
    const auto verdict = judge.look({late, helper, seen_of(3, {})}, s * kBypassSecond);
    EXPECT_TRUE(verdict.lines.empty() && verdict.orders.empty()) << s;
  }
  EXPECT_TRUE(judge.known().empty());
  EXPECT_EQ(judge.counts().processes, 0U);
}

// Workers that a program forks have its descriptors, and need not be registered.
TEST(Bypass, WhatAManagedProgramLeftToItsChildrenIsNoUse) {
  BypassJudge judge(rules_of(BypassPolicy::kStop));
  Seen worker = seen_of(8, {FoundBy::kHeld});
  worker.is_heir = true;
  judge.look({worker}, 0);
  EXPECT_THAT(judge.known(), ElementsAre(worker.process)) << "it is remembered whose child it was";
  const Seen orphan = seen_of(8, {FoundBy::kHeld});
  for (std::uint64_t s = 1; s < 60; ++s) {
    const auto verdict = judge.look({orphan}, s * kBypassSecond);
    EXPECT_TRUE(verdict.lines.empty() && verdict.orders.empty()) << s;
  }
  // What it does itself is another thing.
  judge.look({seen_of(8, {FoundBy::kIoctl})}, 60 * kBypassSecond);
  EXPECT_THAT(judge.look({orphan}, 60 * kBypassSecond + kSettleNs).lines,
              ElementsAre(HasSubstr("found by calls of the driver's device")));
}

TEST(Bypass, ADescriptorAloneIsEnoughOfAStranger) {
  BypassJudge judge(rules_of(BypassPolicy::kReport));
  judge.look({seen_of(9, {FoundBy::kHeld})}, kBypassSecond);
  EXPECT_THAT(judge.look({seen_of(9, {})}, kBypassSecond + kSettleNs).lines,
              ElementsAre(HasSubstr("found by holding the driver's device open")));
  EXPECT_EQ(judge.counts().found[static_cast<int>(FoundBy::kHeld)], 1U);
}

// A parent that is about to register: its child is its heir once it has.
TEST(Bypass, AnHeirIsOneAlsoWhenItsParentRegistersLater) {
  BypassJudge judge(rules_of(BypassPolicy::kReport));
  Seen worker = seen_of(8, {FoundBy::kHeld});
  judge.look({worker}, 0);
  worker.by = {};
  worker.is_heir = true;
  for (std::uint64_t s = 1; s < 9; ++s)
    EXPECT_TRUE(judge.look({worker}, s * kBypassSecond).lines.empty()) << s;
  EXPECT_EQ(judge.counts().processes, 0U);
}

TEST(Bypass, StopsAfterItsGraceAndKillsWhoDoesNotListen) {
  BypassJudge judge(rules_of(BypassPolicy::kStop));
  std::vector<std::pair<std::uint64_t, bool>> orders;
  for (std::uint64_t s = 0; s < 40; ++s) {
    for (const BypassOrder& order :
         judge.look({seen_of(4, {FoundBy::kNvml})}, s * kBypassSecond).orders) {
      EXPECT_EQ(order.process.start_ticks, 28U);
      orders.emplace_back(s, order.kill);
    }
  }
  // Settled after 3 s, 5 s of grace, another 5 until it is killed; each once.
  EXPECT_THAT(orders, ElementsAre(std::pair(8U, false), std::pair(13U, true)));
  EXPECT_EQ(judge.counts().stopped, 1U);
}

// What was exempt runs another program now.
TEST(Bypass, AnotherProgramOfAnExemptProcessIsNotExempt) {
  BypassJudge judge(rules_of(BypassPolicy::kStop));
  Seen one = seen_of(5, {FoundBy::kNvml});
  one.file = {1, 7};
  one.exempt_program = true;
  for (std::uint64_t s = 0; s < 20; ++s) judge.look({one}, s * kBypassSecond);
  EXPECT_EQ(judge.counts().exempt, 1U);
  one.file = {1, 8};
  one.exempt_program = false;
  std::size_t orders = 0;
  for (std::uint64_t s = 20; s < 40; ++s)
    orders += judge.look({one}, s * kBypassSecond).orders.size();
  EXPECT_EQ(orders, 2U);
}

/// When, in seconds, processes of two seconds each, one after the other with pauses between, are
/// stopped: looked at four times a second, as the judge asks for once a grace is over.
std::vector<std::uint64_t> chain_stopped(std::uint64_t pause_s, bool managed) {
  BypassJudge judge(rules_of(BypassPolicy::kStop));
  std::vector<std::uint64_t> out;
  const std::uint64_t period = 4 * (2 + pause_s);
  for (std::uint64_t quarter = 0; quarter < 240; ++quarter) {
    const auto pid = static_cast<std::uint32_t>(100 + quarter / period);
    std::vector<Seen> seen;
    if (quarter % period < 8) seen.push_back(seen_of(pid, {FoundBy::kNvml}));
    // It registers after a quarter of a second.
    if (!seen.empty()) seen[0].managed = managed && quarter % period > 0;
    const std::uint64_t now_ns = quarter * kBypassSecond / 4;
    for (std::size_t k = judge.look(seen, now_ns).orders.size(); k > 0; --k)
      out.push_back(quarter / 4);
  }
  return out;
}

TEST(Bypass, ManyShortProcessesOfAUserAreOverItsGraceTogether) {
  const auto stopped = chain_stopped(0, false);
  ASSERT_FALSE(stopped.empty());
  // 3 s to settle and 5 s of grace; then each one second after it was seen.
  EXPECT_GE(stopped.front(), 8U);
  EXPECT_LE(stopped.front(), 11U);
  EXPECT_GE(stopped.size(), 20U) << "each of those that follow";
  EXPECT_FALSE(chain_stopped(6, false).empty()) << "with pauses, too";
}

TEST(Bypass, ShortProcessesNowAndThenAreWithinTheGrace) {
  EXPECT_THAT(chain_stopped(28, false), ElementsAre());
}

TEST(Bypass, ShortProcessesThatRegisterAreNotCounted) {
  EXPECT_THAT(chain_stopped(0, true), ElementsAre());
}

TEST(Bypass, AUsersGraceIsNoOthers) {
  BypassJudge judge(rules_of(BypassPolicy::kStop));
  for (std::uint64_t s = 0; s < 20; ++s)
    judge.look({seen_of(10, {FoundBy::kNvml}, 1000)}, s * kBypassSecond);
  EXPECT_EQ(judge.pause_ns(20 * kBypassSecond), kLookSoonNs);
  std::vector<std::uint64_t> stopped;
  for (std::uint64_t s = 20; s < 40; ++s)
    for (const auto& order :
         judge.look({seen_of(11, {FoundBy::kNvml}, 1001)}, s * kBypassSecond).orders)
      if (!order.kill) stopped.push_back(s);
  EXPECT_THAT(stopped, ElementsAre(28U));
  EXPECT_EQ(judge.pause_ns(60 * kBypassSecond), kLookNs);
}

TEST(Bypass, TimeInWhichNobodyWasJudgedIsNoGrace) {
  BypassJudge judge(rules_of(BypassPolicy::kStop));
  const Seen one = seen_of(4, {FoundBy::kNvml});
  judge.look({one}, 0);
  EXPECT_TRUE(judge.look({one}, 100 * kBypassSecond).orders.empty()) << "it was just found";
  EXPECT_TRUE(judge.look({one}, 104 * kBypassSecond).orders.empty());
  EXPECT_EQ(judge.look({one}, 106 * kBypassSecond).orders.size(), 1U);
}

TEST(LeaverTimeTest, TimeThatSeveralProcessesShareCountsOnce) {
  LeaverTime time;
  time.add(1, 10, 20);
  time.add(1, 40, 50);
  time.add(1, 15, 30);
  EXPECT_EQ(time.of(1), 30U);
  time.add(1, 5, 60);
  EXPECT_EQ(time.of(1), 55U);
  time.add(1, 70, 70);
  time.add(2, 0, 5);
  EXPECT_EQ(time.of(2), 5U);
  EXPECT_TRUE(time.is_any(55, 59));
  EXPECT_FALSE(time.is_any(55, 60));
  EXPECT_FALSE(time.is_any(56, 0));
  time.forget(50);
  EXPECT_EQ(time.of(1), 10U);
  EXPECT_EQ(time.of(2), 0U);
  for (std::uint64_t k = 0; k < 10'000; ++k) time.add(3, k * 10, k * 10 + 1);
  EXPECT_EQ(time.of(3), 4096U) << "bounded";
}

TEST(Bypass, TheSameNumberOfAnotherProcessBeginsAnew) {
  BypassJudge judge(rules_of(BypassPolicy::kStop));
  judge.look({seen_of(4, {FoundBy::kNvml})}, 0);
  judge.look({seen_of(4, {FoundBy::kNvml})}, 4 * kBypassSecond);
  Seen other = seen_of(4, {FoundBy::kNvml});
  other.process.start_ticks = 1'000'000;
  EXPECT_TRUE(judge.look({other}, 100 * kBypassSecond).orders.empty());
  EXPECT_EQ(judge.counts().processes, 0U) << "not settled";
}

TEST(Bypass, ExemptOnesAreOnlyCounted) {
  BypassJudge judge(rules_of(BypassPolicy::kStop));
  Seen tool = seen_of(5, {FoundBy::kNvml});
  tool.file = {1, 7};
  tool.exempt_program = true;
  Seen near = seen_of(6, {FoundBy::kNvml});
  near.file = {1, 8};
  for (std::uint64_t s = 0; s < 40; ++s) {
    if (s == 20) tool.exempt_program = false;  // a new version is where it was
    for (const BypassOrder& order :
         judge.look({tool, near, seen_of(7, {FoundBy::kDevice}, 0)}, s * kBypassSecond).orders)
      EXPECT_EQ(order.process.pid, 6U);
  }
  EXPECT_EQ(judge.counts().exempt, 2U);
  EXPECT_EQ(judge.counts().processes, 1U);
}

TEST(Bypass, CountSaysNothingAndManyLinesAreSummedUp) {
  std::vector<Seen> crowd;
  for (std::uint32_t pid = 100; pid < 130; ++pid) crowd.push_back(seen_of(pid, {FoundBy::kNvml}));
  BypassJudge quiet(rules_of(BypassPolicy::kCount)), loud(rules_of(BypassPolicy::kReport));
  std::size_t lines = 0;
  for (std::uint64_t s = 0; s < 9; ++s) {
    EXPECT_TRUE(quiet.look(crowd, s * kBypassSecond).lines.empty());
    lines += loud.look(crowd, s * kBypassSecond).lines.size();
  }
  EXPECT_EQ(quiet.counts().processes, 30U);
  EXPECT_EQ(lines, kLinesMax);
  crowd.push_back(seen_of(200, {FoundBy::kNvml}));
  loud.look(crowd, 20 * kBypassSecond);
  EXPECT_THAT(loud.look(crowd, 24 * kBypassSecond).lines,
              ElementsAre(HasSubstr("another 20 lines"), HasSubstr("process 200 ")));
}

TEST(BypassFiguresTest, TravelThroughAFileAndGrowOld) {
  BypassFigures figures;
  figures.at_ns = 100 * kBypassSecond;
  figures.policy = BypassPolicy::kStop;
  figures.sources[2] = true;
  figures.counts = {1, 2, UINT64_MAX, {3, 4, 5, 7, 8}, 6};
  const std::string path = testing::TempDir() + "sluice-watch-figures";
  ASSERT_EQ(bypass_figures_write(path, figures), 0);
  const auto back = bypass_figures_read(path, 101 * kBypassSecond);
  ASSERT_TRUE(back);
  EXPECT_EQ(bypass_figures_text(*back), bypass_figures_text(figures));
  EXPECT_EQ(back->counts.bytes, UINT64_MAX);
  EXPECT_EQ(back->counts.stopped, 6U);
  EXPECT_EQ(back->counts.found[4], 8U);
  EXPECT_TRUE(back->sources[2] && !back->sources[0]);
  EXPECT_FALSE(bypass_figures_read(path, 200 * kBypassSecond)) << "of a watcher that is gone";
  EXPECT_FALSE(bypass_figures_read(path, 99 * kBypassSecond)) << "of before the machine started";
  for (const char* text :
       {"", "2\n", "1 1 0 111 1 1 1 1 1 1 1\n", "2 1 7 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n",
        "2 1 0 1 1 1 1 1 1 1 1 1 1 1 1 1\n", "sluice 1 0 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n"})
    EXPECT_FALSE(bypass_figures_parse(text)) << text;
  unlink(path.c_str());
  EXPECT_FALSE(bypass_figures_read(path, 101 * kBypassSecond));
  EXPECT_NE(bypass_figures_write("/nowhere/at/all", figures), 0);
}

ProcessName name_of(pid_t pid) {
  const auto number = static_cast<std::uint32_t>(pid);
  return {number, start_ticks_of(number)};
}

TEST(BypassProcesses, AreKnownByMoreThanTheirNumber) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const ProcessName name = name_of(child);
  const auto found = process_describe(name);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->uid, getuid());
  EXPECT_THAT(found->program, HasSubstr("exporter_tests"));
  ProcessName stranger = found->process;
  ++stranger.start_ticks;
  EXPECT_FALSE(process_describe(stranger)) << "what was seen of another process does not count";
  EXPECT_EQ(process_signal(stranger, SIGKILL), ESRCH);
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "it lives";
  EXPECT_EQ(process_signal(found->process, SIGKILL), 0);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_FALSE(process_describe(name));
}

// The memory of a process that has ended is listed under its number for as long as another process
// holds it.
TEST(BypassListed, WhoComesToAListedNumberIsNotMeant) {
  std::map<std::uint32_t, std::uint64_t> starts{{5, 50}, {6, 60}};
  ListedProcesses listed([&](std::uint32_t pid) { return starts.contains(pid) ? starts[pid] : 0; });
  EXPECT_THAT(listed.look({5, 6}), ElementsAre(ProcessName{5, 50}, ProcessName{6, 60}));
  starts = {{6, 60}};
  EXPECT_THAT(listed.look({5, 6, 7}), ElementsAre(ProcessName{6, 60}));
  starts = {{5, 51}, {6, 60}, {7, 70}};
  EXPECT_THAT(listed.look({5, 6, 7}), ElementsAre(ProcessName{6, 60}));
  EXPECT_THAT(listed.look({6}), ElementsAre(ProcessName{6, 60}));
  EXPECT_THAT(listed.look({5, 6, 7}),
              ElementsAre(ProcessName{5, 51}, ProcessName{6, 60}, ProcessName{7, 70}));
}

/// A folder with a program in it, and a process that runs it: a copy of sleep.
class ExemptProgram : public testing::Test {
 protected:
  ExemptProgram() {
    std::filesystem::copy_file("/usr/bin/sleep", program_);
    std::filesystem::copy_file("/usr/bin/sleep", other_);
  }
  ~ExemptProgram() override {
    end();
    std::filesystem::remove_all(folder_);
  }
  void end() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }
  /// False where `before` does not succeed, as where namespaces are forbidden.
  bool start(
      const std::string& program, const std::function<bool()>& before = [] { return true; }) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      if (before()) execl(program.c_str(), "sleep", "1000", nullptr);
      (void)!write(ends[1], "x", 1);
      _exit(1);
    }
    close(ends[1]);
    char byte;
    const bool failed = read(ends[0], &byte, 1) == 1;
    close(ends[0]);
    return !failed;
  }
  bool is_exempt(const std::string& path) const {
    const auto seen = process_describe(name_of(child_));
    return seen && program_is_exempt(*seen, {path});
  }

  const std::string folder_ = [] {
    std::string name = testing::TempDir() + "sluice-exempt-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    return std::filesystem::canonical(name).string();
  }();
  const std::string program_ = folder_ + "/tool", other_ = folder_ + "/other";
  pid_t child_ = -1;
};

TEST_F(ExemptProgram, IsAFileOrInAFolder) {
  ASSERT_TRUE(start(program_));
  EXPECT_TRUE(is_exempt(program_));
  EXPECT_TRUE(is_exempt(folder_));
  EXPECT_TRUE(is_exempt(folder_ + "/"));
  EXPECT_FALSE(is_exempt(other_));
  EXPECT_FALSE(is_exempt(folder_ + "/to"));
  EXPECT_FALSE(is_exempt("/usr/bin"));
  std::filesystem::create_symlink(folder_, folder_ + "/link");
  EXPECT_TRUE(is_exempt(folder_ + "/link")) << "wherever it leads";
}

TEST_F(ExemptProgram, IsNoneThatOthersCanReplace) {
  ASSERT_TRUE(start(program_));
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  EXPECT_FALSE(is_exempt(program_));
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(program_.c_str(), 0775), 0);
  EXPECT_FALSE(is_exempt(program_));
  ASSERT_EQ(chmod(program_.c_str(), 0755), 0);
  EXPECT_TRUE(is_exempt(program_));
  if (geteuid() != 0) return;
  ASSERT_EQ(chown(program_.c_str(), 65534, 65534), 0);
  EXPECT_FALSE(is_exempt(program_)) << "another user's";
}

TEST_F(ExemptProgram, IsNoneThatWasReplaced) {
  ASSERT_TRUE(start(program_));
  std::filesystem::rename(other_, program_);
  EXPECT_FALSE(is_exempt(folder_));
}

// Its own mounts show it under the exempt path, and only they do.
TEST_F(ExemptProgram, IsNoneThatOnlyItsOwnMountsShowThere) {
  const bool started = start(program_, [this] {
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
           mount(other_.c_str(), program_.c_str(), nullptr, MS_BIND, nullptr) == 0;
  });
  if (!started) GTEST_SKIP() << "this user can make no namespaces here";
  EXPECT_EQ(process_describe(name_of(child_))->program, program_);
  EXPECT_FALSE(is_exempt(program_));
}

TEST_F(ExemptProgram, IsNoneInAnotherUserNamespace) {
  if (!start(program_, [] { return unshare(CLONE_NEWUSER) == 0; }))
    GTEST_SKIP() << "this user can make no namespaces here";
  EXPECT_FALSE(is_exempt(program_)) << "it could name any file as its program";
}

TEST(BypassProcesses, KnowTheirAncestors) {
  const auto self = static_cast<std::uint32_t>(getpid());
  const auto parent = static_cast<std::uint32_t>(getppid());
  EXPECT_TRUE(process_descends(self, {parent}));
  EXPECT_FALSE(process_descends(self, {self}));
  EXPECT_FALSE(process_descends(self, {}));
  EXPECT_FALSE(process_descends(0, {0}));
}

TEST(BypassProcesses, TheDriversDevicesAreThoseForComputing) {
  EXPECT_THAT(driver_majors("Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n"
                            "507 nvidia-uvm\n\nBlock devices:\n  8 nvidia-uvm\n"),
              ElementsAre(507U));
  EXPECT_THAT(driver_majors("Character devices:\n  1 mem\n"), ElementsAre());
}

TEST(BypassOptionsTest, MistakesSayWhatToDo) {
  std::string error;
  const auto good =
      bypass_options_parse({"--socket=/s", "--config", "/c", "--device-major", "203"}, &error);
  ASSERT_TRUE(good);
  EXPECT_EQ(good->socket, "/s");
  EXPECT_EQ(good->config, "/c");
  EXPECT_EQ(good->device_major, 203U);
  for (const char* wrong : {"0", "4096", "x", ""}) {
    EXPECT_FALSE(bypass_options_parse({"--device-major", wrong}, &error));
    EXPECT_THAT(error, HasSubstr("/proc/devices lists them"));
  }
  EXPECT_FALSE(bypass_options_parse({"--socket"}, &error));
  EXPECT_EQ(error, "--socket needs a value");
  EXPECT_FALSE(bypass_options_parse({"--kill"}, &error));
}

}  // namespace
}  // namespace sluice::exporter

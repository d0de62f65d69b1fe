// Helper programs: output, exit, signals, deadlines.
#include "broker/devices/child.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

namespace sluice::devices {
namespace {

ChildOptions shell(const std::string& script) {
  ChildOptions options;
  options.program = "/bin/sh";
  options.arguments = {"-c", script};
  options.environment = {"PATH=/usr/bin:/bin", "WORD=seen"};
  options.deadline_ms = 20'000;
  return options;
}

TEST(Child, OutputAndStatus) {
  const ChildResult result = child_run(shell("echo $WORD; exit 3"));
  EXPECT_EQ(result.end, ChildResult::End::kExited);
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(result.output, "seen\n");
}

TEST(Child, EnvironmentIsExactlyTheOneGiven) {
  setenv("LEAKED", "yes", 1);
  EXPECT_EQ(child_run(shell("echo [$LEAKED]")).output, "[]\n");
}

TEST(Child, GoesBeforeNobodyThoughItsParentDoes) {
  const int usual = getpriority(PRIO_PROCESS, 0);
  if (setpriority(PRIO_PROCESS, 0, -7) < 0) GTEST_SKIP() << "only root may go before others";
  EXPECT_EQ(child_run(shell("nice")).output, "0\n");
  setpriority(PRIO_PROCESS, 0, usual);
  ASSERT_EQ(setpriority(PRIO_PROCESS, 0, 5), 0);
  EXPECT_EQ(child_run(shell("nice")).output, "5\n") << "nor does it gain by it";
  setpriority(PRIO_PROCESS, 0, usual);
}

TEST(Child, DeathBySignal) {
  const ChildResult result = child_run(shell("kill -SEGV $$"));
  EXPECT_EQ(result.end, ChildResult::End::kSignalled);
  EXPECT_EQ(result.status, SIGSEGV);
}

TEST(Child, DeadlineKillsTheWholeGroup) {
  ChildOptions options = shell("sleep 1000 & echo $!; wait");
  options.deadline_ms = 300;
  const ChildResult result = child_run(options);
  EXPECT_EQ(result.end, ChildResult::End::kTimedOut);
  const pid_t sleeper = std::stoi(result.output);
  // Killed in the same moment as its parent, but reaped by init in its own time.
  for (int i = 0; i < 1000 && kill(sleeper, 0) == 0; ++i) usleep(10'000);
  EXPECT_EQ(kill(sleeper, 0), -1);
}

TEST(Child, ClosedOutputIsNoEnd) {
  ChildOptions options = shell("exec >&-; sleep 1000");
  options.deadline_ms = 300;
  EXPECT_EQ(child_run(options).end, ChildResult::End::kTimedOut);
}

TEST(Child, MissingProgram) {
  ChildOptions options = shell("");
  options.program = "/nonexistent/program";
  const ChildResult result = child_run(options);
  EXPECT_EQ(result.end, ChildResult::End::kExited);
  EXPECT_EQ(result.status, 127);
}

TEST(Child, OutputIsBounded) {
  ChildOptions options = shell(
      "i=0; while [ $i -lt 2000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); "
      "done");
  options.output_bytes_max = 1000;
  const ChildResult result = child_run(options);
  EXPECT_EQ(result.end, ChildResult::End::kExited);
  EXPECT_LT(result.output.size(), 1000u + 4096u);
}

}  // namespace
}  // namespace sluice::devices

// sluice-debug as a process: its endings, exit codes and log; and a stream of them.
#include <algorithm>
#include <map>

#include "tests/trainer/device_fixture.h"
#include "tests/trainer/process.h"
#include "trainer/debug/plan.h"
#include "trainer/job/statistics.h"

namespace sluice::tests {
namespace {

class DebugProgramTest : public testing::Test {
 protected:
  void SetUp() override { SLUICE_NEEDS_DRIVER(); }
  std::vector<std::string> command(const std::string& outcome,
                                   const std::string& seed = "1") const {
    return {"sluice-debug", "--outcome", outcome, "--kernels", "5", "--gap-ms", "1",
            "--seed",       seed,        "--log", log_};
  }
  std::vector<std::string> events() const {
    std::vector<std::string> out;
    for (const auto& line : log_lines(log_)) out.push_back(line["event"]);
    return out;
  }
  ScratchDirectory scratch_;
  std::string log_ = scratch_.file("log");
  const std::vector<std::string> whole_ = {"start", "first_result", "end"};
};

TEST_F(DebugProgramTest, EndsWell) {
  Child child(command("ok"), scratch_);
  EXPECT_EQ(child.wait(kPatience), 0) << child.err();
  EXPECT_EQ(events(), whole_);
  EXPECT_EQ(log_lines(log_).back()["status"], "ok");
  EXPECT_EQ(child.out().find("first result: "), 0u) << child.out();
}

TEST_F(DebugProgramTest, TheFirstResultIsAFunctionOfTheSeed) {
  std::vector<std::string> outs;
  for (const char* seed : {"1", "1", "2"}) {
    Child child(command("ok", seed), scratch_);
    EXPECT_EQ(child.wait(kPatience), 0);
    outs.push_back(child.out());
  }
  EXPECT_EQ(outs[0], outs[1]);
  EXPECT_NE(outs[0], outs[2]);
}

TEST_F(DebugProgramTest, AWildPointerEndsItWithAnError) {
  Child child(command("fail"), scratch_);
  EXPECT_EQ(child.wait(kPatience), 1);
  EXPECT_EQ(events(), whole_);
  EXPECT_EQ(log_lines(log_).back()["status"], "failed");
  EXPECT_NE(child.err().find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << child.err();
}

TEST_F(DebugProgramTest, TheLoopGoesOnUntilStopped) {
  Child child(command("loop"), scratch_);
  ASSERT_TRUE(log_await(log_, "first_result", 1, kPatience)) << child.err();
  EXPECT_EQ(child.wait(0.3), -1) << "it ended by itself";
  kill(child.pid(), SIGTERM);
  EXPECT_EQ(child.wait(kPatience), 0) << child.err();
  EXPECT_EQ(log_lines(log_).back()["status"], "stopped");
}

TEST_F(DebugProgramTest, TheLoopGoesOnUntilKilled) {
  Child child(command("loop"), scratch_);
  ASSERT_TRUE(log_await(log_, "first_result", 1, kPatience)) << child.err();
  kill(child.pid(), SIGKILL);
  EXPECT_EQ(child.wait(kPatience), 128 + SIGKILL);
  EXPECT_EQ(events(), (std::vector<std::string>{"start", "first_result"}));
}

TEST_F(DebugProgramTest, ACrashAndAKillEndItBySignal) {
  for (const auto& [outcome, signal] : {std::pair{"crash", SIGABRT}, {"kill", SIGKILL}}) {
    Child child(command(outcome), scratch_);
    EXPECT_EQ(child.wait(kPatience), 128 + signal) << child.err();
    EXPECT_EQ(events(), (std::vector<std::string>{"start", "first_result"}));
    EXPECT_EQ(log_lines(log_)[0]["outcome"], outcome);
  }
}

// Paced, so that the device's time and the host's are one.
TEST_F(DebugProgramTest, ALifeLastsAsLongAsDrawnWithTheGpuBusyForItsPart) {
  Child child({"sluice-debug", "--life-median", "1", "--life-sigma", "0.2", "--busy", "0.15,0.25",
               "--seed", "4", "--log", log_},
              scratch_, {"SOFTGPU_PACING=1", "SOFTGPU_DIR=" + scratch_.file("paced")});
  EXPECT_EQ(child.wait(kPatience), 0) << child.err();
  const train::DebugPlan plan = train::debug_plan(
      {.life_median_s = 1, .life_sigma = 0.2, .busy_low = 0.15, .busy_high = 0.25}, 4, nullptr);
  const auto lines = log_lines(log_);
  EXPECT_EQ(lines[0]["planned_life_ns"], plan.life_ns);
  const double life = lines[2]["life_ns"].get<double>();
  EXPECT_GE(life, plan.life_ns);
  EXPECT_LT(lines[1]["after_ns"].get<double>(), life);
  // A stretch is 5 ms or more; a busy machine only makes it less.
  const double gpu = lines[2]["gpu_ns"].get<double>(), idle = lines[2]["idle_ns"].get<double>();
  EXPECT_LT(gpu / static_cast<double>(plan.life_ns), plan.busy + 0.1);
  // What it leaves idle on purpose is in proportion, however long the host takes for the rest. The
  // first stretch is bounded by the host's clock, the others by the device's: a tenth for that.
  EXPECT_GT(idle, 0);
  EXPECT_GT(gpu / (gpu + idle), 0.9 * plan.busy);
}

TEST_F(DebugProgramTest, AStreamStartsJobsThatEndAsPlannedAndReportsThem) {
  Child child({"sluice-debug", "--jobs", "8", "--rate", "8", "--life-median", "0.2", "--life-sigma",
               "0.5", "--outcome", "random", "--odds", "2,1,1,1,1", "--seed", "3", "--log", log_},
              scratch_);
  ASSERT_EQ(child.wait(kPatience), 0) << child.err();
  const auto jobs = log_events(log_, "job");
  ASSERT_EQ(jobs.size(), 8u);
  const auto end = log_lines(log_).back();
  std::map<std::string, int> outcomes;
  std::vector<train::Nanos> first, due(jobs.size());
  for (const auto& job : jobs) {
    const std::string outcome = job["outcome"];
    ++outcomes[outcome];
    EXPECT_EQ(job["as_planned"], 1) << job;
    const int expected = outcome == "ok"      ? 0
                         : outcome == "fail"  ? 1
                         : outcome == "crash" ? 128 + SIGABRT
                                              : 128 + SIGKILL;
    EXPECT_EQ(job["exit_status"], expected) << job;
    const train::Nanos at = job["due_ns"];
    due[job["id"].get<std::size_t>()] = at;
    EXPECT_GE(job["ended_ns"].get<train::Nanos>() - at, job["planned_life_ns"]);
    if (job.contains("first_result_ns"))
      first.push_back(job["first_result_ns"].get<train::Nanos>() - at);
  }
  EXPECT_TRUE(std::is_sorted(due.begin(), due.end()));
  EXPECT_GE(outcomes.size(), 3u);  // by this seed
  for (const auto& [outcome, count] : outcomes) EXPECT_EQ(end[outcome], count) << outcome;
  EXPECT_EQ(end["not_as_planned"], 0);
  EXPECT_EQ(end["with_result"], first.size());
  EXPECT_EQ(end["first_result_p50_ns"], train::percentile(first, 50));
  EXPECT_EQ(end["first_result_p95_ns"], train::percentile(first, 95));
  EXPECT_NE(child.out().find("done: 8 jobs in "), std::string::npos) << child.out();
}

TEST_F(DebugProgramTest, AStreamThatIsStoppedTakesItsJobsWithIt) {
  Child child(
      {"sluice-debug", "--jobs", "2", "--rate", "100", "--life-median", "3600", "--log", log_},
      scratch_);
  std::vector<pid_t> jobs;
  const train::Nanos deadline = train::now_ns() + train::nanos_of_seconds(kPatience);
  while ((jobs = child.children()).size() < 2 && train::now_ns() < deadline) {
    train::sleep_until(train::now_ns() + train::kNanosPerMilli);
  }
  ASSERT_EQ(jobs.size(), 2u);
  kill(child.pid(), SIGTERM);
  EXPECT_EQ(child.wait(kPatience), 0) << child.err();
  EXPECT_EQ(log_lines(log_).back()["status"], "stopped");
  for (const pid_t job : jobs) EXPECT_NE(kill(job, 0), 0) << job;
}

TEST_F(DebugProgramTest, RefusesNonsense) {
  for (const auto& bad :
       {std::vector<std::string>{"--outcome", "maybe"}, std::vector<std::string>{"--kernels", "0"},
        std::vector<std::string>{"--elements", "0"}, std::vector<std::string>{"--busy", "0.5,0.2"},
        std::vector<std::string>{"--odds", "1,2,3"},
        std::vector<std::string>{"--kernels", "3", "--life-median", "1"},
        std::vector<std::string>{"--jobs", "3"}}) {
    std::vector<std::string> words = {"sluice-debug"};
    words.insert(words.end(), bad.begin(), bad.end());
    Child child(words, scratch_);
    EXPECT_EQ(child.wait(kPatience), 2);
    EXPECT_EQ(child.err().find("sluice: sluice-debug: "), 0u) << child.err();
  }
}

}  // namespace
}  // namespace sluice::tests

// sluice-train when things go wrong: a rank that is killed or hangs, a launcher that dies, being
// asked to stop, divergence, and what it refuses before it starts.
#include "tests/trainer/device_fixture.h"
#include "tests/trainer/process.h"

namespace sluice::tests {
namespace {

constexpr double kPromptly =
    15;  // for ending; a hang would last the 60 s of the timeout, or for ever

class TrainFailureTest : public testing::Test {
 protected:
  void SetUp() override { SLUICE_NEEDS_DRIVER(); }

  std::vector<std::string> endless(std::vector<std::string> more = {}) {
    std::vector<std::string> command = {
        "sluice-train", "--data",  "synthetic", "--nproc",   "2",    "--hidden",
        "16",           "--batch", "8",         "--seconds", "3600", "--eval-samples",
        "100",          "--log",   log_};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  std::vector<pid_t> ranks_await(Child& child) {
    EXPECT_TRUE(log_await(log_, "step", 4, kPatience)) << child.err();
    const std::vector<pid_t> ranks = child.children();
    EXPECT_EQ(ranks.size(), 2u);
    return ranks;
  }

  ScratchDirectory scratch_;
  std::string log_ = scratch_.file("log");
};

TEST_F(TrainFailureTest, AKilledRankEndsTheJobWithASentence) {
  for (const std::size_t victim : {0u, 1u}) {
    std::filesystem::remove(log_);
    Child child(endless(), scratch_);
    const std::vector<pid_t> ranks = ranks_await(child);
    kill(ranks.at(victim), SIGKILL);
    EXPECT_EQ(child.wait(kPromptly), 1);
    EXPECT_NE(child.err().find("was killed by signal 9"), std::string::npos) << child.err();
    EXPECT_NE(child.err().find("ending the job"), std::string::npos);
    for (const pid_t rank : ranks) EXPECT_TRUE(process_gone(rank, kPromptly));
    EXPECT_EQ(log_lines(log_).back()["event"], "end");
    EXPECT_EQ(log_lines(log_).back()["status"], "failed");
  }
}

TEST_F(TrainFailureTest, AHangingRankEndsTheJobAfterTheTimeout) {
  Child child(endless({"--comm-timeout", "1"}), scratch_);
  const std::vector<pid_t> ranks = ranks_await(child);
  kill(ranks.at(1), SIGSTOP);
  EXPECT_EQ(child.wait(kPromptly), 1);
  EXPECT_NE(child.err().find("lost the other ranks"), std::string::npos) << child.err();
  for (const pid_t rank : ranks) EXPECT_TRUE(process_gone(rank, kPromptly));
}

TEST_F(TrainFailureTest, RanksDoNotOutliveTheirLauncher) {
  std::vector<pid_t> ranks;
  {
    Child child(endless(), scratch_);
    ranks = ranks_await(child);
    kill(child.pid(), SIGKILL);
  }
  for (const pid_t rank : ranks) EXPECT_TRUE(process_gone(rank, kPromptly));
}

TEST_F(TrainFailureTest, AskedToStopItEvaluatesAndEndsWell) {
  for (const bool whole_group : {false, true}) {
    std::filesystem::remove(log_);
    Child child(endless(), scratch_);
    const std::vector<pid_t> ranks = ranks_await(child);
    kill(child.pid(), SIGTERM);
    if (whole_group) {
      for (const pid_t rank : ranks) kill(rank, SIGTERM);
    }
    EXPECT_EQ(child.wait(kPatience), 0) << child.err();
    EXPECT_EQ(log_lines(log_).back()["status"], "stopped");
    EXPECT_EQ(log_events(log_, "eval").size(), 1u);
    EXPECT_NE(child.out().find("stopped: "), std::string::npos);
  }
}

TEST_F(TrainFailureTest, DivergenceIsSaidAndEndsTheJob) {
  Child child({"sluice-train", "--data", "synthetic", "--nproc", "2", "--steps", "1000", "--lr",
               "1e38", "--log", log_},
              scratch_);
  EXPECT_EQ(child.wait(kPatience), 1);
  EXPECT_NE(child.err().find("training diverged"), std::string::npos) << child.err();
  EXPECT_EQ(log_lines(log_).back()["status"], "failed");
}

TEST_F(TrainFailureTest, MissingDataIsSaidWithTheRemedy) {
  Child child({"sluice-train", "--data-dir", "/nonexistent", "--nproc", "1"}, scratch_);
  EXPECT_EQ(child.wait(kPatience), 1);
  EXPECT_NE(child.err().find("dataset-fashion-mnist"), std::string::npos) << child.err();
}

TEST_F(TrainFailureTest, ImpossiblePlansAreRefusedBeforeAnyRankRuns) {
  Child child({"sluice-train", "--data", "synthetic", "--nproc", "3", "--algorithm", "bcube"},
              scratch_);
  EXPECT_EQ(child.wait(kPatience), 1);
  EXPECT_NE(child.err().find("sluice: sluice-train: bcube needs"), std::string::npos)
      << child.err();
}

TEST_F(TrainFailureTest, WithoutAVisibleGpuItSaysSo) {
  Child child({"sluice-train", "--data", "synthetic"}, scratch_, {"CUDA_VISIBLE_DEVICES="});
  EXPECT_EQ(child.wait(kPatience), 1);
  EXPECT_NE(child.err().find("CUDA_VISIBLE_DEVICES"), std::string::npos) << child.err();
}

TEST(TrainWithoutDriver, SaysWhatIsMissing) {
  const ScratchDirectory scratch;
  // No library path and, where hardware is, no driver of the system either: only the empty
  // directory is searched first.
  Child child({"sluice-train", "--data", "synthetic", "--steps", "1"}, scratch,
              {"LD_LIBRARY_PATH="});
  const int code = child.wait(kPatience);
  if (code == 0) GTEST_SKIP() << "this machine has a CUDA driver of its own";
  EXPECT_EQ(code, 1);
  EXPECT_NE(child.err().find("no CUDA driver"), std::string::npos) << child.err();
}

}  // namespace
}  // namespace sluice::tests

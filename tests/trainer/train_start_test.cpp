// Ranks that somebody else starts: plain processes with the variables of mpirun, mpiexec and srun.
#include <filesystem>
#include <memory>

#include "tests/trainer/train_fixture.h"

namespace sluice::tests {
namespace {

class ExternalStartTest : public TrainProgramTest {
 protected:
  using Variables = std::vector<std::string>;

  /// One process for each rank, as their starter runs them; the exit code of each.
  std::vector<int> ranks_start(const std::vector<Variables>& ranks,
                               const std::vector<std::string>& more, const std::string& name) {
    std::vector<std::unique_ptr<ScratchDirectory>> outputs;
    std::vector<std::unique_ptr<Child>> children;
    for (const Variables& variables : ranks) {
      std::vector<std::string> command = {
          "sluice-train", "--data",         "synthetic", "--hidden", "24",      "--batch",
          "16",           "--steps",        "4",         "--log",    log(name), "--save",
          weights(name),  "--eval-samples", "50"};
      if (std::find(more.begin(), more.end(), "--comm-timeout") == more.end())
        command.insert(command.end(), {"--comm-timeout", "20"});
      command.insert(command.end(), more.begin(), more.end());
      outputs.push_back(std::make_unique<ScratchDirectory>());
      children.push_back(std::make_unique<Child>(command, *outputs.back(), variables));
    }
    std::vector<int> codes;
    outs_.clear();
    errs_.clear();
    for (auto& child : children) {
      codes.push_back(child->wait(kPatience));
      outs_.push_back(child->out());
      errs_.push_back(child->err());
    }
    return codes;
  }

  std::vector<std::string> outs_, errs_;
};

class StarterTest : public ExternalStartTest, public testing::WithParamInterface<const char*> {
 protected:
  static Variables of(const std::string& starter, int rank, int count) {
    const std::string r = std::to_string(rank), n = std::to_string(count);
    const std::string job = std::to_string(getpid());
    if (starter == "mpirun") {
      return {"OMPI_COMM_WORLD_RANK=" + r, "OMPI_COMM_WORLD_SIZE=" + n,
              "OMPI_COMM_WORLD_LOCAL_SIZE=" + n, "PMIX_NAMESPACE=prterun-" + job + "@1"};
    }
    if (starter == "srun") {
      return {"SLURM_PROCID=" + r, "SLURM_STEP_NUM_TASKS=" + n, "SLURM_STEP_NUM_NODES=1",
              "SLURM_JOB_ID=" + job, "SLURM_STEP_ID=0"};
    }
    return {"PMI_RANK=" + r, "PMI_SIZE=" + n};
  }
};

TEST_P(StarterTest, TrainsWhatTheLauncherWouldHave) {
  train({"--nproc", "2", "--batch", "16", "--steps", "4", "--eval-samples", "50"}, "own");
  // The last rank first: whoever comes first waits.
  const auto codes = ranks_start({of(GetParam(), 1, 2), of(GetParam(), 0, 2)}, {}, "theirs");
  EXPECT_EQ(codes, (std::vector<int>{0, 0})) << errs_[0] << errs_[1];
  EXPECT_EQ(file_text(weights("own")), file_text(weights("theirs")));
  EXPECT_EQ(outs_[0], "") << "one speaks for the job";
  EXPECT_NE(outs_[1].find("done: 4 steps, 128 samples"), std::string::npos) << outs_[1];
  for (const char* once : {"start", "end", "eval"})
    EXPECT_EQ(log_events(log("theirs"), once).size(), 1u) << once;
  EXPECT_EQ(log_events(log("theirs"), "step").size(), 8u);
  EXPECT_EQ(log_lines(log("theirs")).back()["samples"], 128);
  EXPECT_EQ(log_lines(log("theirs")).back()["status"], "ok");
  const std::string named = "sluice-train-" + std::to_string(geteuid()) + "-";
  for (const auto& entry : std::filesystem::directory_iterator(kSegments->path()))
    EXPECT_EQ(entry.path().filename().string().find(named), std::string::npos) << entry;
}

INSTANTIATE_TEST_SUITE_P(Starters, StarterTest, testing::Values("mpirun", "srun", "mpiexec"));

TEST_F(ExternalStartTest, UnderOpenMpisOwnMpirun) {
  const std::string mpirun = "/usr/bin/mpirun";
  if (access(mpirun.c_str(), X_OK) != 0) GTEST_SKIP() << "needs " << mpirun << " (openmpi-bin)";
  Child version({mpirun, "--version"}, scratch_);
  ASSERT_EQ(version.wait(kPatience), 0) << version.err();
  if (version.out().find("Open MPI") == std::string::npos)
    GTEST_SKIP() << mpirun << " is not Open MPI's: " << version.out();
  const std::vector<std::string> job = {"--hidden", "24", "--batch",        "16",
                                        "--steps",  "4",  "--eval-samples", "50"};
  std::vector<std::string> own = job;
  own.insert(own.end(), {"--nproc", "2"});
  train(own, "own");
  std::vector<std::string> command = {mpirun, "-np", "2", "--oversubscribe"};
  if (geteuid() == 0) command.push_back("--allow-run-as-root");
  command.insert(command.end(), {program_path("sluice-train"), "--data", "synthetic", "--log",
                                 log("theirs"), "--save", weights("theirs")});
  command.insert(command.end(), job.begin(), job.end());
  Child started(command, scratch_);
  ASSERT_EQ(started.wait(kPatience), 0) << started.out() << started.err();
  EXPECT_EQ(file_text(weights("own")), file_text(weights("theirs")));
  EXPECT_EQ(log_events(log("theirs"), "step").size(), 8u);
  EXPECT_EQ(log_lines(log("theirs")).back()["status"], "ok");
}

TEST_F(ExternalStartTest, WrongVariablesAreOneLineAndEndTheProcess) {
  const auto complaint = [&](const Variables& variables, std::vector<std::string> more = {}) {
    EXPECT_EQ(ranks_start({variables}, more, "bad"), std::vector<int>{1});
    EXPECT_EQ(errs_[0].find("sluice: sluice-train: "), 0u) << errs_[0];
    EXPECT_EQ(errs_[0].find('\n'), errs_[0].size() - 1) << errs_[0];
    return errs_[0];
  };
  EXPECT_NE(complaint({"OMPI_COMM_WORLD_RANK=0"}).find("OMPI_COMM_WORLD_SIZE is not"),
            std::string::npos);
  EXPECT_NE(
      complaint({"PMI_RANK=0", "PMI_SIZE=2"}, {"--nproc", "3"}).find("--nproc 3, but mpiexec"),
      std::string::npos);
  const auto lonely = complaint({"PMI_RANK=1", "PMI_SIZE=2"}, {"--comm-timeout", "0.2"});
  EXPECT_NE(lonely.find("rank 0 made no "), std::string::npos) << lonely;
}

TEST_F(ExternalStartTest, StartSelfStartsAllRanksWhateverTheVariablesSay) {
  const auto codes =
      ranks_start({{"PMI_RANK=1", "PMI_SIZE=5"}}, {"--start", "self", "--nproc", "2"}, "self");
  EXPECT_EQ(codes, std::vector<int>{0}) << errs_[0];
  EXPECT_EQ(log_events(log("self"), "step").size(), 8u);
}

TEST_F(ExternalStartTest, WhatAnEarlierJobLeftBehindIsNotTakenForThisOne) {
  const std::string left =
      kSegments->path() + "/sluice-train-" + std::to_string(geteuid()) + "-left.0";
  std::filesystem::create_directory(left);
  const auto codes = ranks_start(
      {{"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_JOB_ID=left", "SLURM_STEP_ID=0"}}, {},
      "left");
  EXPECT_EQ(codes, std::vector<int>{1});
  EXPECT_NE(errs_[0].find(left + " is there already"), std::string::npos) << errs_[0];
  EXPECT_TRUE(std::filesystem::exists(left)) << "it may be somebody's";
  std::filesystem::remove(left);
}

TEST_F(ExternalStartTest, ALostRankEndsTheOthers) {
  const std::vector<Variables> ranks = {{"PMI_RANK=0", "PMI_SIZE=2"}, {"PMI_RANK=1", "PMI_SIZE=2"}};
  // The second sees no GPU; the first waits for it no longer than it was told to.
  std::vector<Variables> blind = ranks;
  blind[1].push_back("CUDA_VISIBLE_DEVICES=");
  const auto codes = ranks_start(blind, {"--comm-timeout", "2"}, "lost");
  EXPECT_EQ(codes, (std::vector<int>{1, 1}));
  EXPECT_NE(errs_[0].find("lost the other ranks in meeting"), std::string::npos) << errs_[0];
}

}  // namespace
}  // namespace sluice::tests

// sluice-train goes on: from its checkpoints after a kill, and without, or in place of, ranks that
// it loses; and unequal parts of a batch train what equal ones do.
#include <map>
#include <thread>

#include "tests/trainer/train_fixture.h"
#include "trainer/train/heartbeat.h"

namespace sluice::tests {
namespace {

using Words = std::vector<std::string>;

class TrainFaultTest : public TrainProgramTest {
 protected:
  Words command(const Words& more, const std::string& name) const {
    Words words = {"sluice-train", "--data", "synthetic",  "--log",
                   log(name),      "--save", weights(name)};
    if (std::find(more.begin(), more.end(), "gpt") == more.end())
      words.insert(words.end(), {"--hidden", "24"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string checkpoints() const { return scratch_.file("checkpoints"); }

  /// Starts it, kills all of it once there are `count` lines of `event`.
  void killed_run(const Words& more, const std::string& event, std::size_t count) {
    std::vector<pid_t> ranks;
    {
      Child child(command(more, "killed"), scratch_);
      ASSERT_TRUE(log_await(log("killed"), event, count, kPatience)) << child.err();
      ranks = child.children();
      kill(child.pid(), SIGKILL);
    }
    for (const pid_t rank : ranks) EXPECT_TRUE(process_gone(rank, kPatience));
  }
};

struct ResumeCase {
  const char* name;
  Words options;
};

class ResumeTest : public TrainFaultTest, public testing::WithParamInterface<ResumeCase> {};

TEST_P(ResumeTest, AKilledRunGoesOnBitForBit) {
  Words options = GetParam().options;
  options.insert(options.end(), {"--steps", "12", "--lr", "0.01", "--train-samples", "403",
                                 "--eval-samples", "50"});
  if (std::find(options.begin(), options.end(), "--nproc") == options.end())
    options.insert(options.end(), {"--nproc", "2"});
  train(options, "straight");
  Words kept = options;
  kept.insert(kept.end(), {"--checkpoint", checkpoints(), "--checkpoint-every", "2", "--resume"});
  // At whatever step it is then; it hangs before its end, in case the kill comes late.
  Words slow = kept;
  slow.insert(slow.end(), {"--load-delay-us", "5000", "--plant-hang", "12"});
  killed_run(slow, "checkpoint", 2);
  train(kept, "resumed");
  EXPECT_NE(out_.find("checkpoint: going on after step "), std::string::npos) << out_;
  EXPECT_TRUE(file_text(weights("straight")) == file_text(weights("resumed")));
  EXPECT_GE(log_events(log("resumed"), "step").front()["step"], 4);
  EXPECT_EQ(log_lines(log("resumed")).back()["samples"],
            log_lines(log("straight")).back()["samples"]);
}

INSTANTIATE_TEST_SUITE_P(
    All, ResumeTest,
    testing::Values(
        ResumeCase{"adam", {"--optimizer", "adam"}},
        ResumeCase{"sharded",
                   {"--optimizer", "adam", "--strategy", "sharded", "--schedule", "cosine"}},
        ResumeCase{"offload", {"--optimizer", "adam", "--offload", "optimizer"}},
        ResumeCase{"topk", {"--compress", "topk:0.1"}},
        ResumeCase{"powersgd", {"--compress", "powersgd:2"}},
        ResumeCase{"async", {"--nproc", "3", "--strategy", "async", "--staleness", "0"}},
        ResumeCase{"fp16", {"--precision", "fp16", "--plant-overflow", "3"}},
        ResumeCase{
            "tensor_pipeline",
            {"--model",   "gpt", "--layers",     "2", "--heads",     "2",    "--width",    "16",
             "--context", "8",   "--nproc",      "4", "--tensor",    "2",    "--pipeline", "2",
             "--batch",   "4",   "--accumulate", "2", "--optimizer", "adam", "--clip",     "0.1"}},
        ResumeCase{
            "data_tensor_fp16",
            {"--model",     "gpt",  "--layers",         "1", "--heads",  "2", "--width", "16",
             "--context",   "8",    "--nproc",          "4", "--tensor", "2", "--batch", "4",
             "--precision", "fp16", "--plant-overflow", "3"}}),
    [](const auto& one) { return one.param.name; });

// Where a worker may be ahead, each goes on from its own step, and makes those that were left.
TEST_F(TrainFaultTest, AsynchronousWorkersGoOnFromTheirOwnSteps) {
  const Words options = {"--nproc",
                         "3",
                         "--strategy",
                         "async",
                         "--steps",
                         "20",
                         "--eval-samples",
                         "0",
                         "--plant-slow",
                         "2:4000",
                         "--checkpoint",
                         checkpoints(),
                         "--checkpoint-every",
                         "2",
                         "--resume"};
  Words hangs = options;
  hangs.insert(hangs.end(), {"--plant-hang", "9"});
  killed_run(hangs, "checkpoint", 2);
  train(options, "resumed");
  std::map<int, std::vector<int>> steps;
  for (const auto& step : log_events(log("resumed"), "step"))
    steps[step["rank"]].push_back(step["step"]);
  ASSERT_EQ(steps.size(), 2u);
  for (const auto& [rank, made] : steps) {
    EXPECT_GE(made.front(), 4) << rank;
    EXPECT_EQ(made.back(), 19) << rank;
    EXPECT_EQ(made.back() - made.front() + 1, static_cast<int>(made.size())) << rank;
  }
  // As many workers as before, or another number: then all from where the slowest was.
  Words three = options;
  *std::find(three.begin(), three.end(), "3") = "4";
  *std::find(three.begin(), three.end(), "20") = "22";
  train(three, "three");
  EXPECT_EQ(log_events(log("three"), "step").size(), 3 * 2u);
}

TEST_F(TrainFaultTest, KilledTwiceItGoesOnAndAtTheEndThereIsNothingLeft) {
  const Words options = {"--nproc",         "2",   "--steps",        "40", "--lr", "0.01",
                         "--train-samples", "403", "--eval-samples", "50"};
  train(options, "straight");
  Words kept = options;
  kept.insert(kept.end(), {"--checkpoint", checkpoints(), "--checkpoint-every", "4", "--resume"});
  Words slow = kept;
  slow.insert(slow.end(), {"--load-delay-us", "5000", "--plant-hang", "38"});
  killed_run(slow, "checkpoint", 2);
  std::filesystem::remove(log("killed"));
  killed_run(slow, "checkpoint", 1);
  train(kept, "resumed");
  EXPECT_TRUE(file_text(weights("straight")) == file_text(weights("resumed")));
  train(kept, "again");
  EXPECT_TRUE(log_events(log("again"), "step").empty());
  EXPECT_TRUE(file_text(weights("straight")) == file_text(weights("again")));
}

TEST_F(TrainFaultTest, OtherNumbersOfRanksGoOnWithTheSameTraining) {
  const Words options = {"--epochs",    "3",    "--train-samples", "403",
                         "--optimizer", "adam", "--eval-samples",  "0"};
  const auto run = [&](const Words& ranks, Words more, const std::string& name) {
    more.insert(more.end(), ranks.begin(), ranks.end());
    more.insert(more.end(), options.begin(), options.end());
    train(more, name);
  };
  run({"--nproc", "2", "--batch", "12", "--strategy", "sharded"}, {}, "straight");
  killed_run({"--nproc", "2", "--batch", "12", "--strategy", "sharded", "--epochs", "3",
              "--train-samples", "403", "--optimizer", "adam", "--checkpoint", checkpoints(),
              "--checkpoint-every", "5", "--load-delay-us", "10000"},
             "checkpoint", 2);
  std::filesystem::copy(checkpoints(), checkpoints() + "3");
  run({"--nproc", "1", "--batch", "24"}, {"--checkpoint", checkpoints(), "--resume"}, "one");
  run({"--nproc", "3", "--batch", "8"}, {"--checkpoint", checkpoints() + "3", "--resume"}, "three");
  for (const char* name : {"one", "three"}) {
    EXPECT_LT(distance("straight", name), 1e-6) << name;
    EXPECT_EQ(log_lines(log(name)).back()["samples"], 3 * 403) << name;
  }
}

TEST_F(TrainFaultTest, WhatDoesNotFitIsRefusedAndLosesNothing) {
  const Words options = {"--nproc", "1", "--steps", "6", "--eval-samples", "0"};
  Words kept = options;
  kept.insert(kept.end(), {"--checkpoint", checkpoints(), "--checkpoint-every", "2"});
  train(kept, "first");
  const std::string before = file_text(checkpoints() + "/step-6.ckpt");
  const auto complaint = [&](Words more) {
    more.insert(more.begin(), kept.begin(), kept.end());
    Child child(command(more, "refused"), scratch_);
    EXPECT_EQ(child.wait(kPatience), 1);
    EXPECT_EQ(child.err().find('\n'), child.err().size() - 1) << child.err();
    return child.err();
  };
  EXPECT_NE(complaint({}).find("has checkpoints already; give --resume"), std::string::npos);
  EXPECT_NE(complaint({"--resume", "--seed", "2"}).find("--seed: 1 in the checkpoint, 2 now"),
            std::string::npos);
  EXPECT_NE(complaint({"--resume", "--optimizer", "adam"}).find("--optimizer: sgd"),
            std::string::npos);
  EXPECT_TRUE(file_text(checkpoints() + "/step-6.ckpt") == before);

  std::ofstream(checkpoints() + "/step-6.ckpt", std::ios::binary) << before.substr(0, 5000);
  kept.push_back("--resume");
  Child child(command(kept, "fallback"), scratch_);
  EXPECT_EQ(child.wait(kPatience), 0);
  EXPECT_NE(child.err().find("step-6.ckpt cannot be used"), std::string::npos) << child.err();
  EXPECT_EQ(log_events(log("fallback"), "step").front()["step"], 4);
  EXPECT_TRUE(file_text(weights("fallback")) == file_text(weights("first")));
}

struct LossCase {
  const char* name;
  int signal;  // 0 = the rank hangs by itself
  std::size_t victim;
  Words options;
  int ranks_after;
};

class LossTest : public TrainFaultTest, public testing::WithParamInterface<LossCase> {
 protected:
  /// A whole job that loses a rank; from the loss to the launcher's notice, in milliseconds.
  void job_run(double* noticed_ms);
};

void LossTest::job_run(double* noticed) {
  const LossCase& of = GetParam();
  Words words = {"--nproc",         "3",   "--optimizer",     "adam", "--lr",           "0.003",
                 "--epochs",        "5",   "--train-samples", "403",  "--batch",        "4",
                 "--elastic",       "2",   "--commit-every",  "5",    "--eval-samples", "200",
                 "--load-delay-us", "3000"};
  words.insert(words.end(), of.options.begin(), of.options.end());
  std::filesystem::remove(log("loss"));  // of an earlier attempt
  Child child(command(words, "loss"), scratch_);
  ASSERT_TRUE(log_await(log("loss"), "step", 30, kPatience)) << child.err();
  // At a random instant of a step.
  train::sleep_until(train::now_ns() + train::now_ns() % (20 * train::kNanosPerMilli));
  const train::Nanos lost_ns = train::now_ns();
  if (of.signal != 0) kill(child.children().at(of.victim), of.signal);
  ASSERT_EQ(child.wait(kPatience), 0) << child.err();

  const auto changes = log_events(log("loss"), "membership");
  ASSERT_EQ(changes.size(), 1u) << child.err();
  EXPECT_EQ(changes[0]["ranks"], of.ranks_after);
  EXPECT_EQ(changes[0]["lost"], std::to_string(of.victim));
  EXPECT_LE(changes[0]["undone_steps"], 5);
  EXPECT_EQ(static_cast<int>(changes[0]["step"]) % 5, 0);
  const double noticed_ms =
      train::millis_of(static_cast<train::Nanos>(changes[0]["t_ns"]) -
                       static_cast<train::Nanos>(changes[0]["recover_ns"]) - lost_ns);
  if (of.signal == SIGSTOP) {
    EXPECT_GE(changes[0]["detect_ns"].get<train::Nanos>(),
              train::kNanosPerSecond - train::kNoticeLead);
  }
  EXPECT_LT(noticed_ms, 5000);
  const nlohmann::json end = log_lines(log("loss")).back();
  EXPECT_EQ(end["status"], "ok");
  EXPECT_EQ(end["samples"], 5 * 403);
  EXPECT_EQ(log_events(log("loss"), "rank").size(), static_cast<std::size_t>(of.ranks_after));
  const auto steps = log_events(log("loss"), "step");
  double last = 0;  // of several batches: one is only a few samples
  for (std::size_t i = steps.size() - 30; i < steps.size(); ++i)
    last += static_cast<double>(steps[i]["loss"]) / 30;
  EXPECT_LT(last, 0.85 * static_cast<double>(steps.front()["loss"]));
  *noticed = noticed_ms;
}

// A launcher for which the host has no core notices late, so a killed rank may be lost again.
TEST_P(LossTest, TheOthersGoOnWithEverySampleOncePerEpoch) {
  const double most_ms = GetParam().signal == SIGKILL ? 100 : 5000;
  double noticed_ms = 1e9;
  for (int attempt = 0; attempt < 4 && noticed_ms >= most_ms; ++attempt)
    ASSERT_NO_FATAL_FAILURE(job_run(&noticed_ms));
  EXPECT_LT(noticed_ms, most_ms);
  RecordProperty("noticed_ms", std::to_string(noticed_ms));
}

INSTANTIATE_TEST_SUITE_P(
    All, LossTest,
    testing::Values(LossCase{"killed", SIGKILL, 1, {}, 2},
                    LossCase{"killed_first_sharded", SIGKILL, 0, {"--strategy", "sharded"}, 2},
                    LossCase{"killed_powersgd", SIGKILL, 1, {"--compress", "powersgd:2"}, 2},
                    LossCase{"stopped", SIGSTOP, 2, {"--heartbeat-timeout", "1"}, 2},
                    LossCase{"hung", 0, 2, {"--heartbeat-timeout", "1", "--plant-hang", "20"}, 2},
                    LossCase{"replaced", SIGKILL, 0, {"--replace"}, 3}),
    [](const auto& one) { return one.param.name; });

// From the signal to the launcher's notice, the kill and the reaping included. A busy host adds
// what it lacks cores for, so the best of a few counts.
TEST_F(TrainFaultTest, AStoppedRankIsNoticedWithinTheTimeout) {
  constexpr double kTimeoutMs = 1000;
  double least_ms = 1e9;
  for (int attempt = 0; attempt < 8 && least_ms > kTimeoutMs; ++attempt) {
    const std::string name = "stop" + std::to_string(attempt);
    Child child(command({"--nproc", "2", "--seconds", "3600", "--batch", "4", "--elastic", "1",
                         "--heartbeat-timeout", "1", "--eval-samples", "0"},
                        name),
                scratch_);
    ASSERT_TRUE(log_await(log(name), "step", 10, kPatience)) << child.err();
    const pid_t victim = child.children().at(1);
    const train::Nanos stopped_ns = train::now_ns();
    kill(victim, SIGSTOP);
    ASSERT_TRUE(log_await(log(name), "membership", 1, kPatience)) << child.err();
    const auto change = log_events(log(name), "membership").at(0);
    const double noticed_ms =
        train::millis_of(static_cast<train::Nanos>(change["t_ns"]) -
                         static_cast<train::Nanos>(change["recover_ns"]) - stopped_ns);
    // Not before its time: from its last sign of life, which a busy host may have delayed.
    EXPECT_GE(change["detect_ns"].get<train::Nanos>(), train::kNanosPerSecond - train::kNoticeLead);
    least_ms = std::min(least_ms, noticed_ms);
    kill(child.pid(), SIGTERM);
    EXPECT_EQ(child.wait(kPatience), 0) << child.err();
  }
  EXPECT_LE(least_ms, kTimeoutMs);
  RecordProperty("noticed_ms", std::to_string(least_ms));
}

TEST_F(TrainFaultTest, WithTooFewLeftTheJobEndsWithASentence) {
  Child child(
      command({"--nproc", "2", "--seconds", "3600", "--batch", "16", "--elastic", "2"}, "few"),
      scratch_);
  ASSERT_TRUE(log_await(log("few"), "step", 4, kPatience)) << child.err();
  kill(child.children().at(1), SIGKILL);
  EXPECT_EQ(child.wait(kPatience), 1);
  EXPECT_NE(child.err().find("1 of 2 ranks are left, and --elastic asks for 2"), std::string::npos)
      << child.err();
  EXPECT_EQ(log_lines(log("few")).back()["status"], "failed");
}

TEST_F(TrainFaultTest, AStoppedRankEndsAJobThatIsNotElastic) {
  Child child(
      command({"--nproc", "2", "--seconds", "3600", "--batch", "16", "--heartbeat-timeout", "0.5"},
              "stop"),
      scratch_);
  ASSERT_TRUE(log_await(log("stop"), "step", 4, kPatience)) << child.err();
  kill(child.children().at(1), SIGSTOP);
  EXPECT_EQ(child.wait(kPatience), 1);
  EXPECT_NE(child.err().find("has given no sign of life for 0.5 s"), std::string::npos)
      << child.err();
}

TEST_F(TrainFaultTest, TheSlowRankHasTheLargestStragglerScore) {
  // Two hundred times what a step takes here, so that a busy host does not matter.
  train({"--nproc", "3", "--steps", "12", "--batch", "4", "--eval-samples", "0", "--plant-slow",
         "1:200000"},
        "slow");
  const auto ranks = log_events(log("slow"), "rank");
  ASSERT_EQ(ranks.size(), 3u);
  for (const int other : {0, 2})
    EXPECT_GT(ranks[1]["straggler"], ranks[static_cast<std::size_t>(other)]["straggler"]);
  EXPECT_GT(ranks[1]["straggler"], 1.5);
  EXPECT_NE(out_.find("straggler: rank 1, "), std::string::npos) << out_;
}

// The rank that waits for the slow one in sums within layers does not look slow itself.
TEST_F(TrainFaultTest, TheSlowRankOfAGridHasTheLargestStragglerScore) {
  train({"--nproc",  "2", "--steps",        "8",  "--model",      "gpt",     "--layers", "1",
         "--heads",  "2", "--width",        "16", "--context",    "8",       "--batch",  "2",
         "--tensor", "2", "--eval-samples", "0",  "--plant-slow", "1:200000"},
        "slow");
  const auto ranks = log_events(log("slow"), "rank");
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_GT(ranks[1]["straggler"], 1.5);
  EXPECT_LE(ranks[0]["straggler"], 1);
}

TEST_F(TrainFaultTest, AnAutomaticSplitGivesTheSlowRankLess) {
  train({"--nproc", "3", "--steps", "4", "--batch", "16", "--eval-samples", "0", "--split", "auto",
         "--plant-slow", "1:100000"},
        "auto");
  const auto ranks = log_events(log("auto"), "rank");
  ASSERT_EQ(ranks.size(), 3u);
  for (const int other : {0, 2})
    EXPECT_LT(4 * ranks[1]["samples"].get<int>(),
              ranks[static_cast<std::size_t>(other)]["samples"]);
  EXPECT_EQ(log_lines(log("auto")).back()["samples"], 4 * 3 * 16);
}

TEST_F(TrainFaultTest, UnequalPartsTrainWhatOneRankTrains) {
  const Words rest = {"--lr", "0.01",           "--epochs", "2", "--train-samples",
                      "403",  "--eval-samples", "0"};
  const auto run = [&](Words more, const std::string& name) {
    more.insert(more.end(), rest.begin(), rest.end());
    train(more, name);
  };
  run({"--nproc", "1", "--batch", "32"}, "one");
  run({"--nproc", "2", "--batch", "16", "--split", "3,1"}, "uneven");
  run({"--nproc", "2", "--batch", "16", "--split", "auto"}, "auto");
  for (const char* name : {"uneven", "auto"}) EXPECT_LT(distance("one", name), 1e-6) << name;
  const auto ranks = log_events(log("uneven"), "rank");
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_GT(ranks[0]["samples"], 2.5 * static_cast<double>(ranks[1]["samples"]));
  EXPECT_GT(ranks[0]["straggler"], 0);
  EXPECT_EQ(log_events(log("auto"), "split").size(), 1u);
  EXPECT_NE(out_.find("straggler: rank "), std::string::npos) << out_;
}

}  // namespace
}  // namespace sluice::tests

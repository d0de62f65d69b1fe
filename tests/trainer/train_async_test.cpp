// sluice-train --strategy async: with a bound of 0 it is synchronous training, with another one
// nobody is further ahead, a slow worker does not hold up the fast ones, and a lost one ends it.
#include <map>

#include "tests/trainer/train_fixture.h"

namespace sluice::tests {
namespace {

class AsyncTest : public TrainProgramTest {
 protected:
  nlohmann::json end_of(const std::string& name) const { return log_lines(log(name)).back(); }
  std::map<int, int> steps_of_ranks(const std::string& name) const {
    std::map<int, int> steps;
    for (const auto& step : log_events(log(name), "step")) ++steps[step["rank"].get<int>()];
    return steps;
  }
};

TEST_F(AsyncTest, ABoundOfZeroIsSynchronousTraining) {
  for (const std::string optimizer : {"sgd", "adam"}) {
    const std::vector<std::string> common = {"--batch",         "16",      "--steps",        "8",
                                             "--train-samples", "300",     "--eval-samples", "100",
                                             "--optimizer",     optimizer, "--lr",           "0.01",
                                             "--lr-warmup",     "3",       "--clip",         "0.5"};
    std::vector<std::string> data = common, async = common;
    data.insert(data.end(), {"--nproc", "3"});
    async.insert(async.end(), {"--nproc", "4", "--strategy", "async", "--staleness", "0"});
    train(data, "data-" + optimizer);
    train(async, "async-" + optimizer);
    EXPECT_LT(distance("data-" + optimizer, "async-" + optimizer), 1e-6);
    EXPECT_EQ(log_events(log("data-" + optimizer), "eval").at(0)["accuracy"],
              log_events(log("async-" + optimizer), "eval").at(0)["accuracy"]);
    const auto end = end_of("async-" + optimizer);
    EXPECT_EQ(end["staleness_max"], 0);
    EXPECT_EQ(end["ahead_max"], 0);
    EXPECT_EQ(end["steps"], 8);
    EXPECT_EQ(end["samples"], end_of("data-" + optimizer)["samples"]);
  }
}

TEST_F(AsyncTest, EveryUpdateIsWithinTheBoundAndEveryByteIsCounted) {
  train({"--nproc", "4", "--strategy", "async", "--staleness", "2", "--batch", "16", "--steps",
         "20", "--lr", "0.02", "--plant-slow", "2:4000", "--eval-samples", "100"},
        "bounded");
  const auto end = end_of("bounded");
  EXPECT_EQ(end["steps"], 60) << "an update of every push";
  EXPECT_EQ(steps_of_ranks("bounded"), (std::map<int, int>{{1, 20}, {2, 20}, {3, 20}}));
  EXPECT_LE(end["ahead_max"], 2);
  EXPECT_LE(end["staleness_max"], 2 * (2 * 2 + 1));
  EXPECT_GT(end["staleness_max"], 0);
  int updates = 0;
  double sum = 0;
  for (const auto& line : log_events(log("bounded"), "staleness")) {
    EXPECT_LE(line["age"], end["staleness_max"]);
    updates += line["updates"].get<int>();
    sum += line["age"].get<double>() * line["updates"].get<double>();
  }
  EXPECT_EQ(updates, 60);
  EXPECT_NEAR(end["staleness_mean"], sum / 60, 1e-6);
  for (const auto& step : log_events(log("bounded"), "step")) EXPECT_LE(step["age"], 10);
  // The server sends 19,090 weights and 3 words for each of 60 pushes.
  EXPECT_EQ(end["sent_bytes"], 60 * (19'090 + 3) * 4);
  EXPECT_NE(out_.find("updates old (mean; at most "), std::string::npos) << out_;
}

TEST_F(AsyncTest, ASlowWorkerDoesNotHoldUpAFastOneBeyondTheBound) {
  train(
      {"--nproc", "3", "--strategy", "async", "--staleness", "1000000", "--batch", "4", "--hidden",
       "8", "--seconds", "1.5", "--lr", "0.001", "--plant-slow", "2:150000", "--eval-samples", "0"},
      "async");
  train({"--nproc", "2", "--batch", "4", "--hidden", "8", "--seconds", "1.5", "--lr", "0.001",
         "--plant-slow", "1:150000", "--eval-samples", "0"},
        "sync");
  auto async = steps_of_ranks("async"), sync = steps_of_ranks("sync");
  EXPECT_EQ(sync[0], sync[1]);
  EXPECT_LE(sync[0], 12) << "every step waits 150 ms for the slow one";
  EXPECT_LE(async[2], 12);
  EXPECT_GT(async[1], 2 * async[2]);
  EXPECT_GT(end_of("async")["samples"], 1.5 * end_of("sync")["samples"].get<double>());
}

TEST_F(AsyncTest, AKilledWorkerOrServerEndsTheJobWithASentence) {
  for (const std::size_t victim : {0u, 1u}) {
    std::filesystem::remove(log("killed"));
    Child child(
        {"sluice-train", "--data", "synthetic", "--nproc", "3", "--hidden", "16", "--batch", "8",
         "--seconds", "3600", "--eval-samples", "0", "--strategy", "async", "--log", log("killed")},
        scratch_);
    ASSERT_TRUE(log_await(log("killed"), "step", 4, kPatience)) << child.err();
    const std::vector<pid_t> ranks = child.children();
    ASSERT_EQ(ranks.size(), 3u);
    kill(ranks.at(victim), SIGKILL);
    EXPECT_EQ(child.wait(kPatience), 1);
    EXPECT_NE(child.err().find("rank " + std::to_string(victim) + " of 3"), std::string::npos)
        << child.err();
    EXPECT_NE(child.err().find("was killed by signal 9"), std::string::npos) << child.err();
    for (const pid_t rank : ranks) EXPECT_TRUE(process_gone(rank, kPatience));
    EXPECT_EQ(log_lines(log("killed")).back()["status"], "failed");
  }
}

TEST_F(AsyncTest, AHangingWorkerEndsTheJobAfterTheTimeout) {
  Child child({"sluice-train", "--data", "synthetic", "--nproc", "3", "--hidden", "16", "--batch",
               "8", "--seconds", "3600", "--eval-samples", "0", "--strategy", "async",
               "--comm-timeout", "1", "--log", log("hangs")},
              scratch_);
  ASSERT_TRUE(log_await(log("hangs"), "step", 4, kPatience)) << child.err();
  const std::vector<pid_t> ranks = child.children();
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks[1], SIGSTOP);
  EXPECT_EQ(child.wait(kPatience), 1);
  EXPECT_NE(child.err().find("lost the other ranks"), std::string::npos) << child.err();
  for (const pid_t rank : ranks) EXPECT_TRUE(process_gone(rank, kPatience));
}

TEST_F(AsyncTest, AskedToStopItEvaluatesAndEndsWell) {
  Child child(
      {"sluice-train", "--data", "synthetic", "--nproc", "3", "--hidden", "16", "--batch", "8",
       "--seconds", "3600", "--eval-samples", "100", "--strategy", "async", "--log", log("stop")},
      scratch_);
  ASSERT_TRUE(log_await(log("stop"), "step", 4, kPatience)) << child.err();
  kill(child.pid(), SIGTERM);
  EXPECT_EQ(child.wait(kPatience), 0) << child.err();
  EXPECT_EQ(log_lines(log("stop")).back()["status"], "stopped");
  EXPECT_EQ(log_events(log("stop"), "eval").size(), 1u);
}

}  // namespace
}  // namespace sluice::tests

// sluice-train as a process: it learns, N ranks equal one, equal seeds give equal bits, and the log
// says what happened.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "tests/trainer/train_fixture.h"
#include "trainer/data/dataset.h"

namespace sluice::tests {
namespace {

TEST_F(TrainProgramTest, LearnsTheSyntheticSet) {
  train({"--nproc", "2", "--batch", "64", "--hidden", "64", "--steps", "100"}, "a");
  const auto steps = log_events(log("a"), "step");
  ASSERT_EQ(steps.size(), 200u);
  const double first = steps.front()["loss"];
  const double last = steps.back()["loss"];
  EXPECT_GT(first, 1.5);
  EXPECT_LT(last, 0.5 * first);
  const auto evals = log_events(log("a"), "eval");
  ASSERT_EQ(evals.size(), 1u);
  EXPECT_GT(evals[0]["accuracy"], 0.9);
  EXPECT_EQ(evals[0]["samples"], 1000);
  EXPECT_GT(evals[0]["recall"], 0.9);
  EXPECT_GT(evals[0]["f1"], 0.9);
  EXPECT_GT(evals[0]["roc_auc"], 0.98);
  EXPECT_LE(evals[0]["roc_auc"], 1.0);
}

TEST_F(TrainProgramTest, EveryOptimizerLearnsOnItsSchedule) {
  const std::vector<std::vector<std::string>> recipes = {
      {"--optimizer", "adam", "--lr", "0.01", "--schedule", "cosine", "--lr-warmup", "5"},
      {"--optimizer", "adamw", "--lr", "0.01", "--weight-decay", "0.01", "--schedule", "1cycle"},
      {"--optimizer", "rmsprop", "--lr", "0.0005", "--momentum", "0.5", "--clip", "1"},
      {"--optimizer", "sgd", "--lr", "0.02", "--lr-batch", "64", "--schedule", "triangular",
       "--lr-period", "40"}};
  for (std::vector<std::string> recipe : recipes) {
    SCOPED_TRACE(recipe[1]);
    recipe.insert(recipe.end(),
                  {"--nproc", "2", "--batch", "32", "--hidden", "64", "--steps", "80"});
    train(recipe, recipe[1]);
    const auto steps = log_events(log(recipe[1]), "step");
    ASSERT_EQ(steps.size(), 160u);
    EXPECT_LT(steps.back()["loss"], 0.5 * static_cast<double>(steps.front()["loss"]));
    // What the log says is the schedule, on every rank.
    const double peak = std::stod(recipe[3]);
    std::map<std::uint64_t, double> rates;
    for (const auto& step : steps) {
      const double rate = step["rate"];
      EXPECT_LE(rate, peak * (1 + 1e-9));
      const auto [known, fresh] = rates.emplace(step["step"], rate);
      EXPECT_EQ(known->second, rate);
    }
    EXPECT_EQ(rates.size(), 80u);
    if (recipe[1] == "rmsprop") continue;  // constant
    EXPECT_LT(rates[0], peak / 2);
    if (recipe[1] != "sgd") {
      EXPECT_LT(rates[79], peak / 100);
    }
  }
}

TEST_F(TrainProgramTest, ClippedAdamOnTwoRanksEqualsOneRankWithTheWholeBatch) {
  const std::vector<std::string> both = {"--optimizer", "adamw", "--weight-decay", "0.1",
                                         "--clip",      "0.05",  "--lr",           "0.001",
                                         "--steps",     "6"};
  std::vector<std::string> one = both, two = both;
  one.insert(one.end(), {"--nproc", "1", "--batch", "64"});
  two.insert(two.end(), {"--nproc", "2", "--batch", "32"});
  train(one, "one");
  train(two, "two");
  // Adam divides by the root of tiny squares: roundings of gradients weigh more than with SGD.
  EXPECT_LT(distance("one", "two"), 1e-4);
}

TEST_F(TrainProgramTest, LearnsFashionMnist) {
  if (!std::filesystem::exists(sluice::train::kFashionDirectory)) {
    GTEST_SKIP() << "no " << sluice::train::kFashionDirectory
                 << "; install Debian's dataset-fashion-mnist";
  }
  train({"--data", "fashion-mnist", "--train-samples", "6000", "--nproc", "2", "--batch", "32",
         "--hidden", "32", "--steps", "60"},
        "a");
  const auto evals = log_events(log("a"), "eval");
  ASSERT_EQ(evals.size(), 1u);
  EXPECT_EQ(evals[0]["samples"], 1000);
  EXPECT_GT(evals[0]["accuracy"], 0.6) << "chance is 0.1";
}

TEST_F(TrainProgramTest, AnUntrainedNetworkDoesNot) {
  train({"--nproc", "1", "--steps", "1", "--lr", "0"}, "a");
  const auto eval = log_events(log("a"), "eval").at(0);
  EXPECT_LT(eval["accuracy"], 0.3);
  EXPECT_LT(eval["f1"], 0.3);
  EXPECT_NEAR(eval["roc_auc"], 0.5, 0.2);
}

class RankCountTest : public TrainProgramTest,
                      public testing::WithParamInterface<std::tuple<int, std::string, int>> {};

TEST_P(RankCountTest, EqualsOneRankWithTheWholeBatch) {
  const auto [ranks, algorithm, bucket_kib] = GetParam();
  // 300 samples: the last global batch of each epoch is short and unevenly shared.
  const std::vector<std::string> common = {"--steps",        "12", "--train-samples", "300",
                                           "--eval-samples", "100"};
  std::vector<std::string> alone = common;
  alone.insert(alone.end(), {"--nproc", "1", "--batch", std::to_string(64 / ranks * ranks)});
  std::vector<std::string> shared = common;
  shared.insert(shared.end(),
                {"--nproc", std::to_string(ranks), "--batch", std::to_string(64 / ranks),
                 "--algorithm", algorithm, "--bucket", std::to_string(bucket_kib * 1024)});
  train(alone, "alone");
  train(shared, "shared");
  EXPECT_LT(distance("alone", "shared"), 1e-6);
  const auto one = log_events(log("alone"), "eval").at(0);
  const auto many = log_events(log("shared"), "eval").at(0);
  EXPECT_EQ(one["accuracy"], many["accuracy"]);
  // Two samples may change places by a rounding: one pair of hundreds in one of ten classes.
  for (const char* score : {"recall", "f1", "roc_auc"})
    EXPECT_NEAR(one[score], many[score].get<double>(), 1e-3) << score;
  EXPECT_NEAR(one["loss"], many["loss"].get<double>(), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Algorithms, RankCountTest,
                         testing::Values(std::tuple{2, "ring", 1024},
                                         std::tuple{2, "halving-doubling", 1024},
                                         std::tuple{2, "bcube", 7}, std::tuple{3, "ring", 16},
                                         std::tuple{3, "halving-doubling", 1024},
                                         std::tuple{4, "bcube", 1024}));

// NVIDIA's library needs hardware; one with its names and meaning shows that the path keeps to its
// contract.
TEST_F(TrainProgramTest, ThroughNcclEqualsOneRank) {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string library = (here / "nccl_standin").string();
  if (!std::filesystem::exists(library)) GTEST_SKIP() << "built without nccl.h";
  const std::vector<std::string> common = {"--steps",        "12", "--train-samples", "300",
                                           "--eval-samples", "100"};
  for (const int ranks : {2, 3}) {
    std::vector<std::string> alone = common;
    alone.insert(alone.end(), {"--nproc", "1", "--batch", std::to_string(64 / ranks * ranks)});
    train(alone, "alone");
    std::vector<std::string> shared = common;
    shared.insert(shared.end(), {"--nproc", std::to_string(ranks), "--batch",
                                 std::to_string(64 / ranks), "--comm", "nccl"});
    const char* before = std::getenv("LD_LIBRARY_PATH");
    const std::string path = before == nullptr ? "" : before;
    setenv("LD_LIBRARY_PATH", (library + ":" + path).c_str(), 1);
    train(shared, "shared");
    setenv("LD_LIBRARY_PATH", path.c_str(), 1);
    EXPECT_LT(distance("alone", "shared"), 1e-6) << ranks;
  }
}

TEST_F(TrainProgramTest, TheSameSeedGivesTheSameBits) {
  const std::vector<std::string> run = {"--nproc", "2", "--steps", "10", "--seed", "5"};
  train(run, "a");
  train(run, "b");
  EXPECT_EQ(file_text(weights("a")), file_text(weights("b")));
  train({"--nproc", "2", "--steps", "10", "--seed", "6"}, "c");
  EXPECT_NE(file_text(weights("a")), file_text(weights("c")));
}

// In whatever order the ranks' messages come.
TEST_F(TrainProgramTest, ThreeRanksGiveTheSameBitsWithEachAlgorithm) {
  for (const char* algorithm : {"ring", "halving-doubling"}) {
    SCOPED_TRACE(algorithm);
    const std::vector<std::string> run = {"--nproc",  "3",      "--steps",     "10",      "--seed",
                                          "5",        "--comm", "gloo",        "--batch", "8",
                                          "--bucket", "16384",  "--algorithm", algorithm};
    const std::string name = algorithm;
    train(run, name + "-a");
    train(run, name + "-b");
    EXPECT_EQ(file_text(weights(name + "-a")), file_text(weights(name + "-b")));
    // The ranks' sums are of the same gradients in another order at most.
    train({"--nproc", "1", "--steps", "10", "--seed", "5", "--batch", "24"}, name + "-one");
    EXPECT_LT(distance(name + "-one", name + "-a"), 1e-6);
  }
}

TEST_F(TrainProgramTest, BatchesMadeAheadGiveTheSameBits) {
  // 300 samples: epochs end unevenly, and several pass.
  const std::vector<std::string> common = {
      "--nproc", "2", "--batch", "32", "--steps", "12", "--train-samples", "300", "--seed", "5"};
  for (const char* depth : {"0", "1", "5"}) {
    std::vector<std::string> run = common;
    run.insert(run.end(), {"--prefetch", depth});
    train(run, depth);
  }
  EXPECT_EQ(file_text(weights("0")), file_text(weights("1")));
  EXPECT_EQ(file_text(weights("0")), file_text(weights("5")));
}

class PackedTest : public TrainProgramTest {
 protected:
  void pack(int images, int shards) {
    Child child({"sluice-train", "pack", "--data", "synthetic", "--seed", "5", "--train-samples",
                 std::to_string(images), "--shards", std::to_string(shards), "--out", directory_},
                scratch_);
    ASSERT_EQ(child.wait(kPatience), 0) << child.err();
    EXPECT_EQ(child.out(), "packed synthetic: " + std::to_string(images) + " training images in " +
                               std::to_string(shards) + " shards, 1024 test images, into " +
                               directory_ + "\n");
  }
  std::string directory_ = scratch_.file("shards");
};

TEST_F(PackedTest, TrainingFromShardsGivesTheSameBitsAsFromTheDataSet) {
  pack(301, 3);
  const std::vector<std::string> common = {"--nproc", "2",  "--batch", "32",
                                           "--steps", "12", "--seed",  "5"};
  std::vector<std::string> plain = common, packed = common;
  plain.insert(plain.end(), {"--train-samples", "301"});
  packed.insert(packed.end(), {"--data", directory_});
  train(plain, "plain");
  train(packed, "packed");
  EXPECT_EQ(file_text(weights("plain")), file_text(weights("packed")));
  EXPECT_EQ(log_events(log("plain"), "eval").at(0)["loss"],
            log_events(log("packed"), "eval").at(0)["loss"]);
}

TEST_F(PackedTest, RanksWithShardsOfTheirOwnTrainOnEverySampleAndLearn) {
  pack(403, 7);
  for (const char* ranks : {"1", "2", "3", "5"}) {
    train({"--data", directory_, "--sharing", "presharded", "--nproc", ranks, "--batch", "16",
           "--epochs", "2", "--eval-samples", "0"},
          ranks);
    EXPECT_EQ(log_lines(log(ranks)).back()["samples"], 2 * 403) << ranks;
  }
  // Enough images to learn from instead of by heart.
  pack(3001, 7);
  train({"--data", directory_, "--sharing", "presharded", "--nproc", "2", "--batch", "64",
         "--hidden", "64", "--epochs", "4"},
        "learn");
  EXPECT_GT(log_events(log("learn"), "eval").at(0)["accuracy"], 0.8);
  EXPECT_EQ(log_lines(log("learn")).back()["samples"], 4 * 3001);
}

TEST_F(PackedTest, WhatCannotBePackedIsRefusedWithOneLine) {
  const auto ending = [&](std::vector<std::string> more, const std::string& text) {
    more.insert(more.begin(), {"sluice-train", "pack", "--data", "synthetic"});
    Child child(more, scratch_);
    const int code = child.wait(kPatience);
    EXPECT_EQ(child.err().find("sluice: sluice-train pack: "), 0u) << child.err();
    EXPECT_EQ(child.err().find('\n'), child.err().size() - 1) << child.err();
    EXPECT_NE(child.err().find(text), std::string::npos) << child.err();
    return code;
  };
  EXPECT_EQ(ending({}, "--out must name a directory"), 2);
  EXPECT_EQ(ending({"--out", directory_, "--shards", "0"}, "--shards"), 2);
  EXPECT_EQ(ending({"--out", directory_, "--train-samples", "3", "--shards", "4"},
                   "4 shards of 3 training images; 1 to 3 are possible"),
            1);
  EXPECT_EQ(ending({"--out", "/dev/null/x"}, "making the directory /dev/null/x"), 1);
}

TEST_F(PackedTest, DamagedShardsAndTooFewAreRefusedWithOneLine) {
  pack(20, 2);
  const auto complaint = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"sluice-train", "--data", directory_, "--steps", "1"});
    Child child(more, scratch_);
    EXPECT_EQ(child.wait(kPatience), 1);
    EXPECT_EQ(child.err().find('\n'), child.err().size() - 1) << child.err();
    return child.err();
  };
  EXPECT_NE(complaint({"--nproc", "3", "--sharing", "presharded"}).find("2 shards for 3 ranks"),
            std::string::npos);
  const std::string shard = directory_ + "/train-00001-of-00002.slu";
  std::string bytes = file_text(shard);
  bytes[1000] = static_cast<char>(bytes[1000] ^ 1);
  std::ofstream(shard, std::ios::binary) << bytes;
  EXPECT_NE(complaint({"--nproc", "2"}).find("its checksum does not fit"), std::string::npos);
  std::filesystem::resize_file(shard, 1000);
  EXPECT_NE(complaint({"--nproc", "2"}).find("it has 1000 bytes where 7890"), std::string::npos);
}

TEST_F(TrainProgramTest, ASlowStoreShowsAsStall) {
  train({"--nproc", "1", "--steps", "5", "--prefetch", "0", "--load-delay-us", "20000"}, "a");
  for (const auto& step : log_events(log("a"), "step")) {
    EXPECT_GE(step["stall_ns"], 20'000'000);
    EXPECT_GT(step["duration_ns"], step["stall_ns"]);
  }
  const std::string words = ", stalled for data ";
  const auto at = out_.find(words);
  ASSERT_NE(at, std::string::npos) << out_;
  EXPECT_GE(std::stod(out_.substr(at + words.size())), 20.0) << out_;
}

TEST_F(TrainProgramTest, TheLogHasItsSchema) {
  train({"--nproc", "2", "--batch", "16", "--steps", "5", "--seed", "9", "--eval-every", "2"}, "a");
  const auto lines = log_lines(log("a"));
  const auto& start = lines.front();
  EXPECT_EQ(start["event"], "start");
  EXPECT_EQ(start["job"], "train");
  EXPECT_EQ(start["ranks"], 2);
  EXPECT_EQ(start["batch"], 16);
  EXPECT_EQ(start["parameters"], 785 * 24 + 25 * 10);
  EXPECT_EQ(start["seed"], 9);
  std::set<std::pair<int, int>> seen;
  for (const auto& step : log_events(log("a"), "step")) {
    seen.emplace(step["rank"], step["step"]);
    EXPECT_GT(step["t_ns"], start["t_ns"]);
    EXPECT_GT(step["duration_ns"], 0);
    EXPECT_GT(step["duration_ns"], step["communication_ns"]);
    EXPECT_GE(step["communication_ns"], 0);
    EXPECT_GE(step["stall_ns"], 0);
    EXPECT_GT(step["loss"], 0.0);
  }
  EXPECT_EQ(seen.size(), 10u);
  std::vector<int> evaluated;
  for (const auto& eval : log_events(log("a"), "eval")) evaluated.push_back(eval["step"]);
  EXPECT_EQ(evaluated, (std::vector<int>{2, 4, 5}));
  for (const auto& eval : log_events(log("a"), "eval"))
    EXPECT_EQ(eval.contains("roc_auc"), eval["step"] == 5);
  const auto& end = lines.back();
  EXPECT_EQ(end["event"], "end");
  EXPECT_EQ(end["steps"], 5);
  EXPECT_EQ(end["samples"], 5 * 2 * 16);
  EXPECT_EQ(end["status"], "ok");
}

TEST_F(TrainProgramTest, OneEpochTakesEverySampleOnce) {
  for (const char* ranks : {"1", "2", "3"}) {
    train({"--nproc", ranks, "--batch", "16", "--epochs", "1", "--train-samples", "100"}, "a");
    EXPECT_EQ(log_lines(log("a")).back()["samples"], 100) << ranks;
  }
}

TEST_F(TrainProgramTest, AllRanksStopAfterTheSameStepWhenTimeIsUp) {
  train({"--nproc", "3", "--batch", "8", "--seconds", "0.3"}, "a");
  std::vector<int> last(3, -1);
  for (const auto& step : log_events(log("a"), "step")) {
    last[step["rank"].get<std::size_t>()] = step["step"];
  }
  EXPECT_GE(last[0], 0);
  EXPECT_EQ(last, std::vector<int>(3, last[0]));
  EXPECT_EQ(log_lines(log("a")).back()["status"], "ok");
}

TEST_F(TrainProgramTest, OffATerminalItPrintsThePlanAndTheResult) {
  train({"--nproc", "2", "--steps", "3"}, "a");
  EXPECT_NE(out_.find("plan: 784-24-10, 19090 parameters; 2 ranks"), std::string::npos) << out_;
  EXPECT_NE(out_.find("done: 3 steps, 384 samples"), std::string::npos) << out_;
  EXPECT_NE(out_.find("mean over classes: recall "), std::string::npos) << out_;
  EXPECT_NE(out_.find("device time of a step"), std::string::npos) << out_;
  EXPECT_EQ(out_.find('\r'), std::string::npos);
  train({"--nproc", "2", "--steps", "3", "--quiet"}, "b");
  EXPECT_EQ(out_, "");
}

TEST_F(TrainProgramTest, LeavesNoDirectoryBehind) {
  setenv("TMPDIR", scratch_.file("").c_str(), 1);
  train({"--nproc", "2", "--steps", "2"}, "a");
  setenv("TMPDIR", kSegments->path().c_str(), 1);
  for (const auto& entry : std::filesystem::directory_iterator(scratch_.file(""))) {
    EXPECT_EQ(entry.path().filename().string().find("sluice-train-"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::tests

// What the ways of communicating have in common: the same training, whatever travels when and how.
#include <optional>
#include <tuple>

#include "tests/trainer/train_fixture.h"

namespace sluice::tests {
namespace {

class TrainCommTest : public TrainProgramTest {
 protected:
  /// Most gradients are final before the end of the backward pass: the first layer is small.
  std::vector<std::string> deep(std::vector<std::string> more) const {
    more.insert(more.begin(), {"--nproc", "2", "--batch", "16", "--hidden", "16,128,128", "--steps",
                               "4", "--eval-samples", "0"});
    return more;
  }
  /// NCCL's stand-in in sight of the ranks; false where there is none.
  bool standin_use() {
    const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    const std::string library = (here / "nccl_standin").string();
    const char* before = std::getenv("LD_LIBRARY_PATH");
    path_before_ = before == nullptr ? "" : before;
    setenv("LD_LIBRARY_PATH", (library + ":" + *path_before_).c_str(), 1);
    return std::filesystem::exists(library);
  }
  void TearDown() override {
    if (path_before_) setenv("LD_LIBRARY_PATH", path_before_->c_str(), 1);
  }
  nlohmann::json end_of(const std::string& name) const { return log_lines(log(name)).back(); }

 private:
  std::optional<std::string> path_before_;
};

TEST_F(TrainCommTest, OverlapHidesTheLinkAndChangesNoBit) {
  train(deep({"--bucket", "8192", "--overlap", "off", "--comm", "gloo"}), "off");
  train(deep({"--bucket", "8192", "--overlap", "on", "--comm", "gloo"}), "on");
  EXPECT_EQ(file_text(weights("off")), file_text(weights("on")));
  const auto off = end_of("off"), on = end_of("on");
  EXPECT_EQ(on["sent_bytes"], off["sent_bytes"]);
  EXPECT_GT(on["sent_bytes"], 0);
  if (off["collective_ns"] == 0) GTEST_SKIP() << "no link is modelled on hardware";
  // The link's time is the formula's; only when it runs differs.
  EXPECT_EQ(on["collective_ns"], off["collective_ns"]);
  EXPECT_EQ(on["busbw_mb_per_s"], off["busbw_mb_per_s"]);
  EXPECT_LT(off["overlap_ratio"], 0.01);
  EXPECT_GT(on["overlap_ratio"], 0.5);
  EXPECT_LT(on["exposed_ns"], 0.5 * off["exposed_ns"].get<double>());
  EXPECT_NE(out_.find("of it exposed (overlap "), std::string::npos) << out_;
  for (const auto& step : log_events(log("off"), "step"))
    EXPECT_GE(step["exposed_ns"], 0.999 * step["collective_ns"].get<double>());
}

/// 19,090 parameters: with three ranks one is left over, with two none.
class ShardedTest : public TrainCommTest,
                    public testing::WithParamInterface<std::tuple<int, std::string>> {};

TEST_P(ShardedTest, EqualsDataParallelWithItsPartOfTheState) {
  const auto [ranks, engine] = GetParam();
  if (engine == "nccl" && !standin_use()) GTEST_SKIP() << "built without nccl.h";
  const std::vector<std::string> common = {"--nproc",         std::to_string(ranks),
                                           "--batch",         "16",
                                           "--steps",         "8",
                                           "--train-samples", "300",
                                           "--eval-samples",  "100",
                                           "--clip",          "0.5",
                                           "--bucket",        "10000",
                                           "--comm",          engine};
  std::vector<std::string> sharded = common;
  sharded.insert(sharded.end(), {"--strategy", "sharded"});
  train(common, "data");
  train(sharded, "sharded");
  EXPECT_LT(distance("data", "sharded"), 1e-6);
  const auto whole = end_of("data"), part = end_of("sharded");
  EXPECT_EQ(whole["state_bytes"], 19'090 * 4);
  const int parameters = 19'090 / ranks + 19'090 % ranks;
  EXPECT_EQ(part["state_bytes"], parameters * 4);
  // A reduce-scatter and an all-gather are an all-reduce, but for the rounding of its chunks.
  EXPECT_NEAR(part["sent_bytes"], whole["sent_bytes"].get<double>(),
              0.01 * whole["sent_bytes"].get<double>());
  EXPECT_EQ(log_events(log("data"), "eval").at(0)["accuracy"],
            log_events(log("sharded"), "eval").at(0)["accuracy"]);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedTest,
                         testing::Values(std::tuple{2, "gloo"}, std::tuple{3, "gloo"},
                                         std::tuple{3, "nccl"}));

TEST_F(TrainCommTest, ShardedAdamOfTwoRanksIsTheSameBits) {
  // Two numbers have one sum, in whatever order.
  const std::vector<std::string> common = {
      "--nproc",  "2",     "--batch",     "16",   "--steps",        "6", "--lr", "0.002",
      "--bucket", "30000", "--optimizer", "adam", "--eval-samples", "0"};
  std::vector<std::string> sharded = common;
  sharded.insert(sharded.end(), {"--strategy", "sharded"});
  train(common, "data");
  train(sharded, "sharded");
  EXPECT_EQ(file_text(weights("data")), file_text(weights("sharded")));
  EXPECT_EQ(2 * end_of("sharded")["state_bytes"].get<int>(), end_of("data")["state_bytes"]);
}

TEST_F(TrainCommTest, SixteenBitsOnTheWireAreHalfTheBytesAndNearlyTheSameTraining) {
  const std::vector<std::string> common = {
      "--nproc", "2", "--batch", "16", "--steps", "8", "--comm", "gloo", "--eval-samples", "0"};
  train(common, "whole");
  const double whole = end_of("whole")["sent_bytes"];
  for (const auto& [name, apart] : {std::pair{"fp16", 1e-3}, {"bf16", 1e-2}}) {
    std::vector<std::string> narrow = common;
    narrow.insert(narrow.end(), {"--compress", name});
    train(narrow, name);
    EXPECT_NEAR(end_of(name)["sent_bytes"], whole / 2, 8 * 64) << name;  // and the extras apart
    EXPECT_LT(distance("whole", name), apart) << name;
    EXPECT_GT(distance("whole", name), 0) << name;
  }
}

TEST_F(TrainCommTest, ATenthOfTheGradientsTrainsNearlyAsWellWithErrorFeedback) {
  const std::vector<std::string> common = {"--nproc",  "2",     "--batch",  "32",
                                           "--steps",  "150",   "--hidden", "32",
                                           "--bucket", "32768", "--comm",   "gloo"};
  train(common, "dense");
  std::vector<std::string> sparse = common;
  sparse.insert(sparse.end(), {"--compress", "topk:0.1"});
  train(sparse, "sparse");
  // Pairs of 8 bytes to one other rank, against 4 bytes of each gradient.
  EXPECT_NEAR(end_of("sparse")["sent_bytes"], 0.2 * end_of("dense")["sent_bytes"].get<double>(),
              0.005 * end_of("dense")["sent_bytes"].get<double>());
  const double dense = log_events(log("dense"), "eval").at(0)["accuracy"];
  const double accuracy = log_events(log("sparse"), "eval").at(0)["accuracy"];
  EXPECT_GT(dense, 0.6);
  EXPECT_GT(accuracy, dense - 0.1);
}

TEST_F(TrainCommTest, ThinMatricesAreTheBytesOfTheFormulaAndTrainNearlyAsWell) {
  const std::vector<std::string> common = {"--nproc",  "2",  "--batch", "32",   "--steps", "100",
                                           "--hidden", "64", "--comm",  "gloo", "--lr",    "0.02"};
  train(common, "dense");
  std::vector<std::string> thin = common;
  thin.insert(thin.end(), {"--compress", "powersgd:4"});
  train(thin, "thin");
  // P and Q of 784 x 64 and 64 x 10, the biases and the two extras; each of two ranks sends as many
  // bytes as there are.
  const double floats = 4 * (784 + 64) + 4 * (64 + 10) + 64 + 10 + 2;
  EXPECT_NEAR(end_of("thin")["sent_bytes"].get<double>() / 100, 4 * floats, 0.02 * 4 * floats);
  EXPECT_NE(out_.find("all-reduce by ring as powersgd:4"), std::string::npos) << out_;
  const double dense = log_events(log("dense"), "eval").at(0)["accuracy"];
  const double accuracy = log_events(log("thin"), "eval").at(0)["accuracy"];
  EXPECT_GT(dense, 0.8);
  EXPECT_GT(accuracy, dense - 0.05);
}

}  // namespace
}  // namespace sluice::tests

// sluice-train --offload optimizer: the same weights with the state on the host, at the price of
// its copies, and room on the device for a model whose state has none there.
#include "tests/trainer/train_fixture.h"

namespace sluice::tests {
namespace {

class OffloadTest : public TrainProgramTest {
 protected:
  nlohmann::json end_of(const std::string& name) const { return log_lines(log(name)).back(); }
};

TEST_F(OffloadTest, GivesTheSameWeightsAsTheDevice) {
  // 325,658 parameters: two stretches.
  for (const std::string optimizer : {"sgd", "adam", "adamw", "rmsprop"}) {
    std::vector<std::string> common = {
        "--nproc", "1",     "--batch",     "8",       "--steps",        "3", "--hidden", "409",
        "--lr",    "0.003", "--optimizer", optimizer, "--eval-samples", "0", "--clip",   "1"};
    if (optimizer == "adamw") common.insert(common.end(), {"--weight-decay", "0.1"});
    std::vector<std::string> offload = common;
    offload.insert(offload.end(), {"--offload", "optimizer"});
    train(common, "device");
    train(offload, "host");
    EXPECT_LT(distance("device", "host"), 1e-6) << optimizer;
    const auto device = end_of("device"), host = end_of("host");
    const int state = (optimizer == "sgd" ? 1 : 2) * 325'165 * 4;
    EXPECT_EQ(device["state_bytes"], state);
    EXPECT_EQ(host["state_bytes"], 0);
    EXPECT_EQ(host["host_state_bytes"], state);
    EXPECT_EQ(host["offload_bytes"], 3 * 2 * 325'165 * 4) << "gradients out, weights in";
    EXPECT_GT(host["offload_ns"], 0);
    EXPECT_NE(out_.find("optimizer's state on the host"), std::string::npos) << out_;
  }
}

TEST_F(OffloadTest, TwoRanksAndAServerUseItToo) {
  const std::vector<std::string> common = {"--batch",        "16",    "--steps",     "6",
                                           "--lr",           "0.002", "--optimizer", "adam",
                                           "--eval-samples", "0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    return more;
  };
  train(with({"--nproc", "2"}), "device");
  train(with({"--nproc", "2", "--offload", "optimizer"}), "host");
  train(with({"--nproc", "3", "--offload", "optimizer", "--strategy", "async", "--staleness", "0"}),
        "server");
  EXPECT_LT(distance("device", "host"), 1e-6);
  EXPECT_LT(distance("device", "server"), 1e-6);
  EXPECT_EQ(end_of("server")["offload_bytes"], 6 * 2 * 19'090 * 4);
}

/// Adam's state of 4 million parameters is 32 MB; weights, gradients and a context of 1 MiB leave
/// less than that of 60 MiB.
TEST_F(OffloadTest, AStateThatDoesNotFitTheDeviceRunsOnTheHost) {
  const std::string library = std::getenv("LD_LIBRARY_PATH") ? std::getenv("LD_LIBRARY_PATH") : "";
  if (library.find("softgpu") == std::string::npos) GTEST_SKIP() << "hardware has more memory";
  const std::vector<std::string> common = {"sluice-train",
                                           "--data",
                                           "synthetic",
                                           "--nproc",
                                           "1",
                                           "--batch",
                                           "1",
                                           "--hidden",
                                           "5000",
                                           "--steps",
                                           "1",
                                           "--optimizer",
                                           "adam",
                                           "--eval-samples",
                                           "0",
                                           "--lr",
                                           "0.001"};
  const std::vector<std::string> small = {"SOFTGPU_MEMORY=60MiB", "SOFTGPU_CONTEXT=1MiB",
                                          "SOFTGPU_DIR=" + scratch_.file("small")};
  Child without(common, scratch_, small);
  EXPECT_EQ(without.wait(kPatience), 1);
  EXPECT_NE(without.err().find("--offload optimizer"), std::string::npos) << without.err();
  std::vector<std::string> offload = common;
  offload.insert(offload.end(), {"--offload", "optimizer"});
  Child with(offload, scratch_, small);
  EXPECT_EQ(with.wait(kPatience), 0) << with.err();
}

}  // namespace
}  // namespace sluice::tests

// sluice-train with models other than the perceptron: they learn, and N ranks equal one.
#include <filesystem>
#include <map>

#include "tests/trainer/train_fixture.h"
#include "trainer/data/dataset.h"
#include "trainer/data/text.h"

namespace sluice::tests {
namespace {

class ModelProgramTest : public TrainProgramTest {
 protected:
  using Words = std::vector<std::string>;

  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  double loss_of(const std::string& name, std::size_t step) const {
    for (const auto& line : log_events(log(name), "step")) {
      if (line["step"] == step) return line["loss"];
    }
    ADD_FAILURE() << "no step " << step;
    return 0;
  }
};

TEST_F(ModelProgramTest, CnnLearnsFashionMnist) {
  if (!std::filesystem::exists(sluice::train::kFashionDirectory)) {
    GTEST_SKIP() << "no " << sluice::train::kFashionDirectory
                 << "; install Debian's dataset-fashion-mnist";
  }
  train({"--model",         "cnn",  "--channels",  "4,6",  "--data",  "fashion-mnist",
         "--train-samples", "3000", "--nproc",     "2",    "--batch", "16",
         "--steps",         "40",   "--optimizer", "adam", "--lr",    "0.005",
         "--eval-samples",  "300"},
        "a");
  const auto evals = log_events(log("a"), "eval");
  ASSERT_EQ(evals.size(), 1u);
  EXPECT_GT(evals[0]["accuracy"], 0.5) << "chance is 0.1";
  EXPECT_NE(out_.find("plan: 28x28-4c-6c-24-10, "), std::string::npos) << out_;
}

// Needs no data set: so few images can be learned by heart.
TEST_F(ModelProgramTest, CnnLearnsAFewImagesByHeart) {
  train({"--model", "cnn", "--channels", "4", "--train-samples", "12", "--nproc", "1", "--batch",
         "12", "--steps", "40", "--optimizer", "adam", "--lr", "0.005", "--eval-samples", "0"},
        "a");
  EXPECT_GT(loss_of("a", 0), 2.0);
  EXPECT_LT(loss_of("a", 39), 0.5);
}

TEST_F(ModelProgramTest, CnnOnTwoRanksEqualsOneRankWithTheWholeBatch) {
  // 100 samples: the last global batch of an epoch is short.
  const Words common = {"--model",         "cnn", "--channels",     "3,4", "--steps", "8",
                        "--train-samples", "100", "--eval-samples", "60"};
  train(with(common, {"--nproc", "1", "--batch", "32"}), "one");
  train(with(common, {"--nproc", "2", "--batch", "16"}), "two");
  EXPECT_LT(distance("one", "two"), 1e-6);
  EXPECT_NEAR(log_events(log("one"), "eval").at(0)["loss"],
              log_events(log("two"), "eval").at(0)["loss"].get<double>(), 1e-4);
}

const std::vector<std::string> kSmallGpt = {"--model", "gpt", "--layers",  "1", "--heads", "2",
                                            "--width", "16",  "--context", "16"};

/// Of one who knows how often each byte comes, and nothing of what was before it.
double perplexity_without_context(const std::string& text) {
  std::map<char, double> counts;
  for (const char byte : text) ++counts[byte];
  double entropy = 0;
  for (const auto& [byte, count] : counts) {
    const double share = count / static_cast<double>(text.size());
    entropy -= share * std::log(share);
  }
  return std::exp(entropy);
}

TEST_F(ModelProgramTest, GptLearnsText) {
  const std::string text = sluice::train::text_draw(3, 6000);
  std::ofstream(scratch_.file("text")) << text;
  train({"--model",      "gpt",  "--layers",  "1",    "--heads",        "2",
         "--width",      "32",   "--context", "16",   "--data",         scratch_.file("text"),
         "--nproc",      "2",    "--batch",   "8",    "--steps",        "100",
         "--optimizer",  "adam", "--lr",      "0.01", "--eval-samples", "30",
         "--eval-every", "50"},
        "a");
  EXPECT_NEAR(loss_of("a", 0), std::log(256), 0.3) << "it guesses among 256 bytes";
  const auto evals = log_events(log("a"), "eval");
  ASSERT_EQ(evals.size(), 2u);
  for (const auto& eval : evals) {
    EXPECT_NEAR(eval["perplexity"], std::exp(eval["loss"].get<double>()), 1e-3);
    EXPECT_EQ(eval["samples"], 30);
    EXPECT_FALSE(eval.contains("roc_auc"));
  }
  EXPECT_LT(evals[1]["perplexity"], 0.93 * perplexity_without_context(text));
  EXPECT_LT(evals[1]["perplexity"], evals[0]["perplexity"]);
  EXPECT_GT(evals[1]["accuracy"], 0.2);
  EXPECT_LE(evals[1]["accuracy"], 1.0);
  EXPECT_NE(out_.find("plan: gpt 1x32, 2 heads, context 16, 256 tokens, "), std::string::npos)
      << out_;
  EXPECT_NE(out_.find(", perplexity "), std::string::npos) << out_;
}

TEST_F(ModelProgramTest, GptOnTwoRanksEqualsOneRankWithTheWholeBatch) {
  // 45 samples: the last global batch of an epoch is short, and one rank has more of it.
  const Words common = with(
      kSmallGpt, {"--steps", "8", "--train-samples", "45", "--lr", "0.1", "--eval-samples", "7"});
  train(with(common, {"--nproc", "1", "--batch", "16"}), "one");
  train(with(common, {"--nproc", "2", "--batch", "8"}), "two");
  EXPECT_LT(distance("one", "two"), 1e-6);
  const auto one = log_events(log("one"), "eval").at(0);
  const auto two = log_events(log("two"), "eval").at(0);
  EXPECT_NEAR(one["loss"], two["loss"].get<double>(), 1e-4);
  EXPECT_EQ(one["accuracy"], two["accuracy"]);
}

TEST_F(ModelProgramTest, GptTakesTokensOfAVocabulary) {
  // Every byte by itself, in GPT-2's characters, and " t" and "th".
  nlohmann::json vocabulary = nlohmann::json::object();
  const auto add = [&](unsigned code) {
    const std::string text = code < 0x80 ? std::string{static_cast<char>(code)}
                                         : std::string{static_cast<char>(0xc0 | (code >> 6)),
                                                       static_cast<char>(0x80 | (code & 0x3f))};
    vocabulary[text] = vocabulary.size();
  };
  unsigned others = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    add(itself ? byte : others++);
  }
  vocabulary["th"] = 256;
  std::ofstream(scratch_.file("vocab.json")) << vocabulary;
  std::ofstream(scratch_.file("merges.txt")) << "#version: 0.2\nt h\n";
  std::ofstream(scratch_.file("text")) << std::string(100, 'x') << "ththththththth";
  // 107 tokens, of which 106 are targets of 6 samples; the test's is the last.
  train(with(kSmallGpt,
             {"--data", scratch_.file("text"), "--nproc", "1", "--batch", "4", "--epochs", "2",
              "--vocab", scratch_.file("vocab.json"), "--merges", scratch_.file("merges.txt")}),
        "a");
  EXPECT_NE(out_.find(", 257 tokens, "), std::string::npos) << out_;
  EXPECT_EQ(log_lines(log("a")).back()["samples"], 2 * 5);
  EXPECT_EQ(log_events(log("a"), "eval").at(0)["samples"], 1);
  // A server of image requests does not take a model of text.
  Child infer({"sluice-infer", "--weights", weights("a"), "--seconds", "0.1"}, scratch_);
  EXPECT_EQ(infer.wait(kPatience), 1);
  EXPECT_NE(infer.err().find("requests are images"), std::string::npos) << infer.err();
}

TEST_F(ModelProgramTest, ATextThatIsTooShortIsRefusedOnce) {
  std::ofstream(scratch_.file("text")) << "short";
  Child child({"sluice-train", "--model", "gpt", "--data", scratch_.file("text"), "--nproc", "2"},
              scratch_);
  EXPECT_EQ(child.wait(kPatience), 1);
  EXPECT_NE(child.err().find("the text has 5 tokens"), std::string::npos) << child.err();
  EXPECT_EQ(child.err().find('\n'), child.err().size() - 1) << child.err();
}

TEST_F(ModelProgramTest, MicroBatchesEqualOneBatchSoManyTimesAsLarge) {
  // 75 samples: global batches of 64 and of 11, which is one full micro-batch and three samples.
  const Words mlp = {"--train-samples", "75", "--steps", "6", "--eval-samples", "0"};
  train(with(mlp, {"--nproc", "1", "--batch", "64"}), "whole");
  train(with(mlp, {"--nproc", "1", "--batch", "8", "--accumulate", "8"}), "parts");
  EXPECT_LT(distance("whole", "parts"), 1e-6);
  EXPECT_NEAR(loss_of("whole", 5), loss_of("parts", 5), 1e-5);
  EXPECT_NE(out_.find("plan: batch 64 per rank, 64 in all, by 8 micro-batches"), std::string::npos)
      << out_;
  // On two ranks, of which one has more micro-batches than the other in the short batch.
  train(with(mlp, {"--nproc", "2", "--batch", "4", "--accumulate", "8"}), "ranks");
  EXPECT_LT(distance("whole", "ranks"), 1e-6);
  EXPECT_EQ(log_lines(log("ranks")).back()["samples"], log_lines(log("whole")).back()["samples"]);
  const Words gpt = with(kSmallGpt, {"--steps", "4", "--eval-samples", "0", "--train-samples", "20",
                                     "--nproc", "1", "--lr", "0.1"});
  train(with(gpt, {"--batch", "12"}), "gpt");
  train(with(gpt, {"--batch", "3", "--accumulate", "4"}), "gpt parts");
  EXPECT_LT(distance("gpt", "gpt parts"), 1e-6);
}

TEST_F(ModelProgramTest, ScatteredSamplesGiveTheSameBitsAsSamplesOfTheRanksOwn) {
  // 100 samples on 3 ranks: the last global batch of an epoch is 4 samples, of which ranks get 1 or
  // 2.
  const Words mlp = {"--nproc",         "3",   "--batch",        "16", "--epochs", "2",
                     "--train-samples", "100", "--eval-samples", "50"};
  const Words gpt = with(kSmallGpt, {"--nproc", "2", "--batch", "2", "--accumulate", "2", "--steps",
                                     "5", "--train-samples", "11", "--eval-samples", "5"});
  for (const auto& [name, words] : {std::pair{"mlp", mlp}, std::pair{"gpt", gpt}}) {
    const std::string index = std::string(name) + "index";
    const std::string scatter = std::string(name) + "scatter";
    train(with(words, {"--sharing", "index"}), index);
    train(with(words, {"--sharing", "scatter"}), scatter);
    EXPECT_EQ(file_text(weights(index)), file_text(weights(scatter))) << name;
    EXPECT_EQ(log_lines(log(index)).back()["samples"], log_lines(log(scatter)).back()["samples"]);
    const auto one = log_events(log(index), "eval").at(0);
    const auto other = log_events(log(scatter), "eval").at(0);
    EXPECT_EQ(one["accuracy"], other["accuracy"]) << name;
    EXPECT_NEAR(one["loss"], other["loss"].get<double>(), 1e-5) << name;
    EXPECT_EQ(one["samples"], other["samples"]) << name;
  }
  EXPECT_EQ(log_lines(log("mlpscatter")).back()["samples"], 200);
}

TEST_F(ModelProgramTest, WithScatterOnlyTheFirstRankOpensTheData) {
  Child pack({"sluice-train", "pack", "--data", "synthetic", "--train-samples", "100", "--out",
              scratch_.file("shards")},
             scratch_);
  ASSERT_EQ(pack.wait(kPatience), 0) << pack.err();
  for (const bool scatter : {false, true}) {
    const std::string log_path = log(scatter ? "scatter" : "index");
    Child child(
        {"sluice-train", "--data", scratch_.file("shards"), "--nproc", "2", "--seconds", "60",
         "--eval-samples", "0", "--log", log_path, "--sharing", scatter ? "scatter" : "index"},
        scratch_);
    ASSERT_TRUE(log_await(log_path, "step", 4, kPatience)) << child.err();
    int with_data = 0;
    for (const pid_t rank : child.children()) {
      const std::string maps = file_text("/proc/" + std::to_string(rank) + "/maps");
      with_data += maps.find("train-00000-of-00001.slu") != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(with_data, scatter ? 1 : 2);
    kill(child.pid(), SIGTERM);
    EXPECT_EQ(child.wait(kPatience), 0) << child.err();
  }
}

TEST_F(ModelProgramTest, ARankThatCannotReadWhatItIsToScatterEndsTheJob) {
  Child child({"sluice-train", "--data-dir", scratch_.file("none"), "--sharing", "scatter",
               "--nproc", "3", "--quiet"},
              scratch_);
  EXPECT_EQ(child.wait(kPatience), 1);
  const std::string said = child.err();
  EXPECT_EQ(said.find("sluice: sluice-train: rank 0: no Fashion-MNIST in "), 0u) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
}

class PrecisionProgramTest : public ModelProgramTest {
 protected:
  /// The largest difference of the losses of equal steps, as a part of the first's.
  double curves_apart(const std::string& one, const std::string& other, std::size_t steps) const {
    double most = 0;
    for (std::size_t step = 0; step < steps; ++step) {
      const double a = loss_of(one, step);
      most = std::max(most, std::fabs(a - loss_of(other, step)) / a);
    }
    return most;
  }
  /// Losses are those of fp32 to 5 % (bf16: 8 bits) and 1 % (fp16: 11 bits) in every step of a run
  /// in which the loss falls by a fifth and more.
  void curves_check(const Words& words, std::size_t steps) {
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      train(with(words, {"--precision", precision}), precision);
    }
    EXPECT_LT(loss_of("fp32", steps - 1), 0.8 * loss_of("fp32", 0)) << "it learns";
    const double bf16 = curves_apart("fp32", "bf16", steps);
    const double fp16 = curves_apart("fp32", "fp16", steps);
    RecordProperty("bf16", std::to_string(bf16));
    RecordProperty("fp16", std::to_string(fp16));
    EXPECT_LT(bf16, 0.05);
    EXPECT_LT(fp16, 0.01);
    EXPECT_GT(bf16, 0) << "16 bits do not give the same";
    EXPECT_GT(fp16, 0);
    EXPECT_EQ(log_events(log("fp16"), "step").back()["skipped"], 0);
    EXPECT_NE(out_.find("; matrix products in fp16"), std::string::npos) << out_;
  }
};

TEST_F(PrecisionProgramTest, LossCurvesOfMlpStayCloseToThoseOfFp32) {
  curves_check({"--nproc", "2", "--batch", "16", "--steps", "30", "--lr", "0.02", "--seed", "3",
                "--eval-samples", "0"},
               30);
}

#ifdef SLUICE_CUBLASLT_STANDIN
// On software GPUs the library is not taken unless it is asked for, and here it is a stand-in.
TEST_F(PrecisionProgramTest, ThroughCublasLtTheLossIsTheSame) {
  const Words words = {"--nproc", "2",    "--batch",     "16",  "--steps",        "5",
                       "--lr",    "0.02", "--seed",      "3",   "--eval-samples", "0",
                       "--gemm",  "auto", "--precision", "bf16"};
  train(words, "own");
  const char* before = getenv("LD_LIBRARY_PATH");
  const std::string path = before != nullptr ? before : "";
  setenv("LD_LIBRARY_PATH", (path + ":" SLUICE_CUBLASLT_STANDIN).c_str(), 1);
  Words through = words;
  *std::find(through.begin(), through.end(), "auto") = "cublaslt";
  train(through, "library");
  setenv("CUBLASLT_STANDIN", "no-handle", 1);
  through.insert(through.begin(), {"sluice-train", "--data", "synthetic"});
  Child refused(through, scratch_);
  EXPECT_EQ(refused.wait(kPatience), 1);
  EXPECT_NE(refused.err().find("cuBLASLt: starting failed with status 1"), std::string::npos)
      << refused.err();
  unsetenv("CUBLASLT_STANDIN");
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  // A sum in another order is now and then cast to the neighbouring bf16.
  EXPECT_LT(curves_apart("own", "library", 5), 1e-2);
  EXPECT_LT(distance("own", "library"), 1e-2);
}
#endif

TEST_F(PrecisionProgramTest, LossCurvesOfGptStayCloseToThoseOfFp32) {
  curves_check(with(kSmallGpt, {"--nproc", "1", "--batch", "8", "--steps", "20", "--optimizer",
                                "adam", "--lr", "0.01", "--eval-samples", "0"}),
               20);
}

TEST_F(PrecisionProgramTest, APlantedOverflowHalvesTheScaleAndSkipsTheStep) {
  const Words common = {"--precision", "fp16", "--nproc", "2",    "--batch",        "16",
                        "--seed",      "3",    "--lr",    "0.02", "--eval-samples", "0"};
  train(with(common, {"--steps", "4"}), "before");
  train(with(common, {"--steps", "5", "--plant-overflow", "5"}), "skipped");
  EXPECT_EQ(file_text(weights("before")), file_text(weights("skipped")))
      << "the step changes nothing";
  train(with(common, {"--steps", "30", "--plant-overflow", "5"}), "on");
  EXPECT_NE(out_.find("; 1 steps skipped because gradients overflowed"), std::string::npos) << out_;
  std::size_t seen = 0;
  for (const auto& step : log_events(log("on"), "step")) {  // of both ranks
    const bool after = step["step"] >= 4;
    EXPECT_EQ(step["loss_scale"], after ? 32768 : 65536) << step;
    EXPECT_EQ(step["skipped"], after ? 1 : 0) << step;
    ++seen;
  }
  EXPECT_EQ(seen, 60u);
  EXPECT_LT(loss_of("on", 29), 0.8 * loss_of("on", 0)) << "it goes on";
  // Without a plant nothing is skipped; a scale that is far too large finds its way down.
  train(with(common, {"--steps", "30", "--loss-scale", "4294967296"}), "large");
  const auto last = log_events(log("large"), "step").back();
  EXPECT_GT(last["skipped"], 3);
  EXPECT_LT(last["skipped"], 25);
  EXPECT_EQ(last["loss_scale"].get<double>() * std::exp2(last["skipped"].get<double>()), 0x1p32);
  EXPECT_LT(loss_of("large", 29), loss_of("large", 0));
}

}  // namespace
}  // namespace sluice::tests

// Options in a file: the same as on the command line, which wins; mistakes have a place.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/trainer/process.h"
#include "trainer/train/options.h"

namespace sluice::train {
namespace {

class ConfigFileTest : public testing::Test {
 protected:
  bool parse(const std::string& text, std::vector<std::string> words = {}) {
    std::ofstream(path_) << text;
    words.insert(words.begin(), {"sluice-train", "--config", path_});
    return words_parse(words);
  }
  bool words_parse(std::vector<std::string> words) {
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    testing::internal::CaptureStderr();
    options_ = {};
    const bool ok = train_options_parse(static_cast<int>(pointers.size()), pointers.data(),
                                        &options_, &exit_code_);
    err_ = testing::internal::GetCapturedStderr();
    return ok;
  }
  /// Where and what, without the frame of the program.
  std::string refusal(const std::string& text, std::vector<std::string> words = {}) {
    EXPECT_FALSE(parse(text, std::move(words)));
    EXPECT_EQ(exit_code_, 2);
    const std::string frame = "sluice: sluice-train: " + path_ + ":";
    EXPECT_EQ(err_.rfind(frame, 0), 0u) << err_;
    const std::string rest = err_.size() > frame.size() ? err_.substr(frame.size()) : "";
    return rest.substr(0, rest.rfind("; see "));
  }

  tests::ScratchDirectory scratch_;
  const std::string path_ = scratch_.file("job.toml");
  TrainOptions options_;
  int exit_code_ = -1;
  std::string err_;
};

TEST_F(ConfigFileTest, TimesHaveUnitsOrAreSeconds) {
  const std::pair<const char*, double> rows[] = {
      {"20s", 20}, {"1m30s", 90}, {"500ms", 0.5}, {"7", 7}, {"0.25", 0.25}};
  for (const auto& [text, seconds] : rows) {
    ASSERT_TRUE(words_parse({"sluice-train", "--comm-timeout", text})) << err_;
    EXPECT_EQ(options_.timeout_s, seconds) << text;
  }
  ASSERT_TRUE(parse("comm-timeout = \"2m\"\nseconds = 5\n")) << err_;
  EXPECT_EQ(options_.timeout_s, 120.0);
  EXPECT_EQ(options_.seconds, 5.0);
  for (const char* wrong : {"20x", "s", "-1", "1ms", "", "1e9", "nan"}) {
    EXPECT_FALSE(words_parse({"sluice-train", "--comm-timeout", wrong})) << wrong;
    EXPECT_NE(err_.find("--comm-timeout: takes a time from 0.1 s to 100000 s, such as 20s or 5m"),
              std::string::npos)
        << err_;
  }
  EXPECT_EQ(
      refusal("comm-timeout = true\n"),
      "1:16: 'comm-timeout' must be a number of seconds, or a time in quotes such as \"20s\"");
}

TEST_F(ConfigFileTest, HasEveryKindOfOption) {
  ASSERT_TRUE(
      parse("nproc = 3\nhidden = [32, 16]\nlr = 1\nmomentum = 0.5\nalgorithm = \"bcube\"\n"
            "quiet = true\nsteps = 7\ndata = \"synthetic\"\nseed = 9007199254740993\n"))
      << err_;
  EXPECT_EQ(options_.rank_count, 3);
  EXPECT_EQ(options_.hidden, (std::vector<int>{32, 16}));
  EXPECT_EQ(options_.rate, 1.0);
  EXPECT_EQ(options_.optimizer.momentum, 0.5);
  EXPECT_EQ(options_.algorithm, Algorithm::kBcube);
  EXPECT_TRUE(options_.quiet);
  EXPECT_EQ(options_.steps, 7u);
  EXPECT_EQ(options_.data, "synthetic");
  EXPECT_EQ(options_.seed, 9007199254740993u);
  ASSERT_TRUE(parse("quiet = false\nhidden = 5\n")) << err_;
  EXPECT_FALSE(options_.quiet);
  EXPECT_EQ(options_.hidden, std::vector<int>{5});
}

TEST_F(ConfigFileTest, CommandLineWins) {
  ASSERT_TRUE(parse("batch = 4\nsteps = 7\nstrategy = \"sharded\"\n",
                    {"--batch", "5", "--seconds", "2", "--strategy", "data"}))
      << err_;
  EXPECT_EQ(options_.batch, 5);
  EXPECT_EQ(options_.steps, 0u) << "--seconds excludes it";
  EXPECT_EQ(options_.seconds, 2);
  EXPECT_EQ(options_.strategy, Strategy::kData);
}

TEST_F(ConfigFileTest, MistakesHaveAPlace) {
  EXPECT_EQ(refusal("batch = 4\n  stepz = 5\n"), "2:3: unknown key 'stepz'; did you mean 'steps'?");
  EXPECT_EQ(refusal("as-rank = \"0:1:1:3:/tmp\"\n").rfind("1:1: unknown key", 0), 0u);
  EXPECT_EQ(refusal("config = \"other.toml\"\n").rfind("1:1: unknown key", 0), 0u);
  EXPECT_EQ(refusal("[train]\nbatch = 4\n").rfind("1:2: unknown key 'train'", 0), 0u) << err_;
  EXPECT_EQ(refusal("\nbatch = \"4\"\n"), "2:9: 'batch' must be a whole number");
  EXPECT_EQ(refusal("batch = 4.0\n"), "1:9: 'batch' must be a whole number");
  EXPECT_EQ(refusal("lr = \"high\"\n"), "1:6: 'lr' must be a number");
  EXPECT_EQ(refusal("quiet = 1\n"), "1:9: 'quiet' must be true or false");
  EXPECT_EQ(refusal("model = 5\n"), "1:9: 'model' must be a string in quotes");
  EXPECT_EQ(refusal("hidden = [5, \"x\"]\n").rfind("1:10: 'hidden' must be", 0), 0u);
  EXPECT_EQ(refusal("batch = 0\n").rfind("1:9: 'batch': ", 0), 0u) << err_;
  EXPECT_EQ(refusal("seed = -1\n"), "1:8: 'seed' must be a whole number, 0 or more");
  EXPECT_EQ(refusal("model = \"rnn\"\n").rfind("1:9: 'model': ", 0), 0u) << err_;
  EXPECT_EQ(refusal("steps = 5\nepochs = 2\n"), "2:1: 'epochs' excludes 'steps' of line 1");
  EXPECT_EQ(refusal("batch = \n").rfind("1:", 0), 0u) << err_;
  // A mistake is one also where the command line has the last word.
  EXPECT_EQ(refusal("batch = true\n", {"--batch", "4"}), "1:9: 'batch' must be a whole number");
}

TEST_F(ConfigFileTest, TheExampleIsGood) {
  ASSERT_TRUE(words_parse({"sluice-train", "--config", SLUICE_SOURCE_DIR "/config/train.toml"}))
      << err_;
  EXPECT_EQ(options_.model, Model::kGpt);
  EXPECT_EQ(options_.gpt.width, 64);
  EXPECT_FALSE(words_parse({"sluice-train", "--config", path_}));
  EXPECT_NE(err_.find("job.toml: cannot be opened"), std::string::npos) << err_;
}

}  // namespace
}  // namespace sluice::train

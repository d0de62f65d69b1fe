// The command line of sluice-train: what it takes and what it refuses.
#include "trainer/train/options.h"

#include <gtest/gtest.h>

namespace sluice::train {
namespace {

struct Parsed {
  bool ok = false;
  int exit_code = -1;
  TrainOptions options;
  std::string err;
};

Parsed parse(std::vector<std::string> words) {
  words.insert(words.begin(), "sluice-train");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  Parsed out;
  testing::internal::CaptureStderr();
  out.ok = train_options_parse(static_cast<int>(pointers.size()), pointers.data(), &out.options,
                               &out.exit_code);
  out.err = testing::internal::GetCapturedStderr();
  return out;
}

TEST(TrainOptions, DefaultIsOneEpochOnEveryGpu) {
  const Parsed parsed = parse({});
  ASSERT_TRUE(parsed.ok);
  EXPECT_EQ(parsed.options.epochs, 1u);
  EXPECT_EQ(parsed.options.rank_count, 0);
  EXPECT_TRUE(parsed.options.place.is_launcher());
}

TEST(TrainOptions, TakesAllItsFlags) {
  const Parsed parsed = parse({"--nproc", "3", "--hidden", "32,16", "--steps", "7", "--algorithm",
                               "halving-doubling", "--comm", "gloo", "--link-gbps", "0"});
  ASSERT_TRUE(parsed.ok) << parsed.err;
  EXPECT_EQ(parsed.options.rank_count, 3);
  EXPECT_EQ(parsed.options.hidden, (std::vector<int>{32, 16}));
  EXPECT_EQ(parsed.options.steps, 7u);
  EXPECT_EQ(parsed.options.epochs, 0u);
  EXPECT_EQ(parsed.options.algorithm, Algorithm::kHalvingDoubling);
  EXPECT_EQ(parsed.options.engine, Engine::kGloo);
  EXPECT_EQ(parsed.options.link.gigabits_per_s, 0);
}

class RefusedOptions : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(RefusedOptions, WithExitCodeTwoAndOneLine) {
  const Parsed parsed = parse(GetParam());
  EXPECT_FALSE(parsed.ok);
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_EQ(parsed.err.find("sluice: sluice-train: "), 0u) << parsed.err;
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedOptions,
    testing::Values(
        std::vector<std::string>{"--nproc", "65"}, std::vector<std::string>{"--nproc", "-1"},
        std::vector<std::string>{"--batch", "0"}, std::vector<std::string>{"--batch", "65537"},
        std::vector<std::string>{"--hidden", "0"}, std::vector<std::string>{"--hidden", "16385"},
        std::vector<std::string>{"--hidden", "1,1,1,1,1,1,1,1,1"},
        std::vector<std::string>{"--channels", "8"}, std::vector<std::string>{"--model", "rnn"},
        std::vector<std::string>{"--model", "cnn", "--channels", "8,8,8,8"},
        std::vector<std::string>{"--model", "cnn", "--channels", "0"},
        std::vector<std::string>{"--model", "gpt"},
        std::vector<std::string>{"--model", "gpt", "--data", "/"},
        std::vector<std::string>{"--model", "gpt", "--data", "synthetic", "--hidden", "5"},
        std::vector<std::string>{"--model", "gpt", "--data", "synthetic", "--heads", "3"},
        std::vector<std::string>{"--model", "gpt", "--data", "synthetic", "--width", "1024"},
        std::vector<std::string>{"--model", "gpt", "--data", "synthetic", "--vocab", "/x"},
        std::vector<std::string>{"--model", "gpt", "--data", "synthetic", "--vocab", "/x",
                                 "--merges", "/y"},
        std::vector<std::string>{"--model", "gpt", "--data", "synthetic", "--width", "4096",
                                 "--heads", "64", "--context", "4096", "--batch", "64"},
        std::vector<std::string>{"--accumulate", "0"},
        std::vector<std::string>{"--accumulate", "1025"},
        std::vector<std::string>{"--precision", "fp8"},
        std::vector<std::string>{"--loss-scale", "8"},
        std::vector<std::string>{"--loss-scale", "8", "--precision", "bf16"},
        std::vector<std::string>{"--loss-scale", "0", "--precision", "fp16"},
        std::vector<std::string>{"--plant-overflow", "3"},
        std::vector<std::string>{"--context", "8"}, std::vector<std::string>{"--layers", "3"},
        std::vector<std::string>{"--steps", "0"},
        std::vector<std::string>{"--steps", "5", "--seconds", "5"},
        std::vector<std::string>{"--seconds", "-1"}, std::vector<std::string>{"--momentum", "1"},
        std::vector<std::string>{"--schedule", "linear"},
        std::vector<std::string>{"--schedule", "1cycle", "--seconds", "5"},
        std::vector<std::string>{"--schedule", "1cycle", "--lr-warmup", "5"},
        std::vector<std::string>{"--lr-period", "5"}, std::vector<std::string>{"--lr-low", "0.1"},
        std::vector<std::string>{"--optimizer", "lamb"},
        std::vector<std::string>{"--weight-decay", "0.1"}, std::vector<std::string>{"--clip", "-1"},
        std::vector<std::string>{"--data", "cifar"},
        std::vector<std::string>{"--sharing", "presharded"},
        std::vector<std::string>{"--sharing", "presharded", "--data", "/", "--train-samples", "5"},
        std::vector<std::string>{"--prefetch", "65"},
        std::vector<std::string>{"--algorithm", "tree"}, std::vector<std::string>{"--comm", "mpi"},
        std::vector<std::string>{"--compress", "zip"},
        std::vector<std::string>{"--compress", "topk:2"},
        std::vector<std::string>{"--compress", "topk:"},
        std::vector<std::string>{"--compress", "topk:0.1x"},
        std::vector<std::string>{"--compress", "fp16", "--strategy", "sharded"},
        std::vector<std::string>{"--precision", "fp16", "--strategy", "sharded"},
        std::vector<std::string>{"--gemm", "cublaslt"},
        std::vector<std::string>{"--gemm", "cublaslt", "--precision", "bf16", "--plan", "auto"},
        std::vector<std::string>{"--gemm", "mkl", "--precision", "bf16"},
        std::vector<std::string>{"--model", "cnn", "--pipeline", "2"},
        std::vector<std::string>{"--model", "gpt", "--data", "synthetic", "--layers", "3",
                                 "--pipeline", "2"},
        std::vector<std::string>{"--model", "gpt", "--data", "synthetic", "--tensor", "2",
                                 "--compress", "topk:0.1"},
        std::vector<std::string>{"--model", "gpt", "--data", "synthetic", "--tensor", "2",
                                 "--sharing", "scatter"},
        std::vector<std::string>{"--precision", "fp16", "--compress", "topk:0.1"},
        std::vector<std::string>{"--staleness", "2"},
        std::vector<std::string>{"--strategy", "async", "--precision", "fp16"},
        std::vector<std::string>{"--strategy", "async", "--compress", "bf16"},
        std::vector<std::string>{"--strategy", "async", "--eval-every", "5"},
        std::vector<std::string>{"--strategy", "async", "--sharing", "scatter"},
        std::vector<std::string>{"--strategy", "sharded", "--offload", "optimizer"},
        std::vector<std::string>{"--compress", "powersgd:0"},
        std::vector<std::string>{"--compress", "powersgd:33"},
        std::vector<std::string>{"--strategy", "async", "--elastic", "2"},
        std::vector<std::string>{"--strategy", "async", "--split", "3,1"},
        std::vector<std::string>{"--model", "gpt", "--tensor", "2", "--elastic", "2"},
        std::vector<std::string>{"--model", "gpt", "--pipeline", "2", "--elastic", "2"},
        std::vector<std::string>{"--model", "gpt", "--tensor", "2", "--split", "3,1"},
        std::vector<std::string>{"--model", "gpt", "--tensor", "2", "--strategy", "async"},
        std::vector<std::string>{"--model", "gpt", "--tensor", "2", "--compress", "powersgd:2"},
        std::vector<std::string>{"--model", "gpt", "--tensor", "2", "--offload", "optimizer"},
        std::vector<std::string>{"--precision", "fp16", "--compress", "powersgd:2"},
        std::vector<std::string>{"--plant-slow", "1"}, std::vector<std::string>{"--start", "mpi"},
        std::vector<std::string>{"--strategy", "zero"},
        std::vector<std::string>{"--overlap", "perhaps"}, std::vector<std::string>{"--bucket", "3"},
        std::vector<std::string>{"--as-rank", "5:2:1:3:5:0:/tmp"},
        std::vector<std::string>{"--resume"}, std::vector<std::string>{"--checkpoint-every", "5"},
        std::vector<std::string>{"--replace"}, std::vector<std::string>{"--split", "3,0"},
        std::vector<std::string>{"--split", "3;1"},
        std::vector<std::string>{"--split", "3,1", "--elastic", "1"},
        std::vector<std::string>{"--split", "3,1", "--sharing", "scatter"},
        std::vector<std::string>{"--elastic", "1", "--sharing", "scatter"},
        std::vector<std::string>{"--elastic", "1", "--algorithm", "bcube"},
        std::vector<std::string>{"--no-such-flag"}));

TEST(RankPlace, GoesThroughTheArgument) {
  const RankPlace place{2, 3, 2, 7, 5, true, "/tmp/a:b c"};
  RankPlace back;
  ASSERT_TRUE(place_parse(place_format(place), &back));
  EXPECT_EQ(back.rank, 2);
  EXPECT_EQ(back.rank_count, 3);
  EXPECT_EQ(back.gpu_count, 2);
  EXPECT_EQ(back.board_fd, 7);
  EXPECT_EQ(back.slot, 5);
  EXPECT_TRUE(back.joins);
  EXPECT_EQ(back.directory, "/tmp/a:b c");
  for (const char* bad : {"", "1", "1:2:1:3:1:0:", "2:2:1:3:1:0:/x", "0:65:1:3:0:0:/x",
                          "0:1:0:3:0:0:/x", "0:1:1:3:64:0:/x", "0:1:1:3:0:/x", "a:1:1:1:0:0:/x"}) {
    EXPECT_FALSE(place_parse(bad, &back)) << bad;
  }
}

}  // namespace
}  // namespace sluice::train

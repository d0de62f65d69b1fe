// The command line of sluice-train: what it takes and what it refuses.
#include "trainer/train/options.h"

#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

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

constexpr const char* kRefused[] = {
    "--nproc 65",
    "--nproc -1",
    "--batch 0",
    "--batch 65537",
    "--hidden 0",
    "--hidden 16385",
    "--hidden 1,1,1,1,1,1,1,1,1",
    "--channels 8",
    "--model rnn",
    "--model cnn --channels 8,8,8,8",
    "--model cnn --channels 0",
    "--model gpt",
    "--model gpt --data /",
    "--model gpt --data synthetic --hidden 5",
    "--model gpt --data synthetic --heads 3",
    "--model gpt --data synthetic --width 1024",
    "--model gpt --data synthetic --vocab /x",
    "--model gpt --data synthetic --vocab /x --merges /y",
    "--model gpt --data synthetic --width 4096 --heads 64 --context 4096 --batch 64",
    "--accumulate 0",
    "--accumulate 1025",
    "--precision fp8",
    "--loss-scale 8",
    "--loss-scale 8 --precision bf16",
    "--loss-scale 0 --precision fp16",
    "--plant-overflow 3",
    "--context 8",
    "--layers 3",
    "--steps 0",
    "--steps 5 --seconds 5",
    "--seconds -1",
    "--momentum 1",
    "--schedule linear",
    "--schedule 1cycle --seconds 5",
    "--schedule 1cycle --lr-warmup 5",
    "--lr-period 5",
    "--lr-low 0.1",
    "--optimizer lamb",
    "--weight-decay 0.1",
    "--clip -1",
    "--data cifar",
    "--sharing presharded",
    "--sharing presharded --data / --train-samples 5",
    "--prefetch 65",
    "--algorithm tree",
    "--comm mpi",
    "--compress zip",
    "--compress topk:2",
    "--compress topk:",
    "--compress topk:0.1x",
    "--compress fp16 --strategy sharded",
    "--precision fp16 --strategy sharded",
    "--gemm cublaslt",
    "--gemm cublaslt --precision bf16 --plan auto",
    "--gemm mkl --precision bf16",
    "--model cnn --pipeline 2",
    "--model gpt --data synthetic --layers 3 --pipeline 2",
    "--model gpt --data synthetic --tensor 2 --compress topk:0.1",
    "--model gpt --data synthetic --tensor 2 --sharing scatter",
    "--precision fp16 --compress topk:0.1",
    "--staleness 2",
    "--strategy async --precision fp16",
    "--strategy async --compress bf16",
    "--strategy async --eval-every 5",
    "--strategy async --sharing scatter",
    "--strategy sharded --offload optimizer",
    "--compress powersgd:0",
    "--compress powersgd:33",
    "--strategy async --elastic 2",
    "--strategy async --split 3,1",
    "--model gpt --tensor 2 --elastic 2",
    "--model gpt --pipeline 2 --elastic 2",
    "--model gpt --tensor 2 --split 3,1",
    "--model gpt --tensor 2 --strategy async",
    "--model gpt --tensor 2 --compress powersgd:2",
    "--model gpt --tensor 2 --offload optimizer",
    "--precision fp16 --compress powersgd:2",
    "--plant-slow 1",
    "--start mpi",
    "--strategy zero",
    "--overlap perhaps",
    "--bucket 3",
    "--as-rank 5:2:1:3:5:0:/tmp",
    "--resume",
    "--checkpoint-every 5",
    "--replace",
    "--split 3,0",
    "--split 3;1",
    "--split 3,1 --elastic 1",
    "--split 3,1 --sharing scatter",
    "--elastic 1 --sharing scatter",
    "--elastic 1 --algorithm bcube",
    "--no-such-flag"};

class RefusedOptions : public testing::TestWithParam<const char*> {};

TEST_P(RefusedOptions, WithExitCodeTwoAndOneLine) {
  std::istringstream words(GetParam());
  const Parsed parsed = parse({std::istream_iterator<std::string>(words), {}});
  EXPECT_FALSE(parsed.ok);
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_EQ(parsed.err.find("sluice: sluice-train: "), 0u) << parsed.err;
}

INSTANTIATE_TEST_SUITE_P(All, RefusedOptions, testing::ValuesIn(kRefused));

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

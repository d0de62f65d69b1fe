// Checkpoints as files: what is read is what was written, damage is seen, and a process that is
// killed at any instant leaves one that can be read.
#include "trainer/train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "tests/trainer/process.h"
#include "trainer/base/random.h"

namespace sluice::train {
namespace {

using tests::ScratchDirectory;

TrainState state_make(std::uint64_t step, std::size_t floats = 100) {
  TrainState state;
  state.step = step;
  state.position = {step / 7, 32 * (step % 7)};
  state.samples = 32 * step;
  state.rank_count = 2;
  state.optimizer.steps = static_cast<int>(step) - 1;
  state.loss_scale = LossScaleState{1.0 / 3 * 65536, step, 3};
  Random random(step);
  const auto draw = [&](std::vector<float>& values) {
    for (std::size_t i = 0; i < floats; ++i) values.push_back(static_cast<float>(random.normal()));
  };
  draw(state.parameters);
  state.optimizer.arrays.resize(2);
  state.errors.resize(2);
  for (auto& array : state.optimizer.arrays) draw(array);
  for (auto& array : state.errors) draw(array);
  draw(state.warm);
  state.clocks = {step, step + 2};
  return state;
}

const CheckpointIdentity kIdentity = {{"model", "784-24-10"}, {"--seed", "1"}};

void expect_same(const TrainState& a, const TrainState& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.position, b.position);
  EXPECT_EQ(a.samples, b.samples);
  EXPECT_EQ(a.rank_count, b.rank_count);
  EXPECT_EQ(a.parameters, b.parameters);
  EXPECT_EQ(a.optimizer.steps, b.optimizer.steps);
  EXPECT_EQ(a.optimizer.arrays, b.optimizer.arrays);
  EXPECT_EQ(a.errors, b.errors);
  EXPECT_EQ(a.warm, b.warm);
  EXPECT_EQ(a.clocks, b.clocks);
  ASSERT_EQ(a.loss_scale.has_value(), b.loss_scale.has_value());
  if (!a.loss_scale) return;
  EXPECT_EQ(a.loss_scale->value, b.loss_scale->value);
  EXPECT_EQ(a.loss_scale->good, b.loss_scale->good);
  EXPECT_EQ(a.loss_scale->skipped, b.loss_scale->skipped);
}

class CheckpointTest : public testing::Test {
 protected:
  std::optional<Checkpoint> newest(CheckpointDirectory& directory,
                                   const CheckpointIdentity& wanted = kIdentity) {
    said_.clear();
    return directory.newest(wanted, [this](const std::string& text) { said_ += text + "\n"; });
  }
  void damage(const std::string& name) {
    std::string bytes = tests::file_text(path_ + "/" + name);
    bytes[bytes.size() / 2] ^= 1;
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
  }
  /// What it throws.
  template <class Work>
  static std::string complaint(Work work) {
    try {
      work();
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "nothing";
  }

  ScratchDirectory scratch_;
  const std::string path_ = scratch_.file("checkpoints");
  std::string said_;
};

TEST_F(CheckpointTest, IsReadAsItWasWritten) {
  TrainState plain = state_make(5);
  plain.loss_scale.reset();
  plain.errors.clear();
  plain.warm.clear();
  plain.clocks.clear();
  for (const TrainState& state : {state_make(12), plain}) {
    const Checkpoint back = checkpoint_decode(checkpoint_encode(state, kIdentity));
    expect_same(back.state, state);
    EXPECT_EQ(back.identity, kIdentity);
  }
}

TEST_F(CheckpointTest, EveryDamageIsSeen) {
  const std::string whole = checkpoint_encode(state_make(3, 5), kIdentity);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] ^= 4;
    EXPECT_THROW(checkpoint_decode(bytes), Failure) << "byte " << at;
    EXPECT_THROW(checkpoint_decode(whole.substr(0, at)), Failure) << "cut at " << at;
  }
  EXPECT_THROW(checkpoint_decode(whole + "x"), Failure);
  std::string other = whole;
  other[8] = 9;
  EXPECT_NE(complaint([&] { checkpoint_decode(other); }).find("version 9"), std::string::npos);
}

TEST_F(CheckpointTest, KeepsTheLastOnesAndFallsBackFromADamagedOne) {
  CheckpointDirectory directory(path_, 3);
  close(directory.lock_take());
  EXPECT_FALSE(newest(directory));
  for (std::uint64_t step = 8; step <= 12; ++step) directory.write(state_make(step), kIdentity);
  EXPECT_EQ(directory.names(),
            (std::vector<std::string>{"step-10.ckpt", "step-11.ckpt", "step-12.ckpt"}));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/step-9.ckpt"));
  expect_same(newest(directory)->state, state_make(12));
  EXPECT_EQ(said_, "");

  damage("step-12.ckpt");
  std::filesystem::remove(path_ + "/step-11.ckpt");
  expect_same(newest(directory)->state, state_make(10));
  EXPECT_NE(said_.find("step-12.ckpt cannot be used: its checksum does not fit; going back"),
            std::string::npos)
      << said_;
  // What could not be read stays, and does not push out what can.
  directory.write(state_make(11), kIdentity);
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"step-10.ckpt", "step-11.ckpt"}));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/step-12.ckpt"));

  damage("manifest");
  expect_same(newest(directory)->state, state_make(11));
  damage("step-10.ckpt");
  damage("step-11.ckpt");
  EXPECT_NE(complaint([&] { newest(directory); }).find("none of the checkpoints"),
            std::string::npos);
}

TEST_F(CheckpointTest, OfAnotherJobIsRefusedAndStays) {
  CheckpointDirectory directory(path_);
  close(directory.lock_take());
  directory.write(state_make(4), kIdentity);
  const CheckpointIdentity other = {{"model", "784-32-10"}, {"--seed", "1"}};
  const std::string text = complaint([&] { newest(directory, other); });
  EXPECT_NE(text.find("model: 784-24-10 in the checkpoint, 784-32-10 now"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("--seed"), std::string::npos) << text;
  expect_same(newest(directory)->state, state_make(4));
}

TEST_F(CheckpointTest, OneJobWritesToADirectory) {
  CheckpointDirectory directory(path_);
  const int lock = directory.lock_take();
  CheckpointDirectory other(path_);
  EXPECT_NE(complaint([&] { other.lock_take(); }).find("another job writes"), std::string::npos);
  close(lock);
  close(other.lock_take());
}

/// Runs `work` in a process of its own; how it ended.
template <class Work>
int in_child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_F(CheckpointTest, AKillBetweenAnyTwoStepsLeavesTheNewestOrTheOneBefore) {
  close(CheckpointDirectory(path_).lock_take());
  std::uint64_t step = 1;
  CheckpointDirectory(path_).write(state_make(step), kIdentity);
  int stops = 0;
  for (bool killed = true; killed; ++stops) {
    const std::uint64_t last = step++;
    const int status = in_child([&] {
      int left = stops;
      CheckpointDirectory directory(path_, 2, [&](const char*) {
        if (left-- == 0) raise(SIGKILL);
      });
      directory.write(state_make(step), kIdentity);
    });
    killed = WIFSIGNALED(status);
    CheckpointDirectory directory(path_);
    const auto found = newest(directory);
    ASSERT_TRUE(found) << "stop " << stops;
    EXPECT_EQ(said_, "") << "stop " << stops;
    EXPECT_TRUE(found->state.step == last || found->state.step == step) << "stop " << stops;
    expect_same(found->state, state_make(found->state.step));
    step = found->state.step;
  }
  EXPECT_GE(stops, 12) << "two files of six steps each";
  CheckpointDirectory directory(path_);
  EXPECT_EQ(directory.names().size(), 2u);
}

TEST_F(CheckpointTest, AKillAtARandomInstantLeavesOneThatIsWhole) {
  close(CheckpointDirectory(path_).lock_take());
  CheckpointDirectory(path_).write(state_make(1, 1000), kIdentity);
  Random random(std::random_device{}());
  std::uint64_t step = 1;
  for (int round = 0; round < 25; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      CheckpointDirectory directory(path_);
      for (std::uint64_t next = step + 1;; ++next)
        directory.write(state_make(next, 1000), kIdentity);
    }
    sleep_until(now_ns() + static_cast<Nanos>(random.below(60'000'000)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    CheckpointDirectory directory(path_);
    const auto found = newest(directory);
    ASSERT_TRUE(found);
    EXPECT_EQ(said_, "");
    EXPECT_GE(found->state.step, step) << "what was complete is there";
    expect_same(found->state, state_make(found->state.step, 1000));
    step = found->state.step;
  }
  EXPECT_GT(step, 1u);
}

TEST(TrainState, WhatIsKeptBackIsSharedOutAgainWhole) {
  TrainState state = state_make(1, 4);
  state.errors = {{1, 2, 3, 4}, {10, 20, 30, 40}, {100, 200, 300, 400}};
  EXPECT_EQ(errors_of(state, 1, 3), state.errors[1]);
  EXPECT_EQ(errors_of(state, 0, 2), (std::vector<float>{101, 202, 303, 404}));
  EXPECT_EQ(errors_of(state, 1, 2), state.errors[1]);
  EXPECT_TRUE(errors_of(state, 3, 4).empty());
}

}  // namespace
}  // namespace sluice::train

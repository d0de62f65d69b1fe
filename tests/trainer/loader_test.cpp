// The loader of batches: the same batches in the same order for every depth, never further ahead
// than its slots, and an end on every path.
#include "trainer/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace sluice::train {
namespace {

constexpr Nanos kHour = 3600 * kNanosPerSecond;

class LoaderTest : public testing::Test {
 protected:
  std::vector<LoadedBatch> slots(std::size_t count) {
    inputs_.assign(count, 0.0f);
    std::vector<LoadedBatch> out(count);
    for (std::size_t i = 0; i < count; ++i) out[i].inputs = &inputs_[i];
    return out;
  }
  /// A batch holds its step's number; made_ counts them.
  Loader::Fill numbering() {
    return [this](std::uint64_t step, LoadedBatch& batch) {
      *static_cast<float*>(batch.inputs) = static_cast<float>(step);
      batch.count = static_cast<std::uint32_t>(step % 3);
      ++made_;
    };
  }

  std::vector<float> inputs_;
  std::atomic<std::uint64_t> made_{0};
};

TEST_F(LoaderTest, GivesTheSameBatchesForEveryDepth) {
  for (const std::size_t count : {1u, 2u, 3u, 8u}) {
    Loader loader(slots(count), {50, 0}, numbering());
    for (std::uint64_t step = 0; step < 50; ++step) {
      const LoadedBatch& batch = loader.next();
      // A batch stays as it is for as long as it is in use.
      if (step % 10 == 0) sleep_until(now_ns() + kNanosPerMilli);
      ASSERT_EQ(*static_cast<float*>(batch.inputs), static_cast<float>(step)) << count;
      ASSERT_EQ(batch.count, step % 3);
    }
  }
}

TEST_F(LoaderTest, MakesNoBatchBeyondItsSlotsOrTheLastStep) {
  Loader loader(slots(4), {6, 0}, numbering());
  const auto settle = [&](std::uint64_t expected) {
    for (int look = 0; look < 5000 && made_ < expected; ++look)
      sleep_until(now_ns() + kNanosPerMilli);
    // One more would show now.
    sleep_until(now_ns() + 10 * kNanosPerMilli);
    return made_.load();
  };
  EXPECT_EQ(settle(4), 4u);
  loader.next();  // in use: its slot is not free yet
  EXPECT_EQ(settle(4), 4u);
  loader.next();
  EXPECT_EQ(settle(5), 5u);
  loader.next();
  loader.next();
  EXPECT_EQ(settle(6), 6u);
}

TEST_F(LoaderTest, WithOneSlotNothingIsMadeBeforeItIsAskedFor) {
  Loader loader(slots(1), {6, 0}, numbering());
  EXPECT_EQ(made_, 0u);
  loader.next();
  EXPECT_EQ(made_, 1u);
}

TEST_F(LoaderTest, EndsWhileItWaitsForASlotAndWhileItWaitsForTheStore) {
  {
    Loader full(slots(2), {}, numbering());
    full.next();
  }
  { const Loader slow(slots(2), {UINT64_MAX, kHour}, numbering()); }
  EXPECT_LE(made_, 2u);
}

TEST_F(LoaderTest, AFailureComesOutInItsTurn) {
  for (const std::size_t count : {1u, 4u}) {
    Loader loader(slots(count), {}, [](std::uint64_t step, LoadedBatch& batch) {
      if (step == 2) throw std::runtime_error("no such sample");
      batch.count = static_cast<std::uint32_t>(step);
    });
    EXPECT_EQ(loader.next().count, 0u);
    EXPECT_EQ(loader.next().count, 1u);
    EXPECT_THROW(loader.next(), std::runtime_error) << count;
  }
}

/// Wall time of `steps` steps of t_c = 8 ms with a store of t_io = 8 ms a batch, and the stall in
/// it.
struct Took {
  double wall_ms = 0;
  double stall_ms = 0;
};

TEST_F(LoaderTest, TimedAheadTakesTheLongerOfLoadingAndComputingInsteadOfTheirSum) {
  constexpr int kSteps = 25;
  constexpr Nanos kEach = 8 * kNanosPerMilli;
  const auto took = [&](std::size_t count) {
    const Nanos begin = now_ns();
    Nanos stall = 0;
    Loader loader(slots(count), {kSteps, kEach}, numbering());
    for (int step = 0; step < kSteps; ++step) {
      loader.next();
      stall += loader.stall_ns();
      sleep_until(now_ns() + kEach);
    }
    return Took{millis_of(now_ns() - begin), millis_of(stall)};
  };
  const Took alone = took(1);
  // The sum: sleeps are never shorter than asked for.
  EXPECT_GE(alone.wall_ms, 2.0 * 8 * kSteps);
  EXPECT_GE(alone.stall_ms, 8.0 * kSteps);
  // Ahead: 26 x 8 ms instead of 50 x 8 ms when nothing disturbs; the best of three.
  Took ahead = took(3);
  for (int run = 0; run < 2; ++run) {
    const Took again = took(3);
    if (again.wall_ms < ahead.wall_ms) ahead = again;
  }
  EXPECT_LT(ahead.wall_ms, 0.75 * alone.wall_ms);
  EXPECT_LT(ahead.stall_ms, 0.5 * alone.stall_ms);
}

}  // namespace
}  // namespace sluice::train

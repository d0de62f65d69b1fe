// The rule of bounded staleness by itself: who may go on, and how old gradients can become.
#include "trainer/train/async.h"

#include <gtest/gtest.h>

#include "trainer/base/random.h"

namespace sluice::train {
namespace {

TEST(StalenessBook, AWorkerMayBeTheBoundAheadAndNoMore) {
  StalenessBook book(2, 2);
  for (int worker = 0; worker < 2; ++worker) book.weights_given(worker);
  for (std::uint64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(book.may_begin(0)) << step;
    book.weights_given(0);
    EXPECT_EQ(book.updated({0}), 0u);
  }
  EXPECT_EQ(book.ahead(0), 3u);
  EXPECT_FALSE(book.may_begin(0));
  EXPECT_TRUE(book.may_begin(1));
  EXPECT_EQ(book.updated({1}), 3u) << "three updates since it was given weights";
  EXPECT_TRUE(book.may_begin(0));
  EXPECT_EQ(book.ahead_max(), 2u);
  EXPECT_EQ(book.age_max(), 3u);
  EXPECT_EQ(book.age_mean(), 0.75);
  EXPECT_EQ(book.ages(), (std::map<std::uint64_t, std::uint64_t>{{0, 3}, {3, 1}}));
}

TEST(StalenessBook, OneUpdateOfAllWorkersIsNeverOld) {
  StalenessBook book(3, 0);
  for (int round = 0; round < 4; ++round) {
    for (int worker = 0; worker < 3; ++worker) {
      EXPECT_TRUE(book.may_begin(worker));
      book.weights_given(worker);
    }
    EXPECT_EQ(book.updated({0, 1, 2}), 0u);
  }
  EXPECT_EQ(book.updates(), 4u);
  EXPECT_EQ(book.ahead_max(), 0u);
}

TEST(StalenessBook, GoesOnFromWhereWorkersWere) {
  StalenessBook book(2, 2);
  book.begin_at({5, 7});
  for (int worker = 0; worker < 2; ++worker) book.weights_given(worker);
  EXPECT_EQ(book.clocks(), (std::vector<std::uint64_t>{5, 7}));
  EXPECT_EQ(book.ahead(1), 2u);
  EXPECT_EQ(book.updates(), 12u);
  EXPECT_EQ(book.updated({1}), 0u) << "the weights are new to all";
  EXPECT_FALSE(book.may_begin(1));
  EXPECT_EQ(book.updated({0}), 1u);
  EXPECT_EQ(book.age_mean(), 0.5) << "of the updates made here";
  StalenessBook together(2, 0);
  together.begin_at({5, 5});
  EXPECT_EQ(together.updates(), 5u);
}

/// Whatever the order in which workers end their steps. While a worker makes one step, another can
/// make 2 S + 1 at most: it may have been S behind, and may end S + 1 ahead.
TEST(StalenessBook, AgesStayBelowTheirBoundInAnyOrder) {
  for (const auto& [workers, bound] : {std::pair{2, 1u}, {3, 0u}, {4, 2u}, {5, 8u}}) {
    std::uint64_t oldest = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      StalenessBook book(workers, bound);
      std::vector<bool> works(static_cast<std::size_t>(workers), true);
      for (int worker = 0; worker < workers; ++worker) book.weights_given(worker);
      Random random(seed, 0);
      for (int event = 0; event < 400; ++event) {
        // Some are slow: the higher the number, the less often they end a step.
        const double share = random.uniform() * random.uniform();
        const int worker = static_cast<int>(share * workers);
        if (!works[static_cast<std::size_t>(worker)]) continue;
        book.updated({worker});
        works[static_cast<std::size_t>(worker)] = false;
        for (int other = 0; other < workers; ++other) {
          if (works[static_cast<std::size_t>(other)] || !book.may_begin(other)) continue;
          book.weights_given(other);
          works[static_cast<std::size_t>(other)] = true;
        }
      }
      EXPECT_LE(book.ahead_max(), bound);
      EXPECT_LE(book.age_max(), static_cast<std::uint64_t>(workers - 1) * (2 * bound + 1));
      oldest = std::max(oldest, book.age_max());
    }
    EXPECT_GE(oldest, static_cast<std::uint64_t>(workers - 1)) << "the others' one update each";
  }
}

TEST(SlowRank, SaysWhoAndHowLongAndHowOften) {
  EXPECT_EQ(slow_parse("2:500")->rank, 2);
  EXPECT_EQ(slow_parse("2:500")->us, 500u);
  EXPECT_EQ(slow_parse("2:500")->every, 1u);
  EXPECT_EQ(slow_parse("0:7:10")->every, 10u);
  for (const char* text : {"", "2", "2:", "-1:5", "1:5:0", "1:5:2x", "1:5x", "1:999999999"})
    EXPECT_FALSE(slow_parse(text)) << text;
}

}  // namespace
}  // namespace sluice::train

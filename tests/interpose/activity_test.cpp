// The union of busy stretches that come stream by stream, and the gaps that are final.
#include "interpose/activity.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice::interpose {
namespace {

class StretchesTest : public ::testing::Test {
 protected:
  /// All gaps before the frontier: "10-20 by 7, ...".
  std::string gaps(uint64_t frontier_ns = UINT64_MAX) {
    std::string out;
    Stretches::Stretch gap{};
    while (stretches_.gap_take(frontier_ns, &gap)) {
      out += (out.empty() ? "" : ", ") + std::to_string(gap.begin_ns) + "-" +
             std::to_string(gap.end_ns) + " by " + std::to_string(gap.thread);
    }
    return out;
  }
  Stretches stretches_;
};

TEST_F(StretchesTest, GapsLieBetweenStretchesAndBelongToWhoEndsThem) {
  stretches_.begin(100);
  stretches_.add({150, 200, 7});
  stretches_.add({200, 250, 0});
  stretches_.add({300, 310, 8});
  EXPECT_EQ(gaps(), "100-150 by 7, 250-300 by 8");
  EXPECT_EQ(stretches_.settled_ns(), 310u);
  EXPECT_EQ(gaps(), "");
  stretches_.begin(900);  // it has begun
  stretches_.add({400, 410, 9});
  EXPECT_EQ(gaps(), "310-400 by 9");
}

TEST_F(StretchesTest, OverlappingStreamsLeaveOnlyWhatNoneCovers) {
  stretches_.begin(100);
  stretches_.add({200, 300, 1});
  stretches_.add({400, 500, 1});
  stretches_.add({250, 420, 2});
  stretches_.add({90, 150, 3});
  EXPECT_EQ(gaps(), "150-200 by 1");
  EXPECT_EQ(stretches_.settled_ns(), 500u);
  stretches_.add({350, 480, 2});  // of the past
  EXPECT_EQ(gaps(), "");
  EXPECT_EQ(stretches_.settled_ns(), 500u);
}

TEST_F(StretchesTest, NothingBehindTheFrontierIsFinal) {
  stretches_.begin(100);
  stretches_.add({200, 300, 1});
  stretches_.add({500, 600, 1});
  // Another stream has been busy since 350, nobody knows until when.
  EXPECT_EQ(gaps(350), "100-200 by 1");
  EXPECT_EQ(stretches_.settled_ns(), 300u);
  stretches_.add({350, 550, 2});
  EXPECT_EQ(gaps(), "300-350 by 2");
  EXPECT_EQ(stretches_.settled_ns(), 600u);
}

TEST_F(StretchesTest, SoManyThatTheyDoNotFitMakeLessOfTheIdleness) {
  stretches_.begin(0);
  stretches_.begin(1);
  const unsigned count = kStretchesMax + 3;
  for (unsigned i = 1; i <= count; ++i) stretches_.add({i * 10, i * 10 + 5, i});
  const std::string all = gaps();
  EXPECT_EQ(all.substr(0, 21), "1-10 by 1, 45-50 by 5");
  EXPECT_EQ(stretches_.settled_ns(), count * 10 + 5);
}

}  // namespace
}  // namespace sluice::interpose

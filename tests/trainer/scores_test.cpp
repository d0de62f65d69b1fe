// The scores of a classifier against values worked out by hand.
#include "trainer/model/scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sluice::train {
namespace {

// Seven samples of three classes, and what is said of them:
//   label   scores            answer
//     0     0.75 0.25 0.00      0
//     0     0.50 0.25 0.25      0
//     0     0.25 0.50 0.25      1
//     1     0.25 0.50 0.25      1
//     1     0.50 0.25 0.25      0
//     2     0.00 0.25 0.75      2
//     2     0.25 0.25 0.50      2
const std::vector<double> kSaid = {0.75, 0.25, 0.00, 0.50, 0.25, 0.25, 0.25, 0.50, 0.25, 0.25, 0.50,
                                   0.25, 0.50, 0.25, 0.25, 0.00, 0.25, 0.75, 0.25, 0.25, 0.50};
const std::vector<std::uint8_t> kLabels = {0, 0, 0, 1, 1, 2, 2};

TEST(Scores, OfAGoldenExample) {
  const Scores scores = scores_of(kSaid, kLabels, 3);
  EXPECT_DOUBLE_EQ(scores.accuracy, 5.0 / 7);
  // Right of labelled: 2 of 3, 1 of 2, 2 of 2.
  EXPECT_DOUBLE_EQ(scores.recall, (2.0 / 3 + 1.0 / 2 + 1) / 3);
  // TP, FP, FN: 2 1 1, 1 1 1, 2 0 0.
  EXPECT_DOUBLE_EQ(scores.f1, (4.0 / 6 + 2.0 / 4 + 1) / 3);
  // Class 0: 0.75 0.50 0.25 against 0.25 0.50 0.00 0.25: 4 + 3.5 + (1 + 0.5 + 0.5) = 9.5 of 12.
  // Class 1: 0.50 0.25 against 0.25 0.25 0.50 0.25 0.25: 4.5 + 2 = 6.5 of 10.
  // Class 2: 0.75 0.50 against nothing above 0.25: all 10 of 10.
  EXPECT_DOUBLE_EQ(scores.roc_auc, (9.5 / 12 + 6.5 / 10 + 1) / 3);
}

TEST(Scores, ClassesThatDoNotOccurAreLeftOut) {
  // Class 2 is answered once and never right, class 3 is neither.
  const std::vector<double> said = {0.6, 0.4, 0.0, 0.0, 0.1, 0.2, 0.7, 0.0, 0.3, 0.7, 0.0, 0.0};
  const std::vector<std::uint8_t> labels = {0, 0, 1};
  const Scores scores = scores_of(said, labels, 4);
  EXPECT_DOUBLE_EQ(scores.accuracy, 2.0 / 3);
  EXPECT_DOUBLE_EQ(scores.recall, (1.0 / 2 + 1) / 2);
  EXPECT_DOUBLE_EQ(scores.f1, (2.0 / 3 + 1 + 0) / 3);
  // Class 0: 0.6 0.1 against 0.3: 1 of 2. Class 1: 0.7 against 0.4 0.2: 2 of 2.
  EXPECT_DOUBLE_EQ(scores.roc_auc, (1.0 / 2 + 1) / 2);
}

TEST(Scores, WithoutASecondClassThereIsNoCurve) {
  const std::vector<double> said = {0.9, 0.1, 0.2, 0.8};
  const std::vector<std::uint8_t> labels = {0, 0};
  const Scores scores = scores_of(said, labels, 2);
  EXPECT_DOUBLE_EQ(scores.recall, 0.5);
  EXPECT_TRUE(std::isnan(scores.roc_auc));
  EXPECT_TRUE(std::isnan(scores_of({}, {}, 2).accuracy));
}

TEST(Scores, NumbersThatAreNoneHaveNoCurve) {
  std::vector<double> said = kSaid;
  said[4] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(scores_of(said, kLabels, 3).roc_auc));
}

TEST(Scores, ConstantAnswersAreWorthAHalf) {
  const std::vector<double> said(21, 1.0 / 3);
  EXPECT_DOUBLE_EQ(scores_of(said, kLabels, 3).roc_auc, 0.5);
}

TEST(Softmax, OfRowsByThemselvesAlsoOfLargeLogits) {
  const std::vector<float> logits = {0.0f, std::log(3.0f), 1000.0f, 1000.0f};
  const std::vector<double> out = softmax_of(logits, 2);
  EXPECT_NEAR(out[0], 0.25, 1e-7);
  EXPECT_NEAR(out[1], 0.75, 1e-7);
  EXPECT_EQ(out[2], 0.5);
  EXPECT_EQ(out[3], 0.5);
}

}  // namespace
}  // namespace sluice::train

// How good a classifier is, from what it says about every test sample: beside the accuracy the mean
// over the classes of recall, F1 and the area under the one-vs-rest ROC curve. On the CPU, once per
// training. Definitions: Fawcett, "An introduction to ROC analysis", Pattern Recognition Letters 27
// (2006); the area is the Mann-Whitney statistic, in which a tie counts one half.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::train {

/// NaN where no class has what the figure needs.
struct Scores {
  double accuracy;
  double recall;   // mean over the classes that occur
  double f1;       // 2 TP / (2 TP + FP + FN), mean over the classes that occur or are answered
  double roc_auc;  // mean over the classes that occur while another does, too
};

/// scores: [labels.size(), classes], higher = more likely; the answer is the first of the highest.
/// Labels are below `classes`.
Scores scores_of(std::span<const double> scores, std::span<const std::uint8_t> labels, int classes);

/// The probabilities that logits [rows, classes] stand for. One class's logits of two samples
/// cannot be compared with each other; its probabilities can.
std::vector<double> softmax_of(std::span<const float> logits, int classes);

}  // namespace sluice::train

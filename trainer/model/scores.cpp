// See scores.h.
#include "trainer/model/scores.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

namespace sluice::train {
namespace {

/// The mean of what was put; NaN of nothing.
class Mean {
 public:
  void put(double value) {
    sum_ += value;
    ++count_;
  }
  double value() const {
    return count_ > 0 ? sum_ / count_ : std::numeric_limits<double>::quiet_NaN();
  }

 private:
  double sum_ = 0;
  int count_ = 0;
};

struct ClassCounts {
  std::uint64_t labelled = 0;  // TP + FN
  std::uint64_t answered = 0;  // TP + FP
  std::uint64_t right = 0;     // TP
};

/// Of all pairs of a sample of the class and one of another, how many have the first ranked higher.
/// Whole numbers throughout: twice the pairs that are right, plus the ties.
double area_under_roc(std::span<const double> column, std::span<const std::uint8_t> labels,
                      std::size_t label) {
  std::vector<std::size_t> order(column.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return column[a] < column[b]; });
  std::uint64_t twice_won = 0;
  std::uint64_t others_below = 0;
  std::uint64_t of_class = 0;
  for (std::size_t i = 0; i < order.size();) {
    std::uint64_t tied[2] = {0, 0};  // others, of the class
    const double value = column[order[i]];
    for (; i < order.size() && column[order[i]] == value; ++i) ++tied[labels[order[i]] == label];
    twice_won += tied[1] * (2 * others_below + tied[0]);
    others_below += tied[0];
    of_class += tied[1];
  }
  return static_cast<double>(twice_won) / (2.0 * static_cast<double>(of_class * others_below));
}

}  // namespace

Scores scores_of(std::span<const double> scores, std::span<const std::uint8_t> labels,
                 int classes) {
  const auto width = static_cast<std::size_t>(classes);
  assert(scores.size() == labels.size() * width);
  std::vector<ClassCounts> counts(width);
  for (std::size_t row = 0; row < labels.size(); ++row) {
    const auto first = scores.begin() + static_cast<std::ptrdiff_t>(row * width);
    const auto answer = static_cast<std::size_t>(
        std::max_element(first, first + static_cast<std::ptrdiff_t>(width)) - first);
    assert(labels[row] < width);
    ++counts[labels[row]].labelled;
    ++counts[answer].answered;
    if (answer == labels[row]) ++counts[answer].right;
  }
  // Numbers that are none have no order.
  const bool ordered =
      std::all_of(scores.begin(), scores.end(), [](double one) { return !std::isnan(one); });
  Mean accuracy, recall, f1, area;
  std::vector<double> column(labels.size());
  for (std::size_t label = 0; label < width; ++label) {
    const ClassCounts& count = counts[label];
    const auto right = static_cast<double>(count.right);
    if (count.labelled > 0) recall.put(right / static_cast<double>(count.labelled));
    if (count.labelled + count.answered > 0)
      f1.put(2 * right / static_cast<double>(count.labelled + count.answered));
    if (!ordered || count.labelled == 0 || count.labelled == labels.size()) continue;
    for (std::size_t row = 0; row < labels.size(); ++row) column[row] = scores[row * width + label];
    area.put(area_under_roc(column, labels, label));
  }
  std::uint64_t right = 0;
  for (const ClassCounts& count : counts) right += count.right;
  if (!labels.empty())
    accuracy.put(static_cast<double>(right) / static_cast<double>(labels.size()));
  return {accuracy.value(), recall.value(), f1.value(), area.value()};
}

std::vector<double> softmax_of(std::span<const float> logits, int classes) {
  const auto width = static_cast<std::size_t>(classes);
  assert(logits.size() % width == 0);
  std::vector<double> out(logits.begin(), logits.end());
  for (std::size_t row = 0; row < out.size(); row += width) {
    const auto values = std::span(out).subspan(row, width);
    const double highest = *std::max_element(values.begin(), values.end());
    double sum = 0;
    for (double& value : values) sum += value = std::exp(value - highest);
    for (double& value : values) value /= sum;
  }
  return out;
}

}  // namespace sluice::train

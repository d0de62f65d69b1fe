// Percentiles of a job's own figures, as printed in its summary.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

namespace sluice::train {

/// The smallest value that at least `percent` of the values do not exceed (nearest rank); 0 of no
/// values.
template <class T>
T percentile(std::vector<T> values, double percent) {
  assert(percent > 0 && percent <= 100);
  if (values.empty()) return T{};
  const auto rank =
      static_cast<std::size_t>(std::ceil(percent / 100.0 * static_cast<double>(values.size())));
  const std::size_t index = std::max<std::size_t>(rank, 1) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index),
                   values.end());
  return values[index];
}

}  // namespace sluice::train

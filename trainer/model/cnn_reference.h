// The convolutional network in float64 on the CPU, forward only, from the kernels' references: its
// gradients are checked by finite differences. Slow on purpose; used by tests only.
#pragma once

#include <span>
#include <vector>

#include "trainer/model/cnn.h"

namespace sluice::train {

/// Logits [items, shape.classes] of images [items, side, side].
std::vector<double> cnn_reference(const CnnShape& shape, std::span<const double> parameters,
                                  std::span<const double> images);

}  // namespace sluice::train

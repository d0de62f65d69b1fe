// The same network in float64 on the CPU, from the kernels' references: what the device's loss and
// gradients are checked against. Slow on purpose; used by tests only.
#pragma once

#include <span>
#include <vector>

#include "trainer/model/mlp.h"

namespace sluice::train {

struct MlpGradient {
  double loss;                    // mean over the batch
  std::vector<double> gradients;  // flat, of the mean loss
  std::vector<double> logits;
};

/// inputs: [labels.size(), shape.inputs()]
MlpGradient mlp_reference(const MlpShape& shape, std::span<const double> parameters,
                          std::span<const double> inputs, std::span<const int> labels);

}  // namespace sluice::train

// The transformer in float64 on the CPU, forward only, from the kernels' references: its gradients
// are checked by finite differences. Slow on purpose; used by tests only.
#pragma once

#include <span>
#include <vector>

#include "trainer/model/gpt.h"

namespace sluice::train {

/// Logits [tokens.size(), shape.vocabulary] of texts of shape.context tokens each.
std::vector<double> gpt_reference(const GptShape& shape, std::span<const double> parameters,
                                  std::span<const int> tokens);

}  // namespace sluice::train

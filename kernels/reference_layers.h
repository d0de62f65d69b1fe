// What the layers' kernels should compute, in float64 on the CPU; see reference.h. Forward
// only: tests check gradients by finite differences of these; reference_backward.h has formulas.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kernels/layers.h"

namespace sluice::kernels::reference {

using Values = std::vector<double>;

Values layer_norm(int rows, int columns, double epsilon, std::span<const double> x,
                  std::span<const double> gain, std::span<const double> bias);
Values softmax(int rows, int columns, std::span<const double> x);
Values gelu(std::span<const double> x);
Values embedding(int columns, int length, std::span<const int> tokens,
                 std::span<const double> tokens_table, std::span<const double> positions_table);
/// out[items, length, heads, size] of qkv[items, length, 3, heads, size]
Values attention(const AttentionShape& shape, std::span<const double> qkv);
/// out[items, out_height, out_width, filters]
Values convolution(const WindowShape& shape, int filters, std::span<const double> x,
                   std::span<const double> weights);
Values max_pool(int items, int height, int width, int channels, int window,
                std::span<const double> x);

/// The gradient of sum(direction . function(x)) with respect to x by central differences. In
/// float64 a step of 1e-5 leaves an error near 1e-10 of the third derivative.
Values finite_difference(const std::function<Values(std::span<const double>)>& function,
                         std::span<const double> x, std::span<const double> direction,
                         double step = 1e-5);

}  // namespace sluice::kernels::reference

// The gradients of the layers in float64 on the CPU, by their formulas: what the backward kernels
// should compute, where finite differences of reference_layers.h would take too long. Tests hold
// these to finite differences on small shapes (tests/kernels/reference_backward_test.cpp).
//
// `direction` is the gradient of the loss with respect to the layer's output.
#pragma once

#include <span>
#include <vector>

#include "kernels/layers.h"

namespace sluice::kernels::reference {

using Values = std::vector<double>;

struct LayerNormGradients {
  Values input;  // [rows, columns]
  Values gain;   // [columns]
  Values bias;   // [columns]
};
LayerNormGradients layer_norm_backward(int rows, int columns, double epsilon,
                                       std::span<const double> x, std::span<const double> gain,
                                       std::span<const double> direction);
/// From the input, not from the output as the kernel's.
Values softmax_backward(int rows, int columns, std::span<const double> x,
                        std::span<const double> direction);
Values gelu_backward(std::span<const double> x, std::span<const double> direction);
/// Of the table of `token_count` tokens.
Values embedding_backward(int token_count, int columns, std::span<const int> tokens,
                          std::span<const double> direction);
/// Of the table of positions [length, columns].
Values position_backward(int length, int columns, std::span<const double> direction);
/// Of qkv [items, length, 3, heads, size].
Values attention_backward(const AttentionShape& shape, std::span<const double> qkv,
                          std::span<const double> direction);

struct ConvolutionGradients {
  Values input;
  Values weights;
};
ConvolutionGradients convolution_backward(const WindowShape& shape, int filters,
                                          std::span<const double> x,
                                          std::span<const double> weights,
                                          std::span<const double> direction);
/// Of equals the first takes the gradient.
Values max_pool_backward(int items, int height, int width, int channels, int window,
                         std::span<const double> x, std::span<const double> direction);

}  // namespace sluice::kernels::reference

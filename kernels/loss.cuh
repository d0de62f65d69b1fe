// Softmax cross-entropy, forward and backward in one pass, and the count of right answers. One warp
// per row: the row's maximum and sum are found by butterfly shuffles, whose order is fixed.
#pragma once

#include "kernels/reduce.cuh"

/// losses[row] = -log softmax(logits[row])[labels[row]]; where gradient is not null also
/// gradient[row, column] = (softmax - one hot) factor. The row's maximum is subtracted first, so no
/// exponent overflows.
extern "C" __global__ void __launch_bounds__(128)
    softmax_cross_entropy(int rows, int columns, float factor, const float* logits,
                          const int* labels, float* losses, float* gradient) {
  using namespace sluice::kernels::device;
  const int row = static_cast<int>(blockIdx.x * 4 + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= rows) return;
  const float* from = logits + static_cast<long>(row) * columns;
  const auto [highest, sum] = row_shares(from, columns, lane);
  const int label = labels[row];
  if (lane == 0) losses[row] = logf(sum) - (from[label] - highest);
  if (gradient == nullptr) return;
  float* to = gradient + static_cast<long>(row) * columns;
  for (int i = lane; i < columns; i += 32) {
    to[i] = (expf(from[i] - highest) / sum - (i == label ? 1.0f : 0.0f)) * factor;
  }
}

/// count += rows whose largest logit (the first of equals) is at the label. Integer atomics: the
/// order cannot matter.
extern "C" __global__ void __launch_bounds__(128)
    correct_count(int rows, int columns, const float* logits, const int* labels, int* count) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  const float* from = logits + static_cast<long>(row) * columns;
  int best = 0;
  for (int i = 1; i < columns; ++i) {
    if (from[i] > from[best]) best = i;
  }
  if (best == labels[row]) atomicAdd(count, 1);
}

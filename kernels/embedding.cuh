// Token and position embeddings, forward and backward. Gradients of the token table are added up by
// one block per token that occurs, over its rows in order: no atomics, the same bits every time.
#pragma once

#include "kernels/reduce.cuh"

/// out[row] = tokens_table[tokens[row]] + positions_table[row % length]; rows are batch x length
extern "C" __global__ void __launch_bounds__(256)
    embedding_forward(int rows, int columns, int length, const int* tokens,
                      const float* tokens_table, const float* positions_table, float* out) {
  const long i = sluice::kernels::device::thread_index();
  if (i >= static_cast<long>(rows) * columns) return;
  const int row = static_cast<int>(i / columns);
  const int column = static_cast<int>(i % columns);
  out[i] = tokens_table[static_cast<long>(tokens[row]) * columns + column] +
           positions_table[static_cast<long>(row % length) * columns + column];
}

/// table_gradient[token] += sum of gradient over the rows of that token. `order` lists the rows by
/// token (stable), `starts` where each of the `distinct` tokens begins in it, and its end.
extern "C" __global__ void __launch_bounds__(128)
    embedding_backward(int columns, const int* starts, const int* order, const int* tokens,
                       const float* gradient, float* table_gradient) {
  const int begin = starts[blockIdx.x];
  const int end = starts[blockIdx.x + 1];
  float* to = table_gradient + static_cast<long>(tokens[order[begin]]) * columns;
  for (int column = static_cast<int>(threadIdx.x); column < columns; column += 128) {
    float sum = to[column];
    for (int i = begin; i < end; ++i)
      sum += gradient[static_cast<long>(order[i]) * columns + column];
    to[column] = sum;
  }
}

/// table_gradient[position] += sum over the batch of gradient at that position
extern "C" __global__ void __launch_bounds__(256)
    position_backward(int batch, int length, int columns, const float* gradient,
                      float* table_gradient) {
  const long i = sluice::kernels::device::thread_index();
  const long stride = static_cast<long>(length) * columns;
  if (i >= stride) return;
  float sum = table_gradient[i];
  for (int item = 0; item < batch; ++item) sum += gradient[item * stride + i];
  table_gradient[i] = sum;
}

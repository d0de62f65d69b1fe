// Element-wise kernels and sums over columns: bias and ReLU, their backward passes, the SGD update,
// scale and add. All are deterministic: no floating-point atomics, and every sum has one fixed
// order.
#pragma once

#include "kernels/reduce.cuh"

/// x[rows, columns] += bias[columns]
extern "C" __global__ void __launch_bounds__(256)
    bias_forward(int rows, int columns, const float* bias, float* x) {
  const long i = sluice::kernels::device::thread_index();
  if (i < static_cast<long>(rows) * columns)
    x[i] += bias[static_cast<unsigned>(i) % static_cast<unsigned>(columns)];
}

/// x[rows, columns] = max(0, x + bias[columns]); one pass over memory instead of two
extern "C" __global__ void __launch_bounds__(256)
    bias_relu_forward(int rows, int columns, const float* bias, float* x) {
  const long i = sluice::kernels::device::thread_index();
  if (i < static_cast<long>(rows) * columns)
    x[i] = fmaxf(0.0f, x[i] + bias[static_cast<unsigned>(i) % static_cast<unsigned>(columns)]);
}

/// gradient[i] = 0 where the forward result was cut off; the output tells, so the input need not be
/// kept
extern "C" __global__ void __launch_bounds__(256)
    relu_backward(int count, const float* output, float* gradient) {
  const long i = sluice::kernels::device::thread_index();
  if (i < count && !(output[i] > 0.0f)) gradient[i] = 0.0f;
}

/// sums[column] = sum over rows of x[row, column]. Eight threads share a column, each taking every
/// eighth row in order; the eight partial sums are added as a tree, so the order never depends on
/// timing.
extern "C" __global__ void __launch_bounds__(256)
    column_sum(int rows, int columns, const float* x, float* sums) {
  __shared__ float partial[8][33];
  const int column = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  const int lane = static_cast<int>(threadIdx.y);
  float sum = 0.0f;
  if (column < columns) {
    for (int row = lane; row < rows; row += 8) sum += x[static_cast<long>(row) * columns + column];
  }
  partial[lane][threadIdx.x] = sum;
  __syncthreads();
  for (int half = 4; half > 0; half /= 2) {
    if (lane < half) partial[lane][threadIdx.x] += partial[lane + half][threadIdx.x];
    __syncthreads();
  }
  if (lane == 0 && column < columns) sums[column] = partial[0][threadIdx.x];
}

/// velocity = momentum velocity + gradient; weights -= rate velocity (the classical form, no
/// dampening)
extern "C" __global__ void __launch_bounds__(256)
    sgd_momentum(int count, float rate, float momentum, const float* gradient, float* velocity,
                 float* weights) {
  const long i = sluice::kernels::device::thread_index();
  if (i >= count) return;
  const float v = fmaf(momentum, velocity[i], gradient[i]);
  velocity[i] = v;
  weights[i] = fmaf(-rate, v, weights[i]);
}

/// out[i] = sum over parts of partials[part, i]: the end of a product that was split along k
extern "C" __global__ void __launch_bounds__(256)
    split_sum(int count, int parts, const float* partials, float* out) {
  const long i = sluice::kernels::device::thread_index();
  if (i >= count) return;
  float sum = partials[i];
  for (int part = 1; part < parts; ++part) sum += partials[static_cast<long>(part) * count + i];
  out[i] = sum;
}

/// x *= factor
extern "C" __global__ void __launch_bounds__(256) array_scale(int count, float factor, float* x) {
  const long i = sluice::kernels::device::thread_index();
  if (i < count) x[i] *= factor;
}

/// y += x
extern "C" __global__ void __launch_bounds__(256) array_add(int count, const float* x, float* y) {
  const long i = sluice::kernels::device::thread_index();
  if (i < count) y[i] += x[i];
}

/// Stores one word wherever it is told: how a job with a wild pointer is played.
extern "C" __global__ void __launch_bounds__(32) word_store(unsigned long long address, int value) {
  if (threadIdx.x == 0) *reinterpret_cast<int*>(address) = value;
}

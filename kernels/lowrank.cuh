// What PowerSGD needs beside matrix products: thin matrices made orthonormal, and y += factor x.
#pragma once

#include "kernels/reduce.cuh"

namespace sluice::kernels::device {

constexpr int kLowrankColumns = 32;
/// A column of which less than this is left once its predecessors are taken out has only rounding
/// errors, which point anywhere.
constexpr float kLowrankRest = 1e-5f;

/// The sum of a block of 256 threads, for all of them, in one order.
__device__ __forceinline__ float block_sum(float value, float* warps) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < 8; ++warp) sum += warps[warp];
  __syncthreads();
  return sum;
}

/// Of columns a and b of x[rows, columns].
__device__ __forceinline__ float column_product(int rows, int columns, const float* x, int a, int b,
                                                float* warps) {
  float sum = 0.0f;
  for (long row = threadIdx.x; row < rows; row += 256)
    sum = fmaf(x[row * columns + a], x[row * columns + b], sum);
  return block_sum(sum, warps);
}

}  // namespace sluice::kernels::device

/// The columns of x[rows, columns], at most 32 of them, become orthonormal, by modified
/// Gram-Schmidt; one that depends on those before it becomes zero. One block; a thread has its rows
/// for itself, so only the sums need it to wait.
extern "C" __global__ void __launch_bounds__(256) gram_schmidt(int rows, int columns, float* x) {
  using namespace sluice::kernels::device;
  __shared__ float warps[8];
  __shared__ float before[kLowrankColumns];
  for (int column = 0; column < columns; ++column) {
    const float square = column_product(rows, columns, x, column, column, warps);
    if (threadIdx.x == 0) before[column] = sqrtf(square);
  }
  __syncthreads();
  for (int column = 0; column < columns; ++column) {
    const float length = sqrtf(column_product(rows, columns, x, column, column, warps));
    const float scale = length > kLowrankRest * before[column] ? 1.0f / length : 0.0f;
    for (long row = threadIdx.x; row < rows; row += 256) x[row * columns + column] *= scale;
    for (int later = column + 1; later < columns; ++later) {
      const float along = column_product(rows, columns, x, column, later, warps);
      for (long row = threadIdx.x; row < rows; row += 256) {
        float* const at = x + row * columns;
        at[later] = fmaf(-along, at[column], at[later]);
      }
    }
  }
}

/// y += factor x
extern "C" __global__ void __launch_bounds__(256)
    array_add_scaled(int count, float factor, const float* x, float* y) {
  const long i = sluice::kernels::device::thread_index();
  if (i < count) y[i] = fmaf(factor, x[i], y[i]);
}

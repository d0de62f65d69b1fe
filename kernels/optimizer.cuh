// AdamW and RMSProp, one pass over memory each; the norm of a gradient and clipping by it; and the
// search for values that are not finite. SGD with momentum is in arrays.cuh.
#pragma once

#include "kernels/reduce.cuh"

/// Adam with decoupled weight decay (Loshchilov and Hutter, Decoupled Weight Decay Regularization,
/// 2019). first_correction = 1 - first^step and second_correction = 1 - second^step are the host's,
/// in float64. `decay` 0 is Adam.
extern "C" __global__ void __launch_bounds__(256)
    adamw(int count, float rate, float first, float second, float epsilon, float decay,
          float first_correction, float second_correction, const float* gradient, float* means,
          float* squares, float* weights) {
  const long i = sluice::kernels::device::thread_index();
  if (i >= count) return;
  const float g = gradient[i];
  const float mean = fmaf(first, means[i], (1.0f - first) * g);
  const float square = fmaf(second, squares[i], (1.0f - second) * g * g);
  means[i] = mean;
  squares[i] = square;
  const float step = mean / first_correction / (sqrtf(square / second_correction) + epsilon);
  weights[i] -= rate * fmaf(decay, weights[i], step);
}

/// squares = smoothing squares + (1 - smoothing) gradient^2; velocity = momentum velocity +
/// gradient / (sqrt(squares) + epsilon); weights -= rate velocity (Tieleman and Hinton, 2012; with
/// momentum as PyTorch has it)
extern "C" __global__ void __launch_bounds__(256)
    rmsprop(int count, float rate, float smoothing, float epsilon, float momentum,
            const float* gradient, float* squares, float* velocity, float* weights) {
  const long i = sluice::kernels::device::thread_index();
  if (i >= count) return;
  const float g = gradient[i];
  const float square = fmaf(smoothing, squares[i], (1.0f - smoothing) * g * g);
  const float v = fmaf(momentum, velocity[i], g / (sqrtf(square) + epsilon));
  squares[i] = square;
  velocity[i] = v;
  weights[i] = fmaf(-rate, v, weights[i]);
}

/// partials[block] = sum of squares of every gridDim-th stretch of 256 values. The number of blocks
/// is the caller's and fixed, and so is the order of every sum.
extern "C" __global__ void __launch_bounds__(256)
    square_sum(int count, const float* x, float* partials) {
  using namespace sluice::kernels::device;
  __shared__ float warps[8];
  float sum = 0.0f;
  for (long i = thread_index(); i < count; i += static_cast<long>(gridDim.x) * 256) {
    sum = fmaf(x[i], x[i], sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < 8; ++warp) sum += warps[warp];
    partials[blockIdx.x] = sum;
  }
}

/// *norm = sqrt(sum of partials[parts]); one warp
extern "C" __global__ void __launch_bounds__(32)
    norm_finish(int parts, const float* partials, float* norm) {
  using namespace sluice::kernels::device;
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < parts; i += 32) sum += partials[i];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) *norm = sqrtf(sum);
}

/// x *= limit / norm where norm > limit; the norm never leaves the device
extern "C" __global__ void __launch_bounds__(256)
    norm_clip(int count, float limit, const float* norm, float* x) {
  const long i = sluice::kernels::device::thread_index();
  const float length = *norm;
  if (i < count && length > limit) x[i] *= limit / length;
}

/// *found = 1 where any value is infinite or not a number; it is not reset
extern "C" __global__ void __launch_bounds__(256)
    not_finite(int count, const float* x, int* found) {
  const long i = sluice::kernels::device::thread_index();
  if (i < count && !isfinite(x[i])) *found = 1;
}

// What kernels of several files share: a thread's place in a flat array, and sums and maxima over a
// warp by butterfly shuffles, whose order is fixed.
#pragma once

namespace sluice::kernels::device {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ long thread_index() {
  return static_cast<long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

__device__ __forceinline__ unsigned warp_sum(unsigned value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

/// What turns a row's values into shares: exp(x - highest) / sum. The maximum is subtracted first,
/// so no exponent overflows.
struct RowShares {
  float highest;
  float sum;
};
__device__ __forceinline__ RowShares row_shares(const float* from, int columns, int lane) {
  float highest = -INFINITY;
  for (int i = lane; i < columns; i += 32) highest = fmaxf(highest, from[i]);
  highest = warp_max(highest);
  float sum = 0.0f;
  for (int i = lane; i < columns; i += 32) sum += expf(from[i] - highest);
  return {highest, warp_sum(sum)};
}

}  // namespace sluice::kernels::device

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

}  // namespace sluice::kernels::device

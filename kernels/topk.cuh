// The k values of largest magnitude, taken out of an array in ascending order of their index; of
// equals at the edge the first. What stays behind is the error that the next round adds (error
// feedback). The edge is found by counting, eight bits of the magnitude at a time from the top;
// counters are integers, so that the order of atomics cannot matter.
#pragma once

#include "kernels/reduce.cuh"

namespace sluice::kernels::device {

/// How far the search is; lives on the device.
struct TopkSearch {
  unsigned edge;       // bits of the k-th magnitude that are known
  unsigned remaining;  // how many are to be taken from those that agree with `edge` so far
};

constexpr int kTopkThreads = 256;

/// Magnitudes compare like the bits of a non-negative float; what is not a number is largest.
__device__ __forceinline__ unsigned magnitude(float value) {
  return __float_as_uint(value) & 0x7fffffffu;
}

}  // namespace sluice::kernels::device

/// histogram[256] += how many values that agree with the edge above `shift` + 8 bits have which
/// next eight bits
extern "C" __global__ void __launch_bounds__(256)
    topk_histogram(int count, int shift, const sluice::kernels::device::TopkSearch* search,
                   const float* x, unsigned* histogram) {
  using namespace sluice::kernels::device;
  __shared__ unsigned counts[256];
  counts[threadIdx.x] = 0;
  __syncthreads();
  const unsigned above = shift >= 24 ? 0u : ~0u << (shift + 8);
  const unsigned edge = search->edge;
  for (long i = thread_index(); i < count; i += static_cast<long>(gridDim.x) * 256) {
    const unsigned key = magnitude(x[i]);
    if ((key & above) == (edge & above)) atomicAdd(&counts[key >> shift & 255u], 1u);
  }
  __syncthreads();
  if (counts[threadIdx.x] != 0) atomicAdd(&histogram[threadIdx.x], counts[threadIdx.x]);
}

/// Narrows the search by the histogram, and clears it; one block
extern "C" __global__ void __launch_bounds__(256)
    topk_pick(int shift, sluice::kernels::device::TopkSearch* search, unsigned* histogram) {
  __shared__ unsigned counts[256];
  counts[threadIdx.x] = histogram[threadIdx.x];
  histogram[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x != 0) return;
  unsigned remaining = search->remaining;
  int digit = 255;
  while (digit > 0 && counts[digit] < remaining) remaining -= counts[digit--];
  search->edge |= static_cast<unsigned>(digit) << shift;
  search->remaining = remaining;
}

/// above[block], equal[block]: how many of the block's stretch of `chunk` values are above the edge
/// and at it
extern "C" __global__ void __launch_bounds__(256)
    topk_count(int count, int chunk, const sluice::kernels::device::TopkSearch* search,
               const float* x, unsigned* above, unsigned* equal) {
  using namespace sluice::kernels::device;
  __shared__ unsigned warps[2][kTopkThreads / 32];
  const unsigned edge = search->edge;
  const long begin = static_cast<long>(blockIdx.x) * chunk;
  const long end = begin + chunk < count ? begin + chunk : count;
  unsigned higher = 0;
  unsigned same = 0;
  for (long i = begin + threadIdx.x; i < end; i += kTopkThreads) {
    const unsigned key = magnitude(x[i]);
    higher += key > edge ? 1u : 0u;
    same += key == edge ? 1u : 0u;
  }
  higher = warp_sum(higher);
  same = warp_sum(same);
  if (threadIdx.x % 32 == 0) {
    warps[0][threadIdx.x / 32] = higher;
    warps[1][threadIdx.x / 32] = same;
  }
  __syncthreads();
  if (threadIdx.x >= 2) return;
  unsigned sum = 0;
  for (int warp = 0; warp < kTopkThreads / 32; ++warp) sum += warps[threadIdx.x][warp];
  (threadIdx.x == 0 ? above : equal)[blockIdx.x] = sum;
}

/// Turns the counts of blocks into what comes before each of them; one thread, as there are few
extern "C" __global__ void __launch_bounds__(32)
    topk_offsets(int blocks, unsigned* above, unsigned* equal) {
  if (threadIdx.x != 0) return;
  unsigned higher = 0;
  unsigned same = 0;
  for (int block = 0; block < blocks; ++block) {
    const unsigned here_above = above[block];
    const unsigned here_equal = equal[block];
    above[block] = higher;
    equal[block] = same;
    higher += here_above;
    same += here_equal;
  }
}

/// indices[], values[] = what is taken, and zero in its place
extern "C" __global__ void __launch_bounds__(256)
    topk_take(int count, int chunk, const sluice::kernels::device::TopkSearch* search,
              const unsigned* above, const unsigned* equal, float* x, int* indices, float* values) {
  using namespace sluice::kernels::device;
  __shared__ unsigned warp_higher[kTopkThreads / 32];
  __shared__ unsigned warp_same[kTopkThreads / 32];
  const unsigned edge = search->edge;
  const unsigned allowed = search->remaining;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const unsigned before_lane = (1u << threadIdx.x % 32) - 1u;
  unsigned higher = above[blockIdx.x];
  unsigned same = equal[blockIdx.x];
  const long begin = static_cast<long>(blockIdx.x) * chunk;
  const long end = begin + chunk < count ? begin + chunk : count;
  for (long base = begin; base < end; base += kTopkThreads) {
    const long i = base + threadIdx.x;
    const float value = i < end ? x[i] : 0.0f;
    const unsigned key = magnitude(value);
    const unsigned lanes_higher = __ballot_sync(kAllLanes, i < end && key > edge);
    const unsigned lanes_same = __ballot_sync(kAllLanes, i < end && key == edge);
    if (threadIdx.x % 32 == 0) {
      warp_higher[warp] = __popc(lanes_higher);
      warp_same[warp] = __popc(lanes_same);
    }
    __syncthreads();
    unsigned my_higher = higher + __popc(lanes_higher & before_lane);
    unsigned my_same = same + __popc(lanes_same & before_lane);
    for (int other = 0; other < kTopkThreads / 32; ++other) {
      if (other < warp) {
        my_higher += warp_higher[other];
        my_same += warp_same[other];
      }
      higher += warp_higher[other];
      same += warp_same[other];
    }
    __syncthreads();
    if (i < end && (key > edge || (key == edge && my_same < allowed))) {
      const unsigned at = my_higher + (my_same < allowed ? my_same : allowed);
      indices[at] = static_cast<int>(i);
      values[at] = value;
      x[i] = 0.0f;
    }
  }
}

/// x[indices[i]] += values[i]; indices differ from each other
extern "C" __global__ void __launch_bounds__(256)
    topk_add(int count, const int* indices, const float* values, float* x) {
  const long i = sluice::kernels::device::thread_index();
  if (i < count) x[indices[i]] += values[i];
}

// Causal multi-head self-attention, forward and backward, over heads of up to 64 values. Queries,
// keys and values stand beside each other as the projection leaves them: row (item, time) of `qkv`
// holds 3 x heads x size floats, first all queries, then all keys, then all values.
//
// Two rungs forward:
//   1. naive  a warp per query takes its keys one by one, each score a sum over the warp
//   2. tiled  a block takes 32 queries of one head and brings 32 keys and values at a time into
//             shared memory; a lane computes the whole score of one key, so that a tile costs one
//             sum and one maximum over the warp instead of one for every key
// Both keep a running maximum and sum (Milakov and Gimelshein, Online normalizer calculation for
// softmax, 2018), so that no matrix of scores is ever stored; the logarithm of the sum is kept for
// the way back, which computes the probabilities again (Dao et al., FlashAttention, 2022). The way
// back is two kernels, one for the queries and one for keys and values, so that nothing is added
// across blocks.
#pragma once

#include "kernels/reduce.cuh"

namespace sluice::kernels::device {

constexpr int kHeadMax = 64;
constexpr int kAttentionTile = 32;
constexpr int kAttentionWarps = 4;
constexpr int kAttentionRows = kAttentionTile / kAttentionWarps;  // of a tile, per warp
constexpr int kHeadPitch = kHeadMax + 1;  // lanes read different rows: off the 32-bank period

/// Which head of which item this block works for, and where its rows begin.
struct Head {
  int size;
  int length;
  int width;  // heads x size
  long row;   // floats from one time to the next in qkv
  long qkv;   // of the head's query at time 0
  long out;   // of the head's output at time 0
  long sums;  // of its logarithms

  __device__ Head(int head, int heads, int item, int time_length, int head_size)
      : size(head_size),
        length(time_length),
        width(heads * head_size),
        row(3L * width),
        qkv(static_cast<long>(item) * length * row + head * size),
        out(static_cast<long>(item) * length * width + head * size),
        sums((static_cast<long>(item) * heads + head) * length) {}
};

/// tile[time][value] = rows from `begin` on, zeros past the end; by the whole block
__device__ __forceinline__ void tile_bring(float (*tile)[kHeadPitch], const float* from, long row,
                                           int begin, int length, int size) {
  for (int i = static_cast<int>(threadIdx.x); i < kAttentionTile * size;
       i += kAttentionWarps * 32) {
    const int time = i / size;
    const int value = i % size;
    tile[time][value] = begin + time < length ? from[(begin + time) * row + value] : 0.0f;
  }
}

/// sums[i] = rows[i] . column, for the rows of one warp: a value of `column` is read once for all.
__device__ __forceinline__ void tile_dot(float (&sums)[kAttentionRows],
                                         const float (*rows)[kHeadPitch], const float* column,
                                         int size) {
#pragma unroll
  for (int i = 0; i < kAttentionRows; ++i) sums[i] = 0.0f;
#pragma unroll 1
  for (int value = 0; value < size; ++value) {
    const float factor = column[value];
#pragma unroll
    for (int i = 0; i < kAttentionRows; ++i) sums[i] = fmaf(rows[i][value], factor, sums[i]);
  }
}

/// low[i] and high[i] (of the lane's two values) += sum over the tile of weights[i] of its lane
/// times its row
__device__ __forceinline__ void tile_add(float (&low)[kAttentionRows],
                                         float (&high)[kAttentionRows],
                                         const float (&weights)[kAttentionRows],
                                         const float (*tile)[kHeadPitch], int size) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int other = 0; other < kAttentionTile; ++other) {
    const float first = lane < size ? tile[other][lane] : 0.0f;
    const float second = lane + 32 < size ? tile[other][lane + 32] : 0.0f;
#pragma unroll
    for (int i = 0; i < kAttentionRows; ++i) {
      const float weight = __shfl_sync(kAllLanes, weights[i], other);
      low[i] = fmaf(weight, first, low[i]);
      high[i] = fmaf(weight, second, high[i]);
    }
  }
}

}  // namespace sluice::kernels::device

/// out[item, time, head] = softmax(scale q k^T over keys at or before time) v; sums: the logarithm
/// of the softmax's divisor, [item, head, time]. Grid: times / 4, heads, items.
extern "C" __global__ void __launch_bounds__(128)
    attention_forward_naive(int heads, int length, int size, float scale, const float* qkv,
                            float* out, float* sums) {
  using namespace sluice::kernels::device;
  const Head at(static_cast<int>(blockIdx.y), heads, static_cast<int>(blockIdx.z), length, size);
  const int time = static_cast<int>(blockIdx.x * 4 + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (time >= length) return;
  const float* query = qkv + at.qkv + time * at.row;
  const float* keys = qkv + at.qkv + at.width;
  const float* values = keys + at.width;
  const bool low = lane < size;
  const bool high = lane + 32 < size;
  const float q0 = low ? query[lane] : 0.0f;
  const float q1 = high ? query[lane + 32] : 0.0f;
  float highest = -INFINITY;
  float sum = 0.0f;
  float o0 = 0.0f;
  float o1 = 0.0f;
  for (int key = 0; key <= time; ++key) {
    const float* k = keys + key * at.row;
    const float* v = values + key * at.row;
    const float score =
        scale * warp_sum((low ? q0 * k[lane] : 0.0f) + (high ? q1 * k[lane + 32] : 0.0f));
    const float next = fmaxf(highest, score);
    const float old_share = expf(highest - next);
    const float share = expf(score - next);
    sum = sum * old_share + share;
    o0 = o0 * old_share + (low ? share * v[lane] : 0.0f);
    o1 = o1 * old_share + (high ? share * v[lane + 32] : 0.0f);
    highest = next;
  }
  float* to = out + at.out + static_cast<long>(time) * at.width;
  if (low) to[lane] = o0 / sum;
  if (high) to[lane + 32] = o1 / sum;
  if (lane == 0) sums[at.sums + time] = highest + logf(sum);
}

/// The same by tiles. Grid: times / 32, heads, items.
extern "C" __global__ void __launch_bounds__(128)
    attention_forward(int heads, int length, int size, float scale, const float* qkv, float* out,
                      float* sums) {
  using namespace sluice::kernels::device;
  __shared__ float queries[kAttentionTile][kHeadPitch];
  __shared__ float keys[kAttentionTile][kHeadPitch];
  __shared__ float values[kAttentionTile][kHeadPitch];
  const Head at(static_cast<int>(blockIdx.y), heads, static_cast<int>(blockIdx.z), length, size);
  const int first = static_cast<int>(blockIdx.x) * kAttentionTile;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  tile_bring(queries, qkv + at.qkv, at.row, first, length, size);
  float highest[kAttentionRows];
  float sum[kAttentionRows];
  float o0[kAttentionRows];
  float o1[kAttentionRows];
#pragma unroll
  for (int i = 0; i < kAttentionRows; ++i) {
    highest[i] = -INFINITY;
    sum[i] = o0[i] = o1[i] = 0.0f;
  }
  for (int base = 0; base <= first; base += kAttentionTile) {
    __syncthreads();
    tile_bring(keys, qkv + at.qkv + at.width, at.row, base, length, size);
    tile_bring(values, qkv + at.qkv + 2 * at.width, at.row, base, length, size);
    __syncthreads();
    float share[kAttentionRows];
    tile_dot(share, queries + warp * kAttentionRows, keys[lane], size);
#pragma unroll
    for (int i = 0; i < kAttentionRows; ++i) {
      const bool seen = base + lane <= first + warp * kAttentionRows + i;
      const float score = seen ? scale * share[i] : -INFINITY;
      const float next = fmaxf(highest[i], warp_max(score));
      const float old_share = expf(highest[i] - next);
      share[i] = expf(score - next);
      sum[i] = sum[i] * old_share + warp_sum(share[i]);
      o0[i] *= old_share;
      o1[i] *= old_share;
      highest[i] = next;
    }
    tile_add(o0, o1, share, values, size);
  }
#pragma unroll
  for (int i = 0; i < kAttentionRows; ++i) {
    const int time = first + warp * kAttentionRows + i;
    if (time >= length) continue;
    float* to = out + at.out + static_cast<long>(time) * at.width;
    if (lane < size) to[lane] = o0[i] / sum[i];
    if (lane + 32 < size) to[lane + 32] = o1[i] / sum[i];
    if (lane == 0) sums[at.sums + time] = highest[i] + logf(sum[i]);
  }
}

/// products[item, head, time] = sum over the head of out gradient: what the softmax's backward pass
/// subtracts. Grid: times / 4, heads, items.
extern "C" __global__ void __launch_bounds__(128)
    attention_products(int heads, int length, int size, const float* out, const float* gradient,
                       float* products) {
  using namespace sluice::kernels::device;
  const Head at(static_cast<int>(blockIdx.y), heads, static_cast<int>(blockIdx.z), length, size);
  const int time = static_cast<int>(blockIdx.x * 4 + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (time >= length) return;
  const long row = at.out + static_cast<long>(time) * at.width;
  float sum = 0.0f;
  for (int i = lane; i < size; i += 32) sum = fmaf(out[row + i], gradient[row + i], sum);
  sum = warp_sum(sum);
  if (lane == 0) products[at.sums + time] = sum;
}

/// The queries' part of qkv_gradient. Grid: times / 32, heads, items.
extern "C" __global__ void __launch_bounds__(128)
    attention_backward_queries(int heads, int length, int size, float scale, const float* qkv,
                               const float* sums, const float* products, const float* gradient,
                               float* qkv_gradient) {
  using namespace sluice::kernels::device;
  __shared__ float queries[kAttentionTile][kHeadPitch];
  __shared__ float gradients[kAttentionTile][kHeadPitch];
  __shared__ float others[kAttentionTile][kHeadPitch];  // keys, after values
  const Head at(static_cast<int>(blockIdx.y), heads, static_cast<int>(blockIdx.z), length, size);
  const int first = static_cast<int>(blockIdx.x) * kAttentionTile;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  tile_bring(queries, qkv + at.qkv, at.row, first, length, size);
  tile_bring(gradients, gradient + at.out, at.width, first, length, size);
  float q0[kAttentionRows] = {};
  float q1[kAttentionRows] = {};
  for (int base = 0; base <= first; base += kAttentionTile) {
    float toward[kAttentionRows];  // gradient times the lane's value
    float slope[kAttentionRows];
    __syncthreads();
    tile_bring(others, qkv + at.qkv + 2 * at.width, at.row, base, length, size);
    __syncthreads();
    tile_dot(toward, gradients + warp * kAttentionRows, others[lane], size);
    __syncthreads();
    tile_bring(others, qkv + at.qkv + at.width, at.row, base, length, size);
    __syncthreads();
    tile_dot(slope, queries + warp * kAttentionRows, others[lane], size);
#pragma unroll
    for (int i = 0; i < kAttentionRows; ++i) {
      const int time = first + warp * kAttentionRows + i;
      const bool seen = time < length && base + lane <= time;
      slope[i] = seen ? scale * expf(scale * slope[i] - sums[at.sums + time]) *
                            (toward[i] - products[at.sums + time])
                      : 0.0f;
    }
    tile_add(q0, q1, slope, others, size);
  }
#pragma unroll
  for (int i = 0; i < kAttentionRows; ++i) {
    const int time = first + warp * kAttentionRows + i;
    if (time >= length) continue;
    float* to = qkv_gradient + at.qkv + time * at.row;
    if (lane < size) to[lane] = q0[i];
    if (lane + 32 < size) to[lane + 32] = q1[i];
  }
}

/// The keys' and the values' part of qkv_gradient: a block takes 32 keys and goes over the queries
/// at or after them. Grid: times / 32, heads, items.
extern "C" __global__ void __launch_bounds__(128)
    attention_backward_keys(int heads, int length, int size, float scale, const float* qkv,
                            const float* sums, const float* products, const float* gradient,
                            float* qkv_gradient) {
  using namespace sluice::kernels::device;
  __shared__ float keys[kAttentionTile][kHeadPitch];
  __shared__ float values[kAttentionTile][kHeadPitch];
  __shared__ float others[kAttentionTile][kHeadPitch];  // gradients, after queries
  const Head at(static_cast<int>(blockIdx.y), heads, static_cast<int>(blockIdx.z), length, size);
  const int first = static_cast<int>(blockIdx.x) * kAttentionTile;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  tile_bring(keys, qkv + at.qkv + at.width, at.row, first, length, size);
  tile_bring(values, qkv + at.qkv + 2 * at.width, at.row, first, length, size);
  float k0[kAttentionRows] = {};
  float k1[kAttentionRows] = {};
  float v0[kAttentionRows] = {};
  float v1[kAttentionRows] = {};
  for (int base = first; base < length; base += kAttentionTile) {
    const int time = base + lane;  // of this lane's query
    const float logarithm = time < length ? sums[at.sums + time] : 0.0f;
    const float product = time < length ? products[at.sums + time] : 0.0f;
    float share[kAttentionRows];
    float slope[kAttentionRows];
    __syncthreads();
    tile_bring(others, qkv + at.qkv, at.row, base, length, size);
    __syncthreads();
    tile_dot(share, keys + warp * kAttentionRows, others[lane], size);
#pragma unroll
    for (int i = 0; i < kAttentionRows; ++i) {
      const bool seen = time < length && first + warp * kAttentionRows + i <= time;
      share[i] = seen ? expf(scale * share[i] - logarithm) : 0.0f;
    }
    __syncthreads();
    tile_bring(others, gradient + at.out, at.width, base, length, size);
    __syncthreads();
    tile_dot(slope, values + warp * kAttentionRows, others[lane], size);
    tile_add(v0, v1, share, others, size);
#pragma unroll
    for (int i = 0; i < kAttentionRows; ++i) slope[i] = scale * share[i] * (slope[i] - product);
    __syncthreads();
    tile_bring(others, qkv + at.qkv, at.row, base, length, size);
    __syncthreads();
    tile_add(k0, k1, slope, others, size);
  }
#pragma unroll
  for (int i = 0; i < kAttentionRows; ++i) {
    const int time = first + warp * kAttentionRows + i;
    if (time >= length) continue;
    float* key = qkv_gradient + at.qkv + at.width + time * at.row;
    float* value = key + at.width;
    if (lane < size) {
      key[lane] = k0[i];
      value[lane] = v0[i];
    }
    if (lane + 32 < size) {
      key[lane + 32] = k1[i];
      value[lane + 32] = v1[i];
    }
  }
}

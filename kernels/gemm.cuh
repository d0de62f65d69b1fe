// Matrix product C[m,n] = op(A) op(B), row-major fp32, as a ladder of three rungs. Every rung
// exists in the three forms that a dense layer needs: NN (forward: X W), TN (weight gradient: X^T
// dY), NT (input gradient: dY W^T).
//   1. naive     one thread per element, both operands from global memory; what the other rungs
//   must equal
//   2. tiled     16x16 tiles of both operands in shared memory: each element is read from global
//   memory 1/16 as often
//   3. register  64x64 tile per block, 4x4 outputs per thread held in registers, float4 reads: 16
//   multiply-adds for
//                two shared reads instead of one for two
// All rungs add up k in ascending order with fused multiply-adds, so their results are the same
// bits.
#pragma once

namespace sluice::kernels::device {

/// Element (row, column) of op(X): X is stored [rows, columns] or, when kTransposed, [columns,
/// rows].
template <bool kTransposed>
__device__ __forceinline__ long operand_index(int row, int column, int rows, int columns) {
  return kTransposed ? static_cast<long>(column) * rows + row
                     : static_cast<long>(row) * columns + column;
}

template <bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void gemm_naive(int m, int n, int k, int k_begin, int k_end,
                                           const float* a, const float* b, float* c) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (int i = k_begin; i < k_end; ++i) {
    sum = fmaf(a[operand_index<kTransposeA>(row, i, m, k)],
               b[operand_index<kTransposeB>(i, column, k, n)], sum);
  }
  c[static_cast<long>(row) * n + column] = sum;
}

constexpr int kTile = 16;

template <bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void gemm_tiled(int m, int n, int k, int k_begin, int k_end,
                                           const float* a, const float* b, float* c) {
  __shared__ float a_tile[kTile][kTile];
  __shared__ float b_tile[kTile][kTile];
  const int x = static_cast<int>(threadIdx.x);
  const int y = static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * kTile + x;
  const int row = static_cast<int>(blockIdx.y) * kTile + y;
  float sum = 0.0f;
  for (int base = k_begin; base < k_end; base += kTile) {
    const int a_column = base + x;
    const int b_row = base + y;
    a_tile[y][x] =
        row < m && a_column < k_end ? a[operand_index<kTransposeA>(row, a_column, m, k)] : 0.0f;
    b_tile[y][x] =
        b_row < k_end && column < n ? b[operand_index<kTransposeB>(b_row, column, k, n)] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum = fmaf(a_tile[y][i], b_tile[i][x], sum);
    __syncthreads();
  }
  if (row < m && column < n) c[static_cast<long>(row) * n + column] = sum;
}

constexpr int kBlock = 64;          // edge of a block's output tile
constexpr int kDepth = 16;          // of k per round through shared memory
constexpr int kThread = 4;          // edge of a thread's output tile
constexpr int kPitch = kBlock + 4;  // off the 32-bank period, and still float4-aligned

/// Four neighbours in memory, with zeros past the end; one float4 read where the alignment is
/// known.
__device__ __forceinline__ float4 four_load(const float* from, int valid, bool aligned) {
  if (aligned && valid >= 4) return *reinterpret_cast<const float4*>(from);
  float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
  if (valid > 0) value.x = from[0];
  if (valid > 1) value.y = from[1];
  if (valid > 2) value.z = from[2];
  if (valid > 3) value.w = from[3];
  return value;
}

/// Brings tile[depth][edge] of an operand stored [edges, k] (k contiguous): reads along k, writes
/// turned.
__device__ __forceinline__ void tile_turned(float (*tile)[kPitch], const float* from, int edge_base,
                                            int edges, int k_base, int k) {
  const int thread = static_cast<int>(threadIdx.x);
  const int edge = thread / 4;
  const int depth = (thread % 4) * 4;
  const int valid = edge_base + edge < edges ? k - (k_base + depth) : 0;
  const float4 value =
      four_load(from + static_cast<long>(edge_base + edge) * k + k_base + depth, valid, k % 4 == 0);
  tile[depth][edge] = value.x;
  tile[depth + 1][edge] = value.y;
  tile[depth + 2][edge] = value.z;
  tile[depth + 3][edge] = value.w;
}

/// The same of an operand stored [k, edges] (edges contiguous): reads and writes along the edge.
__device__ __forceinline__ void tile_straight(float (*tile)[kPitch], const float* from,
                                              int edge_base, int edges, int k_base, int k) {
  const int thread = static_cast<int>(threadIdx.x);
  const int depth = thread / 16;
  const int edge = (thread % 16) * 4;
  const int valid = k_base + depth < k ? edges - (edge_base + edge) : 0;
  const float4 value = four_load(
      from + static_cast<long>(k_base + depth) * edges + edge_base + edge, valid, edges % 4 == 0);
  *reinterpret_cast<float4*>(&tile[depth][edge]) = value;
}

template <bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void gemm_register(int m, int n, int k, int k_begin, int k_end,
                                              const float* a, const float* b, float* c) {
  __shared__ __align__(16) float a_tile[kDepth][kPitch];
  __shared__ __align__(16) float b_tile[kDepth][kPitch];
  const int row_base = static_cast<int>(blockIdx.y) * kBlock;
  const int column_base = static_cast<int>(blockIdx.x) * kBlock;
  const int row = static_cast<int>(threadIdx.x / 16) * kThread;
  const int column = static_cast<int>(threadIdx.x % 16) * kThread;
  float sum[kThread][kThread] = {};
  for (int base = k_begin; base < k_end; base += kDepth) {
    if (kTransposeA) {
      tile_straight(a_tile, a, row_base, m, base, k);
    } else {
      tile_turned(a_tile, a, row_base, m, base, k);
    }
    if (kTransposeB) {
      tile_turned(b_tile, b, column_base, n, base, k);
    } else {
      tile_straight(b_tile, b, column_base, n, base, k);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const float4 left = *reinterpret_cast<const float4*>(&a_tile[i][row]);
      const float4 right = *reinterpret_cast<const float4*>(&b_tile[i][column]);
      const float lefts[kThread] = {left.x, left.y, left.z, left.w};
      const float rights[kThread] = {right.x, right.y, right.z, right.w};
#pragma unroll
      for (int y = 0; y < kThread; ++y) {
#pragma unroll
        for (int x = 0; x < kThread; ++x) sum[y][x] = fmaf(lefts[y], rights[x], sum[y][x]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int y = 0; y < kThread; ++y) {
#pragma unroll
    for (int x = 0; x < kThread; ++x) {
      const int to_row = row_base + row + y;
      const int to_column = column_base + column + x;
      if (to_row < m && to_column < n) c[static_cast<long>(to_row) * n + to_column] = sum[y][x];
    }
  }
}

}  // namespace sluice::kernels::device

// A kernel of C name per rung and form. k_chunk is a multiple of 16 or all of k, so a tile never
// crosses chunks.
#define SLUICE_GEMM(rung, form, transpose_a, transpose_b, threads)                  \
  extern "C" __global__ void __launch_bounds__(threads) gemm_##rung##_##form(       \
      int m, int n, int k, int k_chunk, const float* a, const float* b, float* c) { \
    const int k_begin = static_cast<int>(blockIdx.z) * k_chunk;                     \
    const int k_end = min(k, k_begin + k_chunk);                                    \
    sluice::kernels::device::gemm_##rung<transpose_a, transpose_b>(                 \
        m, n, k, k_begin, k_end, a, b, c + static_cast<long>(blockIdx.z) * m * n);  \
  }
SLUICE_GEMM(naive, nn, false, false, 256)
SLUICE_GEMM(naive, nt, false, true, 256)
SLUICE_GEMM(naive, tn, true, false, 256)
SLUICE_GEMM(tiled, nn, false, false, 256)
SLUICE_GEMM(tiled, nt, false, true, 256)
SLUICE_GEMM(tiled, tn, true, false, 256)
SLUICE_GEMM(register, nn, false, false, 256)
SLUICE_GEMM(register, nt, false, true, 256)
SLUICE_GEMM(register, tn, true, false, 256)
#undef SLUICE_GEMM

// The fourth rung of the matrix product: operands of 16 bits (fp16 or bf16), sums in fp32, by the
// tensor cores' mma.m16n8k16 (from compute capability 8.0; before it the same tiles with ordinary
// multiply-adds). A block of four warps computes 64 x 64 results, each warp 32 x 32 as two by four
// fragments. Both tiles stand in shared memory with k contiguous, which is how the fragments want
// them (PTX ISA, "Matrix Fragments for mma.m16n8k16").
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/gemm.cuh"

namespace sluice::kernels::device {

constexpr int kTensorBlock = 64;
constexpr int kTensorDepth = 16;
constexpr int kTensorPitch = kTensorDepth + 8;  // rows start in different banks, pairs stay aligned
constexpr int kTensorThreads = 128;

__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ __forceinline__ unsigned pair(const T* at) {
  return *reinterpret_cast<const unsigned*>(at);
}

/// sum += one 16 x 16 by 16 x 8 product; `a` is the first row of the fragment, `b` its first
/// column.
template <class T>
__device__ __forceinline__ void fragment_multiply(float (&sum)[4], const T (*a)[kTensorPitch],
                                                  const T (*b)[kTensorPitch]) {
  const int group = static_cast<int>(threadIdx.x % 32 / 4);
  const int place = static_cast<int>(threadIdx.x % 4) * 2;
#if __CUDA_ARCH__ >= 800
  const unsigned a0 = pair(&a[group][place]);
  const unsigned a1 = pair(&a[group + 8][place]);
  const unsigned a2 = pair(&a[group][place + 8]);
  const unsigned a3 = pair(&a[group + 8][place + 8]);
  const unsigned b0 = pair(&b[group][place]);
  const unsigned b1 = pair(&b[group][place + 8]);
  if constexpr (sizeof(T) == 2 && __is_same(T, __half)) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
#else
  for (int i = 0; i < kTensorDepth; ++i) {
    const float low = wide(a[group][i]);
    const float high = wide(a[group + 8][i]);
    const float left = wide(b[place][i]);
    const float right = wide(b[place + 1][i]);
    sum[0] = fmaf(low, left, sum[0]);
    sum[1] = fmaf(low, right, sum[1]);
    sum[2] = fmaf(high, left, sum[2]);
    sum[3] = fmaf(high, right, sum[3]);
  }
#endif
}

/// tile[edge][k] of an operand whose element (edge, k) is at `from` + edge * edge_step + k *
/// k_step; zeros past the ends
template <class T>
__device__ __forceinline__ void tensor_tile(T (*tile)[kTensorPitch], const T* from, int edge_base,
                                            int edges, long edge_step, int k_base, int k_end,
                                            long k_step) {
  for (int i = static_cast<int>(threadIdx.x); i < kTensorBlock * kTensorDepth;
       i += kTensorThreads) {
    // Neighbouring threads read neighbours in memory.
    const int edge = k_step == 1 ? i / kTensorDepth : i % kTensorBlock;
    const int k = k_step == 1 ? i % kTensorDepth : i / kTensorBlock;
    const bool inside = edge_base + edge < edges && k_base + k < k_end;
    tile[edge][k] = inside ? from[(edge_base + edge) * edge_step + (k_base + k) * k_step] : T(0.0f);
  }
}

template <class T, bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void gemm_tensor(int m, int n, int k, int k_begin, int k_end, const T* a,
                                            const T* b, float* c) {
  __shared__ __align__(16) T a_tile[kTensorBlock][kTensorPitch];
  __shared__ __align__(16) T b_tile[kTensorBlock][kTensorPitch];
  const int row_base = static_cast<int>(blockIdx.y) * kTensorBlock;
  const int column_base = static_cast<int>(blockIdx.x) * kTensorBlock;
  const int warp_row = static_cast<int>(threadIdx.x / 64) * 32;
  const int warp_column = static_cast<int>(threadIdx.x / 32 % 2) * 32;
  float sum[2][4][4] = {};
  for (int base = k_begin; base < k_end; base += kTensorDepth) {
    tensor_tile(a_tile, a, row_base, m, kTransposeA ? 1L : static_cast<long>(k), base, k_end,
                kTransposeA ? static_cast<long>(m) : 1L);
    tensor_tile(b_tile, b, column_base, n, kTransposeB ? static_cast<long>(k) : 1L, base, k_end,
                kTransposeB ? 1L : static_cast<long>(n));
    __syncthreads();
#pragma unroll
    for (int y = 0; y < 2; ++y) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        fragment_multiply<T>(sum[y][x], a_tile + warp_row + y * 16, b_tile + warp_column + x * 8);
      }
    }
    __syncthreads();
  }
  const int group = static_cast<int>(threadIdx.x % 32 / 4);
  const int place = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
  for (int y = 0; y < 2; ++y) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = row_base + warp_row + y * 16 + group + (i / 2) * 8;
        const int column = column_base + warp_column + x * 8 + place + i % 2;
        if (row < m && column < n) c[static_cast<long>(row) * n + column] = sum[y][x][i];
      }
    }
  }
}

}  // namespace sluice::kernels::device

#define SLUICE_GEMM_TENSOR(type, name, form, transpose_a, transpose_b)             \
  extern "C" __global__ void __launch_bounds__(128) gemm_tensor_##name##_##form(   \
      int m, int n, int k, int k_chunk, const type* a, const type* b, float* c) {  \
    const int k_begin = static_cast<int>(blockIdx.z) * k_chunk;                    \
    const int k_end = min(k, k_begin + k_chunk);                                   \
    sluice::kernels::device::gemm_tensor<type, transpose_a, transpose_b>(          \
        m, n, k, k_begin, k_end, a, b, c + static_cast<long>(blockIdx.z) * m * n); \
  }
SLUICE_GEMM_TENSOR(__half, fp16, nn, false, false)
SLUICE_GEMM_TENSOR(__half, fp16, nt, false, true)
SLUICE_GEMM_TENSOR(__half, fp16, tn, true, false)
SLUICE_GEMM_TENSOR(__nv_bfloat16, bf16, nn, false, false)
SLUICE_GEMM_TENSOR(__nv_bfloat16, bf16, nt, false, true)
SLUICE_GEMM_TENSOR(__nv_bfloat16, bf16, tn, true, false)
#undef SLUICE_GEMM_TENSOR

// Kernels of the kind that trainers are made of: tensor cores, asynchronous copies, packed halves,
// groups of threads. Compiled by nvcc for sm_80 and sm_90, run by tensor_test.cpp.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include <cuda/barrier>

// A barrier object in shared memory is made by init().
#pragma nv_diag_suppress static_var_with_dynamic_init

namespace cg = cooperative_groups;
namespace wmma = nvcuda::wmma;

/// c = a * b, 16 x 16 of c per warp; n is a multiple of 16.
template <class T>
__device__ void multiply_wmma(const T* a, const T* b, float* c, int n) {
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, tiles = n / 16;
  const int row = warp / tiles * 16, column = warp % tiles * 16;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  for (int k = 0; k < n; k += 16) {
    wmma::load_matrix_sync(fa, a + row * n + k, n);
    wmma::load_matrix_sync(fb, b + column * n + k, n);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  for (int k = 0; k < fc.num_elements; ++k) fc.x[k] *= 2;
  wmma::store_matrix_sync(c + row * n + column, fc, n, wmma::mem_row_major);
}
extern "C" __global__ void wmma_half(const __half* a, const __half* b, float* c, int n) {
  multiply_wmma(a, b, c, n);
}
extern "C" __global__ void wmma_bfloat(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c,
                                       int n) {
  multiply_wmma(a, b, c, n);
}

/// c = a * b of other types; M x N of c per warp, n is a multiple of 32.
template <int M, int N, int K, class Kind, class T, class Sum>
__device__ void multiply_tiles(const T* a, const T* b, Sum* c, int n) {
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, across = n / N;
  const int row = warp / across * M, column = warp % across * N;
  if (row >= n) return;
  wmma::fragment<wmma::matrix_a, M, N, K, Kind, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, M, N, K, Kind, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, M, N, K, Sum> fc;
  wmma::fill_fragment(fc, Sum{0});
  for (int k = 0; k < n; k += K) {
    wmma::load_matrix_sync(fa, a + row * n + k, n);
    wmma::load_matrix_sync(fb, b + column * n + k, n);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  wmma::store_matrix_sync(c + row * n + column, fc, n, wmma::mem_row_major);
}
extern "C" __global__ void wmma_signed(const signed char* a, const signed char* b, int* c, int n) {
  multiply_tiles<16, 16, 16, signed char>(a, b, c, n);
}
extern "C" __global__ void wmma_unsigned(const unsigned char* a, const unsigned char* b, int* c,
                                         int n) {
  multiply_tiles<32, 8, 16, unsigned char>(a, b, c, n);
}
extern "C" __global__ void wmma_tf32(const float* a, const float* b, float* c, int n) {
  multiply_tiles<16, 16, 8, wmma::precision::tf32>(a, b, c, n);
}
extern "C" __global__ void wmma_double(const double* a, const double* b, double* c, int n) {
  multiply_tiles<8, 8, 4, double>(a, b, c, n);
}

__device__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// c = a * b^T (b by columns) with ldmatrix and mma.m16n8k16, tiles of 64 x 64 x 32 copied
/// asynchronously in two stages. 128 threads; n is a multiple of 64.
extern "C" __global__ void mma_pipelined(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c,
                                         int n) {
  constexpr int kSide = 64, kDepth = 32;
  __shared__ alignas(16) __nv_bfloat16 sa[2][kSide][kDepth], sb[2][kSide][kDepth];
  const int row0 = blockIdx.y * kSide, column0 = blockIdx.x * kSide;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto fetch = [&](int stage, int k0) {
    for (int t = threadIdx.x; t < kSide * kDepth / 8; t += blockDim.x) {
      const int r = t / (kDepth / 8), k = t % (kDepth / 8) * 8;
      __pipeline_memcpy_async(&sa[stage][r][k], a + (row0 + r) * n + k0 + k, 16);
      __pipeline_memcpy_async(&sb[stage][r][k], b + (column0 + r) * n + k0 + k, 16);
    }
    __pipeline_commit();
  };
  float sums[8][4] = {};
  fetch(0, 0);
  for (int k0 = 0, stage = 0; k0 < n; k0 += kDepth, stage ^= 1) {
    if (k0 + kDepth < n) {
      fetch(stage ^ 1, k0 + kDepth);
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncthreads();
    for (int k = 0; k < kDepth; k += 16) {
      unsigned fa[4], fb[2];
      const void* from = &sa[stage][warp * 16 + lane % 16][k + lane / 16 * 8];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3])
                   : "r"(shared_address(from)));
      for (int j = 0; j < 8; ++j) {
        const void* right = &sb[stage][j * 8 + lane % 8][k + lane / 8 % 2 * 8];
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(fb[0]), "=r"(fb[1])
                     : "r"(shared_address(right)));
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sums[j][0]), "+f"(sums[j][1]), "+f"(sums[j][2]), "+f"(sums[j][3])
            : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
      }
    }
    __syncthreads();
  }
  for (int j = 0; j < 8; ++j) {
    for (int part = 0; part < 4; ++part) {
      const int r = row0 + warp * 16 + lane / 4 + part / 2 * 8;
      c[r * n + column0 + j * 8 + lane % 4 * 2 + part % 2] = sums[j][part];
    }
  }
}

// For sm_90 a copy by a group is one bulk copy (TMA), which the interpreter has not.
#if __CUDA_ARCH__ < 900
/// Two stages of a pipeline on cuda::barrier: out[i] = in[i] of the mirrored thread, + 1 a round.
extern "C" __global__ void barriers(const int* in, int* out, int rounds) {
  __shared__ cuda::barrier<cuda::thread_scope_block> ready;
  __shared__ alignas(16) int words[2][128];
  auto block = cg::this_thread_block();
  if (threadIdx.x == 0) init(&ready, block.size());
  block.sync();
  int sum = 0;
  for (int r = 0; r < rounds; ++r) {
    cuda::memcpy_async(block, words[r % 2], in + r * 128, cuda::aligned_size_t<16>(512), ready);
    ready.arrive_and_wait();
    sum += words[r % 2][127 - threadIdx.x];
  }
  out[threadIdx.x] = sum;
}

#endif

/// What groups of several shapes make of the thread numbers of a block of 128.
extern "C" __global__ void groups(int* out) {
  __shared__ cg::block_tile_memory<128> memory;
  auto block = cg::this_thread_block(memory);
  auto wide = cg::tiled_partition<64>(block);
  auto tile = cg::tiled_partition<8>(block);
  const int t = threadIdx.x;
  int* mine = out + t * 8;
  mine[0] = cg::reduce(wide, t, cg::plus<int>());
  mine[1] = cg::reduce(tile, t, cg::greater<int>());
  mine[2] = cg::inclusive_scan(tile, t, cg::plus<int>());
  mine[3] = tile.any(t == 3) + 2 * tile.all(t < 64) + 4 * __popc(tile.ballot(t % 3 == 0));
  if (t % 5 < 2) {
    auto some = cg::coalesced_threads();
    mine[4] = some.size() * 1000 + some.thread_rank();
    mine[5] = cg::reduce(some, 1, cg::plus<int>());
  }
  auto labeled = cg::labeled_partition(cg::coalesced_threads(), t % 3);
  mine[6] = cg::reduce(labeled, t, cg::plus<int>());
  mine[7] = labeled.shfl(t, 0);
}

/// Reductions of a warp and of a block in hardware.
extern "C" __global__ void reductions(const int* in, int* out) {
  const int x = in[threadIdx.x];
  const unsigned u = x;
  int* mine = out + threadIdx.x * 12;
  mine[0] = __reduce_add_sync(~0u, x);
  mine[1] = __reduce_min_sync(~0u, x);
  mine[2] = __reduce_max_sync(~0u, x);
  mine[3] = __reduce_max_sync(~0u, u);
  mine[4] = __reduce_and_sync(~0u, u);
  mine[5] = __reduce_or_sync(~0u, u);
  mine[6] = __reduce_xor_sync(~0u, u);
  mine[7] = __syncthreads_count(x > 0);
  mine[8] = __syncthreads_and(x > -1000);
  mine[9] = __syncthreads_or(x == in[5]);
  mine[10] = __match_any_sync(~0u, x % 4);
  mine[11] = x % 2 != 0 ? __reduce_add_sync(__ballot_sync(~0u, true) & 0xaaaaaaaau, 1) : 0;
}

/// The packed intrinsics, each to an element of its own: out[k * n + i].
extern "C" __global__ void packed_halves(const __half2* a, const __half2* b, __half2* out, int n) {
  const int i = threadIdx.x;
  const __half2 x = a[i], y = b[i];
  int k = 0;
  const auto put = [&](__half2 value) { out[k++ * n + i] = value; };
  put(__hadd2(x, y));
  put(__hsub2(x, y));
  put(__hmul2(x, y));
  put(__hfma2(x, y, x));
  put(__hmin2(x, y));
  put(__hmax2(x, y));
  put(__hadd2_sat(x, y));
  put(__hfma2_relu(x, y, y));
  put(__hneg2(x));
  put(__habs2(x));
  put(__hgt2(x, y));
  put(__h2div(x, y));
  put(__float22half2_rn(__half22float2(x)));
  put(h2sqrt(__habs2(x)));
}
extern "C" __global__ void packed_bfloats(const __nv_bfloat162* a, const __nv_bfloat162* b,
                                          __nv_bfloat162* out, int n) {
  const int i = threadIdx.x;
  const __nv_bfloat162 x = a[i], y = b[i];
  int k = 0;
  const auto put = [&](__nv_bfloat162 value) { out[k++ * n + i] = value; };
  put(__hadd2(x, y));
  put(__hsub2(x, y));
  put(__hmul2(x, y));
  put(__hfma2(x, y, x));
  put(__hmin2(x, y));
  put(__hmax2(x, y));
  put(__hadd2_sat(x, y));
  put(__hfma2_relu(x, y, y));
  put(__hneg2(x));
  put(__habs2(x));
  put(__hgt2(x, y));
  put(__h2div(x, y));
  put(__float22bfloat162_rn(__bfloat1622float2(x)));
  put(h2sqrt(__habs2(x)));
}

/// Atomics on packed and single halves.
extern "C" __global__ void half_atomics(__half2* pair, __nv_bfloat162* bpair, __half* one) {
  atomicAdd(pair, __floats2half2_rn(1, 0.5f));
  atomicAdd(bpair, __floats2bfloat162_rn(1, 2));
  atomicAdd(one, __float2half(0.25f));
}

// Kernels for kernels_test.cpp, in the ways people write them; compiled by nvcc with several
// targets and options.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdio>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

namespace cg = cooperative_groups;

extern "C" __global__ void reduce(const float* in, float* out, int n) {
  extern __shared__ float part[];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum += in[i];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(out, part[0]);
}

extern "C" __global__ void softmax(const float* in, float* out, int columns) {
  const float* row = in + blockIdx.x * columns;
  float top = -INFINITY, sum = 0;
  for (int c = threadIdx.x; c < columns; c += 32) top = fmaxf(top, row[c]);
  for (int k = 16; k > 0; k /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, k));
  for (int c = threadIdx.x; c < columns; c += 32) sum += expf(row[c] - top);
  for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
  for (int c = threadIdx.x; c < columns; c += 32)
    out[blockIdx.x * columns + c] = expf(row[c] - top) / sum;
}

__device__ __noinline__ int ackermann(int m, int n) {
  if (m == 0) return n + 1;
  return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}
extern "C" __global__ void recursion(int* out) { out[threadIdx.x] = ackermann(2, threadIdx.x); }

__device__ int twice(int x) { return 2 * x; }
__device__ int square(int x) { return x * x; }
__device__ int negate(int x) { return -x; }
__device__ int (*const kTable[3])(int) = {twice, square, negate};
extern "C" __global__ void pointers(int* out) {
  out[threadIdx.x] = kTable[threadIdx.x % 3](threadIdx.x);
}

extern "C" __global__ void print(int x) {
  if (threadIdx.x == 33) printf("x=%d %5.2f %s %c %llu %%\n", x, 1.5, "text", 'z', 1ull << 40);
}

extern "C" __global__ void switches(int* out) {
  int r;
  switch (threadIdx.x % 7) {
    case 0:
      r = 5;
      break;
    case 1:
      r = threadIdx.x * 3;
      break;
    case 2:
      r = -1;
      break;
    case 3:
      r = __popc(threadIdx.x);
      break;
    case 5:
      r = __clz(threadIdx.x);
      break;
    default:
      r = 99;
  }
  out[threadIdx.x] = r;
}

extern "C" __global__ void grid_sync(int* data, int rounds) {
  cg::grid_group grid = cg::this_grid();
  const int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int r = 0; r < rounds; ++r) {
    const int other = data[r % 2 * n + (i + 1) % n];
    data[(r + 1) % 2 * n + i] = other + 1;
    grid.sync();
  }
}

extern "C" __global__ void tiles(int* out) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  int v = threadIdx.x;
  for (int k = 4; k > 0; k /= 2) v += tile.shfl_down(v, k);
  if (tile.thread_rank() == 0) out[threadIdx.x / 8] = v;
}

extern "C" __global__ void scan(const int* in, int* out, int* total) {
  using Scan = cub::BlockScan<int, 128>;
  using Reduce = cub::BlockReduce<int, 128>;
  __shared__ typename Scan::TempStorage scan_storage;
  __shared__ typename Reduce::TempStorage reduce_storage;
  int value = in[threadIdx.x], sum;
  Scan(scan_storage).InclusiveSum(value, sum);
  out[threadIdx.x] = sum;
  const int all = Reduce(reduce_storage).Sum(value);
  if (threadIdx.x == 0) *total = all;
}

extern "C" __global__ void heap(int* out) {
  int* mine = static_cast<int*>(malloc(16 * sizeof(int)));
  for (int k = 0; k < 16; ++k) mine[k] = k * threadIdx.x;
  int sum = 0;
  for (int k = 0; k < 16; ++k) sum += mine[k];
  free(mine);
  out[threadIdx.x] = sum;
}

extern "C" __global__ void halves(const float* in, float* out) {
  const int i = threadIdx.x;
  out[i] = __half2float(__hmul(__float2half(in[i]), __float2half(0.5f)));
  out[i + blockDim.x] = __bfloat162float(__float2bfloat16(in[i]));
}

extern "C" __global__ void local_array(int* out, int n) {
  int a[32];
  for (int k = 0; k < n; ++k) a[(k * 7 + threadIdx.x) % 32] = k;
  int sum = 0;
  for (int k = 0; k < n; ++k) sum += a[k] * (k + 1);
  out[threadIdx.x] = sum;
}

extern "C" __global__ void divide(const unsigned __int128* in, unsigned __int128* out) {
  const unsigned __int128 a = in[2 * threadIdx.x], b = in[2 * threadIdx.x + 1];
  unsigned __int128* mine = out + 4 * threadIdx.x;
  const __int128 signed_a = static_cast<__int128>(a), signed_b = static_cast<__int128>(b);
  mine[0] = a / b;
  mine[1] = a % b;
  mine[2] = static_cast<unsigned __int128>(signed_a / signed_b);
  mine[3] = static_cast<unsigned __int128>(signed_a % signed_b);
}

// What the shapes of kernels.cu leave out of the language, as benchmarks of the interpreter: small
// formats, mathematical functions, integers, tables of random rows, atomics, calls, votes, and
// blocks that wait for each other. Results are floats, so that they can be summed.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include <cstdint>

namespace {
__device__ int own_index() { return blockIdx.x * blockDim.x + threadIdx.x; }
}  // namespace

extern "C" __global__ void half_round(const float* in, float* out, int n) {
  const int i = own_index();
  if (i < n) out[i] = __half2float(__float2half(in[i]));
}

extern "C" __global__ void bfloat_round(const float* in, float* out, int n) {
  const int i = own_index();
  if (i < n) out[i] = __bfloat162float(__float2bfloat16(in[i]));
}

// Two at a time: a sum, a product, and both fused, eight times over.
extern "C" __global__ void half_pairs(const float2* in, float2* out, int n) {
  const int i = own_index();
  if (i >= n) return;
  const __half2 x = __float22half2_rn(in[i]);
  __half2 y = __hadd2(x, x);
  for (int k = 0; k < 8; ++k) y = __hfma2(x, __hmul2(y, __float2half2_rn(0.25f)), y);
  out[i] = __half22float2(y);
}

extern "C" __global__ void half_gemm(const __half* a, const __half* b, float* c, int n) {
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += __half2float(a[row * n + k]) * __half2float(b[k * n + column]);
  c[row * n + column] = sum;
}

// Fills what half_gemm and tensor_gemm read.
extern "C" __global__ void to_half(const float* in, __half* out, int n) {
  const int i = own_index();
  if (i < n) out[i] = __float2half(in[i]);
}

// One warp per tile of 16x16, on tensor cores.
extern "C" __global__ void tensor_gemm(const __half* a, const __half* b, float* c, int n) {
  using namespace nvcuda;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> rows;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> columns;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.f);
  for (int k = 0; k < n; k += 16) {
    wmma::load_matrix_sync(rows, a + blockIdx.y * 16 * n + k, n);
    wmma::load_matrix_sync(columns, b + k * n + blockIdx.x * 16, n);
    wmma::mma_sync(sum, rows, columns, sum);
  }
  wmma::store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, sum, n, wmma::mem_row_major);
}

extern "C" __global__ void functions(const float* in, float* out, int n) {
  const int i = own_index();
  if (i >= n) return;
  const float x = in[i];
  out[i] = sinf(x) + cosf(x) + powf(x, 1.3f) + log1pf(x * x) + exp2f(x) + log2f(x * x + 1) +
           atan2f(x, 2.f) + cbrtf(x) + fmodf(x, 0.7f) + erfcf(x) + tgammaf(x + 0.5f) +
           hypotf(x, 1.f) + expm1f(x) + sinhf(x);
}

extern "C" __global__ void functions_double(const float* in, float* out, int n) {
  const int i = own_index();
  if (i >= n) return;
  const double x = in[i];
  out[i] = static_cast<float>(exp(x) + log(x * x + 1) + sqrt(x) / (x + 2) + sin(x) + pow(x, 0.3) +
                              tanh(x) + erf(x));
}

extern "C" __global__ void functions_fast(const float* in, float* out, int n) {
  const int i = own_index();
  if (i >= n) return;
  const float x = in[i] + 0.1f;
  out[i] = __sinf(x) + __cosf(x) + __expf(x) + __logf(x) + __powf(x, 2.f) + __fdividef(x, 3.f) +
           __frcp_rn(x) + __fsqrt_rn(x) + rsqrtf(x) + __saturatef(x) + copysignf(1.f, x);
}

extern "C" __global__ void integers(const float* in, float* out, int n) {
  const int i = own_index();
  if (i >= n) return;
  const int x = static_cast<int>(in[i] * 1e4f) - 3000, y = i % 31 + 1;
  const unsigned u = static_cast<unsigned>(x) * 2654435761u;
  const long long wide = static_cast<long long>(x) * u;
  int sum = x / y + x % y + min(x, y) + __popc(u) + __clz(y) + __ffs(x) + abs(x) + __sad(x, y, 3u);
  sum += static_cast<int>(u / 7u + u % 13u + __umulhi(u, 77u) + (__brev(u) >> 9)) & 0xffff;
  sum += (__byte_perm(x, y, 0x3021) + __funnelshift_l(x, y, 7) + __dp4a(x, y, 0)) & 0xff;
  sum += static_cast<int>(wide / y + wide % 1000 + (wide >> 7) + __popcll(wide)) & 0xfff;
  out[i] = static_cast<float>(sum);
}

// Rows of a larger matrix, with indices of 64 bits as frameworks compute them.
extern "C" __global__ void copy_rows(const float* in, float* out, int64_t rows, int64_t columns,
                                     int64_t stride) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < rows * columns) out[i] = in[i / columns * stride + i % columns];
}

// The row of a table for each word of a text, and the way back.
extern "C" __global__ void embedding(const float* table, float* out, int words, int columns) {
  const float* row = table + (blockIdx.x * 2654435761u % words) * columns;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) out[blockIdx.x * columns + c] = row[c];
}

extern "C" __global__ void embedding_gradient(const float* grad, float* table, int words,
                                              int columns) {
  float* row = table + (blockIdx.x * 2654435761u % words) * columns;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    atomicAdd(&row[c], grad[blockIdx.x * columns + c] * 1e-3f);
}

extern "C" __global__ void layernorm_gradient(const float* grad, const float* in, float* into,
                                              float* scales, float* shifts, int columns) {
  __shared__ float parts[2][32];
  const float* own = grad + blockIdx.x * columns;
  float sums[2] = {0, 0};
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    const float normal = in[blockIdx.x * columns + c] - 0.5f;
    sums[0] += own[c];
    sums[1] += own[c] * normal;
    atomicAdd(&scales[c], own[c] * normal * 1e-3f);
    atomicAdd(&shifts[c], own[c] * 1e-3f);
  }
  for (int s = 0; s < 2; ++s) {
    for (int k = 16; k > 0; k /= 2) sums[s] += __shfl_down_sync(~0u, sums[s], k);
    if (threadIdx.x % 32 == 0) parts[s][threadIdx.x / 32] = sums[s];
  }
  __syncthreads();
  float totals[2] = {0, 0};
  for (int k = 0; k < blockDim.x / 32; ++k) {
    totals[0] += parts[0][k];
    totals[1] += parts[1][k];
  }
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    const float normal = in[blockIdx.x * columns + c] - 0.5f;
    into[blockIdx.x * columns + c] = own[c] - (totals[0] + normal * totals[1]) / columns;
  }
}

// Ten rounds of a counter-based generator: multiplications of 32 bits to 64.
extern "C" __global__ void dropout(const float* in, float* out, int n) {
  const int i = own_index();
  if (i >= n) return;
  uint32_t state[4] = {static_cast<uint32_t>(i), 0, 42, 0}, key[2] = {7, 11};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * state[0], b = uint64_t{0xCD9E8D57} * state[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(b >> 32) ^ state[1] ^ key[0], static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ state[3] ^ key[1], static_cast<uint32_t>(a)};
    for (int k = 0; k < 4; ++k) state[k] = next[k];
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  out[i] = state[0] * 0x1p-32f > 0.3f ? in[i] / 0.7f : 0.f;
}

// Sums of all before each element: within warps, then over the warps of the block.
extern "C" __global__ void block_scan(const float* in, float* out) {
  __shared__ float totals[32];
  const int i = own_index(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum = in[i];
  for (int k = 1; k < 32; k *= 2) {
    const float other = __shfl_up_sync(~0u, sum, k);
    if (lane >= k) sum += other;
  }
  if (lane == 31) totals[warp] = sum;
  __syncthreads();
  for (int k = 0; k < warp; ++k) sum += totals[k];
  out[i] = sum;
}

// 512 numbers in shared memory, compared and exchanged in pairs.
extern "C" __global__ void block_sort(const float* in, float* out) {
  __shared__ float values[512];
  const int t = threadIdx.x, base = blockIdx.x * 512;
  for (int k = t; k < 512; k += 256) values[k] = in[base + (k * 197 + 31) % 512];
  __syncthreads();
  for (int run = 2; run <= 512; run *= 2) {
    for (int far = run / 2; far > 0; far /= 2) {
      const int low = t / far * far * 2 + t % far, high = low + far;
      if ((values[low] > values[high]) == ((low & run) == 0)) {
        const float value = values[low];
        values[low] = values[high];
        values[high] = value;
      }
      __syncthreads();
    }
  }
  for (int k = t; k < 512; k += 256) out[base + k] = values[k];
}

// What the lanes of a warp tell each other besides values.
extern "C" __global__ void votes(const float* in, float* out, int n) {
  float sum = 0;
  int most = 0;
  for (int i = own_index(); i < n; i += gridDim.x * blockDim.x) {
    sum += in[i];
    most = max(most, static_cast<int>(in[i] * 100));
  }
  for (int k = 16; k > 0; k /= 2) {
    sum += __shfl_down_sync(~0u, sum, k);
    most = max(most, __shfl_xor_sync(~0u, most, k));
  }
  const unsigned high = __ballot_sync(~0u, sum > 100.f);
  const unsigned same = __match_any_sync(~0u, most);
  if (__any_sync(~0u, sum < 0) || __all_sync(~0u, sum < 1)) ++most;
  __syncwarp();
  out[own_index()] = sum + most + __popc(high) + __popc(same) + __popc(__activemask());
}

// Every kind, on cells that all threads share and on a cell of each.
extern "C" __global__ void atomics(float* out, unsigned* cells, unsigned long long* wide, int n) {
  const int i = own_index();
  if (i >= n) return;
  atomicAdd(&cells[0], 1);
  atomicSub(&cells[1], i);
  atomicMin(&cells[2], i);
  atomicMax(&cells[3], i);
  atomicAnd(&cells[4], ~i);
  atomicOr(&cells[5], i);
  atomicXor(&cells[6], i);
  atomicInc(&cells[7], 100);
  atomicDec(&cells[8], 100);
  atomicExch(&cells[9], i);
  const unsigned before = atomicCAS(&cells[10], i, i + 1);
  atomicAdd(&wide[0], static_cast<unsigned long long>(before));
  atomicMax(&wide[1], static_cast<unsigned long long>(i));
  atomicCAS(&wide[2], 0ull, static_cast<unsigned long long>(i));
  atomicAdd(&out[i % 64], 1.f);
  atomicAdd(reinterpret_cast<double*>(&wide[3]), 1.0);
  atomicAdd_block(&cells[11], 1);
  atomicAdd_system(&cells[12], 1);
  __threadfence();
}

// Two passes over all elements; what the second reads the other blocks wrote in the first.
extern "C" __global__ void grid_sync(const float* in, float* between, float* out, int n) {
  const auto grid = cooperative_groups::this_grid();
  for (int i = grid.thread_rank(); i < n; i += grid.size()) between[i] = in[i] * 2;
  grid.sync();
  for (int i = grid.thread_rank(); i < n; i += grid.size()) out[i] = between[n - 1 - i] + in[i];
}

extern "C" __global__ void tiles(const float* in, float* out) {
  const auto block = cooperative_groups::this_thread_block();
  const auto tile = cooperative_groups::tiled_partition<16>(block);
  float value = in[own_index()];
  for (int k = 8; k > 0; k /= 2) value += tile.shfl_down(value, k);
  block.sync();
  if (tile.thread_rank() == 0) out[own_index() / 16] = value;
}

namespace {
using Function = float (*)(float);
__device__ float plus_one(float x) { return x + 1; }
__device__ float twice(float x) { return x * 2; }
__device__ Function table[2] = {plus_one, twice};
__device__ __noinline__ float deeper(float x, int depth) {
  return depth <= 0 ? x : deeper(x * 1.5f, depth - 1) + 1;
}
}  // namespace

// Calls through a table that differ from lane to lane, and calls of itself.
extern "C" __global__ void calls(const float* in, float* out) {
  const int i = own_index();
  out[i] = deeper(table[i & 1](in[i]), threadIdx.x & 3);
}

// An array of a thread's own, indexed by what was read; and as many ways as lanes can go.
extern "C" __global__ void local_array(const float* in, float* out) {
  const int i = own_index();
  float own[40];
  for (int k = 0; k < 40; ++k) own[k] = in[(i + k * 7) & 0xffff];
  float sum = 0;
  for (int k = 0; k < 64; ++k) {
    const int at = (static_cast<int>(own[k % 40] * 100) & 255) % 40;
    switch (at % 6) {
      case 0:
        sum += own[at];
        break;
      case 1:
        sum -= own[k % 7];
        break;
      case 2:
        sum *= 0.5f;
        break;
      case 3:
        sum += k;
        break;
      case 4:
        own[at] = k * 0.1f;
        break;
      default:
        sum = fabsf(sum);
    }
  }
  out[i] = sum;
}

// Kernels for turns_test.cpp: patterns of shared memory that are right only because the warps of a
// block start together and leave a barrier together, as the warps of a GPU do. Most have a race
// that the programming guide forbids and that no GPU shows.

namespace {

constexpr int kWarpsMax = 32;

__device__ int warp_sum(int v) {
  for (int k = 16; k > 0; k /= 2) v += __shfl_xor_sync(~0u, v, k);
  return v;
}

// Every thread gets the sum. The next call overwrites what slower warps still read.
__device__ int block_sum(int v) {
  __shared__ int part[kWarpsMax];
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  int sum = 0;
  for (int k = 0; k < blockDim.x / 32; ++k) sum += part[k];
  return sum;
}

// Only thread 0 gets the sum, from the first warp, while the others go on to the next call.
__device__ int first_warp_sum(int v) {
  __shared__ int part[kWarpsMax];
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
  return threadIdx.x < 32 ? warp_sum(v) : 0;
}

}  // namespace

extern "C" __global__ void sum_twice(const int* in, int* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int sum = block_sum(in[i]);
  out[i] = block_sum(in[i] * (sum & 7)) + sum;
}

extern "C" __global__ void first_warp_twice(const int* in, int* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int sum = first_warp_sum(in[i]), squares = first_warp_sum(in[i] * in[i]);
  if (threadIdx.x == 0) {
    out[2 * blockIdx.x] = sum;
    out[2 * blockIdx.x + 1] = squares;
  }
}

// One cell for all rounds: thread 0 clears it while slower warps still read the round before.
extern "C" __global__ void cleared_for_the_next(const int* in, int* out, int rounds) {
  __shared__ int cell;
  int all = 0;
  for (int r = 0; r < rounds; ++r) {
    if (threadIdx.x == 0) cell = 0;
    __syncthreads();
    atomicAdd(&cell, in[threadIdx.x] + r);
    __syncthreads();
    all = all * 3 + cell;
  }
  out[threadIdx.x] = all;
}

// Inclusive prefix sums; the barrier behind the addition is missing.
extern "C" __global__ void scan_one_barrier(const int* in, int* out) {
  extern __shared__ int cells[];
  const int t = threadIdx.x;
  cells[t] = in[t];
  __syncthreads();
  for (int step = 1; step < blockDim.x; step *= 2) {
    const int left = t >= step ? cells[t - step] : 0;
    __syncthreads();
    cells[t] += left;
  }
  out[t] = cells[t];
}

// A product by tiles; the barrier between using a tile and loading the next one is missing.
extern "C" __global__ void tiles_one_barrier(const int* a, const int* b, int* c, int n) {
  __shared__ int tile_a[16][16], tile_b[16][16];
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  int sum = 0;
  for (int t = 0; t < n; t += 16) {
    tile_a[y][x] = a[row * n + t + x];
    tile_b[y][x] = b[(t + y) * n + column];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; ++k) sum += tile_a[y][k] * tile_b[k][x];
  }
  c[row * n + column] = sum;
}

// Blocks of 32x8 of which all rows do the same: each reads the start value before any has stored.
extern "C" __global__ void rows_of_threads_alike(int n, const int* a, int* x, const int* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  for (int j = 0; j < n; ++j) x[i] += a[i * n + j] * y[j];
}

// The same race behind barriers that also answer a question.
extern "C" __global__ void counted_twice(const int* in, int* out) {
  __shared__ int last;
  const int v = in[threadIdx.x];
  int all = 0;
  for (int bit = 0; bit < 8; ++bit) {
    if (threadIdx.x == bit * 37 % blockDim.x) last = v;
    const int count = __syncthreads_count(v >> bit & 1);
    all = all * 5 + last + count;
  }
  out[threadIdx.x] = all;
}

// Half of the block meets at a barrier of its own, twice.
extern "C" __global__ void half_sums(const int* in, int* out) {
  __shared__ int part[kWarpsMax];
  const int t = threadIdx.x, half = blockDim.x / 2, upper = t >= half;
  const int first = upper * half / 32, warps = half / 32;
  int v = in[t];
  for (int round = 0; round < 4; ++round) {
    const int mine = warp_sum(v);
    if (t % 32 == 0) part[t / 32] = mine;
    asm volatile("barrier.sync %0, %1;" ::"r"(upper + 1), "r"(half) : "memory");
    int sum = 0;
    for (int k = 0; k < warps; ++k) sum += part[first + k];
    v = sum % 1021 + in[t];
  }
  out[t] = v;
}

// The sums again, behind an mbarrier instead of a barrier.
extern "C" __global__ void sums_by_phase(const int* in, int* out) {
  __shared__ int part[kWarpsMax];
  __shared__ unsigned long long phase;
  const int t = threadIdx.x;
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&phase));
  if (t == 0)
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(blockDim.x) : "memory");
  __syncthreads();
  int v = in[t];
  for (int round = 0; round < 4; ++round) {
    const int mine = warp_sum(v);
    if (t % 32 == 0) part[t / 32] = mine;
    unsigned long long state;
    unsigned there = 0;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at) : "memory");
    while (there == 0) {
      asm volatile(
          "{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
          : "=r"(there)
          : "r"(at), "l"(state)
          : "memory");
    }
    int sum = 0;
    for (int k = 0; k < blockDim.x / 32; ++k) sum += part[k];
    v = sum % 1021 + in[t];
  }
  out[t] = v;
}

// The first warp's threads leave: its end is what lets the others go.
extern "C" __global__ void leaves_last(const int* in, int* out) {
  __shared__ int cell;
  const int t = threadIdx.x;
  if (t < 32) {
    if (t == 0) cell = in[0];
    int spin = 0;
    for (int k = 0; k < 3000; ++k) spin += in[k & 31] ^ spin;
    if (spin == 0x7fffffff) out[0] = spin;
    return;
  }
  __syncthreads();
  const int seen = cell;
  if (t == 32) cell = -1;
  out[t] = seen;
}

__device__ unsigned tickets = 0;

// The last block to finish adds up what all have left in memory.
extern "C" __global__ void last_block(const int* in, int* parts, int* out) {
  __shared__ bool last;
  const int sum = block_sum(in[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(&tickets, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  int v = 0;
  for (int k = threadIdx.x; k < gridDim.x; k += blockDim.x) v += parts[k];
  const int all = block_sum(v);
  if (threadIdx.x == 0) *out = all;
}

// One warp fills a buffer, another empties it; both watch flags in memory.
extern "C" __global__ void hand_over(const int* in, int* out, int rounds) {
  __shared__ volatile int buffer[32], full;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) full = 0;
  __syncthreads();
  for (int r = 0; r < rounds; ++r) {
    if (warp == 0) {
      while (full != 0) {
      }
      buffer[lane] = in[lane] * (r + 1);
      __threadfence_block();
      __syncwarp();
      if (lane == 0) full = 1;
    } else if (warp == 1) {
      while (full == 0) {
      }
      out[r * 32 + lane] = buffer[31 - lane];
      __threadfence_block();
      __syncwarp();
      if (lane == 0) full = 0;
    }
  }
}

// One warp fills buffers in turn, the others use them; named barriers hand them over.
extern "C" __global__ void specialised(const int* in, int* out, int rounds) {
  __shared__ int buffer[2][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, threads = blockDim.x;
  int sum = 0;
  for (int r = 0; r < rounds; ++r) {
    const int slot = r % 2, filled = 1 + slot, emptied = 3 + slot;
    if (warp == 0) {
      if (r >= 2) asm volatile("barrier.sync %0, %1;" ::"r"(emptied), "r"(threads) : "memory");
      buffer[slot][lane] = in[lane] + r;
      asm volatile("barrier.arrive %0, %1;" ::"r"(filled), "r"(threads) : "memory");
    } else {
      asm volatile("barrier.sync %0, %1;" ::"r"(filled), "r"(threads) : "memory");
      sum = sum * 3 + buffer[slot][lane ^ warp];
      if (r + 2 < rounds)
        asm volatile("barrier.arrive %0, %1;" ::"r"(emptied), "r"(threads) : "memory");
    }
  }
  out[threadIdx.x] = sum;
}

// The kernels of the conformance rows: small, and each with one purpose.
#undef NDEBUG  // assert_zero asserts in every build
#include <cassert>

extern "C" {

__device__ unsigned counter;
__constant__ unsigned constant_word = 7;
__device__ __managed__ unsigned managed_word = 11;

__global__ void add_one(unsigned* data, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += 1;
}

__global__ void store(unsigned* data, unsigned value) { *data = value; }

/// Runs until *flag is not zero; what it saw goes to *seen.
__global__ void wait_flag(volatile unsigned* flag, unsigned* seen) {
  while (*flag == 0) {
  }
  *seen = *flag;
}

/// Busy for about `rounds` iterations.
__global__ void spin(unsigned* data, unsigned rounds) {
  unsigned value = *data;
  for (unsigned i = 0; i < rounds; ++i) value = value * 1664525U + 1013904223U;
  *data = value;
}

__global__ void write_address(unsigned long long address) {
  *reinterpret_cast<unsigned*>(address) = 1;
}

struct Bytes {
  unsigned char at[32756];
};
/// With the most bytes of parameters that a kernel can have.
__global__ void sum_ends(unsigned* sum, Bytes bytes) { *sum = bytes.at[0] + bytes.at[32755]; }

__global__ void trap() { asm volatile("trap;"); }

__global__ void assert_zero(unsigned value) { assert(value == 0); }

/// One of the 16 barriers of a block, by number.
__global__ void use_barrier(unsigned number) { asm volatile("bar.sync %0;" ::"r"(number)); }

/// An atomic operation on a thread's own variable, which only a generic address can reach.
__global__ void add_to_local(unsigned* data) {
  unsigned own = *data;
  unsigned* hidden = &own;
  asm volatile("" : "+l"(hidden)::"memory");  // so that the compiler cannot tell whose it is
  atomicAdd(hidden, 1U);
  *data = own;
}

__device__ __noinline__ unsigned recurse_step(unsigned depth, volatile unsigned* before) {
  volatile unsigned frame[64];
  for (int i = 0; i < 64; ++i) frame[i] = before[i] + depth;
  return depth == 0 ? frame[0] : recurse_step(depth - 1, frame) + frame[63];
}

/// Calls itself `depth` times, with a frame of a quarter KiB each.
__global__ void recurse(unsigned* data, unsigned depth) {
  volatile unsigned frame[64];
  for (int i = 0; i < 64; ++i) frame[i] = *data;
  *data = recurse_step(depth, frame);
}

__global__ void count_threads() { atomicAdd(&counter, 1U); }

__global__ void empty() {}

/// Tells whether malloc on the device gave memory: 1 = it did, 2 = it did not.
__global__ void allocate(unsigned* answer, unsigned bytes) {
  void* volatile block = malloc(bytes);
  *answer = block != nullptr ? 1 : 2;
  free(block);
}

__global__ void __launch_bounds__(64) bounded_64() {}

/// 40 KiB of static shared memory, all of it in use.
__global__ void static_shared() {
  __shared__ volatile unsigned words[10240];
  words[threadIdx.x] = threadIdx.x;
  words[10239 - threadIdx.x] = words[threadIdx.x];
}

/// Too many values alive at once for a thousand threads of one SM.
__global__ void many_registers(unsigned* data) {
  unsigned values[112];
#pragma unroll
  for (int i = 0; i < 112; ++i) values[i] = reinterpret_cast<volatile unsigned*>(data)[i];
  unsigned mixed = 0;
#pragma unroll
  for (int i = 0; i < 112; ++i) mixed = (mixed ^ values[(i * 37) % 112]) * (values[i] | 1U);
  data[threadIdx.x] = mixed;
}

/// Each thread of a grid of any shape writes its number, counted from 1, to its own place.
__global__ void write_index(unsigned* data) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
  data[i] = i + 1;
}

/// Every block waits until all blocks of the grid have come: only a grid that is on the device as a
/// whole gets through.
__global__ void grid_barrier(unsigned* arrived, unsigned* passed) {
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1U);
    while (*reinterpret_cast<volatile unsigned*>(arrived) < gridDim.x) {
    }
    atomicAdd(passed, 1U);
  }
  __syncthreads();
}
}

// The kernels of the conformance rows: small, and each with one purpose.
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

__global__ void trap() { asm volatile("trap;"); }

__global__ void count_threads() { atomicAdd(&counter, 1U); }

__global__ void empty() {}

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

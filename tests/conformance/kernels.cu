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

__global__ void write_address(unsigned long long address) { *reinterpret_cast<unsigned*>(address) = 1; }

__global__ void trap() { asm volatile("trap;"); }

__global__ void count_threads() { atomicAdd(&counter, 1U); }
}

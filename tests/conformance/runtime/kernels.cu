// The kernels of the runtime rows, as nvcc registers them with whatever runtime the program meets.
__device__ unsigned runtime_counter;
__device__ unsigned runtime_table[8] = {1, 2, 3};
__constant__ unsigned runtime_factor = 7;
__device__ __managed__ unsigned runtime_managed = 11;

extern "C" {

__global__ void runtime_store(unsigned* data, unsigned value) { *data = value; }

__global__ void runtime_scale(unsigned* data, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= runtime_factor;
}

__global__ void runtime_count() {
  atomicAdd(&runtime_counter, 1U);
  if (threadIdx.x == 0 && blockIdx.x == 0) runtime_managed += runtime_table[0];
}

__global__ void runtime_wait(volatile unsigned* flag, unsigned* seen) {
  while (*flag == 0) {
  }
  *seen = *flag;
}

__global__ void __launch_bounds__(128) runtime_bounded() {
  __shared__ volatile unsigned words[512];
  words[threadIdx.x] = threadIdx.x;
}

__global__ void runtime_trap() { asm volatile("trap;"); }
}

// Addresses of variables as the host names them: C++ code compiled without nvcc has no such names.
extern const void* const runtime_counter_symbol = &runtime_counter;
extern const void* const runtime_table_symbol = runtime_table;
extern const void* const runtime_factor_symbol = &runtime_factor;

unsigned* runtime_managed_address() { return &runtime_managed; }

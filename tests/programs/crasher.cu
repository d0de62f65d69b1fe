// A bug like everybody's first: the kernel writes through a host pointer... that was never one. It
// holds 32 MiB when it dies.
#include "student.h"

__global__ void writeTo(int* where) { where[threadIdx.x] = 1; }

int main() {
  void* kept;
  CUDA_CHECK(cudaMalloc(&kept, 32 << 20));
  writeTo<<<1, 32>>>((int*)0x40);
  cudaError_t err = cudaDeviceSynchronize();
  printf("crasher: %s: %s\n", cudaGetErrorName(err), cudaGetErrorString(err));
  return err == cudaSuccess ? 0 : 3;
}

// Stands in for the frameworks where they are not installed, with the same command line
// (framework.py): computes, and with --need takes memory, minds its own out-of-memory error, and
// computes again.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

__global__ void square_sum(unsigned long long* sum, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    atomicAdd(sum, static_cast<unsigned long long>(i) * static_cast<unsigned long long>(i));
  }
}

bool compute() {
  unsigned long long* device = nullptr;
  unsigned long long sum = 0;
  if (cudaMalloc(&device, sizeof sum) != cudaSuccess) return false;
  cudaMemset(device, 0, sizeof sum);
  square_sum<<<1, 128>>>(device, 10000);
  const cudaError_t error = cudaMemcpy(&sum, device, sizeof sum, cudaMemcpyDeviceToHost);
  cudaFree(device);
  std::printf("standin: sum %llu\n", sum);
  return error == cudaSuccess;
}

bool take(const char* bytes) {
  void* block = nullptr;
  const cudaError_t error = cudaMalloc(&block, std::strtoull(bytes, nullptr, 10));
  if (error == cudaSuccess) {
    std::printf("allocated %s bytes\n", bytes);
    return cudaFree(block) == cudaSuccess;
  }
  std::printf("out of memory: %s\n", cudaGetErrorName(error));
  return error == cudaErrorMemoryAllocation && cudaGetLastError() == error;
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("the CUDA runtime sees no GPU\n");
    return 77;
  }
  if (argc == 2 && std::strcmp(argv[1], "--check") == 0) return 0;
  if (!compute()) return 1;
  if (argc == 3 && std::strcmp(argv[1], "--need") == 0) return take(argv[2]) && compute() ? 0 : 1;
  return 0;
}

// How much can I have? Allocates 1 MiB at a time until the device says no, gives everything back
// and prints the sum.
#include "student.h"

#include <vector>

int main() {
  const size_t step = 1 << 20;
  std::vector<void*> blocks;
  cudaError_t last = cudaSuccess;
  for (;;) {
    void* block = nullptr;
    last = cudaMalloc(&block, step);
    if (last != cudaSuccess) break;
    blocks.push_back(block);
  }
  if (last != cudaErrorMemoryAllocation) {
    printf("oom_prober: unexpected error: %s\n", cudaGetErrorString(last));
    return 1;
  }
  if (cudaGetLastError() != cudaErrorMemoryAllocation)
    return 1;  // not sticky: the next call works again
  printf("oom_prober: got %zu bytes, then: %s\n", blocks.size() * step, cudaGetErrorString(last));

  size_t free_bytes, total_bytes;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  printf("oom_prober: free now %zu of %zu\n", free_bytes, total_bytes);
  for (size_t i = 0; i < blocks.size(); i++) CUDA_CHECK(cudaFree(blocks[i]));
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  printf("oom_prober: free after freeing %zu of %zu\n", free_bytes, total_bytes);
  return 0;
}

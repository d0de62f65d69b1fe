// Sum of a vector: tree in shared memory, then warp shuffles, then one atomic per block.
#include "student.h"

#include <vector>

__device__ float warpSum(float value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_down_sync(0xffffffff, value, offset);
  return value;
}

__global__ void reduceSum(const float* in, float* out, int n) {
  __shared__ float partial[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum += in[i];
  sum = warpSum(sum);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
    sum = warpSum(sum);
    if (threadIdx.x == 0) atomicAdd(out, sum);
  }
}

int main() {
  const int n = 100000;
  std::vector<float> host(n);
  double expected = 0;
  for (int i = 0; i < n; i++) {
    host[i] = (float)(i % 8);  // small whole numbers: the sum is exact in any order
    expected += host[i];
  }
  float *d_in, *d_out;
  CUDA_CHECK(cudaMalloc(&d_in, n * sizeof(float)));
  CUDA_CHECK(cudaMalloc(&d_out, sizeof(float)));
  CUDA_CHECK(cudaMemcpy(d_in, host.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemset(d_out, 0, sizeof(float)));
  reduceSum<<<32, 256>>>(d_in, d_out, n);
  CUDA_CHECK(cudaGetLastError());
  float sum = 0;
  CUDA_CHECK(cudaMemcpy(&sum, d_out, sizeof(float), cudaMemcpyDeviceToHost));
  printf("reduction: sum %.0f, expected %.0f\n", sum, expected);
  CUDA_CHECK(cudaFree(d_in));
  CUDA_CHECK(cudaFree(d_out));
  return sum == (float)expected ? 0 : 1;
}

// Tiled matrix multiplication, checked against the host.
#include "student.h"

#include <cmath>
#include <vector>

#define TILE 16

__global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float tileA[TILE][TILE];
  __shared__ float tileB[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y;
  int col = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < n / TILE; t++) {
    tileA[threadIdx.y][threadIdx.x] = a[row * n + t * TILE + threadIdx.x];
    tileB[threadIdx.y][threadIdx.x] = b[(t * TILE + threadIdx.y) * n + col];
    __syncthreads();
    for (int k = 0; k < TILE; k++) sum += tileA[threadIdx.y][k] * tileB[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + col] = sum;
}

int main() {
  const int n = 96;
  const size_t bytes = n * n * sizeof(float);
  std::vector<float> a(n * n), b(n * n), c(n * n);
  for (int i = 0; i < n * n; i++) {
    a[i] = (float)(i % 13) - 6;
    b[i] = (float)(i % 7) - 3;
  }
  float *d_a, *d_b, *d_c;
  CUDA_CHECK(cudaMalloc(&d_a, bytes));
  CUDA_CHECK(cudaMalloc(&d_b, bytes));
  CUDA_CHECK(cudaMalloc(&d_c, bytes));
  CUDA_CHECK(cudaMemcpy(d_a, a.data(), bytes, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(d_b, b.data(), bytes, cudaMemcpyHostToDevice));
  matmul<<<dim3(n / TILE, n / TILE), dim3(TILE, TILE)>>>(d_a, d_b, d_c, n);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpy(c.data(), d_c, bytes, cudaMemcpyDeviceToHost));

  double worst = 0, checksum = 0;
  for (int row = 0; row < n; row++) {
    for (int col = 0; col < n; col++) {
      double want = 0;
      for (int k = 0; k < n; k++) want += (double)a[row * n + k] * b[k * n + col];
      worst = fmax(worst, fabs(want - c[row * n + col]));
      checksum += c[row * n + col] * (col % 5);
    }
  }
  printf("matmul: %dx%d, checksum %.0f, largest error %g\n", n, n, checksum, worst);
  CUDA_CHECK(cudaFree(d_a));
  CUDA_CHECK(cudaFree(d_b));
  CUDA_CHECK(cudaFree(d_c));
  return worst < 1e-3 ? 0 : 1;
}

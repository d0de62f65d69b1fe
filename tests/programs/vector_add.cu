// The first exercise of every course: c = a + b.
#include "student.h"

__global__ void vectorAdd(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

int main() {
  const int n = 1 << 18;
  const size_t bytes = n * sizeof(float);
  float* h_a = (float*)malloc(bytes);
  float* h_b = (float*)malloc(bytes);
  float* h_c = (float*)malloc(bytes);
  for (int i = 0; i < n; i++) {
    h_a[i] = i * 0.5f;
    h_b[i] = (n - i) * 0.25f;
  }

  float *d_a, *d_b, *d_c;
  CUDA_CHECK(cudaMalloc(&d_a, bytes));
  CUDA_CHECK(cudaMalloc(&d_b, bytes));
  CUDA_CHECK(cudaMalloc(&d_c, bytes));
  CUDA_CHECK(cudaMemcpy(d_a, h_a, bytes, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(d_b, h_b, bytes, cudaMemcpyHostToDevice));

  vectorAdd<<<(n + 255) / 256, 256>>>(d_a, d_b, d_c, n);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpy(h_c, d_c, bytes, cudaMemcpyDeviceToHost));

  double sum = 0;
  int wrong = 0;
  for (int i = 0; i < n; i++) {
    sum += h_c[i];
    if (h_c[i] != h_a[i] + h_b[i]) wrong++;
  }
  printf("vector_add: %d elements, %d wrong, sum %.1f\n", n, wrong, sum);

  CUDA_CHECK(cudaFree(d_a));
  CUDA_CHECK(cudaFree(d_b));
  CUDA_CHECK(cudaFree(d_c));
  free(h_a);
  free(h_b);
  free(h_c);
  return wrong == 0 ? 0 : 1;
}

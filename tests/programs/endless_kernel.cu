// The loop whose end condition never comes true. It takes the device until somebody takes it away.
#include "student.h"

__global__ void forever(volatile int* flag) {
  while (*flag == 0) {
  }
}

int main() {
  int* flag;
  CUDA_CHECK(cudaMalloc(&flag, sizeof(int)));
  CUDA_CHECK(cudaMemset(flag, 0, sizeof(int)));
  printf("endless_kernel: started\n");
  fflush(stdout);
  forever<<<1, 32>>>(flag);
  cudaError_t err = cudaDeviceSynchronize();
  printf("endless_kernel: came back: %s\n", cudaGetErrorString(err));
  return 1;
}

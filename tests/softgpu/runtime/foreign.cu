// A default build, with NVIDIA's own runtime inside: the software GPU must say so in one line
// instead of failing obscurely.
#include <cstdio>

__global__ void nothing() {}

int main() {
  nothing<<<1, 1>>>();
  const cudaError_t error = cudaDeviceSynchronize();
  return error == cudaSuccess ? 0 : 1;
}

// A small program whose driver calls are recorded: each step is one that every runtime must take
// the same way.
#include <cstdio>

__global__ void twice(int* data) { data[threadIdx.x] *= 2; }

#define CHECK(call)                                                     \
  do {                                                                  \
    const cudaError_t error = (call);                                   \
    if (error == cudaSuccess) break;                                    \
    std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
    return 1;                                                           \
  } while (0)

int main() {
  int host[32];
  for (int i = 0; i < 32; ++i) host[i] = i;
  int* device = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  CHECK(cudaSetDevice(0));
  CHECK(cudaMalloc(&device, sizeof host));
  CHECK(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice));
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  twice<<<1, 32, 0, stream>>>(device);
  CHECK(cudaGetLastError());
  CHECK(cudaEventRecord(event, stream));
  CHECK(cudaEventSynchronize(event));
  CHECK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
  CHECK(cudaEventDestroy(event));
  CHECK(cudaStreamDestroy(stream));
  if (cudaMalloc(&device, size_t{1} << 50) != cudaErrorMemoryAllocation) return 1;
  CHECK(cudaFree(device));
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < 32; ++i)
    if (host[i] != 2 * i) return 1;
  std::puts("traced: all checks hold");
  return 0;
}

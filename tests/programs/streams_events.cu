// Four streams working on four pieces, an event to join them, and a time measured with events.
#include "student.h"

#include <vector>

__global__ void square(float* data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] = data[i] * data[i];
}

__global__ void total(const float* data, int n, float* out) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += data[i];
  atomicAdd(out, sum);
}

int main() {
  const int pieces = 4, piece = 8192, n = pieces * piece;
  float* host;
  CUDA_CHECK(cudaMallocHost(&host, n * sizeof(float)));
  double expected = 0;
  for (int i = 0; i < n; i++) {
    host[i] = (float)(i % 4);
    expected += host[i] * host[i];
  }
  float *data, *sum;
  CUDA_CHECK(cudaMalloc(&data, n * sizeof(float)));
  CUDA_CHECK(cudaMalloc(&sum, sizeof(float)));
  CUDA_CHECK(cudaMemset(sum, 0, sizeof(float)));

  cudaStream_t streams[pieces];
  cudaEvent_t done[pieces], start, stop;
  CUDA_CHECK(cudaEventCreate(&start));
  CUDA_CHECK(cudaEventCreate(&stop));
  CUDA_CHECK(cudaEventRecord(start));
  for (int p = 0; p < pieces; p++) {
    CUDA_CHECK(cudaStreamCreate(&streams[p]));
    CUDA_CHECK(cudaEventCreateWithFlags(&done[p], cudaEventDisableTiming));
    float* part = data + p * piece;
    CUDA_CHECK(cudaMemcpyAsync(part, host + p * piece, piece * sizeof(float),
                               cudaMemcpyHostToDevice, streams[p]));
    square<<<piece / 256, 256, 0, streams[p]>>>(part, piece);
    CUDA_CHECK(cudaEventRecord(done[p], streams[p]));
  }
  for (int p = 1; p < pieces; p++) CUDA_CHECK(cudaStreamWaitEvent(streams[0], done[p], 0));
  total<<<1, 256, 0, streams[0]>>>(data, n, sum);
  float result = 0;
  CUDA_CHECK(cudaMemcpyAsync(&result, sum, sizeof(float), cudaMemcpyDeviceToHost, streams[0]));
  CUDA_CHECK(cudaStreamSynchronize(streams[0]));
  CUDA_CHECK(cudaEventRecord(stop));
  CUDA_CHECK(cudaEventSynchronize(stop));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
  printf("streams_events: sum %.0f, expected %.0f, time was %s\n", result, expected,
         ms > 0 ? "measured" : "lost");
  for (int p = 0; p < pieces; p++) CUDA_CHECK(cudaStreamDestroy(streams[p]));
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaFree(sum));
  CUDA_CHECK(cudaFreeHost(host));
  return result == (float)expected && ms > 0 ? 0 : 1;
}

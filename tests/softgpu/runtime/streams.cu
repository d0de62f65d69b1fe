// Streams, events, callbacks and host functions: order within a stream, waiting across streams,
// measured time.
#include <atomic>

#include "checks.h"

namespace {

__global__ void append(int* log, int* length, int value) { log[(*length)++] = value; }

__global__ void spin(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

std::atomic<int> g_callbacks{0};
void CUDART_CB on_stream(cudaStream_t, cudaError_t status, void* expected) {
  if (status == cudaSuccess && expected == &g_callbacks) g_callbacks += 1;
}
void CUDART_CB on_host(void* expected) {
  if (expected == &g_callbacks) g_callbacks += 10;
}

struct Log {
  int* entries = nullptr;
  int* length = nullptr;
};

void check_order(cudaStream_t first, cudaStream_t second, const Log& log) {
  cudaEvent_t ready = nullptr;
  CHECK_OK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  spin<<<1, 1, 0, first>>>(20000);
  append<<<1, 1, 0, first>>>(log.entries, log.length, 1);
  CHECK_OK(cudaEventRecord(ready, first));
  CHECK_OK(cudaStreamWaitEvent(second, ready, 0));
  append<<<1, 1, 0, second>>>(log.entries, log.length, 2);
  CHECK_OK(cudaStreamSynchronize(second));
  int host[2] = {};
  CHECK_OK(cudaMemcpy(host, log.entries, sizeof(host), cudaMemcpyDeviceToHost));
  CHECK(host[0] == 1 && host[1] == 2);
  CHECK_OK(cudaEventDestroy(ready));
}

void check_events(cudaStream_t stream) {
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  CHECK_OK(cudaEventCreate(&start));
  CHECK_OK(cudaEventCreate(&stop));
  float elapsed_ms = -1;
  CHECK_ERROR(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&elapsed_ms, start, stop));
  CHECK_OK(cudaEventRecord(start, stream));
  spin<<<1, 1, 0, stream>>>(20000);
  CHECK_OK(cudaEventRecord(stop, stream));
  CHECK_OK(cudaEventSynchronize(stop));
  CHECK_OK(cudaEventQuery(stop));
  CHECK_OK(cudaEventElapsedTime(&elapsed_ms, start, stop));
  CHECK(elapsed_ms > 0);
  CHECK_OK(cudaEventDestroy(start));
  CHECK_OK(cudaEventDestroy(stop));
  (void)cudaGetLastError();
}

void check_properties_of(cudaStream_t stream) {
  unsigned flags = 99;
  int priority = 99;
  unsigned long long id = 0;
  CHECK_OK(cudaStreamGetFlags(stream, &flags));
  CHECK(flags == cudaStreamNonBlocking);
  CHECK_OK(cudaStreamGetPriority(stream, &priority));
  CHECK_OK(cudaStreamGetId(stream, &id));
  int least = -1;
  int greatest = 1;
  CHECK_OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CHECK(greatest <= 0 && least == 0 && priority == 0);
}

}  // namespace

void check_streams() {
  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  Log log;
  CHECK_OK(cudaStreamCreate(&first));
  CHECK_OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  CHECK_OK(cudaMalloc(&log.entries, 64 * sizeof(int)));
  CHECK_OK(cudaMalloc(&log.length, sizeof(int)));
  CHECK_OK(cudaMemset(log.length, 0, sizeof(int)));
  check_order(first, second, log);
  check_events(first);
  check_properties_of(second);

  CHECK_OK(cudaStreamAddCallback(first, on_stream, &g_callbacks, 0));
  CHECK_OK(cudaLaunchHostFunc(first, on_host, &g_callbacks));
  CHECK_OK(cudaStreamSynchronize(first));
  CHECK(g_callbacks == 11);
  CHECK_OK(cudaStreamQuery(first));

  append<<<1, 1, 0, cudaStreamPerThread>>>(log.entries, log.length, 3);
  CHECK_OK(cudaStreamSynchronize(cudaStreamPerThread));
  int length = 0;
  CHECK_OK(cudaMemcpy(&length, log.length, sizeof(length), cudaMemcpyDeviceToHost));
  CHECK(length == 3);
  CHECK_ERROR(cudaErrorInvalidResourceHandle, cudaStreamDestroy(nullptr));
  (void)cudaGetLastError();
  CHECK_OK(cudaStreamDestroy(first));
  CHECK_OK(cudaStreamDestroy(second));
  CHECK_OK(cudaFree(log.entries));
  CHECK_OK(cudaFree(log.length));
}

// A plugin with device code: registered when it is loaded, and gone again when it is closed.
#include <cuda_runtime.h>

namespace {
__device__ int d_calls = 0;
__global__ void count_call(int* out) { *out = ++d_calls; }
}  // namespace

/// How often this loading of the plugin has been called, counted on the device; negative on any
/// error.
extern "C" int plugin_call() {
  int* out = nullptr;
  int host = -1;
  if (cudaMalloc(&out, sizeof(int)) != cudaSuccess) return -1;
  count_call<<<1, 1>>>(out);
  if (cudaGetLastError() != cudaSuccess) return -2;
  if (cudaMemcpy(&host, out, sizeof(host), cudaMemcpyDeviceToHost) != cudaSuccess) return -3;
  return cudaFree(out) == cudaSuccess ? host : -4;
}

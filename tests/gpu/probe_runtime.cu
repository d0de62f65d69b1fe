// What NVIDIA's own runtime says of the device: whether it comes up at all (it checks its driver,
// and reports error 103 when something between them changed an answer it relies on), and which
// device it sees. One JSON line.
#include <cuda_runtime.h>

#include <cstdio>

__global__ void touch(int* cell) { *cell = 42; }

int main() {
  int count = 0;
  int* cell = nullptr;
  int value = 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  char pci[32] = "";
  cudaDeviceProp properties = {};
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, 0);
  if (error == cudaSuccess) error = cudaDeviceGetPCIBusId(pci, sizeof pci, 0);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free_bytes, &total_bytes);
  if (error == cudaSuccess) error = cudaMalloc(&cell, sizeof(int));
  if (error == cudaSuccess) {
    touch<<<1, 1>>>(cell);
    error = cudaMemcpy(&value, cell, sizeof(int), cudaMemcpyDeviceToHost);
  }
  char uuid[33] = "";
  for (int i = 0; i < 16; ++i) {
    std::snprintf(uuid + 2 * i, 3, "%02x", static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  std::printf(
      "{\"error\": %d, \"error_name\": \"%s\", \"devices\": %d, \"name\": \"%s\", \"uuid\": "
      "\"%s\", \"pci\": \"%s\", \"sm_count\": %d, \"total_bytes\": %zu, "
      "\"property_total_bytes\": %zu, \"kernel_ran\": %s}\n",
      static_cast<int>(error), cudaGetErrorName(error), count, properties.name, uuid, pci,
      properties.multiProcessorCount, total_bytes, properties.totalGlobalMem,
      value == 42 ? "true" : "false");
  return error == cudaSuccess && value == 42 ? 0 : 1;
}

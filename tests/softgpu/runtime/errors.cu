// The error model: last errors per thread, names and messages, sticky errors, and a machine without
// a driver.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "checks.h"

namespace {
__global__ void poke(int* where) { *where = 1; }
}  // namespace

void check_errors() {
  CHECK_OK(cudaGetLastError());
  CHECK_ERROR(cudaErrorInvalidValue, cudaMalloc(static_cast<void**>(nullptr), 1));
  std::thread([] { CHECK_OK(cudaPeekAtLastError()); }).join();
  CHECK_ERROR(cudaErrorInvalidValue, cudaPeekAtLastError());
  CHECK_OK(cudaDeviceSynchronize());  // a success does not wipe it out
  CHECK_ERROR(cudaErrorInvalidValue, cudaGetLastError());
  CHECK_OK(cudaGetLastError());
  CHECK(std::strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
  CHECK(std::strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
  CHECK(std::strcmp(cudaGetErrorString(static_cast<cudaError_t>(998)), "unrecognized error code") ==
        0);
  const cudaError_t graphics = cudaGraphicsUnregisterResource(nullptr);
  CHECK(graphics == cudaErrorNotSupported);
  CHECK_ERROR(cudaErrorNotSupported, cudaGetLastError());
}

void check_illegal_address() {
  int* cells = nullptr;
  CHECK_OK(cudaMalloc(&cells, 64));
  poke<<<1, 1>>>(reinterpret_cast<int*>(0x10));
  CHECK_ERROR(cudaErrorIllegalAddress, cudaDeviceSynchronize());
  CHECK_ERROR(cudaErrorIllegalAddress, cudaGetLastError());
  int host = 0;
  CHECK_ERROR(cudaErrorIllegalAddress,
              cudaMemcpy(&host, cells, sizeof(host), cudaMemcpyDeviceToHost));
  CHECK_ERROR(cudaErrorIllegalAddress, cudaMalloc(&cells, 64));
  poke<<<1, 1>>>(cells);
  CHECK_ERROR(cudaErrorIllegalAddress, cudaGetLastError());
}

void check_no_driver() {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) {
    std::printf("no_driver: skipped, this machine has a driver\n");
    std::exit(77);
  }
  int count = 7;
  void* block = nullptr;
  int version = -1;
  CHECK_ERROR(cudaErrorInsufficientDriver, cudaGetDeviceCount(&count));
  CHECK_ERROR(cudaErrorInsufficientDriver, cudaMalloc(&block, 1));
  CHECK_OK(cudaDriverGetVersion(&version));
  CHECK(version == 0);
  CHECK_OK(cudaRuntimeGetVersion(&version));
  CHECK(version == CUDART_VERSION);
  CHECK_ERROR(cudaErrorInsufficientDriver, cudaGetLastError());
  CHECK_ERROR(cudaErrorInsufficientDriver, cudaGetLastError());  // it does not go away
  poke<<<1, 1>>>(nullptr);
  CHECK_ERROR(cudaErrorInsufficientDriver, cudaGetLastError());
}

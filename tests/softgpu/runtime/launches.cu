// Launches in every form, their configuration errors, occupancy and attributes of kernels.
#include <cooperative_groups.h>

#include "checks.h"

namespace {

__global__ void fill(int* out, int n, int base) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = base + i;
}

__global__ void shared_sum(const int* in, int* out) {
  extern __shared__ int cells[];
  cells[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) cells[threadIdx.x] += cells[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = cells[0];
}

__global__ void grid_total(int* cells, int* total, int blocks) {
  cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  if (threadIdx.x == 0) cells[blockIdx.x] = static_cast<int>(blockIdx.x) + 1;
  grid.sync();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *total = 0;
    for (int i = 0; i < blocks; ++i) *total += cells[i];
  }
}

__global__ void empty_kernel() {}

constexpr int kCount = 1000;

void expect_filled(const int* device, int base) {
  int host[kCount] = {};
  CHECK_OK(cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += host[i] != base + i;
  CHECK(wrong == 0);
}

void check_forms(int* cells) {
  fill<<<(kCount + 127) / 128, 128>>>(cells, kCount, 10);
  CHECK_OK(cudaGetLastError());
  expect_filled(cells, 10);

  int n = kCount;
  int base = 20;
  void* arguments[] = {&cells, &n, &base};
  CHECK_OK(cudaLaunchKernel(reinterpret_cast<const void*>(fill), dim3(8), dim3(128), arguments, 0,
                            nullptr));
  expect_filled(cells, 20);

  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(8);
  config.blockDim = dim3(128);
  CHECK_OK(cudaLaunchKernelEx(&config, fill, cells, n, 30));
  expect_filled(cells, 30);

  cudaKernel_t kernel = nullptr;
  CHECK_OK(cudaGetKernel(&kernel, fill));
  base = 40;
  CHECK_OK(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(8), dim3(128), arguments, 0,
                            nullptr));
  expect_filled(cells, 40);

  empty_kernel<<<1, 1>>>();
  CHECK_OK(cudaGetLastError());
}

void check_dynamic_shared(int* cells) {
  fill<<<8, 128>>>(cells, 1024, 0);
  int* sums = nullptr;
  CHECK_OK(cudaMalloc(&sums, 4 * sizeof(int)));
  shared_sum<<<4, 256, 256 * sizeof(int)>>>(cells, sums);
  int host[4] = {};
  CHECK_OK(cudaMemcpy(host, sums, sizeof(host), cudaMemcpyDeviceToHost));
  for (int block = 0; block < 4; ++block) CHECK(host[block] == 256 * 256 * block + 255 * 128);
  CHECK_OK(cudaFree(sums));
}

void check_cooperative(int* cells) {
  int blocks = 16;
  int* total = cells + 512;
  void* arguments[] = {&cells, &total, &blocks};
  CHECK_OK(cudaLaunchCooperativeKernel(grid_total, dim3(16), dim3(32), arguments, 0, nullptr));
  int host = 0;
  CHECK_OK(cudaMemcpy(&host, total, sizeof(host), cudaMemcpyDeviceToHost));
  CHECK(host == 136);
}

void check_refusals(int* cells) {
  fill<<<1, 2048>>>(cells, 1, 0);
  CHECK_ERROR(cudaErrorInvalidConfiguration, cudaGetLastError());
  fill<<<0, 32>>>(cells, 1, 0);
  CHECK_ERROR(cudaErrorInvalidConfiguration, cudaGetLastError());
  shared_sum<<<1, 32, 1 << 30>>>(cells, cells);
  CHECK_ERROR(cudaErrorInvalidValue, cudaGetLastError());
  int not_a_kernel = 0;
  CHECK_ERROR(cudaErrorInvalidDeviceFunction,
              cudaLaunchKernel(&not_a_kernel, dim3(1), dim3(1), nullptr, 0, nullptr));
  CHECK_ERROR(cudaErrorInvalidDeviceFunction, cudaGetLastError());
  CHECK_OK(cudaDeviceSynchronize());
}

void check_attributes() {
  cudaFuncAttributes attributes = {};
  CHECK_OK(cudaFuncGetAttributes(&attributes, shared_sum));
  CHECK(attributes.maxThreadsPerBlock >= 256 && attributes.maxThreadsPerBlock <= 1024);
  CHECK(attributes.binaryVersion >= 75 && attributes.ptxVersion >= 75);
  CHECK_OK(cudaFuncSetAttribute(shared_sum, cudaFuncAttributeMaxDynamicSharedMemorySize, 32768));

  int blocks = 0;
  CHECK_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fill, 256, 0));
  CHECK(blocks >= 1 && blocks <= 32);
  int best_block = 0;
  int least_grid = 0;
  CHECK_OK(cudaOccupancyMaxPotentialBlockSize(&least_grid, &best_block, fill));
  CHECK(best_block >= 32 && least_grid >= 1);
  const char* name = nullptr;
  CHECK_OK(cudaFuncGetName(&name, reinterpret_cast<const void*>(fill)));
  CHECK(name != nullptr && name[0] == '_');
}

}  // namespace

void check_launches() {
  int* cells = nullptr;
  CHECK_OK(cudaMalloc(&cells, 1024 * sizeof(int)));
  check_forms(cells);
  check_dynamic_shared(cells);
  check_cooperative(cells);
  check_refusals(cells);
  check_attributes();
  CHECK_OK(cudaFree(cells));
}

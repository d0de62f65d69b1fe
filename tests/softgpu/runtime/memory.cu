// Allocation in every form, pools, and what the runtime says of pointers.
#include "checks.h"

namespace {

__global__ void add_one(int* cells, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) cells[i] += 1;
}

void check_plain() {
  size_t free_before = 0;
  size_t free_during = 0;
  size_t free_after = 0;
  size_t total = 0;
  CHECK_OK(cudaMemGetInfo(&free_before, &total));
  void* block = nullptr;
  CHECK_OK(cudaMalloc(&block, 64 << 20));
  CHECK_OK(cudaMemGetInfo(&free_during, &total));
  CHECK(free_before - free_during == (64 << 20));
  cudaPointerAttributes attributes = {};
  CHECK_OK(cudaPointerGetAttributes(&attributes, block));
  CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == 0 &&
        attributes.devicePointer == block);
  CHECK_OK(cudaFree(block));
  CHECK_OK(cudaMemGetInfo(&free_after, &total));
  CHECK(free_after == free_before && total >= free_after);
  CHECK_OK(cudaFree(nullptr));
  CHECK_OK(cudaMalloc(&block, 0));
  CHECK(block == nullptr);
  CHECK_ERROR(cudaErrorMemoryAllocation, cudaMalloc(&block, total * 2));
  CHECK_ERROR(cudaErrorMemoryAllocation, cudaGetLastError());
  CHECK_OK(cudaGetLastError());
}

void check_host() {
  int* pinned = nullptr;
  int* seen = nullptr;
  CHECK_OK(cudaHostAlloc(&pinned, 256 * sizeof(int), cudaHostAllocMapped));
  for (int i = 0; i < 256; ++i) pinned[i] = i;
  CHECK_OK(cudaHostGetDevicePointer(&seen, pinned, 0));
  add_one<<<1, 256>>>(seen, 256);
  CHECK_OK(cudaDeviceSynchronize());
  CHECK(pinned[0] == 1 && pinned[255] == 256);
  cudaPointerAttributes attributes = {};
  CHECK_OK(cudaPointerGetAttributes(&attributes, pinned));
  CHECK(attributes.type == cudaMemoryTypeHost);
  CHECK_OK(cudaFreeHost(pinned));

  static int plain[1024];
  CHECK_OK(cudaPointerGetAttributes(&attributes, plain));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  CHECK_OK(cudaHostRegister(plain, sizeof(plain), cudaHostRegisterDefault));
  CHECK_ERROR(cudaErrorHostMemoryAlreadyRegistered,
              cudaHostRegister(plain, sizeof(plain), cudaHostRegisterDefault));
  CHECK_OK(cudaHostUnregister(plain));
  CHECK_ERROR(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(plain));
  (void)cudaGetLastError();
}

void check_managed() {
  int* shared = nullptr;
  CHECK_OK(cudaMallocManaged(&shared, 256 * sizeof(int)));
  for (int i = 0; i < 256; ++i) shared[i] = 2 * i;
  add_one<<<1, 256>>>(shared, 256);
  CHECK_OK(cudaDeviceSynchronize());
  CHECK(shared[7] == 15 && shared[255] == 511);
  cudaPointerAttributes attributes = {};
  CHECK_OK(cudaPointerGetAttributes(&attributes, shared));
  CHECK(attributes.type == cudaMemoryTypeManaged);
  CHECK_OK(cudaFree(shared));
}

void check_stream_ordered() {
  cudaStream_t stream = nullptr;
  CHECK_OK(cudaStreamCreate(&stream));
  int* cells = nullptr;
  CHECK_OK(cudaMallocAsync(&cells, 1024, stream));
  CHECK_OK(cudaMemsetAsync(cells, 0, 1024, stream));
  add_one<<<1, 256, 0, stream>>>(cells, 256);
  int last = 0;
  CHECK_OK(cudaMemcpyAsync(&last, cells + 255, sizeof(last), cudaMemcpyDeviceToHost, stream));
  CHECK_OK(cudaFreeAsync(cells, stream));
  CHECK_OK(cudaStreamSynchronize(stream));
  CHECK(last == 1);

  cudaMemPool_t pool = nullptr;
  CHECK_OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  unsigned long long keep = ~0ull;
  CHECK_OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  unsigned long long read = 0;
  CHECK_OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &read));
  CHECK(read == keep);
  CHECK_OK(cudaMemPoolTrimTo(pool, 0));
  CHECK_OK(cudaStreamDestroy(stream));
}

}  // namespace

void check_memory() {
  check_plain();
  check_host();
  check_managed();
  check_stream_ordered();
}

// Takes device memory in every way that a program can ask for a size: plain, pitched, managed,
// stream-ordered, and by hand through virtual memory management; then gives it back in another
// order. After each step it says what it did and waits for a line on its standard input, so that
// somebody else can look at the GPU while nothing changes.
#include "student.h"

#include <cuda.h>

#define DRIVER_CHECK(call)                                                       \
  do {                                                                           \
    CUresult err = (call);                                                       \
    if (err != CUDA_SUCCESS) {                                                   \
      fprintf(stderr, "%s:%d: driver error %d\n", __FILE__, __LINE__, (int)err); \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

static void step(const char* what) {
  CUDA_CHECK(cudaDeviceSynchronize());
  printf("%s\n", what);
  fflush(stdout);
  char line[64];
  if (fgets(line, sizeof line, stdin) == nullptr) exit(1);
}

int main() {
  CUDA_CHECK(cudaFree(0));
  step("started");

  void* plain;
  CUDA_CHECK(cudaMalloc(&plain, 5 * 1000 * 1000 + 7));
  step("plain");
  void* pitched;
  size_t pitch;
  CUDA_CHECK(cudaMallocPitch(&pitched, &pitch, 1001, 777));
  step("pitched");
  float* managed;
  CUDA_CHECK(cudaMallocManaged(&managed, 3 << 20));
  managed[0] = 1;
  step("managed");
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreate(&stream));
  void *small, *large;
  CUDA_CHECK(cudaMallocAsync(&small, 1 << 20, stream));
  CUDA_CHECK(cudaMallocAsync(&large, 9 << 20, stream));
  step("stream-ordered");

  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t granularity;
  DRIVER_CHECK(
      cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  const size_t bytes = 3 * granularity;
  CUmemGenericAllocationHandle handle;
  DRIVER_CHECK(cuMemCreate(&handle, bytes, &prop, 0));
  step("created");
  CUdeviceptr address;
  DRIVER_CHECK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  DRIVER_CHECK(cuMemMap(address, bytes, 0, handle, 0));
  CUmemAccessDesc access = {};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  DRIVER_CHECK(cuMemSetAccess(address, bytes, &access, 1));
  DRIVER_CHECK(cuMemsetD8(address, 1, bytes));
  step("mapped");
  DRIVER_CHECK(cuMemRelease(handle));
  step("released, still mapped");
  DRIVER_CHECK(cuMemUnmap(address, bytes));
  DRIVER_CHECK(cuMemAddressFree(address, bytes));
  step("unmapped");

  CUDA_CHECK(cudaFreeAsync(large, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  step("freed in order");
  CUDA_CHECK(cudaFree(plain));
  CUDA_CHECK(cudaFree(managed));
  CUDA_CHECK(cudaFree(pitched));
  step("freed");
  CUDA_CHECK(cudaFreeAsync(small, stream));
  CUDA_CHECK(cudaDeviceReset());
  printf("done\n");
  return 0;
}

// Devices: counting, choosing, properties against attributes, limits, versions, driver entry
// points, reset.
#include <cstring>

#include "checks.h"

void check_devices() {
  int count = 0;
  int device = -1;
  CHECK_OK(cudaGetDeviceCount(&count));
  CHECK(count == 2);  // the test asks for two
  CHECK_OK(cudaGetDevice(&device));
  CHECK(device == 0);
  CHECK_OK(cudaSetDevice(1));
  CHECK_OK(cudaGetDevice(&device));
  CHECK(device == 1);
  CHECK_ERROR(cudaErrorInvalidDevice, cudaSetDevice(2));
  CHECK_ERROR(cudaErrorInvalidDevice, cudaGetLastError());
  CHECK_ERROR(cudaErrorInvalidDevice, cudaSetDevice(-1));
  (void)cudaGetLastError();
  CHECK_OK(cudaGetDevice(&device));
  CHECK(device == 1);

  cudaDeviceProp first = {};
  cudaDeviceProp second = {};
  CHECK_OK(cudaGetDeviceProperties(&first, 0));
  CHECK_OK(cudaGetDeviceProperties(&second, 1));
  CHECK(std::strlen(first.name) > 0 &&
        std::memcmp(&first.uuid, &second.uuid, sizeof(first.uuid)) != 0);
  CHECK(first.warpSize == 32 && first.maxThreadsPerBlock == 1024 && first.maxThreadsDim[2] == 64);
  CHECK(first.multiProcessorCount == 16 && first.maxGridSize[0] == 2147483647 &&
        first.unifiedAddressing == 1);
  int value = 0;
  CHECK_OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 1));
  CHECK(value == second.major && value >= 7);
  char bus_id[32] = "";
  CHECK_OK(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), 1));
  CHECK_OK(cudaDeviceGetByPCIBusId(&device, bus_id));
  CHECK(device == 1);

  size_t limit = 0;
  CHECK_OK(cudaDeviceGetLimit(&limit, cudaLimitStackSize));
  CHECK(limit >= 1024);
  int runtime = 0;
  int driver = 0;
  CHECK_OK(cudaRuntimeGetVersion(&runtime));
  CHECK_OK(cudaDriverGetVersion(&driver));
  CHECK(runtime == CUDART_VERSION && driver >= 13000);
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  CHECK_OK(
      cudaGetDriverEntryPointByVersion("cuMemAlloc", &entry, 12000, cudaEnableDefault, &status));
  CHECK(entry != nullptr && status == cudaDriverEntryPointSuccess);
  CHECK_OK(
      cudaGetDriverEntryPointByVersion("cuNoSuchThing", &entry, 12000, cudaEnableDefault, &status));
  CHECK(entry == nullptr && status == cudaDriverEntryPointSymbolNotFound);

  void* block = nullptr;
  CHECK_OK(cudaMalloc(&block, 1 << 20));
  size_t free_with = 0;
  size_t free_without = 0;
  size_t total = 0;
  CHECK_OK(cudaMemGetInfo(&free_with, &total));
  CHECK_OK(cudaDeviceReset());
  CHECK_OK(cudaMemGetInfo(&free_without, &total));
  CHECK(free_without == free_with + (1 << 20));
  CHECK_OK(cudaGetDevice(&device));
  CHECK(device == 1);
}

// How large is my GPU? Asks everybody who may know: the runtime, the device's properties, the
// driver and NVML.
#include "student.h"

#include <cuda.h>
#include <dlfcn.h>

struct NvmlMemory {
  unsigned long long total, free, used;
};

static bool nvml_total(const char* uuid, unsigned long long* total) {
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (nvml == nullptr) return false;
  auto init = (int (*)())dlsym(nvml, "nvmlInit_v2");
  auto find = (int (*)(const char*, void**))dlsym(nvml, "nvmlDeviceGetHandleByUUID");
  auto ask = (int (*)(void*, NvmlMemory*))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
  void* device;
  NvmlMemory memory;
  if (init == nullptr || find == nullptr || ask == nullptr) return false;
  if (init() != 0 || find(uuid, &device) != 0 || ask(device, &memory) != 0) return false;
  *total = memory.total;
  return memory.free + memory.used <= memory.total;
}

int main() {
  int devices;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  printf("memory_info: %d device%s\n", devices, devices == 1 ? "" : "s");
  size_t free_bytes, total_bytes;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  printf("memory_info: runtime %zu free of %zu\n", free_bytes, total_bytes);
  cudaDeviceProp prop;
  CUDA_CHECK(cudaGetDeviceProperties(&prop, 0));
  printf("memory_info: name %s\n", prop.name);
  printf("memory_info: properties %zu\n", prop.totalGlobalMem);
  size_t driver_bytes = 0;
  CUdevice device;
  if (cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cuDeviceTotalMem(&driver_bytes, device) != CUDA_SUCCESS)
    return 1;
  printf("memory_info: driver %zu\n", driver_bytes);
  char uuid[64] = "GPU-";
  int n = 4;
  for (int i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid[n++] = '-';
    n += snprintf(uuid + n, sizeof uuid - n, "%02x", (unsigned char)prop.uuid.bytes[i]);
  }
  unsigned long long nvml_bytes;
  if (!nvml_total(uuid, &nvml_bytes)) return 1;
  printf("memory_info: nvml %llu\n", nvml_bytes);
  return 0;
}

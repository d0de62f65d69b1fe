// NVML for tests: one device, the fake driver's, with 8 GiB of which 3 are used.
#include <string.h>

#include "interpose/cuda_api.h"

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t* memory) {
  *memory = nvmlMemory_t{8ull << 30, 5ull << 30, 3ull << 30};
  return 0;
}
FAKE nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t* memory) {
  *memory = nvmlMemory_v2_t{memory->version, 8ull << 30, 1ull << 28, 5ull << 30, 3ull << 30};
  return 0;
}
FAKE nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  const char* text = device == nullptr ? "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0"
                                       : "GPU-b1b1b1b1-b1b1-b1b1-b1b1-b1b1b1b1b1b1";
  strncpy(uuid, text, length);
  return 0;
}

// The driver API as the shim sees it: every ABI version under its own name, no macro that turns
// cuMemAlloc into cuMemAlloc_v2 behind the writer's back. Include this, never <cuda.h>.
#pragma once

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <cudaProfiler.h>

// NVML has no header in the toolkit; these are the few declarations the hooks need (names and
// layouts are NVML's ABI).
extern "C" {
typedef unsigned int nvmlReturn_t;  // an enum in NVML; 0 = success
typedef struct nvmlDevice_st* nvmlDevice_t;
struct nvmlMemory_t {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct nvmlMemory_v2_t {
  unsigned int version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length);
}

// Marks the definition of a hook. The generator reads these words from the sources: a function
// defined with them is exported, routed to by every look-up, and must be an entry point of the
// driver or of NVML.
#define SLUICE_HOOK extern "C" __attribute__((visibility("default")))
// The same for a hook that takes the entry point's arguments in another shape, which the ABI cannot
// tell from the declared one: declares it; the definition follows under its own name.
#define SLUICE_HOOK_SHAPED(name, declaration) \
  extern "C" __attribute__((visibility("default"))) declaration __asm__(#name)

// Finds the driver and NVML that the program uses, and fills the table of real functions. Knows the
// loader, nothing of leases or accounts.
#pragma once

#include "interpose/table.h"

namespace sluice::interpose {

/// Fills `driver`; false when no driver is to be found (then every hook answers
/// CUDA_ERROR_SHARED_OBJECT_INIT_FAILED). Cheap when done before. Any thread, any time.
bool resolve_driver();

struct NvmlTable {
  decltype(&::nvmlDeviceGetMemoryInfo) nvmlDeviceGetMemoryInfo;
  decltype(&::nvmlDeviceGetMemoryInfo_v2) nvmlDeviceGetMemoryInfo_v2;
  decltype(&::nvmlDeviceGetUUID) nvmlDeviceGetUUID;
};
extern NvmlTable nvml;
bool resolve_nvml();

/// Whether the driver (or NVML) is loaded in this process already and, where a version is given,
/// has the name in that version. Never loads it.
bool library_has(bool is_nvml, const char* name, const char* version);

/// Counts a name that cuGetProcAddress was asked for and this table does not know; each name once.
void unknown_count(const char* name);
unsigned unknown_seen();

}  // namespace sluice::interpose

// Finds the driver and NVML that the program uses, and fills the table of real functions. Knows the
// loader, nothing of leases or accounts.
#pragma once

#include "interpose/table.h"

namespace sluice::interpose {

/// Fills `driver`; false when no driver is to be found (then every hook answers
/// CUDA_ERROR_SHARED_OBJECT_INIT_FAILED). Cheap when done before. Any thread, any time.
bool resolve_driver();

/// The real functions of NVML that the shim uses or hooks; nullptr = this NVML lacks it.
#define SLUICE_NVML_FUNCTIONS(X)                \
  X(nvmlInit_v2)                                \
  X(nvmlDeviceGetHandleByUUID)                  \
  X(nvmlDeviceGetUUID)                          \
  X(nvmlDeviceGetMemoryInfo)                    \
  X(nvmlDeviceGetMemoryInfo_v2)                 \
  X(nvmlDeviceGetUtilizationRates)              \
  X(nvmlDeviceGetComputeRunningProcesses)       \
  X(nvmlDeviceGetComputeRunningProcesses_v2)    \
  X(nvmlDeviceGetComputeRunningProcesses_v3)    \
  X(nvmlDeviceGetGraphicsRunningProcesses)      \
  X(nvmlDeviceGetGraphicsRunningProcesses_v2)   \
  X(nvmlDeviceGetGraphicsRunningProcesses_v3)   \
  X(nvmlDeviceGetMPSComputeRunningProcesses)    \
  X(nvmlDeviceGetMPSComputeRunningProcesses_v2) \
  X(nvmlDeviceGetMPSComputeRunningProcesses_v3) \
  X(nvmlDeviceGetRunningProcessDetailList)      \
  X(nvmlDeviceGetSamples)                       \
  X(nvmlDeviceGetProcessUtilization)            \
  X(nvmlDeviceGetProcessesUtilizationInfo)

#define SLUICE_NVML_MEMBER(name) decltype(&::name) name;
struct NvmlTable {
  SLUICE_NVML_FUNCTIONS(SLUICE_NVML_MEMBER)
};
#undef SLUICE_NVML_MEMBER
extern NvmlTable nvml;
bool resolve_nvml();

/// Whether the driver (or NVML) is loaded in this process already and, where a version is given,
/// has the name in that version. Never loads it.
bool library_has(bool is_nvml, const char* name, const char* version);

/// Counts a name that cuGetProcAddress was asked for and this table does not know; each name once.
void unknown_count(const char* name);
unsigned unknown_seen();

}  // namespace sluice::interpose

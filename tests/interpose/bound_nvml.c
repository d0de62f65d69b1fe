// A library that is linked against NVML: which functions do its calls mean?
#include <stddef.h>
#include <string.h>

#define NVML_FUNCTIONS(X)                       \
  X(nvmlDeviceGetMemoryInfo)                    \
  X(nvmlDeviceGetMemoryInfo_v2)                 \
  X(nvmlDeviceGetUtilizationRates)              \
  X(nvmlDeviceGetProcessUtilization)            \
  X(nvmlDeviceGetRunningProcessDetailList)      \
  X(nvmlDeviceGetSamples)                       \
  X(nvmlDeviceGetProcessesUtilizationInfo)      \
  X(nvmlDeviceGetComputeRunningProcesses)       \
  X(nvmlDeviceGetComputeRunningProcesses_v2)    \
  X(nvmlDeviceGetComputeRunningProcesses_v3)    \
  X(nvmlDeviceGetGraphicsRunningProcesses)      \
  X(nvmlDeviceGetGraphicsRunningProcesses_v2)   \
  X(nvmlDeviceGetGraphicsRunningProcesses_v3)   \
  X(nvmlDeviceGetMPSComputeRunningProcesses)    \
  X(nvmlDeviceGetMPSComputeRunningProcesses_v2) \
  X(nvmlDeviceGetMPSComputeRunningProcesses_v3)

#define DECLARED(name) unsigned name(void);
NVML_FUNCTIONS(DECLARED)

void* bound_address(const char* name) {
#define IS(one) \
  if (strcmp(name, #one) == 0) return (void*)&one;
  NVML_FUNCTIONS(IS)
  return NULL;
}

// An NVML that starts and then never answers a question, as over a GPU that hangs.
#include <stdio.h>
#include <unistd.h>

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &nvmlInit_v2;
  return (int)index;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  (void)device;
  snprintf(uuid, size, "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, void* memory) {
  (void)device;
  (void)memory;
  for (;;) pause();
}

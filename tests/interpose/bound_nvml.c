// A library that is linked against NVML: which functions do its calls mean?
typedef struct Device* Device;
unsigned nvmlDeviceGetMemoryInfo(Device device, void* memory);
unsigned nvmlDeviceGetMemoryInfo_v2(Device device, void* memory);

void* bound_address(int version) {
  return version == 2 ? (void*)&nvmlDeviceGetMemoryInfo_v2 : (void*)&nvmlDeviceGetMemoryInfo;
}

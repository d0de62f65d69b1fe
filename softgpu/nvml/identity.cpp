// Which devices there are, how they are found, and what they are: names, addresses, modes.
#include <cstdio>
#include <cstring>

#include "softgpu/nvml/library.h"

using namespace softgpu::nvml;

namespace {

/// domain:bus:device.function, domain:bus:device or bus:device.function, all hexadecimal.
bool address_parse(const char* text, unsigned& domain, unsigned& bus, unsigned& slot) {
  unsigned function = 0;
  char rest = 0;
  int fields = std::sscanf(text, "%x:%x:%x.%x%c", &domain, &bus, &slot, &function, &rest);
  if (fields == 3 || fields == 4) return function == 0;
  domain = 0;
  fields = std::sscanf(text, "%x:%x.%x%c", &bus, &slot, &function, &rest);
  return fields == 3 && function == 0;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetCount(unsigned* count) {
  if (ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = static_cast<unsigned>(library().devices.size());
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) { return nvmlDeviceGetCount(count); }

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* device) {
  if (ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
  if (device == nullptr || index >= library().devices.size()) return NVML_ERROR_INVALID_ARGUMENT;
  *device = library().devices[index].get();
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
  if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (const auto& known : library().devices) {
    if (uuid_of(known.get()) != uuid) continue;
    *device = known.get();
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* device) {
  if (ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
  unsigned domain = 0, bus = 0, slot = 0;
  if (id == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (!address_parse(id, domain, bus, slot)) return NVML_ERROR_NOT_FOUND;
  for (const auto& known : library().devices) {
    if (domain != 0 || slot != 0 || bus != bus_of(known.get())) continue;
    *device = known.get();
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* id, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  const nvmlReturn_t result = device_ready(device);
  return result == NVML_SUCCESS ? give(device, index, device->model.settings().index) : result;
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned* minor) {
  return nvmlDeviceGetIndex(device, minor);
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length) {
  const nvmlReturn_t result = device_ready(device);
  return result == NVML_SUCCESS ? text_give("Software GPU", name, length) : result;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  const nvmlReturn_t result = device_ready(device);
  return result == NVML_SUCCESS ? text_give(uuid_of(device), uuid, length) : result;
}
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char*, unsigned) {
  const nvmlReturn_t result = device_ready(device);
  return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (pci == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *pci = nvmlPciInfo_t{};
  pci->bus = bus_of(device);
  std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus & 0xffU);
  std::snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus & 0xffU);
  return NVML_SUCCESS;
}

/// The forms of older programs, which have less room: nothing is written beyond what each had.
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t* old) {
  nvmlPciInfo_t pci{};
  const nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &pci);
  if (result != NVML_SUCCESS) return result;
  if (old == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  std::memcpy(old->busId, pci.busIdLegacy, sizeof old->busId);
  old->domain = pci.domain;
  old->bus = pci.bus;
  old->device = pci.device;
  old->pciDeviceId = pci.pciDeviceId;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t* old) {
  const nvmlReturn_t result = nvmlDeviceGetPciInfo(device, old);
  if (result == NVML_SUCCESS) old->pciSubSystemId = 0;
  return result;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned* mode) {
  return give(device, mode, 0);
}
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned* mode) {
  return give(device, mode, 1);
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned* current, unsigned* pending) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  return current == nullptr || pending == nullptr ? NVML_ERROR_INVALID_ARGUMENT
                                                  : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned* count) {
  return give(device, count, 0);
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  if (device_ready(device) == NVML_SUCCESS && (major == nullptr || minor == nullptr))
    return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t result = give(device, major, 8);
  return result == NVML_SUCCESS ? give(device, minor, 0) : result;
}
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned* architecture) {
  return give(device, architecture, NVML_ARCH_AMPERE);
}

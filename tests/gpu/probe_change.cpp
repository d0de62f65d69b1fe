// Preloaded into a program to find out what its CUDA runtime minds: gives one changed answer of the
// driver, by the ways a runtime asks (dlsym, cuGetProcAddress).
//
//   PROBE_CHANGE=none|total_memory|sm_count|pci_string|name|uuid   one answer changed
//   PROBE_CHANGE=launch                                           launches pass a plain wrapper
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

// How many launches passed the wrapper; the probe asks for it by name.
EXPORT unsigned long probe_wrapped_launches;
unsigned long probe_wrapped_launches;

namespace {

bool changing(const char* what) {
  const char* wanted = getenv("PROBE_CHANGE");
  return wanted != nullptr && std::strcmp(wanted, what) == 0;
}

// The real functions, as the program's own look-up gave them.
void* real_total_memory;
void* real_attribute;
void* real_pci_string;
void* real_name;
void* real_uuid;
void* real_launch;
void* real_launch_ex;
void* real_lookup;

CUresult total_memory(size_t* bytes, CUdevice device) {
  const CUresult result =
      reinterpret_cast<decltype(&cuDeviceTotalMem_v2)>(real_total_memory)(bytes, device);
  if (result == CUDA_SUCCESS) *bytes /= 2;
  return result;
}
CUresult attribute(int* value, CUdevice_attribute which, CUdevice device) {
  const CUresult result =
      reinterpret_cast<decltype(&cuDeviceGetAttribute)>(real_attribute)(value, which, device);
  if (result == CUDA_SUCCESS && which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) *value = 1;
  return result;
}
CUresult pci_string(char* text, int length, CUdevice device) {
  const CUresult result =
      reinterpret_cast<decltype(&cuDeviceGetPCIBusId)>(real_pci_string)(text, length, device);
  if (result == CUDA_SUCCESS) std::strncpy(text, "0000:7F:1F.0", static_cast<size_t>(length));
  return result;
}
CUresult name(char* text, int length, CUdevice device) {
  const CUresult result =
      reinterpret_cast<decltype(&cuDeviceGetName)>(real_name)(text, length, device);
  if (result == CUDA_SUCCESS) std::strncpy(text, "changed", static_cast<size_t>(length));
  return result;
}
CUresult uuid(CUuuid* id, CUdevice device) {
  const CUresult result = reinterpret_cast<decltype(&cuDeviceGetUuid)>(real_uuid)(id, device);
  if (result == CUDA_SUCCESS) id->bytes[15] = static_cast<char>(id->bytes[15] ^ 1);
  return result;
}
CUresult launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  ++probe_wrapped_launches;
  return reinterpret_cast<decltype(&cuLaunchKernel)>(real_launch)(f, gx, gy, gz, bx, by, bz, shared,
                                                                  stream, params, extra);
}
CUresult launch_ex(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  ++probe_wrapped_launches;
  return reinterpret_cast<decltype(&cuLaunchKernelEx)>(real_launch_ex)(config, f, params, extra);
}
CUresult lookup(const char* symbol, void** pointer, int version, cuuint64_t flags,
                CUdriverProcAddressQueryResult* status);

const struct Change {
  const char* setting;  // nullptr: always
  const char* base;
  const char* symbol;
  void** real;
  void* ours;
} kChanges[] = {
    {"total_memory", "cuDeviceTotalMem", "cuDeviceTotalMem_v2", &real_total_memory,
     reinterpret_cast<void*>(&total_memory)},
    {"sm_count", "cuDeviceGetAttribute", "cuDeviceGetAttribute", &real_attribute,
     reinterpret_cast<void*>(&attribute)},
    {"pci_string", "cuDeviceGetPCIBusId", "cuDeviceGetPCIBusId", &real_pci_string,
     reinterpret_cast<void*>(&pci_string)},
    {"name", "cuDeviceGetName", "cuDeviceGetName", &real_name, reinterpret_cast<void*>(&name)},
    {"uuid", "cuDeviceGetUuid", "cuDeviceGetUuid", &real_uuid, reinterpret_cast<void*>(&uuid)},
    {"uuid", "cuDeviceGetUuid_v2", "cuDeviceGetUuid_v2", &real_uuid,
     reinterpret_cast<void*>(&uuid)},
    {"launch", "cuLaunchKernel", "cuLaunchKernel", &real_launch, reinterpret_cast<void*>(&launch)},
    {"launch", "cuLaunchKernelEx", "cuLaunchKernelEx", &real_launch_ex,
     reinterpret_cast<void*>(&launch_ex)},
    {nullptr, "cuGetProcAddress", "cuGetProcAddress_v2", &real_lookup,
     reinterpret_cast<void*>(&lookup)},
};

/// Ours in the place of what was found, where the setting says so.
void* changed(const char* asked, bool by_base, int version, void* found) {
  if (found == nullptr) return nullptr;
  for (const Change& one : kChanges) {
    if (std::strcmp(asked, by_base ? one.base : one.symbol) != 0) continue;
    if (one.setting != nullptr && !changing(one.setting)) continue;
    // At 11030 the look-up has another ABI; who asks by it goes on unchanged.
    if (by_base && one.real == &real_lookup && version < 12000) continue;
    if (by_base && std::strcmp(one.base, "cuDeviceTotalMem") == 0 && version < 3020) continue;
    *one.real = found;
    return one.ours;
  }
  return found;
}

CUresult lookup(const char* symbol, void** pointer, int version, cuuint64_t flags,
                CUdriverProcAddressQueryResult* status) {
  const CUresult result = reinterpret_cast<decltype(&cuGetProcAddress_v2)>(real_lookup)(
      symbol, pointer, version, flags, status);
  // The per-thread twins are left alone: the programs that this is for do not ask for them.
  if (result == CUDA_SUCCESS && pointer != nullptr &&
      flags != CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
    *pointer = changed(symbol, true, version, *pointer);
  }
  return result;
}

}  // namespace

// The program's dlsym. It loses who asked, which the programs that this is for do not mind.
EXPORT void* dlsym(void* handle, const char* symbol) noexcept {
  using Dlsym = void*(void*, const char*);
  static const auto real = reinterpret_cast<Dlsym*>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  void* found = real(handle, symbol);
  return changed(symbol, false, 0, found);
}

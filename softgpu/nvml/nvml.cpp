// The management library of the software GPU: reads the device segments, whatever
// CUDA_VISIBLE_DEVICES says, and never becomes a client of a device. Creates the segments when
// there are none, as loading a driver creates devices.
#pragma GCC visibility push(default)
#include "softgpu/nvml/nvml.h"
#pragma GCC visibility pop

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"

struct nvmlDevice_st {
  explicit nvmlDevice_st(softgpu::device::Segment* segment) : model(segment) {}
  softgpu::device::Device model;
  struct Seen {
    double at_ns = 0, busy_ns = 0;
  };
  std::map<int, Seen> seen;  // by pid: what the last utilization sample was based on
};

namespace {

using softgpu::device::Snapshot;

constexpr char kDriverVersion[] = "580.0.softgpu";
constexpr int kCudaVersion = 13000;
constexpr unsigned kPciBusFirst = 0x65;

struct Library {
  std::mutex mutex;
  int references = 0;
  std::vector<std::unique_ptr<nvmlDevice_st>> devices;
};

Library& library() {
  static auto* instance = new Library;
  return *instance;
}

nvmlReturn_t open() {
  Library& lib = library();
  const std::lock_guard lock(lib.mutex);
  if (lib.devices.empty()) {
    std::string error;
    for (auto* segment :
         softgpu::device::directory_open(softgpu::device::settings_directory(), error))
      lib.devices.push_back(std::make_unique<nvmlDevice_st>(segment));
    if (lib.devices.empty()) {
      std::fprintf(stderr, "softgpu: no device: %s\n", error.c_str());
      return NVML_ERROR_DRIVER_NOT_LOADED;
    }
  }
  ++lib.references;
  return NVML_SUCCESS;
}

nvmlReturn_t ready() { return library().references > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED; }

/// Checks the handle and that the library is up.
nvmlReturn_t device_check(nvmlDevice_t device) {
  if (ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
  for (const auto& known : library().devices)
    if (known.get() == device) return NVML_SUCCESS;
  return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t text_give(const std::string& text, char* out, unsigned length) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (length <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

template <typename T, typename V>
nvmlReturn_t give(nvmlDevice_t device, T* out, V value) {
  const nvmlReturn_t result = device_check(device);
  if (result != NVML_SUCCESS) return result;
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *out = static_cast<T>(value);
  return NVML_SUCCESS;
}

std::string uuid_of(nvmlDevice_t device) {
  return softgpu::device::uuid_text(device->model.settings().uuid);
}
unsigned bus_of(nvmlDevice_t device) { return kPciBusFirst + device->model.settings().index; }

void process_give(nvmlProcessInfo_v1_t& info, const softgpu::device::Account& account) {
  info = {static_cast<unsigned>(account.pid), account.memory_bytes};
}
void process_give(nvmlProcessInfo_t& info, const softgpu::device::Account& account) {
  info = {static_cast<unsigned>(account.pid), account.memory_bytes, ~0U, ~0U};
}

template <typename Info>
nvmlReturn_t processes(nvmlDevice_t device, unsigned* count, Info* infos) {
  const nvmlReturn_t result = device_check(device);
  if (result != NVML_SUCCESS) return result;
  if (count == nullptr || (*count > 0 && infos == nullptr)) return NVML_ERROR_INVALID_ARGUMENT;
  const Snapshot snapshot = device->model.snapshot();
  unsigned found = 0;
  for (const auto& process : snapshot.processes) {
    if (!process.alive) continue;
    if (found < *count) process_give(infos[found], process.account);
    ++found;
  }
  const bool fits = found <= *count;
  *count = found;
  return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

template <typename Info>
nvmlReturn_t no_processes(nvmlDevice_t device, unsigned* count, Info*) {
  return give(device, count, 0);
}

}  // namespace

nvmlReturn_t nvmlInit() { return open(); }
nvmlReturn_t nvmlInit_v2() { return open(); }
nvmlReturn_t nvmlInitWithFlags(unsigned) { return open(); }

nvmlReturn_t nvmlShutdown() {
  Library& lib = library();
  const std::lock_guard lock(lib.mutex);
  if (lib.references == 0) return NVML_ERROR_UNINITIALIZED;
  --lib.references;
  return NVML_SUCCESS;
}

const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
      return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
      return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
      return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
      return "Argument version mismatch";
    default:
      return "Unknown Error";
  }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
  return ready() == NVML_SUCCESS ? text_give(kDriverVersion, version, length)
                                 : NVML_ERROR_UNINITIALIZED;
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned length) {
  return ready() == NVML_SUCCESS ? text_give(std::string("13.") + kDriverVersion, version, length)
                                 : NVML_ERROR_UNINITIALIZED;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *version = kCudaVersion;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}
nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char* name, unsigned length) {
  if (ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
  const std::string found = softgpu::device::process_name(static_cast<int>(pid));
  return found.empty() ? NVML_ERROR_NOT_FOUND : text_give(found, name, length);
}

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
  unsigned domain = 0, bus = 0;
  if (id == nullptr || device == nullptr || std::sscanf(id, "%x:%x", &domain, &bus) != 2)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (const auto& known : library().devices) {
    if (domain != 0 || bus != bus_of(known.get())) continue;
    *device = known.get();
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* id, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  const nvmlReturn_t result = device_check(device);
  return result == NVML_SUCCESS ? give(device, index, device->model.settings().index) : result;
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned* minor) {
  return nvmlDeviceGetIndex(device, minor);
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length) {
  const nvmlReturn_t result = device_check(device);
  return result == NVML_SUCCESS ? text_give("Software GPU", name, length) : result;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  const nvmlReturn_t result = device_check(device);
  return result == NVML_SUCCESS ? text_give(uuid_of(device), uuid, length) : result;
}
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char*, unsigned) {
  const nvmlReturn_t result = device_check(device);
  return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  const nvmlReturn_t result = device_check(device);
  if (result != NVML_SUCCESS) return result;
  if (pci == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *pci = nvmlPciInfo_t{};
  pci->bus = bus_of(device);
  std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus & 0xffU);
  std::snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus & 0xffU);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const nvmlReturn_t result = device_check(device);
  if (result != NVML_SUCCESS) return result;
  if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const std::uint64_t total = device->model.settings().memory_bytes,
                      used = device->model.used_bytes();
  *memory = {total, total - used, used};
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  nvmlMemory_t plain{};
  if (memory != nullptr && memory->version != NVML_MEMORY_V2)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, memory == nullptr ? nullptr : &plain);
  if (result == NVML_SUCCESS) *memory = {NVML_MEMORY_V2, plain.total, 0, plain.free, plain.used};
  return result;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  const nvmlReturn_t result = device_check(device);
  if (result != NVML_SUCCESS) return result;
  if (utilization == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const Snapshot snapshot = device->model.snapshot();
  utilization->gpu = static_cast<unsigned>(snapshot.recent_busy_ratio * 100 + 0.5);
  utilization->memory = static_cast<unsigned>(snapshot.recent_copy_ratio * 100 + 0.5);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned* n,
                                                  nvmlProcessInfo_v1_t* i) {
  return processes(d, n, i);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned* n,
                                                     nvmlProcessInfo_t* i) {
  return processes(d, n, i);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned* n,
                                                     nvmlProcessInfo_t* i) {
  return processes(d, n, i);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t d, unsigned* n,
                                                   nvmlProcessInfo_v1_t* i) {
  return no_processes(d, n, i);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned* n,
                                                      nvmlProcessInfo_t* i) {
  return no_processes(d, n, i);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned* n,
                                                        nvmlProcessInfo_t* i) {
  return no_processes(d, n, i);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t* samples,
                                             unsigned* count, unsigned long long) {
  const nvmlReturn_t result = device_check(device);
  if (result != NVML_SUCCESS) return result;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const Snapshot snapshot = device->model.snapshot();
  unsigned alive = 0;
  for (const auto& process : snapshot.processes) alive += process.alive ? 1 : 0;
  if (samples == nullptr || *count < alive) {
    *count = alive;
    return alive == 0 ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INSUFFICIENT_SIZE;
  }
  const double now = softgpu::device::clock_ns();
  unsigned given = 0;
  const std::lock_guard lock(library().mutex);
  for (const auto& process : snapshot.processes) {
    if (!process.alive) continue;
    const auto& account = process.account;
    auto [at, fresh] =
        device->seen.try_emplace(account.pid, nvmlDevice_st::Seen{account.opened_ns, 0});
    const double span = now - at->second.at_ns, busy = account.busy_ns - at->second.busy_ns;
    at->second = {now, account.busy_ns};
    if (span <= 0 || busy <= 0) continue;
    const auto percent = static_cast<unsigned>(busy / span * 100 + 0.5);
    samples[given++] = {static_cast<unsigned>(account.pid),
                        static_cast<unsigned long long>(now / 1e3),
                        percent,
                        0,
                        0,
                        0};
  }
  *count = given;
  return given > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned* mode) {
  return give(device, mode, 0);
}
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned* mode) {
  return give(device, mode, 1);
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned* current, unsigned* pending) {
  const nvmlReturn_t result = give(device, current, 0);
  return result == NVML_SUCCESS ? give(device, pending, 0) : result;
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  const nvmlReturn_t result = give(device, major, 8);
  return result == NVML_SUCCESS ? give(device, minor, 0) : result;
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned, unsigned* mhz) {
  return give(device, mhz, 1410);
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned, unsigned* mhz) {
  return give(device, mhz, 1410);
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned* milliwatts) {
  return give(device, milliwatts, 50000);
}
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned* milliwatts) {
  return give(device, milliwatts, 400000);
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned, unsigned* celsius) {
  return give(device, celsius, 40);
}
nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned* percent) {
  return give(device, percent, 0);
}
nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, int* state) {
  return give(device, state, 0);
}
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t*) { return NVML_ERROR_NOT_SUPPORTED; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t, unsigned long long, nvmlEventSet_t) {
  return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t, nvmlEventData_t*, unsigned) {
  return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t) { return NVML_ERROR_NOT_SUPPORTED; }

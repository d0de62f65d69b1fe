// The management library of the software GPU: reads the device segments, whatever
// CUDA_VISIBLE_DEVICES says, and never becomes a client of a device. Creates the segments when
// there are none, as loading a driver creates devices. Here: start, end, versions, errors.
#include "softgpu/nvml/library.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "softgpu/device/descriptor.h"
#include "softgpu/device/directory.h"

namespace softgpu::nvml {
namespace {

constexpr char kDriverVersion[] = "580.0.softgpu";
constexpr int kCudaVersion = 13000;
constexpr unsigned kPciBusFirst = 0x65;  // as the driver says (profile.h)

nvmlReturn_t open() {
  Library& lib = library();
  const std::lock_guard lock(lib.mutex);
  const std::string directory = device::settings_directory();
  if (lib.references == 0 && lib.directory != directory) lib.devices.clear();
  if (lib.devices.empty()) {
    std::string error;
    lib.directory = directory;
    for (auto* segment : device::directory_open(directory, error))
      lib.devices.push_back(std::make_unique<nvmlDevice_st>(segment));
    lib.fault = lib.devices.empty() ? "softgpu: no device: " + error : "";
    if (lib.devices.empty()) {
      device::line_write(STDERR_FILENO, lib.fault + "\n");
      return NVML_ERROR_DRIVER_NOT_LOADED;
    }
  }
  ++lib.references;
  return NVML_SUCCESS;
}

struct ErrorText {
  nvmlReturn_t result;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
    {NVML_ERROR_OPERATING_SYSTEM, "GPU access blocked by the operating system"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
    {NVML_ERROR_IN_USE, "In use by another client"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
};

}  // namespace

Library& library() {
  static auto* instance = new Library;
  return *instance;
}

nvmlReturn_t ready() { return library().references > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED; }

nvmlReturn_t device_check(nvmlDevice_t device) {
  if (ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
  for (const auto& known : library().devices)
    if (known.get() == device) return NVML_SUCCESS;
  return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t device_ready(nvmlDevice_t device) {
  const nvmlReturn_t result = device_check(device);
  return result == NVML_SUCCESS && device->model.lost() ? NVML_ERROR_GPU_IS_LOST : result;
}

nvmlReturn_t text_give(const std::string& text, char* out, unsigned length) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (length <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

unsigned percent(double ratio) {
  return static_cast<unsigned>(std::lround(std::clamp(ratio, 0.0, 1.0) * 100));
}

double wall_offset_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec) - device::clock_ns();
}

std::string uuid_of(nvmlDevice_t device) {
  return device::uuid_text(device->model.settings().uuid);
}

unsigned bus_of(nvmlDevice_t device) { return kPciBusFirst + device->model.settings().index; }

}  // namespace softgpu::nvml

using namespace softgpu::nvml;

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

const char* softgpu_fault() { return library().fault.c_str(); }

const char* nvmlErrorString(nvmlReturn_t result) {
  const auto* found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                   [&](const ErrorText& e) { return e.result == result; });
  return found == std::end(kErrors) ? "Unknown Error" : found->text;
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

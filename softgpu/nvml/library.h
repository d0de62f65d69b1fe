// What the parts of the management library share: the devices, whether the library is up, and how
// answers are given. Knows nothing of what is asked.
#pragma once

#pragma GCC visibility push(default)
#include "softgpu/nvml/nvml.h"
#pragma GCC visibility pop

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softgpu/device/device.h"

struct nvmlDevice_st {
  explicit nvmlDevice_st(softgpu::device::Segment* segment) : model(segment) {}
  softgpu::device::Device model;
};

namespace softgpu::nvml {

/// Devices stay when the library is shut down: handles are the same after the next start, as long
/// as the directory is.
struct Library {
  std::mutex mutex;
  std::atomic<int> references{0};
  std::string directory;
  std::vector<std::unique_ptr<nvmlDevice_st>> devices;
  std::string fault;  // of the last start that looked for devices; empty if it found some
};
Library& library();

nvmlReturn_t ready();
/// The library is up and knows the handle.
nvmlReturn_t device_check(nvmlDevice_t device);
/// The same, and the device is there.
nvmlReturn_t device_ready(nvmlDevice_t device);
nvmlReturn_t text_give(const std::string& text, char* out, unsigned length);
/// A property of a device that is there.
template <typename T, typename V>
nvmlReturn_t give(nvmlDevice_t device, T* out, V value) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *out = static_cast<T>(value);
  return NVML_SUCCESS;
}

unsigned percent(double ratio);
/// Time stamps are microseconds of the wall clock, those of the model are of the monotonic one:
/// what is to be added to the latter.
double wall_offset_ns();
std::string uuid_of(nvmlDevice_t device);
unsigned bus_of(nvmlDevice_t device);

}  // namespace softgpu::nvml

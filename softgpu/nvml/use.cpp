// How much of a device is used and by whom: memory, processes, utilization.
#include <algorithm>

#include "softgpu/nvml/library.h"

using namespace softgpu::nvml;
using softgpu::device::Snapshot;

namespace {

void process_give(nvmlProcessInfo_v1_t& info, const Snapshot::Process& process) {
  info = {static_cast<unsigned>(process.pid), process.account.memory_bytes};
}
void process_give(nvmlProcessInfo_t& info, const Snapshot::Process& process) {
  info = {static_cast<unsigned>(process.pid), process.account.memory_bytes, NVML_NO_INSTANCE,
          NVML_NO_INSTANCE};
}

/// Processes of namespaces that the caller does not see have no pid that it could be given.
bool listed(const Snapshot::Process& process) { return process.alive && process.pid != 0; }

template <typename Info>
nvmlReturn_t processes(nvmlDevice_t device, unsigned* count, Info* infos) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (count == nullptr || (*count > 0 && infos == nullptr)) return NVML_ERROR_INVALID_ARGUMENT;
  const Snapshot snapshot = device->model.snapshot();
  unsigned found = 0;
  for (const auto& process : snapshot.processes) {
    if (!listed(process)) continue;
    if (found < *count) process_give(infos[found], process);
    ++found;
  }
  const bool fits = found <= *count;
  *count = found;
  return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/// There are no graphics and no multi-process service.
nvmlReturn_t no_processes(nvmlDevice_t device, unsigned* count) { return give(device, count, 0); }

}  // namespace

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const std::uint64_t total = device->model.settings().memory_bytes;
  const std::uint64_t used = std::min<std::uint64_t>(device->model.used_bytes(), total);
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
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (utilization == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const Snapshot snapshot = device->model.snapshot();
  *utilization = {percent(snapshot.recent_busy_ratio), percent(snapshot.recent_copy_ratio)};
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
                                                   nvmlProcessInfo_v1_t*) {
  return no_processes(d, n);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned* n,
                                                      nvmlProcessInfo_t*) {
  return no_processes(d, n);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned* n,
                                                        nvmlProcessInfo_t*) {
  return no_processes(d, n);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t* samples,
                                             unsigned* count, unsigned long long last_seen_us) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const double offset = wall_offset_ns();
  const auto uses =
      device->model.uses(std::max(0.0, static_cast<double>(last_seen_us) * 1e3 - offset));
  if (samples == nullptr) {
    *count = static_cast<unsigned>(uses.size());
    return uses.empty() ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INSUFFICIENT_SIZE;
  }
  if (uses.empty()) return NVML_ERROR_NOT_FOUND;
  if (uses.size() > *count) {
    *count = static_cast<unsigned>(uses.size());
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  *count = 0;
  for (const auto& use : uses) {
    const auto at_us = static_cast<unsigned long long>((use.until_ns + offset) / 1e3);
    samples[(*count)++] = {static_cast<unsigned>(use.pid), at_us, percent(use.ratio), 0, 0, 0};
  }
  return NVML_SUCCESS;
}

// The accounts of processes, also of those that have ended; always on. And the form of process
// utilization that later versions of the library ask for.
#include <algorithm>

#include "softgpu/nvml/library.h"

using namespace softgpu::nvml;
using softgpu::device::Snapshot;

namespace {

nvmlAccountingStats_t stats_of(const Snapshot::Process& process) {
  const auto& account = process.account;
  const double end = process.alive ? softgpu::device::clock_ns() : account.ended_ns;
  const double life = std::max(1.0, end - account.opened_ns);
  nvmlAccountingStats_t stats{};
  stats.gpuUtilization = percent(account.busy_ns / life);
  stats.memoryUtilization = percent(account.copy_ns / life);
  stats.maxMemoryUsage = account.memory_peak_bytes;
  stats.time = process.alive ? 0 : static_cast<unsigned long long>(life / 1e6);
  stats.startTime = static_cast<unsigned long long>((account.opened_ns + wall_offset_ns()) / 1e3);
  stats.isRunning = process.alive ? 1 : 0;
  return stats;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned* mode) {
  return give(device, mode, 1);
}

nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned* processes) {
  return give(device, processes, softgpu::device::kEndedMax);
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned* count, unsigned* pids) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (count == nullptr || (*count > 0 && pids == nullptr)) return NVML_ERROR_INVALID_ARGUMENT;
  const Snapshot snapshot = device->model.snapshot();
  std::vector<unsigned> visible;
  for (const auto& process : snapshot.processes)
    if (process.pid != 0) visible.push_back(static_cast<unsigned>(process.pid));
  const auto known = static_cast<unsigned>(visible.size());
  const bool fits = known <= *count;
  if (fits) std::copy(visible.begin(), visible.end(), pids);
  *count = known;
  return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid,
                                          nvmlAccountingStats_t* stats) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (stats == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const Snapshot snapshot = device->model.snapshot();
  // The last of this number: the living come first, of the ended the youngest last.
  const Snapshot::Process* found = nullptr;
  for (const auto& process : snapshot.processes)
    if (pid != 0 && process.pid == static_cast<int>(pid) && (found == nullptr || !found->alive))
      found = &process;
  if (found == nullptr) return NVML_ERROR_NOT_FOUND;
  *stats = stats_of(*found);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t* info) {
  nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (info == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (info->version != NVML_PROCESSES_UTILIZATION_V1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const bool asked_for_size = info->procUtilArray == nullptr;
  std::vector<nvmlProcessUtilizationSample_t> samples(asked_for_size ? 0
                                                                     : info->processSamplesCount);
  unsigned count = static_cast<unsigned>(samples.size());
  result = nvmlDeviceGetProcessUtilization(device, asked_for_size ? nullptr : samples.data(),
                                           &count, info->lastSeenTimeStamp);
  info->processSamplesCount = count;
  for (unsigned i = 0; result == NVML_SUCCESS && i < count; ++i) {
    info->procUtilArray[i] = {};
    info->procUtilArray[i].timeStamp = samples[i].timeStamp;
    info->procUtilArray[i].pid = samples[i].pid;
    info->procUtilArray[i].smUtil = samples[i].smUtil;
  }
  return result;
}

// See fake_nvml.h.
#include "tests/interpose/fake_nvml.h"

#include <string.h>

#include <atomic>

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE FakeNvml fake_nvml;
FakeNvml fake_nvml = {};

namespace {

constexpr nvmlReturn_t kNotFound = 6;
constexpr nvmlReturn_t kInsufficientSize = 7;

void entry_copy(nvmlProcessInfo_v1_t* out, const nvmlProcessInfo_t& from) {
  *out = {from.pid, from.usedGpuMemory};
}
void entry_copy(nvmlProcessInfo_t* out, const nvmlProcessInfo_t& from) { *out = from; }

const auto kSecond = reinterpret_cast<nvmlDevice_t>(3);

template <class Info>
nvmlReturn_t list_second(unsigned* count, Info* infos) {
  const unsigned room = *count;
  *count = fake_nvml.second_bytes == 0 ? 0 : 1;
  if (*count > room) return kInsufficientSize;
  nvmlProcessInfo_t one = fake_nvml.processes[0];
  one.usedGpuMemory = std::atomic_ref(fake_nvml.second_bytes);
  if (*count == 1) entry_copy(&infos[0], one);
  return 0;
}

template <class Info>
nvmlReturn_t list(nvmlDevice_t device, unsigned* count, Info* infos) {
  if (device == kSecond) return list_second(count, infos);
  const unsigned room = *count;
  const bool hidden = room > 0 && fake_nvml.hidden_reads > 0;
  if (hidden) --fake_nvml.hidden_reads;
  const unsigned all = device == nullptr && !hidden ? fake_nvml.process_count : 0;
  if (room > 0) ++fake_nvml.process_reads;
  for (unsigned i = 0; i < all && i < room; ++i) entry_copy(&infos[i], fake_nvml.processes[i]);
  if (room > 0 && all > 0 && fake_nvml.late_reads > 0) {
    infos[0].usedGpuMemory += fake_nvml.late_bytes;
    --fake_nvml.late_reads;
  }
  *count = all;
  return all <= room ? 0 : kInsufficientSize;
}

}  // namespace

FAKE nvmlReturn_t nvmlInit_v2() { return fake_nvml.init_result; }
FAKE nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  // The first device's handle is null for the programs; the shim takes that for none.
  const bool second = strncmp(uuid, "GPU-a1a1", 8) == 0;
  if (!second && strncmp(uuid, "GPU-a0a0", 8) != 0) return kNotFound;
  *device = second ? kSecond : reinterpret_cast<nvmlDevice_t>(2);
  return 0;
}
FAKE nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t* memory) {
  if (fake_nvml.on_memory_read != nullptr) fake_nvml.on_memory_read();
  *memory = nvmlMemory_t{8ull << 30, (5ull << 30) - fake_nvml.used_more,
                         (3ull << 30) + fake_nvml.used_more};
  return 0;
}
FAKE nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t* memory) {
  *memory = nvmlMemory_v2_t{memory->version, 8ull << 30, 1ull << 28, 5ull << 30, 3ull << 30};
  return 0;
}
FAKE nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  const char* text = device == reinterpret_cast<nvmlDevice_t>(1)
                         ? "GPU-b1b1b1b1-b1b1-b1b1-b1b1-b1b1b1b1b1b1"
                         : "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0";
  strncpy(uuid, text, length);
  return 0;
}
FAKE nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t, nvmlUtilization_t* rates) {
  *rates = {90, 80};
  return 0;
}
FAKE nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                  nvmlProcessUtilizationSample_t* samples,
                                                  unsigned int* count, unsigned long long) {
  if (fake_nvml.samples_result != 0) return fake_nvml.samples_result;
  unsigned all = 0;
  for (unsigned i = 0; i < fake_nvml.process_count; ++i) {
    if (fake_nvml.sm_util[i] == 0 || device == reinterpret_cast<nvmlDevice_t>(1)) continue;
    if (samples != nullptr && all < *count)
      samples[all] = {fake_nvml.processes[i].pid, 5, fake_nvml.sm_util[i],
                      fake_nvml.sm_util[i] / 2,   7, 9};
    ++all;
  }
  const bool fits = samples != nullptr && all <= *count;
  *count = all;
  return all == 0 ? kNotFound : fits ? 0 : kInsufficientSize;
}
FAKE nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                        nvmlProcessesUtilizationInfo_v1_t* info) {
  if (fake_nvml.samples_result != 0) return fake_nvml.samples_result;
  unsigned all = 0;
  for (unsigned i = 0; i < fake_nvml.process_count; ++i) {
    if (fake_nvml.sm_util[i] == 0 || device == reinterpret_cast<nvmlDevice_t>(1)) continue;
    if (info->procUtilArray != nullptr && all < info->processSamplesCount) {
      info->procUtilArray[all] = {
          5, fake_nvml.processes[i].pid, fake_nvml.sm_util[i], fake_nvml.sm_util[i] / 2, 7, 9, 11,
          13};
    }
    ++all;
  }
  const bool fits = info->procUtilArray != nullptr && all <= info->processSamplesCount;
  info->processSamplesCount = all;
  return all == 0 ? kNotFound : fits ? 0 : kInsufficientSize;
}
FAKE nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                        nvmlProcessDetailList_v1_t* listed) {
  constexpr nvmlReturn_t kInvalidArgument = 2, kVersionMismatch = 25;
  if (listed == nullptr || listed->mode > 2) return kInvalidArgument;
  if (listed->version != (sizeof *listed | 1u << 24)) return kVersionMismatch;
  const unsigned all = device == reinterpret_cast<nvmlDevice_t>(1) ? 0 : fake_nvml.process_count;
  const unsigned room = listed->procArray == nullptr ? 0 : listed->numProcArrayEntries;
  for (unsigned i = 0; i < all && i < room; ++i) {
    const nvmlProcessInfo_t& from = fake_nvml.processes[i];
    listed->procArray[i] = {from.pid, from.usedGpuMemory, 1, 2, 3};
  }
  listed->numProcArrayEntries = all;
  return all <= room ? 0 : kInsufficientSize;
}
// Three samples of the whole GPU, of 90 per cent each.
FAKE nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t, unsigned int, unsigned long long,
                                       unsigned int* value_type, unsigned int* count,
                                       nvmlSample_t* samples) {
  *value_type = 1;
  for (unsigned i = 0; samples != nullptr && i < *count && i < 3; ++i)
    samples[i] = {100 + i, {.ullVal = 90}};
  *count = 3;
  return 0;
}
#define FAKE_LIST(name, info)                                                                  \
  FAKE nvmlReturn_t name(nvmlDevice_t device, unsigned int* count, info* infos) {              \
    return list(device == reinterpret_cast<nvmlDevice_t>(2) ? nullptr : device, count, infos); \
  }
FAKE_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
FAKE_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t)
FAKE_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
FAKE_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
FAKE_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t)
FAKE_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
FAKE_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
FAKE_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t)
FAKE_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

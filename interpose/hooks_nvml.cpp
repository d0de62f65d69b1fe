// NVML's answers about the tenant's GPUs: memory, processes, utilization. NVML sees all devices and
// all processes of the machine; GPUs that are not the tenant's are shown as they are, and on its
// own a tenant sees itself. The real function is asked first, so errors are NVML's.
#include <string.h>
#include <time.h>

#include "interpose/start.h"
#include "interpose/view.h"

using namespace sluice::interpose;
namespace protocol = sluice::protocol;

namespace {

constexpr nvmlReturn_t kNotFound = 6;
constexpr nvmlReturn_t kInsufficientSize = 7;
constexpr nvmlReturn_t kLibraryNotFound = 12;
constexpr nvmlReturn_t kFunctionNotFound = 13;
constexpr unsigned kNoInstance = ~0u;    // where there is no MIG
constexpr unsigned kListMax = 4096;      // processes or samples that NVML answers with
constexpr uint64_t kWindowUs = 1000000;  // utilization is of the last second

/// Room for what NVML lists of the whole machine.
template <class T>
class List {
 public:
  List() {
    const ErrnoGuard guard;
    entries_ = static_cast<T*>(pages_allocate(kListMax * sizeof(T)));
  }
  ~List() {
    const ErrnoGuard guard;
    if (entries_ != nullptr) pages_free(entries_, kListMax * sizeof(T));
  }
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  T* entries() { return entries_; }

 private:
  T* entries_;
};

template <class Function>
nvmlReturn_t missing(Function function) {
  if (!resolve_nvml()) return kLibraryNotFound;
  return nvml.*function == nullptr ? kFunctionNotFound : 0;
}

ThreadRecord* caller() {
  const ErrnoGuard guard;
  return registration_mode(false) == Mode::kActive ? thread_record() : nullptr;
}

// The real function. One that asks another of NVML's by its public name comes to a hook again,
// which must not narrow the answer twice.
template <class Function, class... A>
nvmlReturn_t real(Function function, A... arguments) {
  const DepthScope depth(caller());
  return (nvml.*function)(arguments...);
}

int gpu_shown(nvmlDevice_t device) {
  const ThreadRecord* thread = this_thread;
  return thread != nullptr && thread->depth != 0 ? -1 : nvml_gpu(device);
}

template <class Memory>
void memory_narrow(int gpu, Memory* memory) {
  const MemoryView view = nvml_memory_view(gpu, memory->total, memory->free);
  memory->total = view.total_bytes;
  memory->free = view.free_bytes;
  memory->used = view.total_bytes - view.free_bytes;
}

void process_write(nvmlProcessInfo_v1_t* out, const TenantProcess& p) { *out = {p.pid, p.bytes}; }
void process_write(nvmlProcessDetail_v1_t* out, const TenantProcess& p) {
  *out = {p.pid, p.bytes, kNoInstance, kNoInstance, 0};
}
void process_write(nvmlProcessInfo_t* out, const TenantProcess& p) {
  *out = {p.pid, p.bytes, kNoInstance, kNoInstance};
}

// As much of `count` entries as there is room for, and how many there are.
template <class Info, class Write>
nvmlReturn_t entries_give(unsigned count, unsigned* room, Info* infos, Write write) {
  const bool fits = count <= *room;
  for (unsigned i = 0; i < count && i < *room; ++i) write(&infos[i], i);
  *room = count;
  return fits ? 0 : kInsufficientSize;
}

// What runs on the GPU of the tenant: from its own account, because NVML does not list processes in
// containers.
template <class Info, class Function>
nvmlReturn_t processes(Function function, nvmlDevice_t device, unsigned* count, Info* infos) {
  const nvmlReturn_t none = missing(function);
  if (none != 0) return none;
  const int gpu = gpu_shown(device);
  if (gpu < 0 || count == nullptr || (*count > 0 && infos == nullptr))
    return real(function, device, count, infos);
  unsigned others = 0;
  const nvmlReturn_t result = real(function, device, &others, static_cast<Info*>(nullptr));
  if (result != 0 && result != kInsufficientSize) return result;
  TenantProcess own[protocol::kTenantProcessesMax];
  const unsigned found = tenant_processes(gpu, own);
  return entries_give(found, count, infos,
                      [&](Info* out, unsigned i) { process_write(out, own[i]); });
}

// Leaves the tenant's entries, under the pids its processes see.
template <class Entry>
unsigned entries_filter(Entry* entries, unsigned count) {
  unsigned kept = 0;
  for (unsigned i = 0; i < count; ++i) {
    const uint32_t pid = tenant_pid(entries[i].pid);
    if (pid == 0) continue;
    entries[kept] = entries[i];
    entries[kept++].pid = pid;
  }
  return kept;
}

// Processes that the account does not know as such (graphics, clients of MPS): NVML's, less those
// of others.
template <class Info, class Function>
nvmlReturn_t processes_filtered(Function function, nvmlDevice_t device, unsigned* count,
                                Info* infos) {
  const nvmlReturn_t none = missing(function);
  if (none != 0) return none;
  const int gpu = gpu_shown(device);
  List<Info> all;
  if (gpu < 0 || count == nullptr || (*count > 0 && infos == nullptr) || all.entries() == nullptr)
    return real(function, device, count, infos);
  unsigned found = kListMax;
  const nvmlReturn_t result = real(function, device, &found, all.entries());
  if (result != 0) return result;
  const unsigned kept = entries_filter(all.entries(), found);
  return entries_give(kept, count, infos, [&](Info* out, unsigned i) { *out = all.entries()[i]; });
}

template <class Sample>
void sample_scale(Sample* sample, uint32_t sm_percent) {
  sample->smUtil = slice_percent(sample->smUtil, sm_percent);
  sample->memUtil = slice_percent(sample->memUtil, sm_percent);
}

uint64_t now_us() {
  const ErrnoGuard guard;
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000 + static_cast<uint64_t>(t.tv_nsec) / 1000;
}

// The tenant's samples since a moment, of the whole GPU.
nvmlReturn_t samples_read(nvmlDevice_t device, uint64_t since_us,
                          List<nvmlProcessUtilizationSample_t>& list, unsigned* count) {
  *count = kListMax;
  const nvmlReturn_t result =
      real(&NvmlTable::nvmlDeviceGetProcessUtilization, device, list.entries(), count, since_us);
  if (result != 0) return result;
  *count = entries_filter(list.entries(), *count);
  return *count == 0 ? kNotFound : 0;
}

nvmlUtilization_t tenant_utilization(int gpu, nvmlDevice_t device) {
  List<nvmlProcessUtilizationSample_t> list;
  if (nvml.nvmlDeviceGetProcessUtilization == nullptr || list.entries() == nullptr)
    return utilization_metered(gpu);
  // Without a sample of the tenant it was idle, or NVML does not know its processes (containers,
  // MPS); the meter knows both.
  unsigned count = 0;
  if (samples_read(device, now_us() - kWindowUs, list, &count) != 0)
    return utilization_metered(gpu);
  nvmlUtilization_t sum{};
  for (unsigned i = 0; i < count; ++i) {
    sum.gpu += list.entries()[i].smUtil;
    sum.memory += list.entries()[i].memUtil;
  }
  return sum;
}

}  // namespace

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const nvmlReturn_t none = missing(&NvmlTable::nvmlDeviceGetMemoryInfo);
  if (none != 0) return none;
  const nvmlReturn_t result = real(&NvmlTable::nvmlDeviceGetMemoryInfo, device, memory);
  const int gpu = result == 0 ? gpu_shown(device) : -1;
  if (gpu >= 0) memory_narrow(gpu, memory);
  return result;
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  const nvmlReturn_t none = missing(&NvmlTable::nvmlDeviceGetMemoryInfo_v2);
  if (none != 0) return none;
  const nvmlReturn_t result = real(&NvmlTable::nvmlDeviceGetMemoryInfo_v2, device, memory);
  const int gpu = result == 0 ? gpu_shown(device) : -1;
  if (gpu >= 0) {
    // What the driver keeps for itself is not the tenant's to see.
    memory->reserved = 0;
    memory_narrow(gpu, memory);
  }
  return result;
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device,
                                                       nvmlUtilization_t* rates) {
  const nvmlReturn_t none = missing(&NvmlTable::nvmlDeviceGetUtilizationRates);
  if (none != 0) return none;
  const nvmlReturn_t result = real(&NvmlTable::nvmlDeviceGetUtilizationRates, device, rates);
  const int gpu = result == 0 ? gpu_shown(device) : -1;
  if (gpu < 0) return result;
  const nvmlUtilization_t own = tenant_utilization(gpu, device);
  const uint32_t sm_percent = nvml_sm_percent(gpu);
  *rates = {slice_percent(own.gpu, sm_percent), slice_percent(own.memory, sm_percent)};
  return result;
}

// NVML keeps samples of the whole GPU; each of those that the program gets says what the tenant had
// in the last second. The answer's value is whole per cent (an unsigned int) for both kinds.
SLUICE_HOOK nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned int type,
                                              unsigned long long last_seen_us,
                                              unsigned int* value_type, unsigned int* count,
                                              nvmlSample_t* samples) {
  constexpr unsigned kGpuUtilization = 1, kMemoryUtilization = 2, kUnsignedInt = 1;
  const nvmlReturn_t none = missing(&NvmlTable::nvmlDeviceGetSamples);
  if (none != 0) return none;
  const nvmlReturn_t result = real(&NvmlTable::nvmlDeviceGetSamples, device, type, last_seen_us,
                                   value_type, count, samples);
  if (result != 0 || samples == nullptr || (type != kGpuUtilization && type != kMemoryUtilization))
    return result;
  const int gpu = gpu_shown(device);
  if (gpu < 0) return result;
  const nvmlUtilization_t own = tenant_utilization(gpu, device);
  const unsigned percent =
      slice_percent(type == kGpuUtilization ? own.gpu : own.memory, nvml_sm_percent(gpu));
  for (unsigned i = 0; i < *count; ++i) {
    samples[i].sampleValue.ullVal = 0;
    samples[i].sampleValue.uiVal = percent;
  }
  *value_type = kUnsignedInt;
  return result;
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                         nvmlProcessUtilizationSample_t* samples,
                                                         unsigned int* count,
                                                         unsigned long long last_seen_us) {
  const nvmlReturn_t none = missing(&NvmlTable::nvmlDeviceGetProcessUtilization);
  if (none != 0) return none;
  const int gpu = gpu_shown(device);
  List<nvmlProcessUtilizationSample_t> list;
  if (gpu < 0 || count == nullptr || list.entries() == nullptr)
    return real(&NvmlTable::nvmlDeviceGetProcessUtilization, device, samples, count, last_seen_us);
  unsigned found = 0;
  const nvmlReturn_t result = samples_read(device, last_seen_us, list, &found);
  if (result != 0) return result;
  unsigned room = samples == nullptr ? 0 : *count;
  *count = found;
  return entries_give(found, &room, samples, [&](nvmlProcessUtilizationSample_t* out, unsigned i) {
    *out = list.entries()[i];
    sample_scale(out, nvml_sm_percent(gpu));
  });
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(
    nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t* info) {
  const nvmlReturn_t none = missing(&NvmlTable::nvmlDeviceGetProcessesUtilizationInfo);
  if (none != 0) return none;
  const int gpu = gpu_shown(device);
  List<nvmlProcessUtilizationInfo_v1_t> list;
  if (gpu < 0 || info == nullptr || list.entries() == nullptr)
    return real(&NvmlTable::nvmlDeviceGetProcessesUtilizationInfo, device, info);
  nvmlProcessesUtilizationInfo_v1_t all = *info;
  all.processSamplesCount = kListMax;
  all.procUtilArray = list.entries();
  const nvmlReturn_t result = real(&NvmlTable::nvmlDeviceGetProcessesUtilizationInfo, device, &all);
  if (result != 0) return result;
  const unsigned found = entries_filter(list.entries(), all.processSamplesCount);
  unsigned room = info->procUtilArray == nullptr ? 0 : info->processSamplesCount;
  info->processSamplesCount = found;
  if (found == 0) return kNotFound;
  return entries_give(found, &room, info->procUtilArray,
                      [&](nvmlProcessUtilizationInfo_v1_t* out, unsigned i) {
                        *out = list.entries()[i];
                        sample_scale(out, nvml_sm_percent(gpu));
                      });
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                               nvmlProcessDetailList_v1_t* list) {
  constexpr unsigned kCompute = 0;
  const nvmlReturn_t none = missing(&NvmlTable::nvmlDeviceGetRunningProcessDetailList);
  if (none != 0) return none;
  const int gpu = gpu_shown(device);
  List<nvmlProcessDetail_v1_t> all;
  if (gpu < 0 || list == nullptr || all.entries() == nullptr)
    return real(&NvmlTable::nvmlDeviceGetRunningProcessDetailList, device, list);
  // Asked with room for everybody: wrong versions and modes are NVML's to refuse.
  nvmlProcessDetailList_v1_t machine = *list;
  machine.numProcArrayEntries = kListMax;
  machine.procArray = all.entries();
  const nvmlReturn_t result =
      real(&NvmlTable::nvmlDeviceGetRunningProcessDetailList, device, &machine);
  if (result != 0) return result;
  unsigned* room = &list->numProcArrayEntries;
  if (list->procArray == nullptr) *room = 0;
  if (list->mode == kCompute) {
    TenantProcess own[protocol::kTenantProcessesMax];
    return entries_give(
        tenant_processes(gpu, own), room, list->procArray,
        [&](nvmlProcessDetail_v1_t* out, unsigned i) { process_write(out, own[i]); });
  }
  const unsigned kept = entries_filter(all.entries(), machine.numProcArrayEntries);
  return entries_give(kept, room, list->procArray,
                      [&](nvmlProcessDetail_v1_t* out, unsigned i) { *out = all.entries()[i]; });
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device,
                                                              unsigned int* count,
                                                              nvmlProcessInfo_v1_t* infos) {
  return processes(&NvmlTable::nvmlDeviceGetComputeRunningProcesses, device, count, infos);
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device,
                                                                 unsigned int* count,
                                                                 nvmlProcessInfo_t* infos) {
  return processes(&NvmlTable::nvmlDeviceGetComputeRunningProcesses_v2, device, count, infos);
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                                 unsigned int* count,
                                                                 nvmlProcessInfo_t* infos) {
  return processes(&NvmlTable::nvmlDeviceGetComputeRunningProcesses_v3, device, count, infos);
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device,
                                                               unsigned int* count,
                                                               nvmlProcessInfo_v1_t* infos) {
  return processes_filtered(&NvmlTable::nvmlDeviceGetGraphicsRunningProcesses, device, count,
                            infos);
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device,
                                                                  unsigned int* count,
                                                                  nvmlProcessInfo_t* infos) {
  return processes_filtered(&NvmlTable::nvmlDeviceGetGraphicsRunningProcesses_v2, device, count,
                            infos);
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device,
                                                                  unsigned int* count,
                                                                  nvmlProcessInfo_t* infos) {
  return processes_filtered(&NvmlTable::nvmlDeviceGetGraphicsRunningProcesses_v3, device, count,
                            infos);
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device,
                                                                 unsigned int* count,
                                                                 nvmlProcessInfo_v1_t* infos) {
  return processes_filtered(&NvmlTable::nvmlDeviceGetMPSComputeRunningProcesses, device, count,
                            infos);
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device,
                                                                    unsigned int* count,
                                                                    nvmlProcessInfo_t* infos) {
  return processes_filtered(&NvmlTable::nvmlDeviceGetMPSComputeRunningProcesses_v2, device, count,
                            infos);
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device,
                                                                    unsigned int* count,
                                                                    nvmlProcessInfo_t* infos) {
  return processes_filtered(&NvmlTable::nvmlDeviceGetMPSComputeRunningProcesses_v3, device, count,
                            infos);
}

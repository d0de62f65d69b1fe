// What a tenant is shown of a GPU: its quota as the memory, what it has not used of it as free and
// never more than the GPU really has, its own processes, and GPU time in hundredths of its slice.
#pragma once

#include "interpose/memory/ended.h"
#include "interpose/process.h"

namespace sluice::interpose {

struct MemoryView {
  uint64_t total_bytes;
  uint64_t free_bytes;
};

inline MemoryView memory_view(uint64_t quota_bytes, uint64_t used_bytes, uint64_t real_total,
                              uint64_t real_free) {
  if (quota_bytes == 0 || quota_bytes > real_total) quota_bytes = real_total;
  const uint64_t left = used_bytes < quota_bytes ? quota_bytes - used_bytes : 0;
  return MemoryView{quota_bytes, left < real_free ? left : real_free};
}

/// The view of one of the tenant's GPUs.
inline MemoryView gpu_memory_view(int gpu, uint64_t real_total, uint64_t real_free) {
  ended_look(gpu);
  return memory_view(process.memory_max(gpu), process.ledger.total(static_cast<uint32_t>(gpu)),
                     real_total, real_free);
}

/// A GPU that is not in the lease page of a tenant without a broker, which has none of it yet. NVML
/// shows all GPUs of the host, and the page is for those that CUDA shows.
inline constexpr int kGpuUnused = protocol::kTenantGpusMax;

/// The view and the share of a GPU that nvml_gpu() returned.
MemoryView nvml_memory_view(int gpu, uint64_t real_total, uint64_t real_free);
uint32_t nvml_sm_percent(int gpu);

/// Per cent of a GPU as per cent of a slice of it, at most 100.
inline unsigned slice_percent(unsigned percent, uint32_t sm_percent) {
  if (sm_percent == 0 || sm_percent > 100) sm_percent = 100;
  const unsigned scaled = (percent * 100 + sm_percent / 2) / sm_percent;
  return scaled > 100 ? 100 : scaled;
}

/// Where NVML has no figures of the tenant's processes: what its meters counted in about the last
/// second, in per cent of the GPU. Looked at less often, since the look before; the first answer is
/// of what this process used since it began; nothing for kGpuUnused. Any thread.
nvmlUtilization_t utilization_metered(int gpu);
void view_reset_after_fork();

/// The tenant's GPU that a device of NVML is, or kGpuUnused; -1 = none of its. NVML numbers devices
/// its own way, so they are matched by UUID. Needs resolve_nvml().
int nvml_gpu(nvmlDevice_t device);

/// The tenant's process that the host knows by this pid, as that process sees itself; 0 =
/// another's.
uint32_t tenant_pid(uint32_t host_pid);

struct TenantProcess {
  uint32_t pid;
  uint64_t bytes;
};
/// The tenant's processes that have memory on the GPU; `out` has room for kTenantProcessesMax.
unsigned tenant_processes(int gpu, TenantProcess* out);

}  // namespace sluice::interpose

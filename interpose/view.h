// What a tenant is shown of a GPU's memory: its quota as the size, what it has not used of it as
// free, and never more than the GPU really has.
#pragma once

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
  return memory_view(process.memory_max(gpu), process.ledger.total(static_cast<uint32_t>(gpu)),
                     real_total, real_free);
}

}  // namespace sluice::interpose

// See memory.h.
#include "softgpu/driver/memory.h"

#include <sys/mman.h>

namespace softgpu::driver {

MemoryMap& MemoryMap::get() {
  static auto* map = new MemoryMap;
  return *map;
}

void MemoryMap::add(Allocation allocation) {
  const std::unique_lock lock(mutex_);
  allocation.id = next_id_++;
  map_[allocation.base] = allocation;
}

std::optional<Allocation> MemoryMap::find(std::uintptr_t address) const {
  const std::shared_lock lock(mutex_);
  auto next = map_.upper_bound(address);
  if (next == map_.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(next)->second;
  if (address - allocation.base >= allocation.size) return std::nullopt;
  return allocation;
}

std::optional<Allocation> MemoryMap::take(std::uintptr_t base) {
  const std::unique_lock lock(mutex_);
  const auto found = map_.find(base);
  if (found == map_.end()) return std::nullopt;
  const Allocation allocation = found->second;
  map_.erase(found);
  return allocation;
}

bool MemoryMap::covers(std::uintptr_t address, std::size_t bytes) const {
  const std::shared_lock lock(mutex_);
  auto next = map_.upper_bound(address);
  if (next == map_.begin()) return false;
  std::uintptr_t reached = address;
  for (auto at = std::prev(next); at != map_.end(); ++at) {
    if (at->second.base > reached) return false;
    const std::uintptr_t end = at->second.base + at->second.size;
    if (end <= reached) return false;
    reached = end;
    if (reached - address >= bytes) return true;
  }
  return false;
}

std::vector<Allocation> MemoryMap::of_context(CUcontext context) const {
  const std::shared_lock lock(mutex_);
  std::vector<Allocation> result;
  for (const auto& [base, allocation] : map_)
    if (allocation.context == context) result.push_back(allocation);
  return result;
}

CUresult memory_allocate(Context& context, std::size_t bytes, MemoryKind kind,
                         CUdeviceptr& address) {
  Allocation allocation;
  void* p = context.gpu.memory_map(bytes, 1, &allocation.file, &allocation.offset);
  if (p == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  allocation.base = address_of(p);
  allocation.size = bytes;
  allocation.kind = kind;
  allocation.gpu = &context.gpu;
  allocation.context = context.handle();
  MemoryMap::get().add(allocation);
  address = allocation.base;
  return CUDA_SUCCESS;
}

void memory_release(const Allocation& allocation) {
  void* p = reinterpret_cast<void*>(allocation.base);
  switch (allocation.kind) {
    case MemoryKind::kDevice:
    case MemoryKind::kManaged:
    case MemoryKind::kModule:
      allocation.gpu->memory_unmap(p, allocation.size, allocation.offset);
      return;
    case MemoryKind::kHost:
    case MemoryKind::kImported:
      munmap(p, (allocation.size + 4095) / 4096 * 4096);
      return;
    case MemoryKind::kRegistered:
    case MemoryKind::kPool:
    case MemoryKind::kVirtual:
      return;  // the program's own memory, the pool's chunk, the address range
  }
}

}  // namespace softgpu::driver

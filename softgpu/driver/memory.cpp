// See memory.h.
#include "softgpu/driver/memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "softgpu/driver/ipc.h"
#include "softgpu/driver/memory_managed.h"
#include "softgpu/driver/memory_strict.h"

namespace softgpu::driver {
namespace {

thread_local int dormant_visible = 0;

bool hidden(const Allocation& allocation) { return allocation.dormant && dormant_visible == 0; }

/// Managed memory is the host's as well.
bool host_share(void* p, std::size_t bytes) {
  return strict_open(p, round_up(bytes, kHostPage), PROT_READ | PROT_WRITE);
}

}  // namespace

DormantVisible::DormantVisible() { ++dormant_visible; }
DormantVisible::~DormantVisible() { --dormant_visible; }

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
  if (address - allocation.base >= allocation.size || hidden(allocation)) return std::nullopt;
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

bool MemoryMap::covers(std::uintptr_t address, std::size_t bytes, CUmemAccess_flags need) const {
  const std::shared_lock lock(mutex_);
  auto next = map_.upper_bound(address);
  if (next == map_.begin()) return false;
  std::uintptr_t reached = address;
  for (auto at = std::prev(next); at != map_.end(); ++at) {
    if (at->second.base > reached || (at->second.access & need) != need || hidden(at->second))
      return false;
    const std::uintptr_t end = at->second.base + at->second.size;
    if (end <= reached) return false;
    reached = end;
    if (reached - address >= bytes) return true;
  }
  return false;
}

bool MemoryMap::change(std::uintptr_t base, const std::function<void(Allocation&)>& how) {
  const std::unique_lock lock(mutex_);
  const auto found = map_.find(base);
  if (found == map_.end()) return false;
  how(found->second);
  return true;
}

std::vector<Allocation> MemoryMap::of_context(CUcontext context) const {
  const std::shared_lock lock(mutex_);
  std::vector<Allocation> result;
  for (const auto& [base, allocation] : map_)
    if (allocation.context == context) result.push_back(allocation);
  return result;
}

CUresult memory_share_variable(std::uintptr_t base) {
  const auto variable = MemoryMap::get().find(base);
  if (!variable || !host_share(reinterpret_cast<void*>(base), variable->size))
    return CUDA_ERROR_OUT_OF_MEMORY;
  MemoryMap::get().change(base, [](Allocation& a) { a.variable_managed = true; });
  return CUDA_SUCCESS;
}

bool MemoryMap::sync_memops_set(std::uintptr_t address, bool on) {
  const std::unique_lock lock(mutex_);
  const auto next = map_.upper_bound(address);
  if (next == map_.begin()) return false;
  Allocation& allocation = std::prev(next)->second;
  if (address - allocation.base >= allocation.size) return false;
  allocation.sync_memops = on;
  return true;
}

bool MemoryMap::any(const std::function<bool(const Allocation&)>& like) const {
  const std::shared_lock lock(mutex_);
  return std::any_of(map_.begin(), map_.end(),
                     [&](const auto& entry) { return like(entry.second); });
}

bool MemoryMap::touches(std::uintptr_t address, std::size_t bytes) const {
  const std::shared_lock lock(mutex_);
  const auto next = map_.lower_bound(address + bytes);
  if (next == map_.begin()) return false;
  const Allocation& before = std::prev(next)->second;
  return before.base + before.size > address;
}

CUresult memory_allocate(Context& context, std::size_t bytes, MemoryKind kind,
                         CUdeviceptr& address) {
  Allocation allocation;
  void* p = context.gpu.memory_map(bytes, allocation.offset);
  if (p == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (kind == MemoryKind::kManaged && !host_share(p, bytes)) {
    context.gpu.memory_unmap(p, bytes, allocation.offset);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
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
    case MemoryKind::kArray:
      if (allocation.is_managed()) ManagedRanges::get().forget(allocation.base, allocation.size);
      allocation.gpu->memory_unmap(p, allocation.size, allocation.offset, allocation.inode);
      return;
    case MemoryKind::kImported:
    case MemoryKind::kExternal:
      import_release(allocation);
      return;
    case MemoryKind::kHost:
      munmap(p, round_up(allocation.size, kHostPage));
      return;
    case MemoryKind::kRegistered:
    case MemoryKind::kPool:
    case MemoryKind::kVirtual:
    case MemoryKind::kGraph:
      return;  // the program's own memory, the pool's chunk, the address range
  }
}

}  // namespace softgpu::driver

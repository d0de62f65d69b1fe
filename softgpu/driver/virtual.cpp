// See virtual.h; pieces are in virtual_piece.cpp.
#include "softgpu/driver/virtual.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "softgpu/driver/memory.h"
#include "softgpu/driver/memory_strict.h"
#include "softgpu/driver/profile.h"

namespace softgpu::driver {
namespace {

/// Addresses without memory behind them: a kernel that touches them faults.
bool range_blank(std::uintptr_t at, std::size_t bytes) {
  return mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

int protection(CUmemAccess_flags flags) {
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
         : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                     : PROT_NONE;
}

}  // namespace

CUmemAccess_flags Mapping::widest() const {
  CUmemAccess_flags result = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  for (const auto& [ordinal, flags] : access) result = std::max(result, flags);
  return result;
}

VirtualMemory& VirtualMemory::get() {
  static auto* instance = new VirtualMemory;
  return *instance;
}

CUmemGenericAllocationHandle VirtualMemory::handle_add(PieceRef piece) {
  const std::lock_guard lock(mutex_);
  handles_[next_handle_] = Handle{std::move(piece), 1};
  return next_handle_++;
}

CUresult VirtualMemory::handle_release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references == 0) handles_.erase(found);
  return CUDA_SUCCESS;
}

VirtualMemory::Mappings::iterator VirtualMemory::find_locked(std::uintptr_t address) {
  const auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return mappings_.end();
  const auto found = std::prev(next);
  return address - found->first < found->second.bytes ? found : mappings_.end();
}

CUresult VirtualMemory::handle_retain(std::uintptr_t address,
                                      CUmemGenericAllocationHandle& handle) {
  const std::lock_guard lock(mutex_);
  const auto mapping = find_locked(address);
  if (mapping == mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
  handle = mapping->second.handle;
  Handle& entry = handles_[handle];  // its last reference may be gone while the mapping lives
  entry.piece = mapping->second.piece;
  ++entry.references;
  return CUDA_SUCCESS;
}

PieceRef VirtualMemory::handle_find(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second.piece;
}

CUresult VirtualMemory::reserve(std::size_t bytes, std::size_t align, std::uintptr_t wish,
                                std::uintptr_t& at) {
  if (bytes == 0 || bytes % kVmmGranularity != 0 || wish % kHostPage != 0 ||
      (align & (align - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const std::size_t unit = std::max(align, kVmmGranularity);
  if (bytes > SIZE_MAX - unit) return CUDA_ERROR_OUT_OF_MEMORY;
  // More than asked, so that an aligned part is in it; the rest is given back.
  void* p = mmap(reinterpret_cast<void*>(wish), bytes + unit, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uintptr_t begin = address_of(p);
  at = (begin + unit - 1) / unit * unit;
  if (at > begin) munmap(p, at - begin);
  if (begin + unit > at) munmap(reinterpret_cast<void*>(at + bytes), begin + unit - at);
  const std::lock_guard lock(mutex_);
  ranges_[at] = bytes;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::unreserve(std::uintptr_t at, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(at);
  if (found == ranges_.end() || found->second != bytes || !free_locked(at, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(at), bytes);
  ranges_.erase(found);
  return CUDA_SUCCESS;
}

/// The reserved range that holds [at, at + bytes); of size 0: there is none.
std::pair<std::uintptr_t, std::size_t> VirtualMemory::range_locked(std::uintptr_t at,
                                                                   std::size_t bytes) const {
  const auto next = ranges_.upper_bound(at);
  if (next == ranges_.begin()) return {0, 0};
  const auto& [begin, size] = *std::prev(next);
  const bool inside = at - begin < size && bytes <= size - (at - begin);
  return inside ? std::pair{begin, size} : std::pair<std::uintptr_t, std::size_t>{0, 0};
}

/// Nothing is mapped anywhere in it.
bool VirtualMemory::free_locked(std::uintptr_t at, std::size_t bytes) const {
  const auto next = mappings_.lower_bound(at + bytes);
  if (next == mappings_.begin()) return true;
  const auto& [begin, mapping] = *std::prev(next);
  return begin + mapping.bytes <= at;
}

/// It is made of whole mappings, without a gap.
bool VirtualMemory::whole_locked(std::uintptr_t at, std::size_t bytes) const {
  std::uintptr_t reached = at;
  for (auto m = mappings_.find(at);
       m != mappings_.end() && m->first == reached && reached < at + bytes; ++m)
    reached += m->second.bytes;
  return bytes != 0 && reached == at + bytes;
}

CUresult VirtualMemory::map(std::uintptr_t at, std::size_t bytes, std::size_t offset,
                            CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end() || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (offset != 0 || bytes != found->second.piece->bytes) return CUDA_ERROR_NOT_SUPPORTED;
  if (at % kVmmGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto [range, range_bytes] = range_locked(at, bytes);
  if (range_bytes == 0 || !free_locked(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const PieceRef& piece = found->second.piece;
  if (piece->file().map(reinterpret_cast<void*>(at), bytes, PROT_NONE,
                        MAP_SHARED | MAP_NORESERVE | MAP_FIXED, 0) == MAP_FAILED ||
      !strict_close(reinterpret_cast<void*>(at), bytes, PROT_NONE)) {
    Process::get().complain_of_mapping(errno);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  mappings_[at] = Mapping{bytes, piece, handle, {}};
  Allocation allocation;
  allocation.base = at;
  allocation.size = bytes;
  allocation.kind = MemoryKind::kVirtual;
  allocation.gpu = &piece->gpu;
  allocation.range_base = range;
  allocation.range_size = range_bytes;
  allocation.access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  allocation.handle_types = piece->prop.requestedHandleTypes;
  MemoryMap::get().add(allocation);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::unmap(std::uintptr_t at, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!whole_locked(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (auto m = mappings_.find(at); m != mappings_.end() && m->first < at + bytes;
       m = mappings_.erase(m)) {
    range_blank(m->first, m->second.bytes);
    MemoryMap::get().take(m->first);
  }
  return CUDA_SUCCESS;
}

bool VirtualMemory::access_narrows(std::uintptr_t at, std::size_t bytes,
                                   const CUmemAccessDesc* access, std::size_t count) {
  const std::lock_guard lock(mutex_);
  for (auto m = mappings_.find(at); m != mappings_.end() && m->first < at + bytes; ++m) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto known = m->second.access.find(access[i].location.id);
      if (known != m->second.access.end() && known->second > access[i].flags) return true;
    }
  }
  return false;
}

CUresult VirtualMemory::access_set(std::uintptr_t at, std::size_t bytes,
                                   const CUmemAccessDesc* access, std::size_t count) {
  const std::lock_guard lock(mutex_);
  if (!whole_locked(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (auto m = mappings_.find(at); m != mappings_.end() && m->first < at + bytes; ++m) {
    for (std::size_t i = 0; i < count; ++i)
      m->second.access[access[i].location.id] = access[i].flags;
    const CUmemAccess_flags widest = m->second.widest();
    if (mprotect(reinterpret_cast<void*>(m->first), m->second.bytes, protection(widest)) != 0)
      return CUDA_ERROR_OPERATING_SYSTEM;
    MemoryMap::get().change(m->first, [widest](Allocation& a) { a.access = widest; });
  }
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::access_get(std::uintptr_t at, int ordinal, CUmemAccess_flags& flags) {
  const std::lock_guard lock(mutex_);
  const auto mapping = find_locked(at);
  if (mapping == mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
  const auto& access = mapping->second.access;
  const auto known = access.find(ordinal);
  flags = known == access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : known->second;
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver

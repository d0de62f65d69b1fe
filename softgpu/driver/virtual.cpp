// See virtual.h.
#include "softgpu/driver/virtual.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "softgpu/driver/memory.h"
#include "softgpu/driver/profile.h"

namespace softgpu::driver {
namespace {

/// Addresses without memory behind them: a kernel that touches them faults.
bool range_blank(std::uintptr_t at, std::size_t bytes) {
  return mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

}  // namespace

CUresult Piece::create(Gpu& gpu, std::size_t bytes, PieceRef& piece) {
  if (!gpu.client_need()) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = memfd_create("softgpu-vmm", MFD_CLOEXEC);
  struct stat status {};
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0 || fstat(file, &status) != 0 ||
      !gpu.model.shared_create(gpu.client, status.st_ino, bytes)) {
    if (file >= 0) close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  piece = std::make_shared<Piece>(gpu, bytes, file, status.st_ino);
  return CUDA_SUCCESS;
}

CUresult Piece::import(Gpu& gpu, int file, PieceRef& piece) {
  struct stat status {};
  if (fstat(file, &status) != 0 || status.st_size <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!gpu.client_need()) return CUDA_ERROR_OUT_OF_MEMORY;
  // Charged where it was made: an import only holds it.
  if (!gpu.model.shared_hold(gpu.client, status.st_ino)) return CUDA_ERROR_INVALID_VALUE;
  const int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (own < 0) {
    gpu.model.shared_release(gpu.client, status.st_ino);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  piece =
      std::make_shared<Piece>(gpu, static_cast<std::size_t>(status.st_size), own, status.st_ino);
  return CUDA_SUCCESS;
}

Piece::~Piece() {
  close(file_);
  gpu.model.shared_release(gpu.client, inode_);
}

VirtualMemory& VirtualMemory::get() {
  static auto* instance = new VirtualMemory;
  return *instance;
}

CUmemGenericAllocationHandle VirtualMemory::handle_add(PieceRef piece,
                                                       const CUmemAllocationProp& prop) {
  const std::lock_guard lock(mutex_);
  handles_[next_handle_] = PieceHandle{std::move(piece), 1, prop};
  return next_handle_++;
}

CUresult VirtualMemory::handle_release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references == 0) handles_.erase(found);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::handle_retain(std::uintptr_t address,
                                      CUmemGenericAllocationHandle& handle) {
  const std::lock_guard lock(mutex_);
  auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return CUDA_ERROR_INVALID_VALUE;
  const Mapping& mapping = std::prev(next)->second;
  if (address - mapping.at >= mapping.bytes) return CUDA_ERROR_INVALID_VALUE;
  handle = mapping.handle;
  PieceHandle& entry = handles_[handle];  // its last reference may be gone while the mapping lives
  if (entry.piece == nullptr) {
    entry.piece = mapping.piece;
    entry.references = 0;
    entry.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    entry.prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, mapping.piece->gpu.ordinal};
  }
  ++entry.references;
  return CUDA_SUCCESS;
}

bool VirtualMemory::handle_find(CUmemGenericAllocationHandle handle, PieceHandle& found) {
  const std::lock_guard lock(mutex_);
  const auto at = handles_.find(handle);
  if (at == handles_.end()) return false;
  found = at->second;
  return true;
}

CUresult VirtualMemory::reserve(std::size_t bytes, std::size_t align, std::uintptr_t wish,
                                std::uintptr_t& at) {
  if (bytes == 0 || bytes % kVmmGranularity != 0 || (align & (align - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const std::size_t unit = std::max(align, kVmmGranularity);
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
  if (found == ranges_.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto first = mappings_.lower_bound(at);
  if (first != mappings_.end() && first->first < at + bytes) return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(at), bytes);
  ranges_.erase(found);
  return CUDA_SUCCESS;
}

bool VirtualMemory::reserved_locked(std::uintptr_t at, std::size_t bytes) const {
  auto next = ranges_.upper_bound(at);
  if (next == ranges_.begin()) return false;
  const auto& [begin, size] = *std::prev(next);
  return at - begin < size && bytes <= size - (at - begin);
}

CUresult VirtualMemory::map(std::uintptr_t at, std::size_t bytes,
                            CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end() || bytes != found->second.piece->bytes || at % kVmmGranularity != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!reserved_locked(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto after = mappings_.lower_bound(at);
  if (after != mappings_.end() && after->first < at + bytes) return CUDA_ERROR_INVALID_VALUE;
  if (after != mappings_.begin() &&
      std::prev(after)->second.at + std::prev(after)->second.bytes > at)
    return CUDA_ERROR_INVALID_VALUE;
  const PieceRef& piece = found->second.piece;
  if (mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
           piece->file(), 0) == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  mappings_[at] = Mapping{at, bytes, piece, handle};
  access_[at] = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  Allocation allocation;
  allocation.base = at;
  allocation.size = bytes;
  allocation.kind = MemoryKind::kVirtual;
  allocation.gpu = &piece->gpu;
  MemoryMap::get().add(allocation);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::unmap(std::uintptr_t at, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  // Only whole mappings, and only what is mapped without a gap.
  std::uintptr_t reached = at;
  for (auto m = mappings_.find(at);
       m != mappings_.end() && m->first == reached && reached < at + bytes; ++m)
    reached += m->second.bytes;
  if (bytes == 0 || reached != at + bytes) return CUDA_ERROR_INVALID_VALUE;
  for (auto m = mappings_.find(at); m != mappings_.end() && m->first < at + bytes;
       m = mappings_.erase(m)) {
    range_blank(m->first, m->second.bytes);
    MemoryMap::get().take(m->first);
    access_.erase(m->first);
  }
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::access_set(std::uintptr_t at, std::size_t bytes, CUmemAccess_flags flags) {
  const std::lock_guard lock(mutex_);
  std::uintptr_t reached = at;
  for (auto m = mappings_.find(at);
       m != mappings_.end() && m->first == reached && reached < at + bytes; ++m)
    reached += m->second.bytes;
  if (bytes == 0 || reached != at + bytes) return CUDA_ERROR_INVALID_VALUE;
  const int protection = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                         : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                     : PROT_NONE;
  if (mprotect(reinterpret_cast<void*>(at), bytes, protection) != 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  for (auto m = mappings_.find(at); m != mappings_.end() && m->first < at + bytes; ++m)
    access_[m->first] = flags;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::access_get(std::uintptr_t at, unsigned long long& flags) {
  const std::lock_guard lock(mutex_);
  auto next = mappings_.upper_bound(at);
  if (next == mappings_.begin()) return CUDA_ERROR_INVALID_VALUE;
  const Mapping& mapping = std::prev(next)->second;
  if (at - mapping.at >= mapping.bytes) return CUDA_ERROR_INVALID_VALUE;
  flags = access_[mapping.at];
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver

// What every address of this process means to the driver: device, managed, pinned, pooled, mapped
// and imported memory, in one ordered map. Device addresses are host addresses; what is freed is
// unmapped, so that a kernel that still uses it faults. Knows nothing of streams.
#pragma once

#include <optional>

#include "softgpu/driver/state.h"

namespace softgpu::driver {

enum class MemoryKind {
  kDevice,
  kManaged,
  kHost,
  kRegistered,
  kPool,
  kVirtual,
  kImported,
  kModule
};

struct Allocation {
  std::uintptr_t base = 0;
  std::size_t size = 0;
  MemoryKind kind = MemoryKind::kDevice;
  Gpu* gpu = nullptr;
  CUcontext context = nullptr;  // nullptr: pools and virtual memory belong to none
  unsigned flags = 0;           // of host allocations
  std::uint64_t offset = 0;     // in the GPU's arena
  int file = -1;
  std::uint64_t id = 0;
  std::uint64_t inode = 0;  // of a shared object
  std::size_t granted = 0;  // imported: bytes mapped
  CUmemoryPool pool = nullptr;

  bool on_device() const { return kind != MemoryKind::kHost && kind != MemoryKind::kRegistered; }
};

class MemoryMap {
 public:
  static MemoryMap& get();
  void add(Allocation allocation);
  std::optional<Allocation> find(std::uintptr_t address) const;  // the one that contains it
  std::optional<Allocation> take(std::uintptr_t base);           // only by its first address
  /// Whether [address, address + bytes) is known without a gap.
  bool covers(std::uintptr_t address, std::size_t bytes) const;
  std::vector<Allocation> of_context(CUcontext context) const;

 private:
  mutable std::shared_mutex mutex_;
  std::map<std::uintptr_t, Allocation> map_;
  std::uint64_t next_id_ = 1;
};

inline std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

/// Charged memory of a context, entered into the map. OUT_OF_MEMORY when the device is full.
CUresult memory_allocate(Context& context, std::size_t bytes, MemoryKind kind,
                         CUdeviceptr& address);
void memory_release(const Allocation& allocation);

}  // namespace softgpu::driver

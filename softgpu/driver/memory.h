// What every address of this process means to the driver: device, managed, pinned, pooled, mapped
// and imported memory, in one ordered map. Device addresses are host addresses; what is freed is
// unmapped, so that a kernel that still uses it faults. Knows nothing of streams.
#pragma once

#include <functional>
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
  kImported,  // from another process, closed as it was opened
  kExternal,  // a buffer on external memory, freed as any other
  kModule,
  kArray,
  kGraph
};

struct Allocation {
  std::uintptr_t base = 0;
  std::size_t size = 0;
  MemoryKind kind = MemoryKind::kDevice;
  Gpu* gpu = nullptr;
  CUcontext context = nullptr;  // nullptr: pools and virtual memory belong to none
  unsigned flags = 0;           // of host allocations
  std::uint64_t offset = 0;     // in the GPU's arena
  std::uint64_t id = 0;
  std::uint64_t inode = 0;  // its name in the device's account once it is shared (ipc.h)
  std::size_t granted = 0;  // imported: bytes mapped
  CUmemoryPool pool = nullptr;
  bool sync_memops = false;       // synchronous operations on it wait also where they need not
  std::uintptr_t range_base = 0;  // the reserved range it is mapped into; 0: it is its own
  std::size_t range_size = 0;
  CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;     // less for virtual memory only
  CUmemAllocationHandleType handle_types = CU_MEM_HANDLE_TYPE_NONE;  // virtual: may be exported as
  bool dormant = false;  // memory of a graph that is not launched: only for nodes (DormantVisible)

  bool variable_managed = false;  // a __managed__ variable of a module

  bool is_managed() const { return kind == MemoryKind::kManaged || variable_managed; }
  bool on_device() const { return kind != MemoryKind::kHost && kind != MemoryKind::kRegistered; }
};

/// While one lives, this thread also finds memory that is dormant.
class DormantVisible {
 public:
  DormantVisible();
  ~DormantVisible();
  DormantVisible(const DormantVisible&) = delete;
  DormantVisible& operator=(const DormantVisible&) = delete;
};

class MemoryMap {
 public:
  static MemoryMap& get();
  void add(Allocation allocation);
  std::optional<Allocation> find(std::uintptr_t address) const;  // the one that contains it
  std::optional<Allocation> take(std::uintptr_t base);           // only by its first address
  /// Whether [address, address + bytes) is known without a gap, and all of it lets itself be
  /// accessed like this.
  bool covers(std::uintptr_t address, std::size_t bytes,
              CUmemAccess_flags need = CU_MEM_ACCESS_FLAGS_PROT_READ) const;
  std::vector<Allocation> of_context(CUcontext context) const;
  /// Changes the one that begins at `base`; its address and size stay. False: there is none.
  bool change(std::uintptr_t base, const std::function<void(Allocation&)>& how);
  /// Sets the attribute of the one that contains `address`. False: none does.
  bool sync_memops_set(std::uintptr_t address, bool on);
  /// Whether one of them is like this.
  bool any(const std::function<bool(const Allocation&)>& like) const;
  /// Whether an entry intersects [address, address + bytes).
  bool touches(std::uintptr_t address, std::size_t bytes) const;

 private:
  mutable std::shared_mutex mutex_;
  std::map<std::uintptr_t, Allocation> map_;
  std::uint64_t next_id_ = 1;
};

inline std::byte* pointer_of(CUdeviceptr address) { return reinterpret_cast<std::byte*>(address); }
inline std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

/// Charged memory of a context, entered into the map. OUT_OF_MEMORY when the device is full.
CUresult memory_allocate(Context& context, std::size_t bytes, MemoryKind kind,
                         CUdeviceptr& address);
void memory_release(const Allocation& allocation);
/// Makes a variable of a module managed memory.
CUresult memory_share_variable(std::uintptr_t base);

}  // namespace softgpu::driver

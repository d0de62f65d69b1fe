// Virtual memory management: physical pieces (a memfd each), reserved ranges, and the mapping of
// one into the other. A piece lives until its last handle reference and its last mapping are gone,
// in whichever process they are, and the last descriptor. What a descriptor alone holds is on the
// device and in no process's account.
#pragma once

#include "softgpu/driver/state.h"

namespace softgpu::driver {

/// Device memory without an address.
class Piece {
 public:
  Piece(const CUmemAllocationProp& properties, Gpu& on, std::size_t size, device::OwnFile file,
        std::uint64_t inode)
      : prop(properties), gpu(on), bytes(size), file_(std::move(file)), inode_(inode) {}
  ~Piece();
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  static CUresult create(Gpu& gpu, const CUmemAllocationProp& prop, std::size_t bytes,
                         std::shared_ptr<Piece>& piece);
  /// From a descriptor, which stays the caller's.
  static CUresult import(int file, std::shared_ptr<Piece>& piece);
  /// A descriptor for the program, which holds the memory; -1 without one.
  int give();
  const device::OwnFile& file() const { return file_; }
  std::uint64_t inode() const { return inode_; }

  const CUmemAllocationProp prop;
  Gpu& gpu;
  const std::size_t bytes;

 private:
  device::OwnFile file_;
  std::uint64_t inode_;  // names the piece in the device's account; 0: others can never hold it
};
using PieceRef = std::shared_ptr<Piece>;

/// A piece shown at an address, and what each device (by ordinal) may do there.
struct Mapping {
  std::size_t bytes = 0;
  PieceRef piece;
  CUmemGenericAllocationHandle handle = 0;
  std::map<int, CUmemAccess_flags> access;

  /// All devices of a process share its page tables: the widest right that any of them has.
  CUmemAccess_flags widest() const;
};

/// Handles, reserved ranges and mappings of this process. Every error is INVALID_VALUE unless said
/// otherwise.
class VirtualMemory {
 public:
  static VirtualMemory& get();
  CUmemGenericAllocationHandle handle_add(PieceRef piece);
  CUresult handle_release(CUmemGenericAllocationHandle handle);
  /// One more reference to the handle of the mapping at `address`.
  CUresult handle_retain(std::uintptr_t address, CUmemGenericAllocationHandle& handle);
  /// nullptr: there is no such handle.
  PieceRef handle_find(CUmemGenericAllocationHandle handle);

  /// OUT_OF_MEMORY: there are no such addresses left. `wish` is a hint.
  CUresult reserve(std::size_t bytes, std::size_t align, std::uintptr_t wish, std::uintptr_t& at);
  CUresult unreserve(std::uintptr_t at, std::size_t bytes);
  /// NOT_SUPPORTED: an offset, or a size that is not the memory's.
  CUresult map(std::uintptr_t at, std::size_t bytes, std::size_t offset,
               CUmemGenericAllocationHandle handle);
  /// Whole mappings without a gap between them, which nothing uses any more.
  CUresult unmap(std::uintptr_t at, std::size_t bytes);
  CUresult access_set(std::uintptr_t at, std::size_t bytes, const CUmemAccessDesc* access,
                      std::size_t count);
  CUresult access_get(std::uintptr_t at, int ordinal, CUmemAccess_flags& flags);
  /// Whether these descriptions take some device's right away.
  bool access_narrows(std::uintptr_t at, std::size_t bytes, const CUmemAccessDesc* access,
                      std::size_t count);

 private:
  struct Handle {
    PieceRef piece;
    unsigned references = 0;
  };
  using Mappings = std::map<std::uintptr_t, Mapping>;
  std::pair<std::uintptr_t, std::size_t> range_locked(std::uintptr_t at, std::size_t bytes) const;
  bool free_locked(std::uintptr_t at, std::size_t bytes) const;
  bool whole_locked(std::uintptr_t at, std::size_t bytes) const;
  Mappings::iterator find_locked(std::uintptr_t address);

  std::mutex mutex_;
  std::map<CUmemGenericAllocationHandle, Handle> handles_;
  std::map<std::uintptr_t, std::size_t> ranges_;
  Mappings mappings_;
  CUmemGenericAllocationHandle next_handle_ = 0x5000001;
};

}  // namespace softgpu::driver

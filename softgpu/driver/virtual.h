// Virtual memory management: physical pieces (a memfd each), address ranges, and the mapping of one
// into the other. A piece lives until its last handle reference and its last mapping are gone, in
// whichever process they are.
#pragma once

#include <list>

#include "softgpu/driver/state.h"

namespace softgpu::driver {

/// Device memory without an address.
class Piece {
 public:
  Piece(Gpu& on, std::size_t size, int file, std::uint64_t inode)
      : gpu(on), bytes(size), file_(file), inode_(inode) {}
  ~Piece();
  static CUresult create(Gpu& gpu, std::size_t bytes, std::shared_ptr<Piece>& piece);
  /// `file` stays the caller's.
  static CUresult import(Gpu& gpu, int file, std::shared_ptr<Piece>& piece);
  int file() const { return file_; }

  Gpu& gpu;
  const std::size_t bytes;

 private:
  int file_;
  std::uint64_t inode_;  // names the piece in the device's account
};
using PieceRef = std::shared_ptr<Piece>;

/// What a CUmemGenericAllocationHandle stands for: counted references to a piece.
struct PieceHandle {
  PieceRef piece;
  unsigned references = 1;
  CUmemAllocationProp prop{};
};

struct Mapping {
  std::uintptr_t at = 0;
  std::size_t bytes = 0;
  PieceRef piece;
  CUmemGenericAllocationHandle handle = 0;
};

/// Handles, reserved ranges and mappings of this process.
class VirtualMemory {
 public:
  static VirtualMemory& get();
  CUmemGenericAllocationHandle handle_add(PieceRef piece, const CUmemAllocationProp& prop);
  CUresult handle_release(CUmemGenericAllocationHandle handle);
  CUresult handle_retain(std::uintptr_t address, CUmemGenericAllocationHandle& handle);
  bool handle_find(CUmemGenericAllocationHandle handle, PieceHandle& found);

  CUresult reserve(std::size_t bytes, std::size_t align, std::uintptr_t wish, std::uintptr_t& at);
  CUresult unreserve(std::uintptr_t at, std::size_t bytes);
  CUresult map(std::uintptr_t at, std::size_t bytes, CUmemGenericAllocationHandle handle);
  CUresult unmap(std::uintptr_t at, std::size_t bytes);
  CUresult access_set(std::uintptr_t at, std::size_t bytes, CUmemAccess_flags flags);
  CUresult access_get(std::uintptr_t at, unsigned long long& flags);

 private:
  bool reserved_locked(std::uintptr_t at, std::size_t bytes) const;
  std::mutex mutex_;
  std::map<CUmemGenericAllocationHandle, PieceHandle> handles_;
  std::map<std::uintptr_t, std::size_t> ranges_;
  std::map<std::uintptr_t, Mapping> mappings_;
  std::map<std::uintptr_t, CUmemAccess_flags> access_;
  CUmemGenericAllocationHandle next_handle_ = 0x5000001;
};

}  // namespace softgpu::driver

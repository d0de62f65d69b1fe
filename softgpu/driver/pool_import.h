// A pool of another process: it hands out nothing by itself, but shows allocations that the owner
// has exported. Each chunk of the owner is mapped once, for as long as a pointer into it is not
// freed here; the pages live until the last process lets go of them.
#pragma once

#include "softgpu/driver/pool.h"

namespace softgpu::driver {

class PoolImport : public Pool {
 public:
  /// Opens the pool that `token` tells of. nullptr: its process is gone.
  static std::shared_ptr<PoolImport> open(Gpu& gpu, const IpcHandle& token);
  PoolImport(Gpu& gpu, const IpcHandle& token, device::OwnFile file);
  ~PoolImport() override;

  bool imported() const override { return true; }
  CUresult allocate(const StreamRef& stream, std::size_t bytes, CUdeviceptr& address) override;
  CUresult free(CUdeviceptr address, const StreamRef& stream) override;
  void free_now(CUdeviceptr address) override;

  /// Shows one allocation. INVALID_VALUE: it is not of this pool, is shown already, or is gone.
  CUresult show(const PoolPointer& pointer, CUdeviceptr& address);

 protected:
  bool unused() override;

 private:
  struct Chunk {
    Allocation mapping;
    std::set<std::uintptr_t> shown;
  };
  const IpcHandle token_;
  const device::OwnFile file_;  // the owner's memory
  std::mutex mutex_;
  std::map<std::uint64_t, Chunk> chunks_;  // by key
};

}  // namespace softgpu::driver

// Stream-ordered memory: a pool takes chunks from the device and hands out blocks of them. What a
// stream frees may be taken again by that stream at once (stream order keeps them apart) and by
// everyone when the free has executed.
#pragma once

#include "softgpu/driver/memory.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {

inline constexpr std::size_t kPoolChunk = 2u << 20;
inline constexpr std::size_t kPoolAlign = 512;

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  explicit Pool(Gpu& gpu) : gpu_(gpu) {}
  ~Pool();

  CUmemoryPool handle() { return reinterpret_cast<CUmemoryPool>(this); }
  Gpu& gpu() { return gpu_; }
  CUresult allocate(const StreamRef& stream, std::size_t bytes, CUdeviceptr& address);
  /// The block belongs to `stream`'s future; when `executed` it is anyone's.
  bool free_begin(CUdeviceptr address, const Stream* stream);
  void free_finish(CUdeviceptr address);
  /// Gives unused chunks back until at most `keep` bytes are reserved.
  void trim(std::size_t keep);
  CUresult attribute_get(CUmemPool_attribute attribute, void* value);
  CUresult attribute_set(CUmemPool_attribute attribute, void* value);
  std::size_t release_threshold();

  /// What a synchronisation does: pools above their threshold shrink.
  static void trim_all();

 private:
  struct Block {
    std::size_t size = 0;
    std::size_t asked = 0;
    bool used = false;
    const Stream* pending = nullptr;  // freed in this stream's order, not executed
  };
  struct Chunk {
    std::size_t size = 0;
    std::uint64_t offset = 0;
  };
  std::map<std::uintptr_t, Block>::iterator find_locked(const Stream* stream, std::size_t bytes);
  void merge_locked(std::map<std::uintptr_t, Block>::iterator block);
  void trim_locked(std::size_t keep);

  Gpu& gpu_;
  std::mutex mutex_;
  std::map<std::uintptr_t, Block> blocks_;
  std::map<std::uintptr_t, Chunk> chunks_;
  std::uint64_t reserved_ = 0, used_ = 0, reserved_high_ = 0, used_high_ = 0, threshold_ = 0;
  int reuse_[3] = {1, 1, 1};
};

}  // namespace softgpu::driver

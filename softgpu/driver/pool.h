// Stream-ordered memory: a pool takes chunks from the device and hands out blocks of them. A block
// that a stream has freed may be taken again by that stream at once (stream order keeps the two
// apart), by a stream that comes after the free, and by everyone once the free has executed: the
// three rules that the attributes REUSE_* switch. Pools of other processes are in pool_import.h.
#pragma once

#include "softgpu/driver/memory.h"
#include "softgpu/driver/pool_pointer.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {

inline constexpr std::size_t kPoolChunk = 2u << 20;
inline constexpr std::size_t kPoolAlign = 512;

struct PoolOptions {
  std::size_t bytes_max = 0;  // reserved at most, in whole chunks; 0: what the device has
  bool shareable = false;     // by file descriptor, with other processes
};

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  explicit Pool(Gpu& gpu, const PoolOptions& options = {});
  virtual ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  CUmemoryPool handle() { return reinterpret_cast<CUmemoryPool>(this); }
  Gpu& gpu() { return gpu_; }
  virtual bool imported() const { return false; }

  /// A block for work that is submitted to `stream` from now on. OUT_OF_MEMORY: neither the device
  /// nor the pool's limit leaves room.
  virtual CUresult allocate(const StreamRef& stream, std::size_t bytes, CUdeviceptr& address);
  /// The block ends when `stream` comes to this point. The address is no longer in the map.
  virtual CUresult free(CUdeviceptr address, const StreamRef& stream);
  /// The caller says that nothing uses the block any more. The pool has its memory again, but goes
  /// on counting it as used, as hardware does (driver 580).
  virtual void free_now(CUdeviceptr address);
  /// Gives unused chunks back as long as at least `keep` bytes stay reserved.
  void trim(std::size_t keep);

  CUresult attribute_get(CUmemPool_attribute attribute, void* value);
  CUresult attribute_set(CUmemPool_attribute attribute, const void* value);
  /// What another device (by ordinal) may do with the pool's memory; the owner may everything.
  void access_set(int ordinal, CUmemAccess_flags flags);
  CUmemAccess_flags access_get(int ordinal);

  /// What a descriptor of this pool tells another process. INVALID_VALUE: it is not shareable.
  CUresult describe(IpcHandle& token);
  CUresult describe(CUdeviceptr address, PoolPointer& pointer);

  /// The handle stands for nothing any more; the pool itself ends with its last allocation.
  void close();
  bool open() const { return open_; }

  /// What a wait of the host for a stream, or for all of a context, does: frees of it that have
  /// executed are known to have, and pools above their threshold shrink. A wait for the legacy
  /// stream is one for the blocking streams, too.
  static void synchronized(const Stream& stream);
  static void synchronized(const Context& context);

 protected:
  /// After a free: a closed pool that nothing uses goes.
  void close_if_unused();
  virtual bool unused();

 private:
  struct Block {
    std::size_t size = 0;
    bool used = false;
    std::uint64_t stream =
        0;  // freed in this stream's order, which others may not know; 0: anyone's
    std::uint64_t context = 0;  // of the stream
    bool blocking = false;      // the stream is
    std::weak_ptr<Op> freed;    // gone when it is done
  };
  using Observed = std::function<bool(const Block&)>;
  struct Chunk {
    std::size_t size = 0;
    std::uint64_t offset = 0;
    std::uint64_t key = 0;  // its name in the device's account once a pointer was exported
  };
  using Blocks = std::map<std::uintptr_t, Block>;

  static bool executed(const Block& block);
  void settle_locked(const Observed& observed);
  static void settle_all(const Observed& observed);
  bool usable_locked(const Block& block, const StreamRef& stream, bool ordered) const;
  Blocks::iterator find_locked(const StreamRef& stream, std::size_t bytes);
  Blocks::iterator find_pending_locked(std::size_t bytes, OpRef& freed);
  Blocks::iterator grow_locked(std::size_t bytes);
  CUdeviceptr take_locked(Blocks::iterator block, std::size_t bytes, std::size_t asked);
  /// The size of the block; 0: there is none in use at `address`.
  std::size_t mark_free_locked(CUdeviceptr address, const Stream* stream, std::weak_ptr<Op> freed);
  bool joinable_locked(Blocks::iterator left, Blocks::iterator right) const;
  void list_locked(Blocks::iterator block);
  void unlist_locked(Blocks::iterator block);
  void trim_locked(std::size_t keep);
  void chunk_release(std::uintptr_t base, const Chunk& chunk);

  Gpu& gpu_;
  const PoolOptions options_;
  const std::uint64_t id_;
  std::atomic<bool> open_{true};
  std::mutex mutex_;
  Blocks blocks_;
  std::set<std::pair<std::size_t, std::uintptr_t>> free_;  // anyone's, by size
  std::set<std::uintptr_t> pending_;                       // freed in the order of some stream
  std::map<std::uintptr_t, Chunk> chunks_;
  std::map<int, CUmemAccess_flags> access_;
  std::uint64_t reserved_ = 0, used_ = 0, reserved_high_ = 0, used_high_ = 0, threshold_ = 0;
  std::size_t live_ = 0;  // blocks
  bool reuse_events_ = true, reuse_executed_ = true, reuse_by_waiting_ = true;
};
using PoolRef = std::shared_ptr<Pool>;

/// The pool of a handle that the program may still use; nullptr: none.
PoolRef pool_find(CUmemoryPool handle);

}  // namespace softgpu::driver

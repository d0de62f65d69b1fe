// The heap of device malloc: hands out blocks of one piece of device memory. Its records lie in
// host memory, so a kernel that writes beyond its block harms other blocks and nothing else. Knows
// nothing of contexts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace softgpu::driver {

/// Thread-safe: kernels call it from several threads.
class DeviceHeap {
 public:
  /// Hands out [base, base + bytes) from now on. Precondition: no block is in use. False: the host
  /// has no memory for the records.
  [[nodiscard]] bool open(void* base, std::size_t bytes);
  /// Forgets all blocks and returns the base; nullptr when the heap is not open.
  void* close();

  /// A block of at least `bytes`, aligned to 16; contents undefined. nullptr: no gap is large
  /// enough, `bytes` is 0, or the heap is not open.
  void* allocate(std::size_t bytes);
  /// Frees a block. Any other pointer, one that was freed before included, is ignored.
  void release(void* block);

 private:
  /// Places and sizes count units of 16 bytes.
  using Unit = std::uint32_t;
  using Gaps = std::map<Unit, Unit>;
  struct Free {
    void operator()(Unit* units) const { std::free(units); }
  };
  /// Blocks of fewer units wait in `kept_` for one of their size: programs free what they ask for
  /// again, and a list is faster than the gaps.
  static constexpr Unit kKeptEnd = 128;

  bool place_find(Unit size, Unit& place);
  void gap_add(Unit place, Unit size);
  void gap_remove(Gaps::iterator gap);
  void kept_join();

  std::mutex mutex_;
  std::byte* base_ = nullptr;
  Unit units_ = 0;
  std::unique_ptr<Unit[], Free> blocks_;  // by place: the size of the block that begins there, or 0
  Gaps gaps_;
  std::set<std::pair<Unit, Unit>> by_size_;  // the gaps, size first: the smallest that fits
  std::array<std::vector<Unit>, kKeptEnd> kept_;
};

}  // namespace softgpu::driver

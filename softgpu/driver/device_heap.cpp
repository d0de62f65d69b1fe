// See device_heap.h.
#include "softgpu/driver/device_heap.h"

#include <algorithm>
#include <iterator>

namespace softgpu::driver {
namespace {

/// What device malloc promises for its blocks (CUDA C++ Programming Guide, "Dynamic Global Memory
/// Allocation and Operations"), in bytes.
constexpr std::uint64_t kUnit = 16;
/// What a block takes besides its size, in units: hardware keeps records in the heap, too.
constexpr std::uint64_t kOverhead = 1;

/// Holds the lock. It is held for less time than a sleep takes, so it is tried for a while first.
class BriefLock {
 public:
  explicit BriefLock(std::mutex& mutex) : mutex_(mutex) {
    constexpr int kTries = 100;
    for (int tries = 0; tries < kTries; ++tries) {
      if (mutex_.try_lock()) return;
      __builtin_ia32_pause();
    }
    mutex_.lock();
  }
  ~BriefLock() { mutex_.unlock(); }
  BriefLock(const BriefLock&) = delete;
  BriefLock& operator=(const BriefLock&) = delete;

 private:
  std::mutex& mutex_;
};

}  // namespace

bool DeviceHeap::open(void* base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  units_ = static_cast<Unit>(std::min<std::uint64_t>(bytes / kUnit, UINT32_MAX));
  // The pages of the records cost nothing until a block begins in them.
  blocks_.reset(static_cast<Unit*>(std::calloc(std::max<Unit>(units_, 1), sizeof(Unit))));
  if (blocks_ == nullptr) return false;
  base_ = static_cast<std::byte*>(base);
  if (units_ != 0) gap_add(0, units_);
  return true;
}

void* DeviceHeap::close() {
  const std::lock_guard lock(mutex_);
  gaps_.clear();
  by_size_.clear();
  for (std::vector<Unit>& kept : kept_) kept.clear();
  blocks_.reset();
  units_ = 0;
  return std::exchange(base_, nullptr);
}

void* DeviceHeap::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::uint64_t size = bytes / kUnit + (bytes % kUnit != 0 ? 1 : 0) + kOverhead;
  const BriefLock lock(mutex_);
  if (size > units_) return nullptr;
  Unit place = 0;
  if (!place_find(static_cast<Unit>(size), place)) return nullptr;
  blocks_[place] = static_cast<Unit>(size);
  return base_ + (place + kOverhead) * kUnit;
}

void DeviceHeap::release(void* block) {
  const BriefLock lock(mutex_);
  // The difference wraps for a pointer below the heap: it is beyond the heap then.
  const std::uint64_t offset =
      reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(base_);
  if (offset % kUnit != 0 || offset / kUnit < kOverhead || offset / kUnit - kOverhead >= units_)
    return;
  const auto place = static_cast<Unit>(offset / kUnit - kOverhead);
  const Unit size = std::exchange(blocks_[place], 0);
  if (size == 0) return;
  if (size < kKeptEnd)
    kept_[size].push_back(place);
  else
    gap_add(place, size);
}

bool DeviceHeap::place_find(Unit size, Unit& place) {
  if (size < kKeptEnd && !kept_[size].empty()) {
    place = kept_[size].back();
    kept_[size].pop_back();
    return true;
  }
  auto fits = by_size_.lower_bound({size, 0});
  if (fits == by_size_.end()) {
    kept_join();
    fits = by_size_.lower_bound({size, 0});
  }
  if (fits == by_size_.end()) return false;
  const auto [whole, from] = *fits;
  gap_remove(gaps_.find(from));
  if (whole > size) gap_add(from + size, whole - size);
  place = from;
  return true;
}

/// Makes gaps of the blocks that wait for one of their size.
void DeviceHeap::kept_join() {
  for (Unit size = 0; size < kKeptEnd; ++size) {
    for (const Unit place : kept_[size]) gap_add(place, size);
    kept_[size].clear();
  }
}

/// Enters a gap, joined with those that it touches.
void DeviceHeap::gap_add(Unit place, Unit size) {
  if (const auto next = gaps_.find(place + size); next != gaps_.end()) {
    size += next->second;
    gap_remove(next);
  }
  if (auto before = gaps_.lower_bound(place); before != gaps_.begin()) {
    before = std::prev(before);
    if (before->first + before->second == place) {
      place = before->first;
      size += before->second;
      gap_remove(before);
    }
  }
  gaps_[place] = size;
  by_size_.emplace(size, place);
}

void DeviceHeap::gap_remove(Gaps::iterator gap) {
  by_size_.erase({gap->second, gap->first});
  gaps_.erase(gap);
}

}  // namespace softgpu::driver

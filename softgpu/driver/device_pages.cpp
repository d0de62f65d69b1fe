// What pieces of memory take of a GPU that gives it out in pages; see state.h.
#include <algorithm>

#include "softgpu/driver/state.h"

namespace softgpu::driver {
namespace {

constexpr std::uint64_t kPieceUnit = 512;  // small pieces begin at its multiples

std::uint64_t rounded(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

bool DevicePages::small(std::uint64_t bytes) const {
  return bytes <= gpu_.model.settings().page_bytes / 2;
}

std::uint64_t DevicePages::alone(std::uint64_t bytes) const {
  const std::uint64_t page = gpu_.model.settings().page_bytes;
  return page == 0 || small(bytes) ? bytes : rounded(bytes, page);
}

bool DevicePages::take(std::uint64_t key, std::uint64_t bytes) {
  const std::uint64_t page = gpu_.model.settings().page_bytes;
  if (page == 0 || !small(bytes)) return gpu_.model.memory_take(gpu_.client, alone(bytes));
  const std::lock_guard lock(mutex_);
  const std::uint64_t size = rounded(bytes, kPieceUnit);
  auto at = std::find_if(pages_.begin(), pages_.end(),
                         [&](const auto& entry) { return entry.second.used + size <= page; });
  if (at == pages_.end()) {
    if (!gpu_.model.memory_take(gpu_.client, page)) return false;
    at = pages_.emplace(next_++, Page{}).first;
  }
  at->second.used += size;
  page_of_[key] = at->first;
  return true;
}

void DevicePages::give(std::uint64_t key, std::uint64_t bytes) {
  const std::uint64_t page = gpu_.model.settings().page_bytes;
  if (page == 0 || !small(bytes)) return gpu_.model.memory_give(gpu_.client, alone(bytes));
  const std::lock_guard lock(mutex_);
  const auto piece = page_of_.find(key);
  if (piece == page_of_.end()) return;
  const auto at = pages_.find(piece->second);
  page_of_.erase(piece);
  at->second.used -= rounded(bytes, kPieceUnit);
  if (at->second.used != 0) return;
  gpu_.model.memory_give(gpu_.client, page - at->second.given_away);
  pages_.erase(at);
}

void DevicePages::forget(std::uint64_t key, std::uint64_t bytes) {
  if (gpu_.model.settings().page_bytes == 0 || !small(bytes)) return;
  {
    const std::lock_guard lock(mutex_);
    const auto piece = page_of_.find(key);
    if (piece != page_of_.end()) pages_[piece->second].given_away += bytes;
  }
  give(key, bytes);
}

}  // namespace softgpu::driver

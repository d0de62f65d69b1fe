// See left_behind.h.
#include "broker/daemon/left_behind.h"

#include <algorithm>

namespace sluice::daemon {
namespace {

std::uint64_t less(std::uint64_t from, std::uint64_t bytes) { return from - std::min(from, bytes); }

/// Takes up to `bytes` from `pool`; returns how much.
std::uint64_t taken(std::uint64_t& pool, std::uint64_t bytes) {
  const std::uint64_t part = std::min(pool, bytes);
  pool -= part;
  return part;
}

}  // namespace

std::vector<std::uint64_t> left_behind(const Unlisted& device,
                                       const std::vector<LeftBehind>& ended) {
  const std::uint64_t now = less(device.now, device.explained);
  std::uint64_t more = less(now, device.reference);
  std::uint64_t returned = less(less(device.reference, now), device.given_back);
  std::vector<std::uint64_t> left;
  for (const LeftBehind& one : ended) left.push_back(taken(more, one.listed));
  // The memory of the last to end returns first.
  for (std::size_t i = ended.size(); i-- > 0;)
    left[i] += ended[i].unlisted - taken(returned, ended[i].unlisted);
  for (std::size_t i = 0; i < ended.size(); ++i) {
    const std::uint64_t half = (ended[i].listed + ended[i].unlisted) / 2;
    if (left[i] <= std::min(half, kLeftLeast)) left[i] = 0;
  }
  return left;
}

}  // namespace sluice::daemon

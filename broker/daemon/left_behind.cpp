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
  const std::uint64_t explained =
      std::min(device.explained, less(device.now, device.listed_for_ended));
  const std::uint64_t now = less(device.now, explained);
  std::uint64_t more = std::max(less(now, device.reference), device.listed_for_ended);
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

ReleasedClaims released_bound(ReleasedClaims claims, ReleasedRooms rooms) {
  for (auto& [process, claim] : claims) claim.bytes = taken(rooms[claim.tenant], claim.bytes);
  return claims;
}

ReleasedClaims released_most(const ReleasedClaims& one, const ReleasedClaims& other) {
  ReleasedClaims most = one;
  for (const auto& [process, claim] : other) {
    const auto [at, fresh] = most.emplace(process, claim);
    at->second.bytes = std::max(at->second.bytes, claim.bytes);
  }
  return most;
}

Unlisted unlisted_since(const DeviceReading& reference, const DeviceReading& now,
                        const ReleasedClaims& living, std::uint64_t per_process) {
  Unlisted device;
  device.now = now.unlisted;
  device.reference =
      less(reference.unlisted + now.processes * per_process, reference.processes * per_process);
  device.listed_for_ended = less(now.listed_for_ended, reference.listed_for_ended);
  // A process lets go first and tells then, so what it had told before the question is in the
  // figure.
  for (const auto& [process, claim] : now.released) {
    if (!living.contains(process)) continue;
    const auto before = reference.released.find(process);
    const std::uint64_t then = before == reference.released.end() ? 0 : before->second.bytes;
    device.explained += less(claim.bytes, then);
    device.given_back += less(then, claim.bytes);
  }
  return device;
}

}  // namespace sluice::daemon

// How much of what ended processes had a device still has.
//
// The evidence is the device's own: memory in use less what the driver lists for processes that
// live, beside the same figure of a moment when no process had ended (the reference). The figure
// grows by three things more, which are no ended process's: shared memory that living processes
// have let go of (no list has it), what the driver has for each process beyond its list, and what
// programs outside do. The first is known by claims alone. So it explains no more than the quota of
// its tenant leaves beside what the driver lists for the tenant's processes, and never what the
// driver lists for processes that have ended.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace sluice::daemon {

/// What a process had on a device when it ended, bytes.
struct LeftBehind {
  /// In the driver's figure for it, or let go of by it after the reference: nothing of this was
  /// unlisted at the reference.
  std::uint64_t listed = 0;
  /// Shared memory that it had let go of before the reference and stayed charged for, because other
  /// holders had it. No figure has that (interpose/memory/kept.h).
  std::uint64_t unlisted = 0;
};

/// Memory in use less what the driver lists for processes that live, bytes.
struct Unlisted {
  std::uint64_t reference = 0;  // while no process had ended
  std::uint64_t now = 0;
  /// Of what came since the reference, the part that living processes are charged for: shared
  /// memory that they let go of.
  std::uint64_t explained = 0;
  /// What living processes were charged for at the reference, and are not any more: of what came
  /// back it is the part that pays for that.
  std::uint64_t given_back = 0;
  /// Of what came since the reference, the part that the driver lists for processes that have
  /// ended.
  std::uint64_t listed_for_ended = 0;
};

/// Returns how much of each is still on the device at most, in the order of `ended`, the first to
/// end first. What has stayed longest is taken to stay. Below a half of what a process had, and
/// below kLeftLeast as well, it is 0: the driver has memory for itself that comes and goes with
/// processes.
std::vector<std::uint64_t> left_behind(const Unlisted& device,
                                       const std::vector<LeftBehind>& ended);

/// Eight times what an H100's driver has for itself for each process.
inline constexpr std::uint64_t kLeftLeast = 64ULL << 20;

/// What a living process says to be charged for and no list has.
struct ReleasedClaim {
  std::uint64_t tenant = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const ReleasedClaim&, const ReleasedClaim&) = default;
};
using ReleasedClaims = std::map<std::uint64_t, ReleasedClaim>;  // by process
/// By tenant: the most of its claims that can be true.
using ReleasedRooms = std::map<std::uint64_t, std::uint64_t>;

/// Returns the claims, lowered so that those of each tenant add up to its room at most.
ReleasedClaims released_bound(ReleasedClaims claims, ReleasedRooms rooms);
/// Returns the greater claim of each process that has one.
ReleasedClaims released_most(const ReleasedClaims& one, const ReleasedClaims& other);

/// One answer of a device, bytes.
struct DeviceReading {
  std::uint64_t unlisted = 0;          // in use less what is listed for processes that live
  std::uint64_t listed_for_ended = 0;  // part of that
  std::uint64_t processes = 0;         // that live and are listed
  ReleasedClaims released;             // when it was asked, bounded
};

/// What has changed between two answers. Only the processes of `living` count. `per_process` is
/// what the driver has for each process beyond its list.
Unlisted unlisted_since(const DeviceReading& reference, const DeviceReading& now,
                        const ReleasedClaims& living, std::uint64_t per_process);

}  // namespace sluice::daemon

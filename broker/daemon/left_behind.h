// How much of what ended processes had a device still has, by figures that name none of them.
#pragma once

#include <cstdint>
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
};

/// Returns how much of each is still on the device at most, in the order of `ended`, the first to
/// end first. What has stayed longest is taken to stay. Below a half of what a process had, and
/// below kLeftLeast as well, it is 0: the driver has memory for itself that comes and goes with
/// processes.
std::vector<std::uint64_t> left_behind(const Unlisted& device,
                                       const std::vector<LeftBehind>& ended);

/// Eight times what an H100's driver has for itself for each process.
inline constexpr std::uint64_t kLeftLeast = 64ULL << 20;

}  // namespace sluice::daemon

// The words every room shares: identities, classes and limits of the protocol. Plain types with
// fixed sizes, no libstdc++ symbol, so that the shim (which links libc alone) and the broker
// compile the same text.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::protocol {

/// Bumped when any message or page layout changes; a peer of another version is refused with a
/// text.
inline constexpr std::uint16_t kVersion = 9;

/// How long calls waited at the gate, told apart by these bounds; the last count is of what took
/// longer.
inline constexpr std::uint64_t kGateWaitBounds_ns[] = {100'000,     1'000'000,     10'000'000,
                                                       100'000'000, 1'000'000'000, 10'000'000'000};
inline constexpr std::size_t kGateWaitCounts = 7;
static_assert(sizeof kGateWaitBounds_ns == (kGateWaitCounts - 1) * sizeof(std::uint64_t));

/// GPUs one tenant may hold. Eight is the largest single NVLink island sold as one machine (HGX).
inline constexpr std::uint32_t kTenantGpusMax = 8;
/// Processes of one tenant that use CUDA at the same time; the claims page has one slot for each.
inline constexpr std::uint32_t kTenantProcessesMax = 128;
/// Names are for people; longer ones are cut with no loss of meaning.
inline constexpr std::size_t kNameBytes = 32;
inline constexpr std::size_t kTextBytes = 320;

/// A GPU's only name inside Sluice: the 16 bytes of cuDeviceGetUuid, in memory order.
struct GpuUuid {
  std::uint8_t bytes[16];
  friend bool operator==(const GpuUuid& a, const GpuUuid& b) {
    return __builtin_memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0;
  }
};
static_assert(sizeof(GpuUuid) == 16);

enum class TenantClass : std::uint8_t { kInference = 0, kDebug = 1, kBatch = 2, kExclusive = 3 };

/// How the compute share acts: fixed = floor and cap, equal = 1/n of the running, best-effort =
/// work-conserving weights.
enum class SmMode : std::uint8_t { kBestEffort = 0, kEqual = 1, kFixed = 2 };

/// What the percentage of a compute share is. Guaranteed: the tenant gets it whenever it wants it,
/// and the guarantees on a GPU add up to 100 at most. Weight: its part of the time that the
/// guarantees leave, against the other weights.
enum class SmKind : std::uint8_t { kWeight = 0, kGuaranteed = 1 };

/// Why a tenant waits in the queue, in the field's words (squeue).
enum class QueueReason : std::uint8_t {
  kNone = 0,
  kResources = 1,
  kPriority = 2,
  kUserLimit = 3,
  kDrain = 4,
  kGang = 5,
  kShare = 6
};
inline constexpr std::size_t kQueueReasons = 7;

/// For people; those of squeue.
constexpr const char* queue_reason_name(QueueReason reason) {
  switch (reason) {
    case QueueReason::kNone:
      return "None";
    case QueueReason::kResources:
      return "Resources";
    case QueueReason::kPriority:
      return "Priority";
    case QueueReason::kUserLimit:
      return "UserLimit";
    case QueueReason::kDrain:
      return "Drain";
    case QueueReason::kGang:
      return "Gang";
    case QueueReason::kShare:
      return "Share";
  }
  return "Unknown";
}

/// Which limit a request with the reason UserLimit waits for: of its user alone, or of all users of
/// its profile.
enum class QueueLimit : std::uint8_t {
  kNone = 0,
  kUserTenants = 1,  // the broker's own bound of one user
  kUserRunning = 2,
  kUserMemory = 3,
  kAllRunning = 4,
  kAllMemory = 5
};

using TenantId = std::uint64_t;  // 0 = none
/// A secret that children inherit in SLUICE_TENANT; joining a tenant takes the id, the key and the
/// tenant's uid.
using JoinKey = std::uint64_t;

}  // namespace sluice::protocol

// What the broker knows, as one consistent picture for `sluice status`, the exporter and the lab: a
// sealed memfd holding a SnapshotHeader and then its arrays of fixed-size records in the order of
// the counts. Read-only for the receiver.
#pragma once

#include "broker/protocol/messages.h"

namespace sluice::protocol {

inline constexpr std::uint32_t kSnapshotMagic = 0x534e4c53;  // "SLNS"

enum class TenantState : std::uint8_t { kQueued = 0, kRunning = 1, kSwapped = 2, kSuspended = 3 };

enum class PolicyOrder : std::uint8_t { kFair = 0, kRoundRobin = 1, kFifo = 2 };
constexpr const char* policy_order_name(PolicyOrder order) {
  switch (order) {
    case PolicyOrder::kFair:
      return "fair";
    case PolicyOrder::kRoundRobin:
      return "round-robin";
    case PolicyOrder::kFifo:
      return "fifo";
  }
  return "unknown";
}

/// Why a tenant's memory stays on its GPUs when somebody else needs room; kGoes = what of it is
/// movable does not.
enum class StayReason : std::uint8_t {
  kGoes = 0,
  kNotSwappable = 1,  // the job did not ask to be, or its profile does not let it
  kExclusive = 2,     // it has its GPUs as a whole
  kRunaway = 3,       // a kernel of it does not end
  kFailed = 4,        // moving it failed three times in a row
  kHostMemory = 5,    // its user has no host memory left for it
  kLost = 6,          // the driver has lost a process of it in a checkpoint
};
constexpr const char* stay_reason_name(StayReason reason) {
  switch (reason) {
    case StayReason::kGoes:
      return "";
    case StayReason::kNotSwappable:
      return "not swappable";
    case StayReason::kExclusive:
      return "exclusive";
    case StayReason::kRunaway:
      return "runaway";
    case StayReason::kFailed:
      return "moving it failed";
    case StayReason::kHostMemory:
      return "host memory limit";
    case StayReason::kLost:
      return "checkpoint failed";
  }
  return "unknown";
}

/// Why a tenant's claims are not trusted: what they have said, and cannot be true. Bits of
/// SnapshotTenant::distrust, which are never taken back.
inline constexpr std::uint8_t kDistrustPage = 1;    // head of the page overwritten, or emptied
inline constexpr std::uint8_t kDistrustSlot = 2;    // a process's slot names another process
inline constexpr std::uint8_t kDistrustMemory = 4;  // more than the GPU has; parts above the whole
inline constexpr std::uint8_t kDistrustTime = 8;    // runs backwards, or faster than the clock
inline constexpr std::size_t kDistrusts = 4;
inline constexpr const char* kDistrustNames[kDistrusts] = {"page", "slot", "memory", "time"};

/// What is done about shared jobs on the GPUs of one that is to have them whole.
enum class ExclusiveRule : std::uint8_t { kWait = 0, kSuspend = 1, kMove = 2 };
constexpr const char* exclusive_rule_name(ExclusiveRule rule) {
  switch (rule) {
    case ExclusiveRule::kWait:
      return "wait";
    case ExclusiveRule::kSuspend:
      return "suspend";
    case ExclusiveRule::kMove:
      return "move";
  }
  return "unknown";
}

/// The rules in force, as the configuration has them.
struct SnapshotPolicy {
  PolicyOrder order;
  std::uint8_t swap_all;  // everybody's memory may be moved, not only that of who asks
  ExclusiveRule exclusive;
  std::uint8_t runaway_ends;        // a runaway is ended, not only reported
  std::uint32_t oversell_permille;  // quotas together, of a GPU's memory
  std::uint64_t quantum_ns;         // 0 = a broker that does not tell its policy
  std::uint64_t swap_quantum_ns;
  std::uint64_t swap_host_max_bytes;  // per user
};
static_assert(sizeof(SnapshotPolicy) == 32);

/// How a message broke the protocol.
enum class ProtocolError : std::uint8_t {
  kGarbage = 0,       // no message at all
  kOtherVersion = 1,  // of another version
  kMalformed = 2,     // size, type, range or descriptors
  kOrder = 3          // good in itself, but not now or not on this connection
};
inline constexpr std::size_t kProtocolErrors = 4;
inline constexpr const char* kProtocolErrorNames[kProtocolErrors] = {"garbage", "version",
                                                                     "malformed", "order"};

/// A turn of the broker's loop that takes longer is counted and logged; no client can cause one.
inline constexpr std::int64_t kSlowTurn_ns = 100'000'000;

struct SnapshotHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t journal_faults;  // journal writes that failed since start; 65535 = so many or more
  std::uint32_t gpu_count;
  std::uint32_t tenant_count;      // queued ones included
  std::uint32_t tenant_gpu_count;  // pairs (tenant, GPU)
  std::uint32_t process_count;
  std::uint32_t ended_count;
  std::uint32_t reserved0;
  std::uint64_t taken_ns;       // CLOCK_MONOTONIC
  std::uint64_t started_ns;     // when this broker started
  std::uint64_t registrations;  // counters since start
  std::uint64_t admissions;
  std::uint64_t refusals;
  std::uint64_t protocol_errors;
  std::uint64_t reloads_ok;
  std::uint64_t reloads_failed;
  char config_path[96];  // empty = built-in defaults
  SnapshotPolicy policy;
  std::uint64_t refused_by_code[kRefusalCodes];  // of refusals, by RefusalCode
  std::uint64_t protocol_errors_by_kind[kProtocolErrors];
  std::uint64_t slow_turns;    // turns of the broker's loop that took longer than kSlowTurn_ns
  std::uint64_t journal_lost;  // records of the journal before that could not be read at the start
};
static_assert(sizeof(SnapshotHeader) == 32 + 8 * 8 + 128 + 8 * (17 + 4 + 2));

struct SnapshotGpu {
  GpuUuid uuid;
  char name[64];
  std::uint64_t capacity_bytes;
  std::uint64_t context_bytes;
  std::uint64_t promised_bytes;  // sum of memory_min of the admitted
  std::uint64_t promised_max_bytes;
  std::uint64_t held_bytes;  // sum of the claims, less what of them is in host memory
  std::uint64_t busy_ns;     // sum over living and dead tenants
  std::uint64_t leases_granted;
  std::uint64_t leases_revoked;
  std::uint64_t lease_overrun_ns;
  std::uint64_t overruns;  // drains that timed out
  TenantId holder;         // who has the lease now, 0 = nobody
  std::uint32_t tenants;
  std::uint8_t exclusive;
  std::uint8_t draining;
  std::uint8_t software;  // a software GPU
  std::uint8_t lost;      // no longer answers: takes no tenants
  std::uint8_t closed;    // to new tenants, by command: see gpu_drained()
  std::uint8_t index;     // as `sluice status` counts
  std::uint8_t reserved0[2];
  std::uint32_t sm_guaranteed;  // sum of the guaranteed shares, 0-100
  char drain[160];  // whose command, why and until when: "drained by user anna (new fans)"
};
static_assert(sizeof(SnapshotGpu) == 16 + 64 + 10 * 8 + 8 + 8 + 8 + 160);
/// Closed to new tenants, and empty. A suspended tenant leaves its context on the GPU.
constexpr bool gpu_drained(const SnapshotGpu& gpu) {
  return gpu.closed != 0 && gpu.tenants == 0 && gpu.held_bytes == 0;
}

struct SnapshotTenant {
  TenantId tenant;            // 0 while queued
  std::uint64_t admitted_ns;  // CLOCK_MONOTONIC; 0 while queued
  std::uint64_t asked_ns;
  std::uint64_t steps;  // from JobReport
  std::uint64_t samples;
  std::uint64_t tokens;
  std::uint64_t exposed_communication_ns;
  double straggler_score;
  // Of its processes, dead ones included, on all its GPUs: waits at the gate by kGateWaitBounds_ns,
  // and allocations that the quota allowed and a GPU had no room for.
  std::uint64_t gate_wait_counts[kGateWaitCounts];
  std::uint64_t refused_full;
  std::uint64_t unregistered_bytes;  // held on all its GPUs by processes whose socket is closed
  std::uint64_t unhooked;            // driver entry points asked for that the shim does not know
  std::uint32_t uid;
  std::uint32_t processes;
  std::uint32_t unregistered;  // living processes whose socket is closed
  union {
    std::uint32_t queue_position;  // queued: its place in the line
    // Admitted: for how many seconds it has neither used nor wanted a GPU; 0 = less than 5, or not
    // known (a GPU used whole is not metered).
    std::uint32_t idle_s;
  };
  TenantState state;
  TenantClass tenant_class;
  SmMode sm_mode;
  QueueReason reason;
  std::uint8_t runaway;  // it did not drain in time and has not since
  StayReason stays;
  std::uint8_t lost_processes;  // in the driver's state FAILED; 255 = so many or more
  std::uint8_t distrust;        // kDistrust...; 0 = its claims may be true
  char name[kNameBytes];
  char profile[kNameBytes];
  char user[kNameBytes];
  char ahead[kNameBytes];  // queued: the one directly ahead in the line
  char why[kTextBytes];    // queued: what it waits for; running: why it does not run; may be empty
};
static_assert(sizeof(SnapshotTenant) ==
              (10 + kGateWaitCounts + 1) * 8 + 16 + 8 + 4 * kNameBytes + kTextBytes);

struct SnapshotTenantGpu {
  TenantId tenant;
  GpuUuid gpu;
  std::uint64_t memory_max_bytes;
  std::uint64_t memory_min_bytes;
  std::uint64_t held_bytes;
  std::uint64_t peak_bytes;
  std::uint64_t busy_ns;  // dead processes of the tenant included
  std::uint64_t launches;
  std::uint64_t graph_launches;
  std::uint64_t gate_waits;
  std::uint64_t gate_wait_ns;
  std::uint64_t refused;
  std::uint64_t lease_held_ns;
  std::uint64_t overruns;
  std::uint64_t movable_bytes;    // of held_bytes
  std::uint64_t swapped_bytes;    // of movable_bytes, in host memory now
  std::uint64_t context_bytes;    // of held_bytes, never movable: contexts, code, imports
  std::uint64_t moved_out_bytes;  // counters since admission
  std::uint64_t moved_in_bytes;
  std::uint64_t moving_ns;      // time spent under holds for it, also while it was out, and of it:
  std::uint64_t suspending_ns;  // on the way out, and
  std::uint64_t restoring_ns;   // on the way in
  std::uint64_t moves;          // times it was moved out
  std::uint64_t owed_ns;        // GPU time overrun by its user's jobs and not paid back
  std::uint32_t sm_percent;
  std::uint8_t wants;          // 1 while a thread of it waits at the gate
  SmKind sm_kind;              // what sm_percent is
  std::uint16_t moves_failed;  // moves that did not come about; 65535 = so many or more
};
static_assert(sizeof(SnapshotTenantGpu) == 8 + 16 + 22 * 8 + 8);

struct SnapshotProcess {
  TenantId tenant;
  std::uint32_t pid;
  std::uint16_t slot;
  std::uint8_t lost;         // by the driver, in a checkpoint (state FAILED): it can only be ended
  std::uint8_t ended;        // it has ended, and the device still has its memory;
  char command[kNameBytes];  // then this names the pids of the processes that keep it
};
static_assert(sizeof(SnapshotProcess) == 16 + kNameBytes);

/// A job that has ended, of the last kEndedMax, the latest first.
struct SnapshotEnded {
  TenantId tenant;
  std::uint64_t admitted_ns;
  std::uint64_t ended_ns;
  std::uint64_t busy_ns;  // on all its GPUs together
  std::uint32_t uid;
  std::uint32_t reserved0;
  char name[kNameBytes];
  char user[kNameBytes];
  char how[kTextBytes];  // "its processes ended", "as a runaway: ..."
};
static_assert(sizeof(SnapshotEnded) == 40 + 2 * kNameBytes + kTextBytes);
inline constexpr std::size_t kEndedMax = 100;

}  // namespace sluice::protocol

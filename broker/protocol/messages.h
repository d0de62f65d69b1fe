// The messages between the broker and everybody else: fixed-layout structs, one per datagram of a
// SOCK_SEQPACKET Unix socket, host byte order, sizes asserted. A message begins with a Header;
// `size` is the size of the whole datagram and must equal the size of the type's struct exactly.
// Identity never travels in a message: it comes from SO_PEERCRED.
//
// Who says what:
//   sluice run, trainer, lab   Admit -> (Queued)* -> Admitted | Refused     (the caller's process
//                              founds the tenant)
//   the shim                   Register -> (Queued)* -> Registered (+ lease fd, claims fd) |
//   Refused
//                              (queued: programs that nobody announced)
//   the shim                   GateWant, GateIdle, Drained, Held, Moved, MemoryWant   (no reply;
//   the
//                              lease page answers)
//   a job                      JobReport (no reply), Release -> Done | Refused
//   sluice suspend, ...        Command -> CommandDone | Refused
//   status, exporter, lab      SnapshotRequest -> SnapshotReply (+ fd of a sealed memfd, see
//                              snapshot.h)
//   sluice reload, config      Reload -> Reloaded (+ fd of a text) | Refused
//   sluice why                 ActivityRequest -> ActivityReply (+ claims fd) | Refused
#pragma once

#include "broker/protocol/words.h"

namespace sluice::protocol {

inline constexpr std::uint32_t kMessageMagic = 0x4d434c53;  // "SLCM"

enum class MessageType : std::uint16_t {
  kAdmit = 1,
  kQueued = 2,
  kAdmitted = 3,
  kRefused = 4,
  kRegister = 5,
  kRegistered = 6,
  kGateWant = 7,
  kGateIdle = 8,
  kDrained = 9,
  kJobReport = 10,
  kRelease = 11,
  kDone = 12,
  kSnapshotRequest = 13,
  kSnapshotReply = 14,
  kHeld = 15,
  kMoved = 16,
  kMemoryWant = 17,
  kCommand = 18,
  kCommandDone = 19,
  kActivityRequest = 20,
  kActivityReply = 21,
  kReload = 22,
  kReloaded = 23,
};

struct Header {
  std::uint32_t magic;
  std::uint16_t version;
  MessageType type;
  std::uint32_t size;
  std::uint32_t
      request;  // chosen by the asker, repeated in the reply; 0 for messages without a reply
};
static_assert(sizeof(Header) == 16);

enum class RefusalCode : std::uint32_t {
  kNone = 0,
  kOtherVersion = 1,   // another protocol version
  kMalformed = 2,      // size, type, range or state machine
  kUnknownTenant = 3,  // id, key or uid does not fit
  kMemoryBelowContext = 4,
  kMemoryTooLarge = 5,  // larger than any GPU
  kNoSuchGpu = 6,
  kNoRoom = 7,  // and the caller would not wait
  kTooManyProcesses = 8,
  kUserLimit = 9,
  kTimeout = 10,
  kClassNotAllowed = 11,
  kShuttingDown = 12,
  kTooManyGpus = 13,
  kNotAllowed = 14,      // another user's tenant, or what only root may do
  kCannotMove = 15,      // the text names the memory, the process or the driver that refuses
  kHostMemoryLimit = 16  // the user's host memory for what is swapped out is used up
};
inline constexpr std::size_t kRefusalCodes = 17;
static_assert(static_cast<std::size_t>(RefusalCode::kHostMemoryLimit) + 1 == kRefusalCodes);

/// For metrics and `sluice status --json`: a contract, only added to. By code.
inline constexpr const char* kRefusalNames[kRefusalCodes] = {
    "none",           "other_version",    "malformed",
    "unknown_tenant", "below_context",    "memory_too_large",
    "no_such_gpu",    "no_room",          "too_many_processes",
    "user_limit",     "timeout",          "class_not_allowed",
    "shutting_down",  "too_many_gpus",    "not_allowed",
    "cannot_move",    "host_memory_limit"};

// Admit.flags
inline constexpr std::uint32_t kAdmitNoWait = 1;  // refuse instead of queueing
inline constexpr std::uint32_t kAdmitDryRun = 2;  // answer as if, change nothing
inline constexpr std::uint32_t kAdmitSwap = 4;    // movable memory may go to the host (see pages.h)
inline constexpr std::uint32_t kAdmitWeight = 8;  // the compute share is a weight, not a guarantee
inline constexpr std::uint32_t kAdmitAnyClass = 16;  // the class is the profile's choice;
                                                     // tenant_class is not looked at

/// Asks for a vGPU (or several, or whole GPUs for the exclusive class). The calling process becomes
/// the tenant's first process; the tenant ends when it and every process registered under it are
/// gone.
struct Admit {
  Header header;
  TenantClass tenant_class;
  SmMode sm_mode;
  std::uint8_t reserved0[2];
  std::uint32_t sm_percent;        // 1-100; 0 = the profile's default
  std::uint64_t memory_max_bytes;  // per GPU; 0 = the profile's default; ignored for exclusive
  std::uint64_t memory_min_bytes;  // per GPU; 0 = same as memory_max
  std::uint64_t window_ns;         // in-flight window; 0 = the class's default
  std::uint64_t wait_ns_max;       // leave the queue after this long; 0 = wait for ever
  std::uint32_t gpu_count;         // 1..kTenantGpusMax
  std::uint32_t flags;
  std::uint32_t pinned_count;  // how many of `pinned` are set; those GPUs and no others
  std::uint32_t reserved1;
  GpuUuid pinned[kTenantGpusMax];
  char name[kNameBytes];     // for people: usually the command's file name
  char profile[kNameBytes];  // asked-for profile, empty = by uid/group from the configuration
};
static_assert(sizeof(Admit) == 16 + 8 + 4 * 8 + 16 + 8 * 16 + 2 * kNameBytes);

struct Queued {
  Header header;
  std::uint32_t position;  // 1 = next
  QueueReason reason;
  QueueLimit limit;  // with QueueReason::kUserLimit; the last two numbers are then what of it is in
                     // use (bytes, or tenants) and the limit
  std::uint8_t reserved0[2];
  std::uint64_t promised_bytes;  // on the GPU with most room; with QueueReason::kShare the per cent
                                 // guaranteed on the GPU with least,
  std::uint64_t capacity_bytes;  // and 100
  char ahead[kNameBytes];        // the tenant directly ahead
  char text[kTextBytes];  // what binds, its numbers and which job has most of it; NUL-terminated
};
static_assert(sizeof(Queued) == 16 + 8 + 16 + kNameBytes + kTextBytes);

// Admitted.cut
inline constexpr std::uint8_t kCutByGpu = 1;           // the GPU has less memory
inline constexpr std::uint8_t kCutByProfile = 2;       // the profile allows less memory
inline constexpr std::uint8_t kCutShareByProfile = 4;  // the profile allows less GPU time

struct Admitted {
  Header header;
  TenantId tenant;
  JoinKey key;
  std::uint64_t memory_max_bytes;
  std::uint64_t memory_min_bytes;
  std::uint32_t sm_percent;
  std::uint32_t gpu_count;
  TenantClass tenant_class;
  SmMode sm_mode;
  std::uint8_t cut;  // kCut...: why the default of the class is not what was granted; 0 = it is
  SmKind sm_kind;
  std::uint8_t reserved0[4];
  GpuUuid gpus[kTenantGpusMax];
  char profile[kNameBytes];
};
static_assert(sizeof(Admitted) == 16 + 32 + 16 + 8 * 16 + kNameBytes);

struct Refused {
  Header header;
  RefusalCode code;
  std::uint32_t reserved0;
  std::uint64_t minimum_bytes;  // kMemoryBelowContext: the smallest quota that would do
  char text[kTextBytes];        // what happened, why, what to do; NUL-terminated, no prefix
};
static_assert(sizeof(Refused) == 16 + 16 + kTextBytes);

/// From the shim at its process's first CUDA call, or at its first context where nobody announced
/// it. Two descriptors come back with Registered: lease page, claims page.
struct Register {
  Header header;
  TenantId tenant;  // 0 = the uid's default tenant
  JoinKey key;
  GpuUuid gpu;               // for a default tenant: where the context is to be; zero = any
  char command[kNameBytes];  // /proc/self/comm
};
static_assert(sizeof(Register) == 16 + 16 + 16 + kNameBytes);

struct Registered {
  Header header;
  TenantId tenant;
  std::uint32_t slot;      // index into ClaimsPage::slots
  std::uint32_t host_pid;  // the broker's view of the client's pid (for NVML in containers)
};
static_assert(sizeof(Registered) == 32);

/// GateWant: a thread waits at the gate of `gpu` (index in the lease page), having seen `epoch`
/// closed. Sent once per closed epoch and process; by threads that wait for the end of a hold too,
/// so that the broker knows who wants its memory back. GateIdle: nothing in flight for idle_grace
/// under the open epoch `epoch`; the broker may close it and need not wait for a drain (the shim
/// re-checks and sends Drained all the same). Drained: lease epoch `epoch` is closed, nobody is
/// inside, every fence has passed. Held: the hold `epoch` is acknowledged (see pages.h): nothing of
/// this process touches the GPU until the hold is cleared.
struct GateNote {
  Header header;
  std::uint32_t gpu;
  std::uint32_t epoch;
  std::uint64_t busy_ns;  // this process's busy_ns on that GPU at the time of sending (also in its
                          // claims slot)
};
static_assert(sizeof(GateNote) == 32);

/// The order of the hold word `word` (kHoldOut or kHoldIn, see pages.h) has been carried out on
/// `gpu` by this process, or could not be: then everything is as it was before the order, and the
/// order may be given again.
struct Moved {
  Header header;
  std::uint32_t gpu;
  std::uint32_t word;
  std::int32_t result;  // the CUresult that stopped it; 0 = done; kMovedNoHostMemory
  std::uint32_t reserved0;
  std::uint64_t bytes;     // moved by this order
  std::uint64_t taken_ns;  // for how long
};
static_assert(sizeof(Moved) == 48);
inline constexpr std::int32_t kMovedNoHostMemory = -1;
inline constexpr std::int32_t kMovedNoRoom = 2;  // CUDA_ERROR_OUT_OF_MEMORY

/// The driver has no room for `bytes` that the quota allows. The thread waits until the entry's
/// `room` word is no longer `room`, then asks the driver again (see pages.h).
struct MemoryWant {
  Header header;
  std::uint32_t gpu;
  std::uint32_t room;
  std::uint64_t bytes;
};
static_assert(sizeof(MemoryWant) == 32);

enum class CommandVerb : std::uint32_t {
  kSuspend = 1,  // nothing of the tenant stays on its GPUs that can be moved; until kResume
  kResume = 2,
  kMove = 3,   // to `gpu`: its processes go on there
  kDrain = 4,  // `gpu` takes no new tenants (root, or whom the broker belongs to)
  kUndrain = 5,
};

inline constexpr std::size_t kDrainReasonBytes = 96;

/// Asked for by `sluice suspend` and its kin; answered when it is done, which may take as long as
/// copying the tenant's memory does. Of the own tenants, or of anybody's as root.
struct Command {
  Header header;
  CommandVerb verb;
  std::uint32_t flags;    // 0
  TenantId tenant;        // not for kDrain, kUndrain
  GpuUuid gpu;            // kMove, kDrain, kUndrain
  std::uint64_t until_s;  // kDrain: it opens by itself then, seconds of the epoch; 0 = never
  char reason[kDrainReasonBytes];  // kDrain: for people; may be empty
};
static_assert(sizeof(Command) == 48 + 8 + kDrainReasonBytes);

struct CommandDone {
  Header header;
  std::uint64_t bytes;     // moved: kSuspend out, others in
  std::uint64_t taken_ns;  // from the command's arrival; kResume: on the way in alone
};
static_assert(sizeof(CommandDone) == 32);

/// A training job's own figures, shown by the exporter. Cumulative counters; the tenant is that of
/// the sender.
struct JobReport {
  Header header;
  TenantId tenant;
  JoinKey key;
  std::uint64_t steps;
  std::uint64_t samples;
  std::uint64_t tokens;
  std::uint64_t exposed_communication_ns;
  double straggler_score;  // slowest rank's median step over the median of all, 1 = even
  std::uint32_t rank;
  std::uint32_t rank_count;
};
static_assert(sizeof(JobReport) == 16 + 16 + 32 + 16);

/// The job says that it is over (exclusive mode ends early, before the last process is gone).
struct Release {
  Header header;
  TenantId tenant;
  JoinKey key;
};
static_assert(sizeof(Release) == 32);

struct Done {
  Header header;
};

struct SnapshotRequest {
  Header header;
};

/// What the processes of a tenant do while the GPU does nothing for them (pages.h): for who may act
/// for the tenant, and the user of [exporter] user. With the reply comes the claims page, by a
/// descriptor that cannot be written through; it stays good for
/// as long as the tenant lives, and is that of a dead tenant afterwards.
struct ActivityRequest {
  Header header;
  TenantId tenant;
};
static_assert(sizeof(ActivityRequest) == 24);

struct ActivityReply {
  Header header;
  TenantId tenant;
};
static_assert(sizeof(ActivityReply) == 24);

/// Has the broker read its configuration again (root, or whom the broker belongs to).
struct Reload {
  Header header;
  std::uint32_t flags;  // kReload...
  std::uint32_t reserved0;
};
static_assert(sizeof(Reload) == 24);
inline constexpr std::uint32_t kReloadLook = 1;  // only say what it would change

/// With it comes a memfd of `bytes`: what changed, or what is wrong, in lines for people.
struct Reloaded {
  Header header;
  std::uint32_t good;  // 0 = the file has mistakes, and nothing was changed
  std::uint32_t reserved0;
  std::uint64_t bytes;
};
static_assert(sizeof(Reloaded) == 32);

struct SnapshotReply {
  Header header;
  std::uint64_t bytes;  // size of the snapshot in the attached memfd
};
static_assert(sizeof(SnapshotReply) == 24);

}  // namespace sluice::protocol

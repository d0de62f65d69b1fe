// The two shared pages of a tenant.
//
// The lease page is written by the broker alone; clients map it read-only (memfd with
// F_SEAL_FUTURE_WRITE) and may trust it. It says, per GPU of the tenant, whether work may be
// submitted now (the lease), whether anything may touch the device at all (the hold), and the
// limits.
//
// The claims page is written by the clients (memfd sealed against shrink and grow only) and is
// never trusted for more than the tenant's own account. One slot per process, assigned by the
// broker at registration and written by that process alone as long as it lives. Once it has ended
// the broker writes there what the devices still have of it, and zeroes the slot when they have
// nothing. The tenant's total is always the sum over the slots, never a stored counter, so a death
// at any instant leaves a right sum.
//
// All fields are naturally aligned and accessed with the __atomic builtins through the helpers
// below (the shim has no libstdc++ at run time; std::atomic would do as well but is not guaranteed
// to share a layout with C).
#pragma once

#include "broker/protocol/words.h"

namespace sluice::protocol {

inline constexpr std::uint32_t kLeasePageMagic = 0x31504c53;   // "SLP1"
inline constexpr std::uint32_t kClaimsPageMagic = 0x31504353;  // "SCP1"

/// One 32-bit word that is stored, loaded and waited on (futex) as a unit.
struct AtomicU32 {
  std::uint32_t raw;
  std::uint32_t load() const { return __atomic_load_n(&raw, __ATOMIC_SEQ_CST); }
  void store(std::uint32_t v) { __atomic_store_n(&raw, v, __ATOMIC_SEQ_CST); }
  std::uint32_t add(std::uint32_t v) { return __atomic_add_fetch(&raw, v, __ATOMIC_SEQ_CST); }
  void set(std::uint32_t bits) { __atomic_fetch_or(&raw, bits, __ATOMIC_SEQ_CST); }
  void clear(std::uint32_t bits) { __atomic_fetch_and(&raw, ~bits, __ATOMIC_SEQ_CST); }
};
struct AtomicU64 {
  std::uint64_t raw;
  std::uint64_t load() const { return __atomic_load_n(&raw, __ATOMIC_SEQ_CST); }
  void store(std::uint64_t v) { __atomic_store_n(&raw, v, __ATOMIC_SEQ_CST); }
  std::uint64_t add(std::uint64_t v) { return __atomic_add_fetch(&raw, v, __ATOMIC_SEQ_CST); }
  std::uint64_t sub(std::uint64_t v) { return __atomic_sub_fetch(&raw, v, __ATOMIC_SEQ_CST); }
};
static_assert(sizeof(AtomicU32) == 4 && sizeof(AtomicU64) == 8);

// The lease word: bits 0-2 are flags, bits 3-31 the epoch. Every opening and every closing stores a
// new epoch, so a waiter that slept through an open-close pair still sees a changed word. The word
// is the futex that gates sleep on (shared futex; waiting needs read access only).
inline constexpr std::uint32_t kLeaseOpen = 1;  // work may be submitted
inline constexpr std::uint32_t kLeaseExclusive =
    2;  // only beside kLeaseOpen: the whole GPU is the tenant's, no metering, no window
inline constexpr std::uint32_t kLeaseContended =
    4;  // others wait: give the lease back as soon as the GPU is idle
inline constexpr std::uint32_t kLeaseEpochShift = 3;
inline constexpr std::uint32_t lease_epoch(std::uint32_t word) { return word >> kLeaseEpochShift; }
inline constexpr std::uint32_t lease_word(std::uint32_t epoch, std::uint32_t flags) {
  return (epoch << kLeaseEpochShift) | flags;
}
inline constexpr std::uint32_t kLeaseEpochMax = UINT32_MAX >> kLeaseEpochShift;
/// Epochs go round, past 0: a claims slot whose drained_epoch is 0 has never drained.
inline constexpr std::uint32_t lease_epoch_next(std::uint32_t epoch) {
  return epoch >= kLeaseEpochMax ? 1 : epoch + 1;
}
// A changed kLeaseContended flag alone keeps the epoch.

// The hold word: bit 0 set = nothing of the tenant may touch the device (swap, suspend); bits 1-2
// an order for the tenant's processes; bits 3-31 the epoch. Futex. Every setting and every clearing
// stores a new epoch; an order is added to the word of the hold that has been acknowledged.
//
// The order of a hold, on each GPU that is to be held:
//   1. the broker closes the lease (a launch looks at the lease word alone),
//   2. sets the hold, with a new epoch,
//   3. each process waits until its launches have drained, no capture is in progress (while one is,
//      calls pass, but no new capture begins), nobody is inside a call that touches device memory
//      or handles, and everything in its contexts, copies too, has passed; then it stores the epoch
//      in its slot's held_epoch and sends Held. It does so however long that takes, and touches the
//      device no more.
//   4. Only when the held_epoch of every slot in use is the hold's epoch may memory be unmapped.
//   5. The broker puts the memory back, clears the hold, and then may open the lease.
// A process that registers during a hold acknowledges it like the others.
//
// Swap, in entries with kEntrySwap. What can be moved is memory that the shim has put behind VMM
// mappings itself (cuMemAlloc and its kin; interpose/swap). After 4 the broker adds kHoldOut to the
// word: each process copies its movable memory to the host, unmaps and releases it, keeps the
// addresses reserved, stores the whole word in its slot's moved_word and sends Moved. To bring it
// back the broker first makes sure that there is room, then replaces kHoldOut by kHoldIn: each
// process creates, maps and fills the memory, stores moved_word, sends Moved. Then 5. A process
// that could not carry out an order is as it was before it, says so in Moved, and does not store
// moved_word. Orders are for processes that have acknowledged; one that registers while the word
// has an order has nothing to move: it acknowledges and says Moved at once.
inline constexpr std::uint32_t kHoldSet = 1;
inline constexpr std::uint32_t kHoldOut = 2;
inline constexpr std::uint32_t kHoldIn = 4;
inline constexpr std::uint32_t kHoldEpochShift = 3;
inline constexpr std::uint32_t hold_epoch(std::uint32_t word) { return word >> kHoldEpochShift; }
inline constexpr std::uint32_t hold_word(std::uint32_t epoch, std::uint32_t flags) {
  return (epoch << kHoldEpochShift) | flags;
}
inline constexpr std::uint32_t kHoldEpochMax = UINT32_MAX >> kHoldEpochShift;
/// Epochs go round, past 0: a claims slot whose held_epoch is 0 has never acknowledged a hold.
inline constexpr std::uint32_t hold_epoch_next(std::uint32_t epoch) {
  return epoch >= kHoldEpochMax ? 1 : epoch + 1;
}

// The room word: a counter of the broker's answers to MemoryWant, in steps of 2; bit 0: the last
// answer was that no room can be made. Futex. A thread whose allocation the driver has refused
// reads the word, asks the driver once more, sends MemoryWant with the word, waits for another
// word, and asks the driver again: when it still has no room, bit 0 decides between CUDA's error
// and another MemoryWant. Answers are for the tenant: whichever process asked, all look again.
inline constexpr std::uint32_t kRoomNone = 1;
inline constexpr std::uint32_t room_next(std::uint32_t word, bool none) {
  return ((word | kRoomNone) + 1) | (none ? kRoomNone : 0);
}

// LeaseEntry.flags
inline constexpr std::uint32_t kEntrySwap = 1;  // allocations are to be made movable

// LeaseEntry.suspended: why the tenant's memory is on the host, and until when.
inline constexpr std::uint32_t kSuspendedNot = 0;
inline constexpr std::uint32_t kSuspendedByCommand = 1;  // until `sluice resume`
inline constexpr std::uint32_t kSuspendedIdle = 2;       // until it wants its GPU
inline constexpr std::uint32_t kSuspendedQueued = 3;     // until there is room for it again

// LeaseEntry.idle
inline constexpr std::uint32_t kIdleNot = 0;
inline constexpr std::uint32_t kIdleTold = 1;
inline constexpr std::uint32_t kIdleEnds = 2;  // it is about to get SIGTERM

/// What the tenant may do on one GPU. 128 bytes, so that two GPUs never share a cache line.
struct LeaseEntry {
  GpuUuid gpu;
  std::uint64_t memory_max_bytes;
  std::uint64_t memory_min_bytes;
  std::uint64_t context_bytes;  // cost of one context on this GPU, measured by the broker's probe;
                                // 0 = unknown
  AtomicU64 window_ns;          // in-flight GPU time this tenant may have queued; 0 = unbounded
  AtomicU64 idle_grace_ns;  // give a contended lease back after this long without work in flight
  AtomicU32 lease;
  AtomicU32 hold;
  std::uint32_t sm_percent;  // 1-100
  std::uint32_t flags;       // kEntry..., fixed when the tenant is admitted
  AtomicU32 room;
  AtomicU32 delayed_ms;  // not 0: the tenant is about to be ended, because others have waited so
                         // long for its work on this GPU to end; each process says so on stderr
  AtomicU32 suspended;   // a Suspended; each process says so on stderr
  AtomicU32 idle;        // an Idle; each process says so on stderr
  std::uint32_t idle_s;  // it has used no GPU for so long,
  std::uint32_t idle_release_s;  // is to leave its GPUs after so long, 0 = it is not,
  std::uint32_t idle_end_s;      // and to be ended after so long, 0 = it is not
  std::uint8_t reserved[28];
};
static_assert(sizeof(LeaseEntry) == 128);

struct LeasePage {
  std::uint32_t magic;
  std::uint16_t version;
  TenantClass tenant_class;
  SmMode sm_mode;
  TenantId tenant;
  std::uint32_t gpu_count;
  std::uint32_t broker_pid;
  AtomicU64 heartbeat_ns;  // CLOCK_MONOTONIC of the broker's last turn through its loop (at least
                           // every second)
  std::uint8_t reserved[96];
  LeaseEntry gpus[kTenantGpusMax];
};
static_assert(sizeof(LeasePage) == 128 + 8 * 128);
static_assert(offsetof(LeasePage, gpus) == 128);

/// One process's account on one GPU. Bytes move asked -> reserved -> held (see interpose/ledger):
/// asked while looking whether there is room, reserved across the driver call, held once the driver
/// has said yes.
struct ClaimsGpu {
  AtomicU64 asked_bytes;
  AtomicU64 reserved_bytes;
  AtomicU64 held_bytes;     // everything charged, contexts and what is swapped out included
  AtomicU64 context_bytes;  // the part of held_bytes that no driver call tells: contexts, modules,
                            // what limits take, imports
  AtomicU64 peak_bytes;     // highest held_bytes of this process
  AtomicU64 busy_ns;  // GPU-busy time used by this process, union of busy intervals; only grows
  AtomicU64 launches;
  AtomicU64 graph_launches;
  AtomicU64 gate_wait_ns;  // time threads spent waiting at the gate; only grows
  AtomicU64 gate_waits;
  AtomicU64 refused;        // allocations refused by the quota
  AtomicU32 in_flight;      // 1 while work is or may be on the device
  AtomicU32 drained_epoch;  // the closed lease epoch up to which nothing is inside and every fence
                            // has passed
  AtomicU32 version;     // odd while the owner changes reserved and held together; bumped by every
                         // change of them
  AtomicU32 held_epoch;  // the hold up to which this process has stopped touching the device
  AtomicU32 measured;    // 1: context_bytes is the driver's own figure; 0: a constant per context
  AtomicU32 moved_word;  // the hold word whose order this process has carried out
  AtomicU64 movable_bytes;  // the part of held_bytes that can be swapped, wherever it is
  AtomicU64 swapped_bytes;  // the part of movable_bytes that is not on the device
};
static_assert(sizeof(ClaimsGpu) == 128);
static_assert(offsetof(ClaimsGpu, held_epoch) == 100);
static_assert(offsetof(ClaimsGpu, movable_bytes) == 112);

/// The unit of ClaimsSlot::limits_pages: 32 bits of them are more than any GPU has.
inline constexpr std::uint64_t kLimitPageBytes = 4096;

struct ClaimsSlot {
  AtomicU32 pid;            // written by the broker at registration, 0 = free
  AtomicU32 unhooked_seen;  // entry points asked for that the shim does not know
  AtomicU32 own_pid;        // written by the process: its pid as it sees itself
  AtomicU32 leaving;        // written by the process that exits in good order: 1
  // Of this process on all its GPUs; they only grow.
  AtomicU64 gate_wait_counts[kGateWaitCounts];  // those of gate_waits, by how long they took
  AtomicU64 refused_full;  // allocations that the quota allowed and for which the GPU had no room
  // Per GPU, the part of held_bytes that is reserved for limits of contexts and that the driver has
  // not taken yet, in pages of kLimitPageBytes. It is not on the device.
  AtomicU32 limits_pages[kTenantGpusMax];
  // Written by the broker: 1 = it has seen the end of the process, and keeps the charge of what the
  // device still has of it.
  AtomicU32 end_seen;
  std::uint8_t reserved[12];
  ClaimsGpu gpus[kTenantGpusMax];
};
static_assert(sizeof(ClaimsSlot) == 128 + 8 * 128);

inline constexpr std::uint32_t kChargedWords = 512;

// What a process does while a GPU does nothing for it, for whoever explains idleness (`sluice
// why`, which maps the page read-only). Rings: the writer of number n fills entry n % size and
// stores n + 1 in its `serial` last. The count may be raised before or behind that; a reader that
// finds another serial came too early or too late. All times are CLOCK_MONOTONIC; threads are
// numbered as the process sees them.
inline constexpr std::uint32_t kGapsMax = 256;
inline constexpr std::uint32_t kWaitsMax = 256;
inline constexpr std::uint32_t kOpenWaitsMax = 64;

/// What a thread waits for inside a call of the shim's.
enum class WaitReason : std::uint32_t {
  kGate = 1,    // for its lease, or the end of a hold
  kMemory = 2,  // for room on the GPU, or for its own memory to come back
  kSync = 3,    // in the driver, for work that it gave it (copies among them)
};

/// The GPU had nothing of this process from begin to end; then `thread` launched.
struct Gap {
  AtomicU64 serial;
  AtomicU64 begin_ns;
  AtomicU64 end_ns;
  AtomicU32 thread;
  std::uint32_t reserved;
};
static_assert(sizeof(Gap) == 32);

struct ThreadWait {
  AtomicU64 serial;
  AtomicU64 begin_ns;
  AtomicU64 end_ns;
  AtomicU32 thread;
  AtomicU32 reason;  // WaitReason
};
static_assert(sizeof(ThreadWait) == 32);

/// A wait that goes on. since_ns is stored last, and 0 first.
struct OpenWait {
  AtomicU64 since_ns;
  AtomicU32 thread;
  AtomicU32 reason;
};
static_assert(sizeof(OpenWait) == 16);

struct ActivityGpu {
  AtomicU64 gaps;        // written so far
  AtomicU64 settled_ns;  // until then all is told: gaps, short gaps, and the rest was busy
  AtomicU64 short_ns;    // the sum of the gaps that were too short to be written; only grows
  AtomicU32 thread;      // launched last
  AtomicU32 idle;        // 1: nothing has been in flight since settled_ns
  std::uint8_t reserved[32];
  Gap ring[kGapsMax];
};
static_assert(sizeof(ActivityGpu) == 64 + kGapsMax * 32);

/// On pages of its own, so that they take no memory for a slot that nobody uses.
struct alignas(4096) ActivitySlot {
  AtomicU64 waits;  // written so far
  std::uint8_t reserved[56];
  OpenWait open[kOpenWaitsMax];
  ThreadWait ring[kWaitsMax];
  ActivityGpu gpus[kTenantGpusMax];
};
static_assert(sizeof(ActivitySlot) % 4096 == 0);

/// Sparse: only pages that are written take memory.
struct ClaimsPage {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t reserved0;
  std::uint32_t slot_count;  // kTenantProcessesMax
  std::uint32_t gpu_count;
  AtomicU32 slots_used;    // one past the highest slot in use so far; raised by each client when it
                           // registers, 0 = unknown
  AtomicU32 shares;        // 1: a process of the tenant has exported or imported device memory
  AtomicU32 reading_turn;  // + 1: the slot of the process that just asks the device which exported
                           // memory is gone; 0 = none. A process that has ended has no turn
  // A bit for each slot: its process is in the middle of a call that may let go of shared memory.
  // One that has ended (its slot is empty, or has end_seen) is in none
  AtomicU32 letting_go[kTenantProcessesMax / 32];
  std::uint8_t reserved[84];
  ClaimsSlot slots[kTenantProcessesMax];
  // Per GPU, a map of the time that processes of the tenant were charged for lately, so that a
  // moment at which several were on the GPU is charged once (interpose/covered.h).
  AtomicU64 charged[kTenantGpusMax][kChargedWords];
  ActivitySlot activity[kTenantProcessesMax];
  // By slot and GPU, the part of held_bytes that stays charged for shared memory which the process
  // has let go of (interpose/memory/kept.h). It may be on the device; no figure of the process has
  // it. The broker believes it for what the tenant's quota leaves (broker/daemon/left_behind.h).
  AtomicU64 released_bytes[kTenantProcessesMax][kTenantGpusMax];
};
static_assert(offsetof(ClaimsPage, slots) == 128);

}  // namespace sluice::protocol

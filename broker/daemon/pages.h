// The two shared pages of one tenant, seen from the broker: creates and seals them, writes leases,
// hands out slots, sums claims. The lease page is the broker's alone (the client's descriptor can
// never be written through); the claims page is written by clients and believed for nothing but
// their own account: sums saturate and used time never runs back. In the slots of processes that
// have ended the broker writes what their devices still have of them.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "broker/devices/fd.h"
#include "broker/protocol/pages.h"

namespace sluice::daemon {

/// Nobody may change a page's size.
inline constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
/// And nobody who does not have a lease page mapped yet may write it.
inline constexpr int kLeaseSeals = kSizeSeals | 0x0010;  // F_SEAL_FUTURE_WRITE, linux 5.1

/// What the broker fills in once, at admission.
struct PageSetup {
  protocol::TenantId tenant = 0;
  protocol::TenantClass tenant_class{};
  protocol::SmMode sm_mode{};
  std::uint64_t memory_max_bytes = 0;
  std::uint64_t memory_min_bytes = 0;
  std::uint32_t sm_percent = 100;
  bool swap = false;  // its allocations are to be made movable
  struct Gpu {
    protocol::GpuUuid uuid{};
    std::uint64_t context_bytes = 0;
  };
  std::vector<Gpu> gpus;
};

/// A tenant's account on one GPU: what the slots in use hold, and what their processes and all
/// before them have used.
struct Usage {
  std::uint64_t held_bytes = 0;
  std::uint64_t peak_bytes = 0;
  std::uint64_t busy_ns = 0;
  std::uint64_t launches = 0;
  std::uint64_t graph_launches = 0;
  std::uint64_t gate_wait_ns = 0;
  std::uint64_t gate_waits = 0;
  std::uint64_t refused = 0;
};

/// A tenant's account over all its GPUs, of the living and the dead.
struct WaitUsage {
  std::array<std::uint64_t, protocol::kGateWaitCounts> gate_wait_counts{};
  std::uint64_t refused_full = 0;
};

/// What is charged to a tenant on one GPU: what its living processes say to hold, and what the
/// broker has written for ended ones. Movable within held, swapped within movable.
struct MemoryClaims {
  std::uint64_t held_bytes = 0;
  std::uint64_t movable_bytes = 0;
  std::uint64_t swapped_bytes = 0;
  std::uint64_t context_bytes = 0;  // of what is held and cannot be moved
  std::uint64_t limits_bytes = 0;   // of what is held: reserved, and not on the device yet
};

class Pages {
 public:
  /// Null with errno set when the kernel gives no memory or descriptors.
  static std::unique_ptr<Pages> create(const PageSetup& setup);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  int lease_fd() const { return lease_fd_.get(); }
  int claims_fd() const { return claims_fd_.get(); }
  /// A descriptor of the claims page that cannot be written through; none where there is none left.
  devices::Fd claims_readable() const;
  std::uint32_t gpu_count() const { return lease_->gpu_count; }

  /// Stores word and limits and wakes everybody who sleeps on the word.
  void lease_store(std::uint32_t gpu, std::uint32_t word, std::uint64_t window_ns,
                   std::uint64_t idle_grace_ns);
  std::uint32_t lease_load(std::uint32_t gpu) const { return lease_->gpus[gpu].lease.load(); }
  /// Stores other limits, the same for every GPU.
  void limits_store(std::uint64_t memory_max_bytes, std::uint64_t memory_min_bytes,
                    std::uint32_t sm_percent);
  /// Stores the word of the hold, or the answer to who wanted memory, and wakes who sleeps on it.
  void hold_store(std::uint32_t gpu, std::uint32_t word);
  std::uint32_t hold_load(std::uint32_t gpu) const { return lease_->gpus[gpu].hold.load(); }
  void room_store(std::uint32_t gpu, std::uint32_t word);
  /// Has the tenant's processes tell their user why they are about to be ended; 0 = they are not.
  void delayed_store(std::uint32_t gpu, std::uint32_t milliseconds);
  /// Has the tenant's processes tell their user why they stand still (protocol::kSuspended...).
  void suspended_store(std::uint32_t suspended);
  /// Has them tell that they use no GPU and what comes of it (protocol::kIdle...), in seconds.
  void idle_store(std::uint32_t idle, std::uint32_t idle_s, std::uint32_t release_s,
                  std::uint32_t end_s);
  std::uint32_t room_load(std::uint32_t gpu) const { return lease_->gpus[gpu].room.load(); }
  /// The entry is for another GPU from now on. Only while every process of the tenant is held.
  void gpu_store(std::uint32_t gpu, const protocol::GpuUuid& uuid, std::uint64_t context_bytes);
  void heartbeat_store(std::uint64_t now_ns) { lease_->heartbeat_ns.store(now_ns); }

  /// A clean slot for `pid`; nothing when all are taken.
  std::optional<std::uint32_t> slot_take(pid_t pid);
  /// Whether its process said that it exits in good order.
  bool leaving(std::uint32_t slot) const;
  /// The slot's process has ended and may have left its memory on the devices. What it had there
  /// stays charged; for other processes the slot is in the middle of a change: an allocation that
  /// does not fit beside it waits (interpose/ledger.h).
  void slot_doubt(std::uint32_t slot);
  /// What it had stays there: an allocation that does not fit is refused at once.
  void slot_settle(std::uint32_t slot);
  /// Charges the ended process of the slot `bytes`, which the device still has of it.
  void slot_charge(std::uint32_t slot, std::uint32_t gpu, std::uint64_t bytes);
  /// What its process says to be charged for shared memory that it has let go of.
  std::uint64_t slot_released(std::uint32_t slot, std::uint32_t gpu) const;
  /// What the slot's process says to have on the device itself.
  std::uint64_t slot_on_device(std::uint32_t slot, std::uint32_t gpu) const;
  /// Whether it says that work of it is or may be on the device.
  bool slot_in_flight(std::uint32_t slot, std::uint32_t gpu) const;
  /// Adds what the slot's process used to the tenant's totals of dead processes, then cleans the
  /// slot.
  void slot_retire(std::uint32_t slot);
  /// The closed epoch up to which this slot's process says it has drained.
  std::uint32_t drained_epoch(std::uint32_t slot, std::uint32_t gpu) const;

  /// The hold that it says it has acknowledged, and the order that it says it has carried out.
  std::uint32_t held_epoch(std::uint32_t slot, std::uint32_t gpu) const;
  std::uint32_t moved_word(std::uint32_t slot, std::uint32_t gpu) const;
  /// Whether this slot's process has anything on the GPU: a context, to begin with.
  bool slot_holds(std::uint32_t slot, std::uint32_t gpu) const;
  /// What it says to hold there.
  std::uint64_t slot_held(std::uint32_t slot, std::uint32_t gpu) const;

  /// The most entry points of the driver that one process has asked for and the shim does not know.
  /// Others mostly ask for the same.
  std::uint32_t unhooked() const;

  Usage usage(std::uint32_t gpu);
  WaitUsage waits();
  /// Looks whether the claims say what cannot be true: kDistrust... of protocol/snapshot.h.
  /// `capacity_bytes` has one for each GPU; `lived_ns` is the age of the tenant. To be called now
  /// and then; what may be a glance between two stores counts when it stands for kOddLooksMax
  /// looks.
  std::uint8_t lies_look(const std::vector<std::uint64_t>& capacity_bytes, std::uint64_t lived_ns);
  static constexpr int kOddLooksMax = 8;
  MemoryClaims memory(std::uint32_t gpu) const;

 private:
  Pages() = default;
  void slot_zero(std::uint32_t slot);
  std::uint8_t memory_lies(std::uint32_t gpu, std::uint64_t capacity_bytes, bool* odd) const;
  std::uint8_t time_lies(std::uint32_t gpu, std::uint64_t lived_ns);

  devices::Fd lease_fd_;
  devices::Fd claims_fd_;
  protocol::LeasePage* lease_ = nullptr;
  protocol::ClaimsPage* claims_ = nullptr;
  std::array<bool, protocol::kTenantProcessesMax> taken_{};
  std::array<std::uint32_t, protocol::kTenantProcessesMax> pids_{};  // as written into the slots
  std::array<std::uint64_t, protocol::kTenantGpusMax> looked_busy_ns_{};  // by lies_look()
  std::uint32_t slots_end_ = 0;  // one past the highest slot ever taken
  int odd_looks_ = 0;
  std::array<Usage, protocol::kTenantGpusMax> dead_{};
  std::array<Usage, protocol::kTenantGpusMax>
      shown_{};  // highest figures seen: counters never run back
  WaitUsage waits_dead_, waits_shown_;
};

}  // namespace sluice::daemon

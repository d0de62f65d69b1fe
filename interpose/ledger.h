// The account of one process on a claims page: how bytes are asked for, reserved, held and given
// back so that all processes of a tenant together never pass its quota by a byte, never refuse what
// fits, and take no lock across processes. Knows the page's layout (broker/protocol/pages.h),
// nothing of CUDA.
//
// The protocol. Each process writes only its own slot. To take n bytes:
// 1. Ask: asked += n, visible to all before anything is read (a full fence).
// 2. Look: sum asked + reserved + held over all slots, in this order per slot. Bytes only move to
//    the right, so the sum misses nothing that was there when it began. Within the quota:
//    reserved += n, asked -= n. Of several askers at least the last one sees all others, so they
//    never pass the quota together.
// 3. Collide: above the quota only by others' asks, withdraw, wait a moment and start again.
// 4. Refuse: above it by reserved + held alone, in a snapshot that is one instant's truth: every
//    slot's version is even, and the same in two readings of all slots.
// Then the driver is called, and the reservation becomes held or is given back.
//
// A process killed anywhere leaves a slot that the broker zeroes; at worst others wait for that
// where the dead one had asked, or was in the middle of a change.
#pragma once

#include "broker/protocol/pages.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// Sum over the slots of what one GPU's tenant has reserved and holds.
uint64_t claims_total(const protocol::ClaimsPage& page, uint32_t gpu);
/// Sum over the slots of what one GPU's tenant holds.
uint64_t claims_held(const protocol::ClaimsPage& page, uint32_t gpu);

class Ledger {
 public:
  /// Takes over `slot` of `page`, and of no second page; the page outlives the ledger. Not to be
  /// called while other threads use the ledger.
  void attach(protocol::ClaimsPage* page, uint32_t slot);
  /// Writes the whole account on a GPU, whatever was in the slot before. A broker that was only
  /// stopped gives a process the slot back that it had, which others see full until it is written.
  /// Nothing may be reserved.
  void restate(uint32_t gpu, uint64_t held_bytes, uint64_t context_bytes);
  /// From now on keeps the account in a slot of a second page as well: what is reserved must fit on
  /// both. `gpus` says which GPU of the second page each of the first one's is, -1 = none. What is
  /// held now is put there. The same preconditions; nothing may be reserved.
  void attach_second(protocol::ClaimsPage* page, uint32_t slot,
                     const int8_t (&gpus)[protocol::kTenantGpusMax]);

  /// Reserves bytes under a quota (0 = none). False = they do not fit.
  [[nodiscard]] bool reserve(uint32_t gpu, uint64_t bytes, uint64_t quota_bytes);
  /// The driver said yes: `bytes` of the reservation are held now.
  void hold(uint32_t gpu, uint64_t bytes);
  /// The driver said no.
  void abort(uint32_t gpu, uint64_t bytes);
  /// Held bytes are back with the driver.
  void release(uint32_t gpu, uint64_t bytes);
  /// Charged whatever the quota says: bytes that are there already (pool growth, registering anew).
  void hold_unasked(uint32_t gpu, uint64_t bytes);
  void context_add(uint32_t gpu, uint64_t bytes);
  void context_sub(uint32_t gpu, uint64_t bytes);

  /// What the tenant has reserved and holds: of two pages, the larger sum.
  uint64_t total(uint32_t gpu) const;
  /// What the tenant holds: of two pages, the larger sum.
  uint64_t held_total(uint32_t gpu) const;
  uint64_t held(uint32_t gpu) const { return mine(gpu).held_bytes.load(); }
  uint64_t reserved(uint32_t gpu) const { return mine(gpu).reserved_bytes.load(); }

  /// The longest a reservation waits for others' asks to go away (a killed process whose slot
  /// nobody zeroes). 0 = kPatienceNs: all zero, a Ledger costs the program's start nothing.
  uint64_t patience_ns = 0;

 private:
  static constexpr uint64_t kPatienceNs = 2'000'000'000;
  // The larger one of the sums over the two pages.
  template <class Sum>
  uint64_t larger(uint32_t gpu, Sum sum) const;
  enum class Outcome { kTaken, kCollision, kTooMuch };
  // A slot of a page.
  struct Place {
    protocol::ClaimsPage* page;
    uint32_t slot;
    protocol::ClaimsGpu& account(uint32_t gpu) const { return page->slots[slot].gpus[gpu]; }
  };
  bool reserve_on(const Place& place, uint32_t gpu, BriefLock& lock, uint64_t bytes,
                  uint64_t quota_bytes);
  static Outcome attempt(const Place& place, uint32_t gpu, uint64_t bytes, uint64_t quota_bytes);
  protocol::ClaimsGpu& mine(uint32_t gpu) const { return first_.account(gpu); }
  bool has_second(uint32_t gpu) const { return second_.page != nullptr && second_gpus_[gpu] >= 0; }
  uint32_t second_gpu(uint32_t gpu) const { return static_cast<uint32_t>(second_gpus_[gpu]); }
  template <class Changes>
  void change(uint32_t gpu, Changes changes);

  Place first_{};
  Place second_{};
  int8_t second_gpus_[protocol::kTenantGpusMax] = {};
  // The threads of this process change their common slot one at a time.
  mutable BriefLock locks_[protocol::kTenantGpusMax];
};

}  // namespace sluice::interpose

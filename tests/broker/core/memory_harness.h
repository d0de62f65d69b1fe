// The harness with tenants whose memory can be moved: their claims, and honest answers of their
// processes.
#pragma once

#include "harness.h"

namespace sluice::core {

inline Policy policy_swapping() {
  Policy policy = policy_usual();
  policy.swap = true;
  policy.oversell_memory = 8;
  policy.swap_quantum_ns = 100 * kMs;
  return policy;
}

class MemoryHarness : public Harness {
 public:
  explicit MemoryHarness(const Policy& policy = policy_swapping(), std::uint8_t gpus = 1)
      : Harness(policy, gpus, 4 * kGiB) {}

  /// Admits a tenant that holds this much already: a context of 32 MiB, and the rest movable where
  /// it is swappable.
  TenantId holder(Bytes held, bool swap = true, std::uint32_t gpus = 1, Bytes quota = 0) {
    TenantAsked asked = ask(TenantClass::kBatch, std::max(held, quota));
    asked.swap = swap;
    asked.gpu_count = gpus;
    asked.uid = uid;
    asked.pinned = pinned;
    const TenantId tenant = admit(asked);
    for (std::uint32_t i = 0; i < gpus; ++i) seen(tenant, held, swap ? held - 32 * kMiB : 0, 0, i);
    return tenant;
  }
  void seen(TenantId tenant, Bytes held, Bytes movable, Bytes swapped, std::uint32_t index = 0) {
    claims_[{tenant, index}] = {tenant, index, held, movable, swapped};
    step(claims_[{tenant, index}]);
  }
  /// The claims of everybody are read again, as they were told last.
  void look() {
    for (const auto& [key, claims] : claims_)
      if (state().tenants.contains(key.first)) step(claims);
  }
  void ack(TenantId tenant, std::uint32_t index = 0, ProcessId process = 0) {
    const ProcessId who = process == 0 ? Harness::process(tenant) : process;
    step(HoldAcked{who, index, protocol::hold_epoch(hold(tenant, index))});
  }
  /// The present order is carried out by its process, or not.
  void moved(TenantId tenant, std::int32_t result = 0, std::uint32_t index = 0) {
    MemorySeen& claims = claims_[{tenant, index}];
    const bool out = held(tenant, protocol::kHoldOut, index);
    if (result == 0) claims.swapped = out ? claims.movable : 0;
    const std::uint32_t word = hold(tenant, index);
    step(claims);
    step(MoveDone{process(tenant), index, word, result, claims.movable, kMs});
  }
  /// All the way out.
  void out(TenantId tenant) {
    ack(tenant);
    moved(tenant);
  }
  bool held(TenantId tenant, std::uint32_t flag = protocol::kHoldSet, std::uint32_t index = 0) {
    return (hold(tenant, index) & flag) != 0;
  }
  void room_want(TenantId tenant, Bytes bytes) {
    look();
    step(MemoryWanted{process(tenant), 0, room(tenant), bytes});
  }
  Residence residence(TenantId tenant) { return state().tenants.at(tenant)->residence; }
  std::uint64_t host_bytes(std::uint32_t user = 1000) { return state().users[user].host_bytes; }

  CommandAsked command(protocol::CommandVerb verb, TenantId tenant) {
    CommandAsked event;
    event.request = 900 + tenant;
    event.verb = verb;
    event.tenant = tenant;
    event.uid = 1000;
    return event;
  }

  // Whose tenants holder() admits, and where.
  std::uint32_t uid = 1000;
  std::vector<GpuUuid> pinned;

 private:
  std::map<std::pair<TenantId, std::uint32_t>, MemorySeen> claims_;
};

// The answers to a checkpoint, and to its end.
inline CheckpointDone frozen(TenantId tenant, bool ok = true) {
  return {tenant, CheckpointStep::kOut, ok, kMs, ok ? "" : "managed memory"};
}
inline CheckpointDone thawed(TenantId tenant, bool ok = true) {
  return {tenant, CheckpointStep::kBack, ok, kMs, ok ? "" : "no device"};
}
/// What is promised on the GPU.
inline std::uint64_t promised(Harness& h, std::size_t gpu) {
  return state_view(h.state(), h.now).gpus[gpu].promised_bytes;
}

}  // namespace sluice::core

// Words, acknowledgements, orders and answers.
//
// A hold is set on all GPUs of a tenant at once and has an epoch: an answer to another epoch,
// another word, or before the acknowledgement counts for nothing. Nothing is ordered of who has
// not stopped. What becomes of the tenant when all have answered is decided elsewhere (stay.cpp).
#include "broker/core/hold.h"

#include <algorithm>
#include <cassert>

#include "broker/core/memory.h"
#include "broker/protocol/messages.h"
#include "broker/protocol/pages.h"

namespace sluice::core {
namespace {

std::uint8_t all_bits(const Tenant& tenant) {
  return static_cast<std::uint8_t>((1U << tenant.shares.size()) - 1);
}

void word_set(Share& share, std::uint32_t epoch, std::uint32_t flags, Actions& out) {
  share.hold_word = protocol::hold_word(epoch, flags);
  out.emplace_back(HoldSet{share.tenant->id, share.index, share.hold_word});
}

Process* process_of(State& state, ProcessId id, std::uint32_t index, Tenant** tenant) {
  auto it = state.processes.find(id);
  if (it == state.processes.end() || index >= it->second->shares.size()) return nullptr;
  *tenant = it->second;
  return process_find(**tenant, id);
}

}  // namespace

bool acks_pending(const Tenant& tenant) {
  return std::ranges::any_of(tenant.processes, [](const Process& p) { return p.acks != 0; });
}
bool moves_pending(const Tenant& tenant) {
  return std::ranges::any_of(tenant.processes, [](const Process& p) { return p.moves != 0; });
}

bool hold_ordered(const Tenant& tenant, std::uint32_t flag) {
  return (tenant.shares.front().hold_word & flag) != 0;
}

void residence_set(Tenant& tenant, Residence residence, Nanos now) {
  const Ways ways = ways_of(tenant, now);
  tenant.suspending_ns = ways.suspending_ns;
  tenant.restoring_ns = ways.restoring_ns;
  tenant.way_booked_at = now;
  tenant.residence = residence;
}

Ways ways_of(const Tenant& tenant, Nanos now) {
  Ways ways{tenant.suspending_ns, tenant.restoring_ns};
  switch (tenant.residence) {
    case Residence::kHeld:
    case Residence::kSwappingOut:
    case Residence::kCheckpointing:
      ways.suspending_ns += now - tenant.way_booked_at;
      break;
    case Residence::kRestoring:
    case Residence::kSwappingIn:
      ways.restoring_ns += now - tenant.way_booked_at;
      break;
    case Residence::kIn:
    case Residence::kLeaving:
    case Residence::kOut:
      break;
  }
  return ways;
}

void hold_set(Tenant& tenant, Nanos now, Actions& out) {
  for (Share& share : tenant.shares)
    word_set(share, protocol::hold_epoch_next(protocol::hold_epoch(share.hold_word)),
             protocol::kHoldSet, out);
  for (Process& process : tenant.processes) {
    process.acks = all_bits(tenant);
    process.moves = 0;
  }
  tenant.step_since = now;
}

void hold_clear(State& state, Tenant& tenant, Nanos now, Actions& out) {
  for (Share& share : tenant.shares) {
    word_set(share, protocol::hold_epoch_next(protocol::hold_epoch(share.hold_word)), 0, out);
    host_charge(state, share, 0);
  }
  for (Process& process : tenant.processes) process.acks = process.moves = 0;
  tenant.moving_ns += now - tenant.hold_since;
}

void hold_order(Tenant& tenant, std::uint32_t flag, Residence residence, Nanos now, Actions& out) {
  for (Share& share : tenant.shares) {
    assert((share.hold_word & protocol::kHoldSet) != 0 && "orders are for who is held");
    word_set(share, protocol::hold_epoch(share.hold_word), protocol::kHoldSet | flag, out);
  }
  for (Process& process : tenant.processes) {
    assert(process.acks == 0 && "nothing is ordered without every acknowledgement");
    process.moves = all_bits(tenant);
  }
  residence_set(tenant, residence, now);
  tenant.order_result = 0;
  tenant.step_since = now;
}

void hold_acked(State& state, const HoldAcked& event) {
  Tenant* tenant = nullptr;
  Process* process = process_of(state, event.process, event.gpu_index, &tenant);
  if (process == nullptr) return;
  const Share& share = tenant->shares[event.gpu_index];
  if ((share.hold_word & protocol::kHoldSet) == 0) return;
  if (protocol::hold_epoch(share.hold_word) != event.epoch) return;
  process->acks = static_cast<std::uint8_t>(process->acks & ~(1U << share.index));
  state.room_dirty = true;
}

bool move_awaited(const State& state, ProcessId id, std::uint32_t gpu_index, std::uint32_t word) {
  const auto it = state.processes.find(id);
  if (it == state.processes.end() || gpu_index >= it->second->shares.size()) return false;
  if (word != it->second->shares[gpu_index].hold_word) return false;
  const auto bit = 1U << gpu_index;
  const Process* process = process_find(*it->second, id);
  // An order is for what has acknowledged the hold.
  return process != nullptr && (process->moves & bit) != 0 && (process->acks & bit) == 0;
}

void move_done(State& state, const MoveDone& event) {
  Tenant* tenant = nullptr;
  Process* process = process_of(state, event.process, event.gpu_index, &tenant);
  if (process == nullptr) return;
  if (!move_awaited(state, event.process, event.gpu_index, event.word)) return;
  Share& share = tenant->shares[event.gpu_index];
  process->moves = static_cast<std::uint8_t>(process->moves & ~(1U << share.index));
  state.room_dirty = true;
  if (event.result != 0) {
    const bool known = tenant->order_result != 0 && tenant->order_result != protocol::kMovedNoRoom;
    if (!known) tenant->order_result = event.result;
    return;
  }
  const bool out = (event.word & protocol::kHoldOut) != 0;
  (out ? share.moved_out_bytes : share.moved_in_bytes) += event.bytes;
}

void hold_joined(Tenant& tenant, Process& process) {
  const Share& share = tenant.shares.front();
  if ((share.hold_word & protocol::kHoldSet) == 0) return;
  process.acks = all_bits(tenant);
  if ((share.hold_word & (protocol::kHoldOut | protocol::kHoldIn)) != 0)
    process.moves = all_bits(tenant);
}

}  // namespace sluice::core

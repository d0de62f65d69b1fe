// Holds and moves.
//
//   kIn -> kLeaving -> kHeld -> kSwappingOut   -> kOut -> kSwappingIn ----------------> kIn
//                           \-> kCheckpointing -/     \-> kRestoring (-> kSwappingIn) -/
//
// A tenant is moved whole: one with several GPUs is held on all of them, since it could not run
// with one of them missing. Each step waits for every process that lives: nothing is ordered before
// all have acknowledged the hold, and nobody is believed to be out or in before all have said so.
// Who dies is no longer waited for, who joins is. The lease is closed first and cannot be opened
// before the hold is cleared.
//
// What fails is undone: those that had moved are ordered back, the hold is cleared, and the tenant
// is left alone for a while that doubles each time; after three failures in a row only its own
// user's command makes it try again. What fails on the way in goes back out and is tried again,
// ever more rarely: there is no other way forward for it. That somebody else's allocation was
// quicker than its own is no failure: it goes back out and keeps its place in the queue for room.
// Where undoing fails too the tenant counts as out, with what it has on the GPU counted there.
#include "broker/core/stay.h"

#include <algorithm>
#include <cassert>

#include "broker/core/aside.h"
#include "broker/core/command.h"
#include "broker/core/lease.h"
#include "broker/core/memory.h"
#include "broker/core/schedule.h"
#include "broker/core/texts.h"
#include "broker/protocol/messages.h"
#include "broker/protocol/pages.h"

namespace sluice::core {
namespace {

constexpr int kBackoffDoublingsMax = 6;
constexpr Nanos kBackoffMinNs = 10'000'000;  // of a policy without a swap quantum

std::uint8_t all_bits(const Tenant& tenant) {
  return static_cast<std::uint8_t>((1U << tenant.shares.size()) - 1);
}

bool acks_pending(const Tenant& tenant) {
  return std::ranges::any_of(tenant.processes, [](const Process& p) { return p.acks != 0; });
}
bool moves_pending(const Tenant& tenant) {
  return std::ranges::any_of(tenant.processes, [](const Process& p) { return p.moves != 0; });
}

Nanos backoff(const State& state, const Tenant& tenant) {
  const int doublings = std::min(static_cast<int>(tenant.move_failures) - 1, kBackoffDoublingsMax);
  return std::max(state.policy.swap_quantum_ns, kBackoffMinNs) << std::max(doublings, 0);
}

void word_set(Share& share, std::uint32_t epoch, std::uint32_t flags, Actions& out) {
  share.hold_word = protocol::hold_word(epoch, flags);
  out.emplace_back(HoldSet{share.tenant->id, share.index, share.hold_word});
}

/// A new hold, or the one in force with another epoch: everybody has to acknowledge it.
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

/// It may run again.
void stay_in(State& state, Tenant& tenant, Nanos now) {
  tenant.residence = Residence::kIn;
  if (tenant.yields) aside_rest(tenant, tenant.hold_since, now);
  tenant.yields = false;
  tenant.reverting = false;
  tenant.order_result = 0;
  tenant.back_since = 0;
  tenant.in_since = now;
  tenant.idle_since = now;
  state.room_dirty = true;
  tenant_waiting_update(state, tenant, now);
}

/// All reasons to go out are dropped, and those who gave them are told.
void reasons_drop(State& state, Tenant& tenant, RefusalCode code, const std::string& text,
                  Nanos now, Actions& out) {
  tenant.victim = false;
  tenant.steps_aside = false;
  tenant.yields = false;
  tenant.move_to = kNoGpu;
  if (tenant.suspended && tenant.residence != Residence::kOut) tenant.suspended = false;
  commands_fail(state, tenant, code, text, now, out);
  state.queue_dirty = true;
}

void failure_count(const State& state, Tenant& tenant, const std::string& text, Nanos now,
                   Actions& out) {
  ++tenant.move_failures;
  ++tenant.moves_failed;
  tenant.retry_at = now + backoff(state, tenant);
  out.emplace_back(MoveFailed{tenant.id, 0, tenant.move_failures, text});
}

/// It stays where it is.
void give_up(State& state, Tenant& tenant, RefusalCode code, const std::string& text, Nanos now,
             Actions& out) {
  failure_count(state, tenant, text, now, out);
  if (code == RefusalCode::kHostMemoryLimit) --tenant.move_failures;  // not its own failure
  const bool held = tenant.residence != Residence::kLeaving;
  reasons_drop(state, tenant, code, text, now, out);
  if (held) hold_clear(state, tenant, now, out);
  stay_in(state, tenant, now);
  if (held) stay_note(tenant, out);
}

void order(Tenant& tenant, std::uint32_t flag, Residence residence, Nanos now, Actions& out) {
  for (Share& share : tenant.shares) {
    assert((share.hold_word & protocol::kHoldSet) != 0 && "orders are for who is held");
    word_set(share, protocol::hold_epoch(share.hold_word), protocol::kHoldSet | flag, out);
  }
  for (Process& process : tenant.processes) {
    assert(process.acks == 0 && "nothing is ordered without every acknowledgement");
    process.moves = all_bits(tenant);
  }
  tenant.residence = residence;
  tenant.order_result = 0;
  tenant.step_since = now;
}

bool ordered(const Tenant& tenant, std::uint32_t flag) {
  return (tenant.shares.front().hold_word & flag) != 0;
}

void order_in(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (ordered(tenant, protocol::kHoldIn)) {  // the same word again would be no news
    hold_set(tenant, now, out);
    tenant.residence = Residence::kOut;
    state.room_dirty = true;
    return;
  }
  order(tenant, protocol::kHoldIn, Residence::kSwappingIn, now, out);
}

void checkpoint_order(const State& state, Tenant& tenant, Nanos now, Actions& out) {
  CheckpointWanted action{tenant.id, CheckpointStep::kOut, {}};
  for (const Share& share : tenant.shares) {
    const GpuUuid& uuid = state.gpus[share.gpu]->uuid;
    action.gpus.push_back({uuid, uuid});
  }
  tenant.restore_to = action.gpus;
  tenant.residence = Residence::kCheckpointing;
  tenant.step_since = now;
  out.emplace_back(std::move(action));
}

/// By the driver's checkpoint, not by swap.
bool freezes(const Tenant& tenant) { return !tenant.swap || tenant.move_to != kNoGpu; }

/// All have acknowledged: out with it, as far as its user's host memory allows.
void held_decide(State& state, Tenant& tenant, Nanos now, Actions& out) {
  const bool freeze = freezes(tenant);
  const Bytes more = stay_host_cost(tenant);
  if (more > host_room(state, tenant.uid)) {
    give_up(state, tenant, RefusalCode::kHostMemoryLimit,
            host_limit_text(tenant.uid, more, state.policy.swap_host_bytes_per_user), now, out);
    return;
  }
  for (Share& share : tenant.shares) host_charge(state, share, freeze ? share.held : share.movable);
  if (freeze)
    checkpoint_order(state, tenant, now, out);
  else
    order(tenant, protocol::kHoldOut, Residence::kSwappingOut, now, out);
  stay_note(tenant, out);
}

void out_reached(State& state, Tenant& tenant, Nanos now) {
  tenant.residence = Residence::kOut;
  tenant.reverting = false;
  tenant.victim = false;
  tenant.out_since = now;
  tenant.moves++;
  for (Share& share : tenant.shares)
    host_charge(state, share, tenant.frozen ? share.held : share.swapped);
  state.room_dirty = state.queue_dirty = true;
}

void swapped_out(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (tenant.order_result == 0) {
    if (!tenant.reverting) tenant.move_failures = 0;
    out_reached(state, tenant, now);
    return;
  }
  if (tenant.reverting) {  // neither in nor out as a whole
    tenant.due_back = true;
    out_reached(state, tenant, now);
    return;
  }
  tenant.reverting = true;
  order(tenant, protocol::kHoldIn, Residence::kSwappingIn, now, out);
}

void swapped_in(State& state, Tenant& tenant, Nanos now, Actions& out) {
  const bool reverting = tenant.reverting;
  if (tenant.order_result == 0) {
    if (reverting) {
      give_up(state, tenant, RefusalCode::kCannotMove,
              "its memory could not be moved to the host, and is where it was", now, out);
      return;
    }
    tenant.move_failures = 0;
    tenant.due_back = false;
    hold_clear(state, tenant, now, out);
    stay_in(state, tenant, now);
    stay_note(tenant, out);
    commands_look(state, tenant, now, out);
    return;
  }
  if (reverting || tenant.order_result != protocol::kMovedNoRoom)
    failure_count(state, tenant, "its memory could not be brought back; it is tried again", now,
                  out);
  if (!reverting) {
    for (Share& share : tenant.shares) gpu_surprise(state, *state.gpus[share.gpu], 0, now);
    tenant.reverting = true;
    tenant.due_back = true;
    order(tenant, protocol::kHoldOut, Residence::kSwappingOut, now, out);
    return;
  }
  reasons_drop(state, tenant, RefusalCode::kCannotMove, "its memory could not be moved to the host",
               now, out);
  tenant.due_back = true;
  out_reached(state, tenant, now);
}

/// Out, and to be on another GPU.
void out_move(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (!tenant.frozen) {
    if (acks_pending(tenant) || moves_pending(tenant)) return;
    Bytes more = 0;
    for (const Share& share : tenant.shares) more += share.held - share.swapped;
    if (more > host_room(state, tenant.uid)) {
      reasons_drop(state, tenant, RefusalCode::kHostMemoryLimit,
                   host_limit_text(tenant.uid, more, state.policy.swap_host_bytes_per_user), now,
                   out);
      return;
    }
    for (Share& share : tenant.shares) host_charge(state, share, share.held);
    checkpoint_order(state, tenant, now, out);
    return;
  }
  const std::uint32_t to = tenant.move_to;
  tenant.move_to = kNoGpu;
  const TenantRefused refusal = move_refusal(state, tenant, to);
  if (refusal.code != RefusalCode::kNone) {
    tenant.yields = false;  // it may be asked to go elsewhere, or aside
    commands_fail(state, tenant, refusal.code, refusal.text, now, out);
  } else {
    Share& share = tenant.shares.front();
    const GpuUuid from = state.gpus[share.gpu]->uuid;
    share_switch(state, share, to, out);
    tenant.restore_to.front().to = state.gpus[to]->uuid;
    out.emplace_back(TenantMoved{tenant.id, share.index, from, state.gpus[to]->uuid});
    stay_note(tenant, out);
  }
  if (!tenant.suspended) tenant.due_back = true;
  state.room_dirty = state.queue_dirty = true;
}

/// What its leaving costs is decided by what it has now, not by what it had when it was asked to.
bool claims_fresh(State& state, const Tenant& tenant, Nanos now, Actions& out) {
  bool fresh = true;
  if (state.policy.swap_host_bytes_per_user == 0) return fresh;
  for (const Share& share : tenant.shares)
    fresh = gpu_look(state, *state.gpus[share.gpu], kFreshNs, now, out) && fresh;
  return fresh;
}

/// Host memory that its user may still fill when those are out that are held already.
Bytes host_room_beside_held(const State& state, const Tenant& tenant) {
  Bytes left = host_room(state, tenant.uid);
  for (const Tenant* other : state.moving)
    if (other->uid == tenant.uid && other->residence == Residence::kHeld)
      left -= std::min(left, stay_host_cost(*other));
  return left;
}

/// Nobody is held for what cannot be: it goes on where it is, and has not failed.
void leave_refused(State& state, Tenant& tenant, Bytes more, Nanos now, Actions& out) {
  tenant.retry_at = now + backoff(state, tenant);
  reasons_drop(state, tenant, RefusalCode::kHostMemoryLimit,
               host_limit_text(tenant.uid, more, state.policy.swap_host_bytes_per_user), now, out);
  stay_in(state, tenant, now);
}

void leaving_decide(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (!stay_out_wanted(tenant)) {
    stay_in(state, tenant, now);
    return;
  }
  if (tenant.phase == Phase::kRunaway) {
    give_up(state, tenant, RefusalCode::kCannotMove,
            "a kernel of it runs and does not end, so its memory cannot be moved", now, out);
    return;
  }
  if (tenant.phase == Phase::kOpen) lease_close(state, tenant, now, out);
  if (tenant.phase != Phase::kClosed || !claims_fresh(state, tenant, now, out)) return;
  if (const Bytes more = stay_host_cost(tenant); more > host_room_beside_held(state, tenant)) {
    leave_refused(state, tenant, more, now, out);
    return;
  }
  tenant.residence = Residence::kHeld;
  tenant.hold_since = now;
  hold_set(tenant, now, out);
}

void held_look(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (!stay_out_wanted(tenant)) {
    hold_clear(state, tenant, now, out);
    stay_in(state, tenant, now);
  } else if (!acks_pending(tenant)) {
    held_decide(state, tenant, now, out);
  } else if (now >= tenant.step_since + state.policy.hold_timeout_ns) {
    give_up(state, tenant, RefusalCode::kCannotMove,
            "a process of it has not stopped using the GPU for " +
                duration_text(now - tenant.step_since) +
                " (a call of it does not return, or it is stopped)",
            now, out);
  }
}

void out_look(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (tenant.move_to != kNoGpu) {
    out_move(state, tenant, now, out);
    return;
  }
  commands_look(state, tenant, now, out);
}

/// One decision. True = something changed, look again.
bool stay_decide(State& state, Tenant& tenant, Nanos now, Actions& out) {
  const Residence before = tenant.residence;
  switch (before) {
    case Residence::kIn:
      if (!stay_out_wanted(tenant)) return false;
      tenant.residence = Residence::kLeaving;
      tenant_waiting_update(state, tenant, now);
      return true;
    case Residence::kLeaving:
      leaving_decide(state, tenant, now, out);
      break;
    case Residence::kHeld:
      held_look(state, tenant, now, out);
      break;
    case Residence::kSwappingOut:
      if (!moves_pending(tenant)) swapped_out(state, tenant, now, out);
      break;
    case Residence::kSwappingIn:
      if (!moves_pending(tenant)) swapped_in(state, tenant, now, out);
      break;
    case Residence::kOut:
      out_look(state, tenant, now, out);
      break;
    case Residence::kCheckpointing:
    case Residence::kRestoring:
      break;
  }
  return tenant.residence != before;
}

void frozen_out(State& state, Tenant& tenant, const CheckpointDone& event, Nanos now,
                Actions& out) {
  const bool was_out =
      ordered(tenant, protocol::kHoldOut) ||
      std::ranges::any_of(tenant.shares, [](const Share& s) { return s.swapped > 0; });
  if (event.ok) {
    tenant.frozen = true;
    tenant.move_failures = 0;
    out_reached(state, tenant, now);
    stay_note(tenant, out);
    return;
  }
  const std::string text = "the driver's checkpoint failed: " + event.text;
  if (!event.undone) {  // some are still in it: all wait in the hold until these are back
    tenant.frozen = true;
    tenant.suspended = false;
    out_reached(state, tenant, now);
    failure_count(state, tenant, text, now, out);
    reasons_drop(state, tenant, RefusalCode::kCannotMove, text, now, out);
    tenant.due_back = true;
    stay_note(tenant, out);
    return;
  }
  if (!was_out) {
    give_up(state, tenant, RefusalCode::kCannotMove, text, now, out);
    return;
  }
  out_reached(state, tenant, now);  // its memory is in the host all the same
  failure_count(state, tenant, text, now, out);
  reasons_drop(state, tenant, RefusalCode::kCannotMove, text, now, out);
  if (!tenant.suspended) tenant.due_back = true;
}

void thawed(State& state, Tenant& tenant, const CheckpointDone& event, Nanos now, Actions& out) {
  if (!event.ok) {
    const std::string text = "the driver's restore failed: " + event.text;
    tenant.residence = Residence::kOut;
    tenant.due_back = true;
    failure_count(state, tenant, text, now, out);
    commands_fail(state, tenant, RefusalCode::kCannotMove, text, now, out);
    state.room_dirty = true;
    return;
  }
  tenant.frozen = false;
  tenant.move_failures = 0;
  if (!event.lost.empty()) {  // the others go on
    const std::string text = "the driver has lost a part of it: " + event.text;
    failure_count(state, tenant, text, now, out);
    commands_fail(state, tenant, RefusalCode::kCannotMove, text, now, out);
  }
  for (Share& share : tenant.shares) host_charge(state, share, share.swapped);
  const bool swapped =
      std::ranges::any_of(tenant.shares, [](const Share& s) { return s.swapped > 0; });
  if (swapped || ordered(tenant, protocol::kHoldOut)) {
    order_in(state, tenant, now, out);
    stay_note(tenant, out);
    return;
  }
  tenant.due_back = false;
  hold_clear(state, tenant, now, out);
  stay_in(state, tenant, now);
  stay_note(tenant, out);
  commands_look(state, tenant, now, out);
}

Process* process_of(State& state, ProcessId id, std::uint32_t index, Tenant** tenant) {
  auto it = state.processes.find(id);
  if (it == state.processes.end() || index >= it->second->shares.size()) return nullptr;
  *tenant = it->second;
  return process_find(**tenant, id);
}

}  // namespace

void stay_note(const Tenant& tenant, Actions& out) {
  const bool out_now = tenant.residence != Residence::kIn;
  const bool frozen = tenant.frozen || tenant.residence == Residence::kCheckpointing;
  StayNoted action{tenant.id, tenant.suspended, out_now && tenant.swap, frozen, {}};
  const bool moved = std::ranges::any_of(
      tenant.restore_to, [](const GpuMove& move) { return !(move.from == move.to); });
  if (frozen && moved)
    for (const GpuMove& move : tenant.restore_to) action.frozen_on.push_back(move.from);
  out.emplace_back(std::move(action));
}

bool stay_out_wanted(const Tenant& tenant) {
  return tenant.victim || tenant.suspended || tenant.steps_aside || tenant_aside_by(tenant) != 0 ||
         tenant.move_to != kNoGpu;
}

bool stay_back_wanted(const State& state, const Tenant& tenant) {
  if (tenant.residence != Residence::kOut || stay_out_wanted(tenant)) return false;
  if (tenant.restored && tenant.processes.empty()) return false;  // they have yet to come
  if (tenant.due_back || tenant_wants(tenant) != 0) return true;
  return std::ranges::any_of(
      state.wants, [&](const Want& want) { return want.tenant == tenant.id && !want.back; });
}

bool stay_lost(const Tenant& tenant) {
  return std::ranges::any_of(tenant.processes, [](const Process& p) { return p.lost; });
}

bool stay_stuck(const State& state, const Tenant& tenant, Nanos now) {
  return now >= tenant.step_since + state.policy.move_timeout_ns;
}

Bytes stay_host_cost(const Tenant& tenant) {
  Bytes bytes = 0;
  for (const Share& share : tenant.shares)
    bytes += freezes(tenant) ? share.held - share.swapped : share_movable(share);
  return bytes;
}

Bytes stay_host_due(const Tenant& tenant) {
  const bool charged = tenant.residence != Residence::kIn &&
                       tenant.residence != Residence::kLeaving &&
                       tenant.residence != Residence::kHeld;
  return charged || !stay_out_wanted(tenant) ? 0 : stay_host_cost(tenant);
}

Bytes stay_host_left(const State& state, std::uint32_t uid) {
  Bytes left = host_room(state, uid);
  for (const Tenant* tenant : state.moving)
    if (tenant->uid == uid) left -= std::min(left, stay_host_due(*tenant));
  return left;
}

Bytes stay_leaving(const State& state, const Share& share, Nanos now) {
  const Tenant& tenant = *share.tenant;
  const bool freeze = freezes(tenant);
  switch (tenant.residence) {
    case Residence::kIn:
    case Residence::kLeaving:
    case Residence::kHeld:
      if (!stay_out_wanted(tenant)) return 0;
      return freeze ? share.held : share_movable(share);
    case Residence::kSwappingOut:
      return stay_stuck(state, tenant, now) ? 0 : share_movable(share);
    case Residence::kCheckpointing:
      return stay_stuck(state, tenant, now) ? 0 : share_on_gpu(share);
    default:
      return 0;
  }
}

void stay_look(State& state, Tenant& tenant) {
  if (std::ranges::find(state.moving, &tenant) == state.moving.end())
    state.moving.push_back(&tenant);
}

void stays_decide(State& state, Nanos now, Actions& out) {
  constexpr int kStepsMax = 16;  // a tenant without processes goes through all of them at once
  for (std::size_t i = 0; i < state.moving.size(); ++i) {
    Tenant& tenant = *state.moving[i];
    for (int steps = 0; stay_decide(state, tenant, now, out); ++steps)
      assert(steps < kStepsMax && "moves settle");
  }
  std::erase_if(state.moving, [](const Tenant* tenant) {
    return tenant->residence == Residence::kIn && !stay_out_wanted(*tenant);
  });
}

Nanos stays_at(const State& state, Nanos now) {
  Nanos at = kNever;
  auto consider = [&](Nanos when) {
    if (when > now) at = std::min(at, when);
  };
  for (const Tenant* tenant : state.moving) {
    if (tenant->residence == Residence::kHeld)
      consider(tenant->step_since + state.policy.hold_timeout_ns);
    if (tenant->residence == Residence::kSwappingOut ||
        tenant->residence == Residence::kCheckpointing)
      consider(tenant->step_since + state.policy.move_timeout_ns);
    if (tenant->residence == Residence::kOut) consider(tenant->retry_at);
  }
  return at;
}

void stay_return(State& state, Tenant& tenant, Nanos now, Actions& out) {
  assert(tenant.residence == Residence::kOut && !stay_out_wanted(tenant));
  assert(!acks_pending(tenant) && !moves_pending(tenant));
  if (!tenant.frozen) {
    order_in(state, tenant, now, out);
    return;
  }
  tenant.residence = Residence::kRestoring;
  tenant.step_since = now;
  out.emplace_back(CheckpointWanted{tenant.id, CheckpointStep::kBack, tenant.restore_to});
}

void stay_restore(State& state, Tenant& tenant, const std::vector<GpuUuid>& frozen_on, Nanos now,
                  Actions& out) {
  tenant.residence = Residence::kHeld;
  tenant.hold_since = tenant.out_since = now;
  hold_set(tenant, now, out);
  tenant.residence = Residence::kOut;
  // Who is in the driver's checkpoint could move nothing: its calls would not return.
  if (!tenant.frozen) order(tenant, protocol::kHoldOut, Residence::kOut, now, out);
  for (const Share& share : tenant.shares) {
    const GpuUuid& uuid = state.gpus[share.gpu]->uuid;
    const bool elsewhere = share.index < frozen_on.size();
    tenant.restore_to.push_back({elsewhere ? frozen_on[share.index] : uuid, uuid});
  }
  stay_look(state, tenant);
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

void move_done(State& state, const MoveDone& event) {
  Tenant* tenant = nullptr;
  Process* process = process_of(state, event.process, event.gpu_index, &tenant);
  if (process == nullptr) return;
  Share& share = tenant->shares[event.gpu_index];
  const auto bit = static_cast<std::uint8_t>(1U << share.index);
  if (event.word != share.hold_word || (process->moves & bit) == 0) return;
  if ((process->acks & bit) != 0) return;  // an order is for who has acknowledged
  process->moves = static_cast<std::uint8_t>(process->moves & ~bit);
  state.room_dirty = true;
  if (event.result != 0) {
    const bool known = tenant->order_result != 0 && tenant->order_result != protocol::kMovedNoRoom;
    if (!known) tenant->order_result = event.result;
    return;
  }
  const bool out = (event.word & protocol::kHoldOut) != 0;
  (out ? share.moved_out_bytes : share.moved_in_bytes) += event.bytes;
}

void checkpoint_done(State& state, const CheckpointDone& event, Nanos now, Actions& out) {
  Tenant* tenant = tenant_find(state, event.tenant);
  if (tenant == nullptr) return;
  for (const ProcessId id : event.lost)
    if (Process* process = process_find(*tenant, id)) process->lost = true;
  if (event.step == CheckpointStep::kOut && tenant->residence == Residence::kCheckpointing)
    frozen_out(state, *tenant, event, now, out);
  else if (event.step == CheckpointStep::kBack && tenant->residence == Residence::kRestoring)
    thawed(state, *tenant, event, now, out);
}

void stay_joined(Tenant& tenant, Process& process) {
  const Share& share = tenant.shares.front();
  if ((share.hold_word & protocol::kHoldSet) == 0) return;
  process.acks = all_bits(tenant);
  if ((share.hold_word & (protocol::kHoldOut | protocol::kHoldIn)) != 0)
    process.moves = all_bits(tenant);
}

void stay_forget(State& state, Tenant& tenant) {
  std::erase(state.moving, &tenant);
  for (Share& share : tenant.shares) host_charge(state, share, 0);
  if (tenant.residence != Residence::kIn || tenant.steps_aside) state.queue_dirty = true;
}

}  // namespace sluice::core

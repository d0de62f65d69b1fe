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

#include "broker/core/arrive.h"
#include "broker/core/command.h"
#include "broker/core/freeze.h"
#include "broker/core/hold.h"
#include "broker/core/lease.h"
#include "broker/core/leaving.h"
#include "broker/core/memory.h"
#include "broker/core/schedule.h"
#include "broker/core/texts.h"
#include "broker/core/vacate.h"
#include "broker/protocol/messages.h"
#include "broker/protocol/pages.h"

namespace sluice::core {
namespace {

/// All have acknowledged: out with it, as far as its user's host memory allows.
void held_decide(State& state, Tenant& tenant, Nanos now, Actions& out) {
  const bool freezes = stay_freezes(tenant);
  const Bytes more = stay_host_cost(tenant);
  if (more > host_room(state, tenant.uid)) {
    stay_given_up(state, tenant, RefusalCode::kHostMemoryLimit,
                  host_limit_text(tenant.uid, more, state.policy.swap_host_bytes_per_user), now,
                  out);
    return;
  }
  for (Share& share : tenant.shares)
    host_charge(state, share, freezes ? share_freezable(share) : share.movable);
  if (freezes)
    freeze(state, tenant, now, out);
  else
    hold_order(tenant, protocol::kHoldOut, Residence::kSwappingOut, now, out);
  stay_note(tenant, out);
}

void swapped_out(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (tenant.order_result == 0) {
    if (!tenant.reverting) tenant.move_failures = 0;
    stay_out(state, tenant, now);
    stay_note(tenant, out);
    return;
  }
  if (tenant.reverting) {  // neither in nor out as a whole
    tenant.due_back = true;
    stay_out(state, tenant, now);
    return;
  }
  tenant.reverting = true;
  hold_order(tenant, protocol::kHoldIn, Residence::kSwappingIn, now, out);
}

void swapped_in(State& state, Tenant& tenant, Nanos now, Actions& out) {
  const bool reverting = tenant.reverting;
  if (tenant.order_result == 0) {
    if (reverting) {
      stay_given_up(state, tenant, RefusalCode::kCannotMove,
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
    hold_order(tenant, protocol::kHoldOut, Residence::kSwappingOut, now, out);
    return;
  }
  reasons_drop(state, tenant, RefusalCode::kCannotMove, "its memory could not be moved to the host",
               now, out);
  tenant.due_back = true;
  stay_out(state, tenant, now);
}

/// What its leaving costs is decided by what it has now, not by what it had when it was asked to.
bool claims_fresh(State& state, const Tenant& tenant, Nanos now, Actions& out) {
  bool fresh = true;
  if (state.policy.swap_host_bytes_per_user == 0) return fresh;
  for (const Share& share : tenant.shares)
    fresh = gpu_look(state, *state.gpus[share.gpu], kFreshNs, now, out) && fresh;
  return fresh;
}

/// Nobody is held for what cannot be: it goes on where it is, and has not failed.
void leave_refused(State& state, Tenant& tenant, Bytes more, Nanos now, Actions& out) {
  tenant.retry_at = now + failure_pause(state, tenant);
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
    stay_given_up(
        state, tenant, RefusalCode::kCannotMove,
        "a kernel of it runs and does not end, or a process of it is stopped, so its memory "
        "cannot be moved",
        now, out);
    return;
  }
  if (tenant.phase == Phase::kOpen) lease_close(state, tenant, now, out);
  if (tenant.phase != Phase::kClosed || !claims_fresh(state, tenant, now, out)) return;
  if (const Bytes more = stay_host_cost(tenant); more > stay_host_beside_held(state, tenant)) {
    leave_refused(state, tenant, more, now, out);
    return;
  }
  residence_set(tenant, Residence::kHeld, now);
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
    stay_given_up(state, tenant, RefusalCode::kCannotMove,
                  "a process of it has not stopped using the GPU for " +
                      duration_text(now - tenant.step_since) +
                      " (a call of it does not return, or it is stopped)",
                  now, out);
  }
}

void out_look(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (tenant.move_to != kNoGpu) {
    frozen_move(state, tenant, now, out);
    return;
  }
  vacate_look(state, tenant, now, out);
  commands_look(state, tenant, now, out);
}

/// One decision. True = something changed, look again.
bool stay_decide(State& state, Tenant& tenant, Nanos now, Actions& out) {
  const Residence before = tenant.residence;
  rest_look(state, tenant);
  switch (before) {
    case Residence::kIn:
      if (!stay_out_wanted(tenant)) return false;
      residence_set(tenant, Residence::kLeaving, now);
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

}  // namespace

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

void stay_swap_in(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (hold_ordered(tenant, protocol::kHoldIn)) {  // the same word again would be no news
    hold_set(tenant, now, out);
    residence_set(tenant, Residence::kOut, now);
    state.room_dirty = true;
    return;
  }
  hold_order(tenant, protocol::kHoldIn, Residence::kSwappingIn, now, out);
}

void stay_return(State& state, Tenant& tenant, Nanos now, Actions& out) {
  assert(tenant.residence == Residence::kOut && !stay_out_wanted(tenant));
  assert(tenant.frozen || (!acks_pending(tenant) && !moves_pending(tenant)));
  if (!tenant.frozen) {
    stay_swap_in(state, tenant, now, out);
    return;
  }
  thaw(tenant, now, out);
}

void stay_restore(State& state, Tenant& tenant, const std::vector<GpuUuid>& frozen_on, Nanos now,
                  Actions& out) {
  residence_set(tenant, Residence::kHeld, now);
  tenant.hold_since = tenant.out_since = now;
  hold_set(tenant, now, out);
  residence_set(tenant, Residence::kOut, now);
  // Who is in the driver's checkpoint could move nothing: its calls would not return.
  if (!tenant.frozen) hold_order(tenant, protocol::kHoldOut, Residence::kOut, now, out);
  for (const Share& share : tenant.shares) {
    const GpuUuid& uuid = state.gpus[share.gpu]->uuid;
    const bool elsewhere = share.index < frozen_on.size();
    tenant.restore_to.push_back({elsewhere ? frozen_on[share.index] : uuid, uuid});
  }
  stay_look(state, tenant);
}

void stay_forget(State& state, Tenant& tenant) {
  std::erase(state.moving, &tenant);
  for (Share& share : tenant.shares) host_charge(state, share, 0);
  if (tenant.residence != Residence::kIn || tenant.steps_aside) state.queue_dirty = true;
}

}  // namespace sluice::core

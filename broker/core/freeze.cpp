// What swap does not reach: a tenant that is not swappable, or is to be on another GPU.
//
// The helper program takes all processes of the tenant or puts back those that it has taken. Who
// could not be put back keeps the whole tenant in its hold until a restore has brought it back; who
// is lost is waited for by nobody.
#include "broker/core/freeze.h"

#include <algorithm>

#include "broker/core/arrive.h"
#include "broker/core/command.h"
#include "broker/core/hold.h"
#include "broker/core/memory.h"
#include "broker/core/stay.h"
#include "broker/core/texts.h"
#include "broker/protocol/pages.h"

namespace sluice::core {
namespace {

void frozen_out(State& state, Tenant& tenant, const CheckpointDone& event, Nanos now,
                Actions& out) {
  const bool was_out =
      hold_ordered(tenant, protocol::kHoldOut) ||
      std::ranges::any_of(tenant.shares, [](const Share& s) { return s.swapped > 0; });
  if (event.ok) {
    tenant.frozen = true;
    tenant.move_failures = 0;
    stay_out(state, tenant, now);
    stay_note(tenant, out);
    return;
  }
  const std::string text = "the driver's checkpoint failed: " + event.text;
  if (!event.undone) {  // some are still in it: all wait in the hold until these are back
    tenant.frozen = true;
    tenant.suspended = false;
    stay_out(state, tenant, now);
    failure_count(state, tenant, text, now, out);
    reasons_drop(state, tenant, RefusalCode::kCannotMove, text, now, out);
    tenant.due_back = true;
    stay_note(tenant, out);
    return;
  }
  if (!was_out) {
    stay_given_up(state, tenant, RefusalCode::kCannotMove, text, now, out);
    return;
  }
  stay_out(state, tenant, now);  // its memory is in the host all the same
  failure_count(state, tenant, text, now, out);
  reasons_drop(state, tenant, RefusalCode::kCannotMove, text, now, out);
  if (!tenant.suspended) tenant.due_back = true;
  stay_note(tenant, out);
}

void thawed(State& state, Tenant& tenant, const CheckpointDone& event, Nanos now, Actions& out) {
  if (!event.ok) {
    const std::string text = "the driver's restore failed: " + event.text;
    residence_set(tenant, Residence::kOut, now);
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
  if (swapped || hold_ordered(tenant, protocol::kHoldOut)) {
    if (acks_pending(tenant)) {  // of a broker that began meanwhile; then it is ordered in
      residence_set(tenant, Residence::kOut, now);
      tenant.due_back = state.room_dirty = true;
    } else {
      stay_swap_in(state, tenant, now, out);
    }
    stay_note(tenant, out);
    return;
  }
  tenant.due_back = false;
  hold_clear(state, tenant, now, out);
  stay_in(state, tenant, now);
  stay_note(tenant, out);
  commands_look(state, tenant, now, out);
}

}  // namespace

void freeze(const State& state, Tenant& tenant, Nanos now, Actions& out) {
  CheckpointWanted action{tenant.id, CheckpointStep::kOut, {}};
  for (const Share& share : tenant.shares) {
    const GpuUuid& uuid = state.gpus[share.gpu]->uuid;
    action.gpus.push_back({uuid, uuid});
  }
  tenant.restore_to = action.gpus;
  residence_set(tenant, Residence::kCheckpointing, now);
  tenant.step_since = now;
  out.emplace_back(std::move(action));
}

void frozen_move(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (!tenant.frozen) {
    if (acks_pending(tenant) || moves_pending(tenant)) return;
    Bytes more = 0;
    for (const Share& share : tenant.shares) more += share_freezable(share) - share.swapped;
    if (more > host_room(state, tenant.uid)) {
      reasons_drop(state, tenant, RefusalCode::kHostMemoryLimit,
                   host_limit_text(tenant.uid, more, state.policy.swap_host_bytes_per_user), now,
                   out);
      return;
    }
    for (Share& share : tenant.shares) host_charge(state, share, share_freezable(share));
    freeze(state, tenant, now, out);
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

void thaw(Tenant& tenant, Nanos now, Actions& out) {
  residence_set(tenant, Residence::kRestoring, now);
  tenant.step_since = now;
  out.emplace_back(CheckpointWanted{tenant.id, CheckpointStep::kBack, tenant.restore_to});
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

}  // namespace sluice::core

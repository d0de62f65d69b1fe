// Promises of jobs that are out for long.
//
// A job that is suspended by command, or that went out because it was idle, keeps no other job out:
// as soon as it is out, its promises of memory and time are taken off the books of its GPUs. What
// of it cannot be moved (contexts) is counted there as what it is (gpu_left). To come back it asks
// for the same GPUs again, before all new requests of the queue (admission.cpp), and its memory is
// brought back after that (room.cpp). It counts for the bounds of its user all the time.
#include "broker/core/vacate.h"

#include <algorithm>

#include "broker/core/admission.h"
#include "broker/core/arrive.h"
#include "broker/core/lease.h"
#include "broker/core/leaving.h"
#include "broker/core/memory.h"
#include "broker/core/schedule.h"
#include "broker/core/stay.h"

namespace sluice::core {
namespace {

void windows_of(State& state, const Tenant& tenant, Actions& out) {
  for (const Share& share : tenant.shares)
    windows_refresh(state, *state.gpus[share.gpu], false, out);
}

bool booked(const Tenant& tenant) {
  return std::ranges::all_of(tenant.shares, [](const Share& share) { return share.booked; });
}

void vacate(State& state, Tenant& tenant, Nanos now, Actions& out) {
  gangs_settle(state, now);
  tenant.vacated = true;
  tenant.aside_since = tenant.rest_until = 0;  // it is out for its own sake now
  for (Share& share : tenant.shares) share_unbook(state, share);
  gangs_reweigh(state);
  windows_of(state, tenant, out);
  state.queue_dirty = true;
}

}  // namespace

void tenant_idle(State& state, const TenantIdle& event, Nanos now) {
  Tenant* tenant = tenant_find(state, event.tenant);
  if (tenant == nullptr || !tenant->swap || tenant->exclusive() || tenant->released) return;
  if (stay_lost(*tenant) || tenant->phase == Phase::kRunaway || stay_wants(state, *tenant)) return;
  if (tenant->suspended || tenant->rests || now < tenant->retry_at) return;
  const bool in = tenant->residence == Residence::kIn;
  if (in && stay_host_cost(*tenant) > stay_host_left(state, tenant->uid)) return;
  tenant->rests = true;
  tenant->due_back = false;
  stay_look(state, *tenant);
  state.room_dirty = true;
}

void rest_look(const State& state, Tenant& tenant) {
  if (!tenant.rests || !stay_wants(state, tenant)) return;
  tenant.rests = false;
  tenant.due_back = true;
}

void vacate_look(State& state, Tenant& tenant, Nanos now, Actions& out) {
  const bool stays = stays_away(tenant);
  if (stays && !tenant.vacated && tenant.charged && booked(tenant)) vacate(state, tenant, now, out);
  if (!stays && tenant.vacated) queue_return(state, vacated_ask(state, tenant), now);
}

void vacated_return(State& state, Tenant& tenant, Nanos now, Actions& out) {
  gangs_settle(state, now);
  tenant.vacated = false;
  for (Share& share : tenant.shares) share_book(state, share);
  gangs_reweigh(state);
  windows_of(state, tenant, out);
  for (Share& share : tenant.shares) lease_window_renew(state, share, out);
  stay_note(tenant, out);
  state.room_dirty = true;
}

TenantAsked vacated_ask(const State& state, const Tenant& tenant) {
  TenantAsked ask;
  ask.returns = tenant.id;
  ask.uid = tenant.uid;
  ask.name = tenant.name;
  ask.group = tenant.group;
  ask.tenant_class = tenant.tenant_class;
  ask.sm_mode = tenant.sm_mode;
  ask.sm_percent = tenant.sm_percent;
  ask.sm_kind = tenant.sm_kind;
  ask.memory_max = tenant.swap ? tenant.memory_max : tenant.memory_most;
  ask.memory_min = tenant.memory_min;
  ask.swap = tenant.swap;
  ask.gpu_count = static_cast<std::uint32_t>(tenant.shares.size());
  for (const Share& share : tenant.shares) ask.pinned.push_back(state.gpus[share.gpu]->uuid);
  return ask;
}

void vacated_stays(State& state, const Tenant& tenant) {
  if (tenant.vacated) queue_return_gone(state, tenant.id);
}

}  // namespace sluice::core

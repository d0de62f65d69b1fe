// Reasons, and sums by them. Nothing here changes anything: who makes room (victims.cpp), who steps
// aside (aside.cpp) and how a tenant goes (stay.cpp) ask the same questions and get the same
// answers.
#include "broker/core/leaving.h"

#include <algorithm>

#include "broker/core/memory.h"

namespace sluice::core {

bool stay_out_wanted(const Tenant& tenant) {
  return tenant.victim || tenant.suspended || tenant.rests || tenant.vacated ||
         tenant.steps_aside || tenant_aside_by(tenant) != 0 || tenant.move_to != kNoGpu;
}

bool stays_away(const Tenant& tenant) {
  return tenant.suspended || tenant.rests || tenant.released;
}

bool stay_back_wanted(const State& state, const Tenant& tenant) {
  if (tenant.residence != Residence::kOut || stay_out_wanted(tenant)) return false;
  if (tenant.restored && tenant.processes.empty()) return false;  // they have yet to come
  return tenant.due_back || stay_wants(state, tenant);
}

bool stay_wants(const State& state, const Tenant& tenant) {
  return tenant_wants(tenant) != 0 || std::ranges::any_of(state.wants, [&](const Want& want) {
           return want.tenant == tenant.id && !want.back;
         });
}

bool stay_freezes(const Tenant& tenant) { return !tenant.swap || tenant.move_to != kNoGpu; }

bool stay_lost(const Tenant& tenant) {
  return std::ranges::any_of(tenant.processes, [](const Process& p) { return p.lost; });
}

bool stay_stuck(const State& state, const Tenant& tenant, Nanos now) {
  return now >= tenant.step_since + state.policy.move_timeout_ns;
}

Bytes stay_host_cost(const Tenant& tenant) {
  Bytes bytes = 0;
  for (const Share& share : tenant.shares)
    bytes += stay_freezes(tenant) ? share_freezable(share) - share.swapped : share_movable(share);
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

Bytes stay_host_beside_held(const State& state, const Tenant& tenant) {
  Bytes left = host_room(state, tenant.uid);
  for (const Tenant* other : state.moving)
    if (other->uid == tenant.uid && other->residence == Residence::kHeld)
      left -= std::min(left, stay_host_cost(*other));
  return left;
}

Bytes stay_leaving(const State& state, const Share& share, Nanos now) {
  const Tenant& tenant = *share.tenant;
  const bool freeze = stay_freezes(tenant);
  switch (tenant.residence) {
    case Residence::kIn:
    case Residence::kLeaving:
    case Residence::kHeld:
      if (!stay_out_wanted(tenant)) return 0;
      return freeze ? share_freezable(share) : share_movable(share);
    case Residence::kSwappingOut:
      return stay_stuck(state, tenant, now) ? 0 : share_movable(share);
    case Residence::kCheckpointing:
      return stay_stuck(state, tenant, now) ? 0 : share_on_gpu(share) - share.left;
    default:
      return 0;
  }
}

}  // namespace sluice::core

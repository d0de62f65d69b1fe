// Shared tenants step aside for whole-GPU use (Policy::exclusive_room = suspend).
//
// An exclusive request that waits keeps its GPUs (admission.cpp). Who runs there goes out, by swap
// or by the driver's checkpoint; who cannot is waited for. When all are out the request is
// admitted, and the promises of those who made room are taken off the books of these GPUs: nobody
// else can be promised that memory meanwhile, since the GPU is used whole. At its end they are
// booked again before anybody else is admitted, and come back. Whoever had to step aside is not
// asked again before it has had its GPU for as long as it was away (at most ten minutes), so that
// one exclusive job after the other cannot keep it out for good.
#include "broker/core/aside.h"

#include <algorithm>

#include "broker/core/lease.h"
#include "broker/core/schedule.h"
#include "broker/core/stay.h"

namespace sluice::core {
namespace {

constexpr Nanos kRestMaxNs = 600'000'000'000;

/// What is on its way into the host, or there, is charged or due already.
bool host_allows(const State& state, const Tenant& tenant) {
  return stay_out_wanted(tenant) || tenant.residence == Residence::kOut ||
         stay_host_cost(tenant) <= stay_host_left(state, tenant.uid);
}

bool may_step_aside(const State& state, const Tenant& tenant, Nanos now) {
  return host_allows(state, tenant) && !tenant.exclusive() && !tenant.steps_aside &&
         tenant.phase != Phase::kRunaway && tenant.move_failures < kMoveFailuresMax &&
         now >= tenant.retry_at && now >= tenant.rest_until;
}

bool asked_to(const State& state, const Tenant& tenant) {
  return std::ranges::any_of(tenant.shares,
                             [&](const Share& share) { return state.gpus[share.gpu]->step_aside; });
}

}  // namespace

bool aside_clear(const Gpu& gpu) {
  return std::ranges::all_of(gpu.shares, [](const Share* share) {
    const Tenant& tenant = *share->tenant;
    return tenant.residence == Residence::kOut &&
           (tenant.steps_aside || tenant_aside_by(tenant) != 0);
  });
}

void aside_decide(State& state, Nanos now) {
  for (Tenant* tenant : state.moving) {
    if (!tenant->steps_aside || asked_to(state, *tenant)) continue;
    tenant->steps_aside = false;
    tenant->due_back = true;
    state.room_dirty = true;
  }
  for (auto& gpu : state.gpus) {
    if (!gpu->step_aside) continue;
    for (Share* share : gpu->shares) {
      Tenant& tenant = *share->tenant;
      if (may_step_aside(state, tenant, now)) {
        tenant.steps_aside = true;
        stay_look(state, tenant);
        state.room_dirty = true;
        if (tenant.residence == Residence::kOut) state.queue_dirty = true;
      }
      const Nanos again = std::max(tenant.retry_at, tenant.rest_until);
      if (again > now) state.room_at = std::min(state.room_at, again);
    }
  }
}

void aside_take(State& state, Tenant& exclusive, Actions& out) {
  for (const Share& whole : exclusive.shares) {
    Gpu& gpu = *state.gpus[whole.gpu];
    const std::vector<Share*> others = gpu.shares;
    for (Share* share : others) {
      if (share->tenant == &exclusive) continue;
      share->aside_by = exclusive.id;
      share_unbook(state, *share);
    }
    gpu.step_aside = false;
    if (!others.empty()) windows_refresh(state, gpu, false, out);
  }
}

void aside_return(State& state, const Tenant& exclusive, Nanos now, Actions& out) {
  for (const Share& whole : exclusive.shares) {
    Gpu& gpu = *state.gpus[whole.gpu];
    const std::vector<Share*> candidates = gpu.unbooked;
    for (Share* share : candidates) {
      Tenant& tenant = *share->tenant;
      if (share->aside_by != exclusive.id) continue;
      share->aside_by = 0;
      share_book(state, *share);
      if (tenant_aside_by(tenant) != 0) continue;
      tenant.due_back = true;
      tenant.rest_until = now + std::min(now - tenant.out_since, kRestMaxNs);
      state.room_dirty = true;
    }
    windows_refresh(state, gpu, false, out);
  }
  gangs_reweigh(state);
}

}  // namespace sluice::core

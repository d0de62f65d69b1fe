// Shared tenants step aside for whole-GPU use (Policy::exclusive_room = suspend or move).
//
// An exclusive request that waits keeps its GPUs (admission.cpp). With `move` who runs there goes
// on, on another GPU: one that has room for its promise beside all that are promised, or on their
// way, there, and that nobody in the queue waits for. Who has no such GPU, or failed to get there,
// goes out as with `suspend`: by swap or by the driver's checkpoint; who cannot is waited for. When
// all are out the request is
// admitted, and the promises of those who made room are taken off the books of these GPUs: nobody
// else can be promised that memory meanwhile, since the GPU is used whole. At its end they are
// booked again before anybody else is admitted, and come back. Whoever had to step aside is not
// asked again before it has had its GPU for as long as it could not run because of that (at most
// ten minutes): from the request, which may have been withdrawn since, to its return, the copies
// included. So one exclusive job, or request, after the other cannot keep it out for good.
#include "broker/core/aside.h"

#include <algorithm>
#include <utility>

#include "broker/core/command.h"
#include "broker/core/lease.h"
#include "broker/core/leaving.h"
#include "broker/core/memory.h"
#include "broker/core/placement.h"
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
         !aside_goes(tenant) && tenant.phase != Phase::kRunaway && !stay_lost(tenant) &&
         tenant.move_failures < kMoveFailuresMax && now >= tenant.retry_at &&
         now >= tenant.rest_until;
}

/// Is there a promise left on the GPU beside those that are on their way to it?
bool promise_left(const State& state, const Tenant& tenant, std::uint32_t to) {
  const Gpu& gpu = *state.gpus[to];
  Bytes min = gpu.promised_min + gpu.returning + gpu_left(gpu) + tenant.promised;
  Bytes max = gpu.promised_max + tenant.memory_max;
  Bytes spread = std::max(spread_max(gpu), tenant.memory_most - tenant.promised);
  std::uint64_t guaranteed = gpu.guaranteed + guarantee_of(tenant);
  for (const Tenant* other : state.moving) {
    if (other->move_to != to) continue;
    min += other->promised;
    max += other->memory_max;
    spread = std::max(spread, other->memory_most - other->promised);
    guaranteed += guarantee_of(*other);
  }
  return guaranteed <= 100 && min + spread <= gpu.capacity &&
         max <= gpu.limit_max(state.policy.oversell_memory);
}

bool may_be_on(const State& state, const Tenant& tenant, std::uint32_t gpu) {
  return tenant.pinned.empty() ||
         std::ranges::find(tenant.pinned, state.gpus[gpu]->uuid) != tenant.pinned.end();
}

/// Where the tenant could go on, by the placement of its class, as at admission. Only a tenant
/// that is in gains by it: one that is out waits for its turn anyway.
std::uint32_t elsewhere(const State& state, const Tenant& tenant) {
  std::uint32_t best = kNoGpu;
  const bool goes = state.policy.exclusive_room == ExclusiveRoom::kMove &&
                    tenant.shares.size() == 1 && tenant.residence == Residence::kIn &&
                    !stay_out_wanted(tenant) && tenant.move_failures == 0 &&
                    tenant.shares.front().held <= stay_host_left(state, tenant.uid);
  for (std::uint32_t g = 0; goes && g < state.gpus.size(); ++g) {
    const bool waited_for = g < state.planned.size() && state.planned[g];
    if (waited_for || !may_be_on(state, tenant, g)) continue;
    if (move_refusal(state, tenant, g).code != RefusalCode::kNone) continue;
    if (tenant.shares.front().gpu == g || !promise_left(state, tenant, g)) continue;
    if (best == kNoGpu || placement_prefers(state, tenant.tenant_class, g, best)) best = g;
  }
  return best;
}

void step_aside(State& state, Tenant& tenant, Nanos now) {
  if (tenant.aside_since == 0) tenant.aside_since = now;
  tenant.move_to = elsewhere(state, tenant);
  tenant.yields = tenant.move_to != kNoGpu;
  tenant.steps_aside = !tenant.yields;
  stay_look(state, tenant);
  state.room_dirty = true;
  if (tenant.residence == Residence::kOut) state.queue_dirty = true;
}

/// The request is over. The tenant comes back, and rests, before it is asked for another one.
void aside_over(State& state, Tenant& tenant) {
  tenant.due_back = true;
  if (tenant.aside_since != 0) tenant.rest_until = kNever;
  state.room_dirty = true;
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
    const bool goes = aside_goes(*tenant);
    if ((!tenant->steps_aside && !goes) || asked_to(state, *tenant)) continue;
    tenant->steps_aside = tenant->yields = false;
    if (goes) tenant->move_to = kNoGpu;
    aside_over(state, *tenant);
  }
  for (auto& gpu : state.gpus) {
    if (!gpu->step_aside) continue;
    for (Share* share : gpu->shares) {
      Tenant& tenant = *share->tenant;
      if (may_step_aside(state, tenant, now)) step_aside(state, tenant, now);
      const Nanos again = std::max(tenant.retry_at, tenant.rest_until);
      if (again > now) state.room_at = std::min(state.room_at, again);
    }
  }
}

void aside_rest(Tenant& tenant, Nanos now) {
  const Nanos since = std::exchange(tenant.aside_since, 0);
  if (since != 0) tenant.rest_until = now + std::min(now - since, kRestMaxNs);
}

void aside_take(State& state, Tenant& exclusive, Actions& out) {
  for (const Share& whole : exclusive.shares) {
    Gpu& gpu = *state.gpus[whole.gpu];
    const std::vector<Share*> others = gpu.shares;
    for (Share* share : others) {
      if (share->tenant == &exclusive) continue;
      share->aside_by = exclusive.id;
      if (share->tenant->aside_since == 0) share->tenant->aside_since = state.now;
      share_unbook(state, *share);
    }
    gpu.step_aside = false;
    if (!others.empty()) windows_refresh(state, gpu, false, out);
  }
}

void aside_return(State& state, const Tenant& exclusive, Actions& out) {
  for (const Share& whole : exclusive.shares) {
    Gpu& gpu = *state.gpus[whole.gpu];
    const std::vector<Share*> candidates = gpu.unbooked;
    for (Share* share : candidates) {
      Tenant& tenant = *share->tenant;
      if (share->aside_by != exclusive.id) continue;
      share->aside_by = 0;
      share_book(state, *share);
      if (tenant_aside_by(tenant) == 0) aside_over(state, tenant);
    }
    windows_refresh(state, gpu, false, out);
    for (Share* share : gpu.shares) lease_window_renew(state, *share, out);
  }
  gangs_reweigh(state);
}

}  // namespace sluice::core

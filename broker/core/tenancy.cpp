// The beginning and the end of a tenant: everything that is counted for it at the first is returned
// at the last, by the same names, so that both are one page.
#include "broker/core/tenancy.h"

#include <algorithm>
#include <cassert>

#include "broker/core/aside.h"
#include "broker/core/command.h"
#include "broker/core/lease.h"
#include "broker/core/limits.h"
#include "broker/core/line.h"
#include "broker/core/memory.h"
#include "broker/core/room.h"
#include "broker/core/runaway.h"
#include "broker/core/schedule.h"
#include "broker/core/stay.h"
#include "broker/core/usage.h"
#include "broker/core/vacate.h"

namespace sluice::core {
namespace {

std::unique_ptr<Tenant> tenant_make(const State& state, const TenantAsked& ask, Nanos asked_at,
                                    Nanos now, const std::vector<std::uint32_t>& gpus) {
  auto tenant = std::make_unique<Tenant>();
  tenant->uid = ask.uid;
  tenant->tenant_class = ask.tenant_class;
  tenant->sm_mode = ask.sm_mode;
  tenant->sm_percent = ask.sm_percent;
  tenant->sm_kind = ask.sm_kind;
  tenant->memory_max = ask.memory_max;
  tenant->memory_min = ask.memory_min;
  tenant->swap = ask.swap;
  tenant->window_ns = ask.window_ns;
  tenant->name = ask.name;
  tenant->group = ask.group;
  tenant->pinned = ask.pinned;
  tenant->asked_at = asked_at;
  tenant->admitted_at = tenant->in_since = tenant->idle_since = now;
  tenant_shares_add(state, *tenant, gpus, now);
  if (tenant->exclusive()) {  // the whole of every GPU it gets, but for what cannot be moved off it
    Bytes smallest = ~Bytes{0};
    for (std::uint32_t g : gpus) {
      Bytes left = 0;
      gpu_shares_each(*state.gpus[g], [&](const Share& share) { left += share_on_gpu(share); });
      const Bytes capacity = state.gpus[g]->capacity;
      smallest = std::min(smallest, capacity - std::min(left, capacity));
    }
    tenant->memory_max = tenant->memory_min = smallest;
    tenant->sm_percent = 100;
    tenant->sm_kind = SmKind::kGuaranteed;
    tenant->sm_mode = SmMode::kBestEffort;
  }
  tenant->promised = tenant->swap ? tenant->memory_min : tenant->memory_max;
  tenant->quota_most = tenant->memory_most = tenant->memory_max;
  return tenant;
}

}  // namespace

void tenant_admit(State& state, const TenantAsked& ask, Nanos asked_at,
                  const std::vector<std::uint32_t>& gpus, Nanos now, Actions& out) {
  std::unique_ptr<Tenant> made = tenant_make(state, ask, asked_at, now, gpus);
  Tenant& tenant = *made;
  TenantAdmitted action{ask.request,
                        0,
                        {},
                        tenant.memory_max,
                        tenant.memory_min,
                        tenant.sm_percent,
                        tenant.sm_mode,
                        ask.dry_run,
                        tenant.swap,
                        tenant.sm_kind};
  for (std::uint32_t g : gpus) action.gpus.push_back(state.gpus[g]->uuid);
  if (ask.dry_run) {
    out.emplace_back(std::move(action));
    return;
  }
  tenant.id = action.tenant = state.next_tenant++;
  state.tenants.emplace(tenant.id, std::move(made));
  state.users[tenant.uid].admitted++;
  sums_add(state, tenant);
  if (tenant.exclusive()) aside_take(state, tenant, out);
  tenant_book(state, tenant, now);
  for (Share& share : tenant.shares) debt_take(state, share, now);
  out.emplace_back(std::move(action));
  lease_introduce(state, tenant, out);
  for (Share& share : tenant.shares) windows_refresh(state, *state.gpus[share.gpu], false, out);
  if (tenant.exclusive()) lease_open(state, tenant, false, now, out);
}

void tenant_hand_back(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (!tenant.exclusive() || !tenant.charged) return;
  tenant_unbook(state, tenant, now);
  aside_return(state, tenant, out);
  for (Share& share : tenant.shares) windows_refresh(state, *state.gpus[share.gpu], false, out);
  state.queue_dirty = true;
}

void tenant_end(State& state, Tenant& tenant, Nanos now, Actions& out) {
  assert(tenant.processes.empty());
  gang_changes(state, tenant, now);
  if (tenant.waiting && tenant.gang()) std::erase(state.gang_line, &tenant);
  for (Share& share : tenant.shares) {
    share_account(state, share, now);
    if (tenant.waiting) line_leave(state, share);
    state.gpus[share.gpu]->dead_busy_ns += share.busy_ns - share.elsewhere_ns;
    if (share.provisional_ns > 0 && !tenant.exclusive()) {
      state.ghosts.push_back(Ghost{tenant.id, share.index, share.gpu, share.busy_seen_ns,
                                   share.lease_ns - share.busy_ns});
      out.emplace_back(UsageWanted{tenant.id, share.index});
    }
  }
  tenant.waiting = false;
  for (Share& share : tenant.shares) debt_leave(state, share, now);
  if (tenant.charged) tenant_unbook(state, tenant, now);
  for (Share& share : tenant.shares) share_forget(state, share);
  vacated_stays(state, tenant);
  wants_forget(state, tenant);
  stay_forget(state, tenant);
  commands_fail(state, tenant, RefusalCode::kUnknownTenant, "it has ended", now, out);
  if (tenant.exclusive()) aside_return(state, tenant, out);
  sums_remove(state, tenant);
  for (Share& share : tenant.shares) windows_refresh(state, *state.gpus[share.gpu], false, out);
  assert(state.users[tenant.uid].admitted > 0);
  state.users[tenant.uid].admitted--;
  user_forget(state, tenant.uid);
  out.emplace_back(TenantEnded{tenant.id});
  state.queue_dirty = true;
  state.tenants.erase(tenant.id);
}

}  // namespace sluice::core

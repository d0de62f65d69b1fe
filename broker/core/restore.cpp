// Tenants that were admitted already.
//
// A restored tenant was promised its memory once and may still hold all of it, so it is booked
// without any question of queue or oversell. Only two things bound it: what its GPUs have, and that
// whole-GPU use has no company. Nothing of its past use is known, so it starts like a new one: no
// debt, no credit, its lease closed (whole GPUs: open).
#include "broker/core/restore.h"

#include <algorithm>

#include "broker/core/admission.h"
#include "broker/core/aside.h"
#include "broker/core/lease.h"
#include "broker/core/leaving.h"
#include "broker/core/limits.h"
#include "broker/core/line.h"
#include "broker/core/memory.h"
#include "broker/core/placement.h"
#include "broker/core/policy.h"
#include "broker/core/request.h"
#include "broker/core/stay.h"
#include "broker/core/usage.h"
#include "broker/core/vacate.h"
#include "broker/protocol/gpu_index.h"

namespace sluice::core {
namespace {

/// Indexes of the GPUs by name; empty when one of them is not there any more.
std::vector<std::uint32_t> gpus_named(const State& state, const std::vector<GpuUuid>& names) {
  std::vector<std::uint32_t> found;
  for (const GpuUuid& name : names) {
    const std::uint32_t index = protocol::gpu_index(state.gpus, name);
    if (index == state.gpus.size()) return {};
    if (std::ranges::find(found, index) != found.end()) return {};
    found.push_back(index);
  }
  return found;
}

bool whole_taken(const Gpu& gpu) {
  return std::ranges::any_of(gpu.shares, [](const Share* s) { return s->tenant->exclusive(); });
}

/// Whole-GPU use has no company but of those whose memory is out: they had stepped aside for it.
bool can_be_there(const State& state, const Tenant& tenant, std::uint32_t g) {
  const Gpu& gpu = *state.gpus[g];
  if (gpu.lost) return false;
  if (tenant.exclusive())
    return tenant.released || std::ranges::all_of(gpu.shares, [](const Share* share) {
             return share->tenant->residence == Residence::kOut;
           });
  return tenant.vacated || !whole_taken(gpu);
}

/// A guarantee that its GPUs cannot keep any more is a weight.
void share_fit(const State& state, Tenant& tenant, const std::vector<std::uint32_t>& gpus) {
  const bool fits = tenant.vacated || std::ranges::all_of(gpus, [&](std::uint32_t g) {
                      return share_fits(*state.gpus[g], tenant.sm_kind, tenant.sm_percent);
                    });
  if (!fits && !tenant.exclusive()) tenant.sm_kind = SmKind::kWeight;
}

/// What its GPUs have room for: the quota within the smallest GPU, the guarantee within what is not
/// guaranteed to others.
void memory_fit(const State& state, Tenant& tenant, const std::vector<std::uint32_t>& gpus) {
  Bytes left = ~Bytes{0};
  for (std::uint32_t g : gpus) {
    const Gpu& gpu = *state.gpus[g];
    tenant.memory_max = std::min(tenant.memory_max, gpu.capacity);
    if (!tenant.exclusive() && !tenant.vacated)
      left = std::min(left, gpu.capacity - gpu.promised_min);
  }
  if (tenant.exclusive()) tenant.memory_min = tenant.memory_max;
  tenant.memory_min = std::min({tenant.memory_min, tenant.memory_max, left});
  tenant.promised = std::min(tenant.swap ? tenant.memory_min : tenant.memory_max, left);
  tenant.quota_most = tenant.memory_most = tenant.memory_max;
}

std::unique_ptr<Tenant> tenant_of(const TenantRestored& event) {
  auto tenant = std::make_unique<Tenant>();
  tenant->id = event.tenant;
  tenant->uid = event.uid;
  tenant->tenant_class = event.tenant_class;
  tenant->sm_mode = event.sm_mode;
  tenant->sm_percent = std::clamp<std::uint32_t>(event.sm_percent, 1, 100);
  tenant->sm_kind = event.sm_mode == SmMode::kEqual ? SmKind::kWeight : event.sm_kind;
  if (tenant->exclusive()) tenant->sm_kind = SmKind::kGuaranteed;
  tenant->memory_max = event.memory_max;
  tenant->memory_min = event.memory_min;
  tenant->window_ns = event.window_ns;
  tenant->name = event.name;
  tenant->asked_at = event.asked_at;
  tenant->admitted_at = event.admitted_at;
  tenant->released = event.released;
  tenant->group = event.group;
  tenant->pinned = event.gpus;  // what it had asked for is not known
  tenant->swap = event.swap && event.tenant_class != TenantClass::kExclusive;
  tenant->restored = true;
  const bool shared = event.tenant_class != TenantClass::kExclusive;
  tenant->suspended = event.suspended && shared;
  tenant->suspended_by = event.suspended_by.value_or(event.uid);
  // A program in the driver's checkpoint cannot say that it wants its GPUs.
  tenant->rests = event.rests && shared && !event.frozen;
  const bool left = stays_away(*tenant) || event.rests || event.returns;
  tenant->vacated = left && shared && (event.swapped || event.frozen);
  tenant->frozen = event.frozen;
  tenant->due_back = !tenant->suspended && !tenant->rests;
  return tenant;
}

}  // namespace

void tenant_restored(State& state, const TenantRestored& event, Nanos now, Actions& out) {
  if (event.tenant == 0 || state.tenants.contains(event.tenant)) return;
  state.next_tenant = std::max(state.next_tenant, event.tenant + 1);
  std::unique_ptr<Tenant> made = tenant_of(event);
  Tenant& tenant = *made;
  const std::vector<std::uint32_t> gpus = gpus_named(state, event.gpus);
  const bool fits =
      !gpus.empty() && gpus.size() <= protocol::kTenantGpusMax &&
      std::ranges::all_of(gpus, [&](std::uint32_t g) { return can_be_there(state, tenant, g); });
  if (!fits) {
    out.emplace_back(TenantEnded{event.tenant});
    return;
  }
  memory_fit(state, tenant, gpus);
  share_fit(state, tenant, gpus);
  tenant_shares_add(state, tenant, gpus, now);
  tenant.in_since = tenant.idle_since = tenant.restored_at = now;
  state.tenants.emplace(tenant.id, std::move(made));
  state.users[tenant.uid].admitted++;
  sums_add(state, tenant);
  if (tenant.exclusive() && tenant.released) {
    tenant.charged = false;  // it handed its GPUs back
    for (Share& share : tenant.shares) state.gpus[share.gpu]->unbooked.push_back(&share);
  } else {
    if (tenant.exclusive()) aside_take(state, tenant, out);
    tenant_book(state, tenant, now);
  }
  out.emplace_back(LimitsSet{tenant.id, tenant.sm_percent, tenant.memory_max, tenant.memory_min,
                             tenant.sm_kind});
  lease_introduce(state, tenant, out);
  for (Share& share : tenant.shares) windows_refresh(state, *state.gpus[share.gpu], false, out);
  state.queue_dirty = true;
  if (tenant.suspended || tenant.rests) stay_look(state, tenant);
  const bool away = event.swapped || event.frozen;
  if (away && !tenant.exclusive()) stay_restore(state, tenant, event.frozen_on, now, out);
  if (tenant.exclusive() && !tenant.released) lease_open(state, tenant, false, now, out);
}

void tenants_numbered(State& state, const TenantsNumbered& event) {
  state.next_tenant = std::max(state.next_tenant, event.next);
}

namespace {

struct ShareLimit {
  SmKind kind;
  std::uint32_t percent;
};

/// Raised as far as the guarantees of others allow. A weight becomes a guarantee where all of it
/// fits.
ShareLimit share_limit(const State& state, const Tenant& tenant, const LimitsChanged& event) {
  const ClassPolicy& policy = state.policy.classes[static_cast<std::size_t>(tenant.tenant_class)];
  const SmKind kind = sm_kind_of(policy, tenant.sm_mode, event.sm_default, event.sm_weight);
  const std::uint32_t percent = std::clamp<std::uint32_t>(event.sm_percent, 1, 100);
  if (kind == SmKind::kWeight) return {kind, percent};
  std::uint64_t room = 100;
  for (const Share& share : tenant.shares) {
    const std::uint64_t own = share.booked && tenant.guaranteed() ? tenant.sm_percent : 0;
    room = std::min(room, share.booked ? 100 - (state.gpus[share.gpu]->guaranteed - own) : own);
  }
  if (!tenant.guaranteed()) return {percent <= room ? kind : SmKind::kWeight, percent};
  const auto most = std::max(tenant.sm_percent, static_cast<std::uint32_t>(room));
  return {kind, std::min(percent, most)};
}

}  // namespace

void limits_changed(State& state, const LimitsChanged& event, Nanos now, Actions& out) {
  Tenant* tenant = tenant_find(state, event.tenant);
  if (tenant == nullptr || tenant->exclusive() || !tenant->charged) return;
  Bytes context = 1;
  Bytes max = event.memory_max;
  Bytes min = event.memory_min;
  for (const Share& share : tenant->shares) {
    const Gpu& gpu = *state.gpus[share.gpu];
    context = std::max(context, gpu.context_bytes);
    const Bytes others_max = gpu.promised_max - (share.booked ? tenant->memory_max : 0);
    const Bytes limit = gpu.limit_max(state.policy.oversell_memory);
    const Bytes room_max = std::min(gpu.capacity, limit > others_max ? limit - others_max : 0);
    const Bytes promises = gpu.promised_min - (share.booked ? tenant->promised : 0);
    // What the others are promised or have left, and what the largest swappable quota may need.
    const Bytes others = promises + gpu.returning + gpu_left(gpu);
    const Bytes taken = others + spread_max(gpu, tenant);
    const Bytes room_min = gpu.capacity - std::min(taken, gpu.capacity);
    const Bytes room_own = tenant->swap ? gpu.capacity - std::min(others, gpu.capacity) : room_min;
    const Bytes room = share.booked ? std::min(room_max, room_own) : 0;
    if (max > tenant->memory_max) max = std::max(tenant->memory_max, std::min(max, room));
    if (min > tenant->memory_min) min = std::max(tenant->memory_min, std::min(min, room_min));
  }
  max = std::max(max, std::min(context, tenant->memory_max));
  min = std::min(std::max(min, std::min(context, tenant->memory_min)), max);
  const auto [kind, percent] = share_limit(state, *tenant, event);
  if (max == tenant->memory_max && min == tenant->memory_min && kind == tenant->sm_kind &&
      percent == tenant->sm_percent)
    return;
  for (Share& share : tenant->shares) {
    share_account(state, share, now);
    // Until now the clock paid at the percentage that it had.
    policies_owed(state.policy, *state.gpus[share.gpu], share, now);
  }
  sums_remove(state, *tenant);
  tenant_rebook(state, *tenant, kind, percent, max, min, now);
  sums_add(state, *tenant);
  for (const Share& share : tenant->shares) state.gpus[share.gpu]->claims_look_at = now;
  for (Share& share : tenant->shares) line_update(state, share, now);
  if (tenant->vacated) queue_return_renew(state, vacated_ask(state, *tenant));
  out.emplace_back(LimitsSet{tenant->id, percent, max, min, kind});
  state.queue_dirty = true;
}

}  // namespace sluice::core

// The core's part of a snapshot: what it promised, who holds what, what was charged. Read-only.
#include <algorithm>
#include <cstring>

#include "broker/core/binding.h"
#include "broker/core/hold.h"
#include "broker/core/leaving.h"
#include "broker/core/memory.h"
#include "broker/core/policy.h"
#include "broker/core/state.h"
#include "broker/protocol/pages.h"

namespace sluice::core {
namespace {

/// Of how many in front of the queue a view says anew what they wait for: it takes a look at every
/// GPU, and queues are long.
constexpr std::size_t kWaitTextsMax = 32;

void name_copy(char (&to)[protocol::kNameBytes], const std::string& from) {
  const std::size_t n = std::min(from.size(), sizeof to - 1);
  std::memcpy(to, from.data(), n);
}

std::uint64_t count(Nanos ns) { return static_cast<std::uint64_t>(std::max<Nanos>(ns, 0)); }

protocol::SnapshotGpu gpu_view(const Gpu& gpu) {
  protocol::SnapshotGpu view{};
  view.uuid = gpu.uuid;
  view.capacity_bytes = gpu.capacity;
  view.context_bytes = gpu.context_bytes;
  view.promised_bytes = gpu.promised_min;
  view.promised_max_bytes = gpu.promised_max;
  view.busy_ns = count(gpu.busy_ns);
  view.leases_granted = gpu.leases_granted;
  view.leases_revoked = gpu.leases_revoked;
  view.lease_overrun_ns = count(gpu.overrun_ns);
  view.overruns = gpu.overruns;
  view.holder = gpu.holder == nullptr ? 0 : gpu.holder->id;
  view.tenants = static_cast<std::uint32_t>(gpu.shares.size());
  view.exclusive = gpu.exclusive() ? 1 : 0;
  view.draining = gpu.draining || gpu.closed_to_new || gpu.lost ? 1 : 0;
  view.closed = gpu.closed_to_new ? 1 : 0;
  view.lost = gpu.lost ? 1 : 0;
  view.sm_guaranteed = static_cast<std::uint32_t>(gpu.guaranteed);
  return view;
}

protocol::StayReason stay_reason(const State& state, const Tenant& tenant) {
  using protocol::StayReason;
  if (tenant.exclusive()) return StayReason::kExclusive;
  if (stay_lost(tenant)) return StayReason::kLost;
  if (!tenant.swap) return StayReason::kNotSwappable;
  if (tenant.phase == Phase::kRunaway) return StayReason::kRunaway;
  if (tenant.move_failures >= kMoveFailuresMax) return StayReason::kFailed;
  const bool host = tenant.residence != Residence::kIn ||
                    stay_host_cost(tenant) <= stay_host_left(state, tenant.uid);
  return host ? StayReason::kGoes : StayReason::kHostMemory;
}

protocol::SnapshotTenant tenant_view(const State& state, const Tenant& tenant) {
  protocol::SnapshotTenant view{};
  view.tenant = tenant.id;
  view.admitted_ns = count(tenant.admitted_at);
  view.asked_ns = count(tenant.asked_at);
  view.uid = tenant.uid;
  view.processes = static_cast<std::uint32_t>(tenant.processes.size());
  const bool in = tenant.residence == Residence::kIn || tenant.residence == Residence::kLeaving;
  const bool away = tenant.suspended || tenant.vacated || tenant_aside_by(tenant) != 0;
  view.state = away ? protocol::TenantState::kSuspended
               : in ? protocol::TenantState::kRunning
                    : protocol::TenantState::kSwapped;
  view.tenant_class = tenant.tenant_class;
  view.sm_mode = tenant.sm_mode;
  view.runaway = tenant.runaway ? 1 : 0;
  view.stays = stay_reason(state, tenant);
  name_copy(view.name, tenant.name);
  return view;
}

protocol::SnapshotTenant waiter_view(const Waiter& waiter) {
  protocol::SnapshotTenant view{};
  view.asked_ns = count(waiter.asked_at);
  view.uid = waiter.ask.uid;
  view.queue_position = waiter.position;
  view.state = protocol::TenantState::kQueued;
  view.tenant_class = waiter.ask.tenant_class;
  view.sm_mode = waiter.ask.sm_mode;
  view.reason = waiter.reason;
  name_copy(view.name, waiter.ask.name);
  return view;
}

protocol::SnapshotTenantGpu share_view(const State& state, const Share& share, Nanos now) {
  const Tenant& tenant = *share.tenant;
  const Gpu& gpu = *state.gpus[share.gpu];
  protocol::SnapshotTenantGpu view{};
  view.tenant = tenant.id;
  view.gpu = gpu.uuid;
  view.memory_max_bytes = tenant.memory_max;
  view.memory_min_bytes = tenant.memory_min;
  view.busy_ns = count(share.busy_ns);
  view.lease_held_ns = count(share.held_ns + (share.open ? now - share.accounted_at : 0));
  view.overruns = share.overruns;
  view.movable_bytes = share.movable;
  view.swapped_bytes = share.swapped;
  view.moved_out_bytes = share.moved_out_bytes;
  view.moved_in_bytes = share.moved_in_bytes;
  const bool held = (share.hold_word & protocol::kHoldSet) != 0;
  view.moving_ns = count(tenant.moving_ns + (held ? now - tenant.hold_since : 0));
  const Ways ways = ways_of(tenant, now);
  view.suspending_ns = count(ways.suspending_ns);
  view.restoring_ns = count(ways.restoring_ns);
  view.moves = tenant.moves;
  view.owed_ns = count(policies_debt(state.policy, gpu, share, now).ns);
  view.sm_percent = tenant.sm_percent;
  view.sm_kind = tenant.sm_kind;
  view.wants = static_cast<std::uint8_t>((tenant_wants(tenant) >> share.index) & 1U);
  constexpr std::uint64_t kFailedMax = 65535;
  view.moves_failed = static_cast<std::uint16_t>(std::min(tenant.moves_failed, kFailedMax));
  return view;
}

}  // namespace

std::string queued_text(const State& state, RequestId request) {
  for (const auto& waiter : state.queue)
    if (waiter->ask.request == request) return wait_text(state, waiter->ask, waiter->reason);
  return "";
}

bool tenant_waits(const State& state, TenantId tenant) {
  const auto found = state.tenants.find(tenant);
  return found != state.tenants.end() && stay_wants(state, *found->second);
}

View state_view(const State& state, Nanos now) {
  View view;
  for (const auto& gpu : state.gpus) {
    view.gpus.push_back(gpu_view(*gpu));
    view.gpus.back().index = static_cast<std::uint8_t>(view.gpus.size() - 1);
    view.drains.push_back(gpu->closed_to_new ? drained_text(gpu->drain) : "");
  }
  std::vector<const Tenant*> tenants;
  for (const auto& [id, tenant] : state.tenants) tenants.push_back(tenant.get());
  std::ranges::sort(tenants, {}, &Tenant::id);
  for (const Tenant* tenant : tenants) {
    view.tenants.push_back(tenant_view(state, *tenant));
    view.stops.push_back(stopped_text(state, *tenant, now));
    for (const Share& share : tenant->shares)
      view.tenant_gpus.push_back(share_view(state, share, now));
  }
  for (const auto& waiter : state.queue) {
    const bool told = view.waits.size() < kWaitTextsMax;
    view.waits.push_back(told ? wait_text(state, waiter->ask, waiter->reason) : "");
    view.tenants.push_back(waiter_view(*waiter));
  }
  return view;
}

}  // namespace sluice::core

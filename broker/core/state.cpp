// Looking up and booking: the operations on the core's memory that every rule needs. No decisions
// here.
#include "broker/core/state.h"

#include <algorithm>
#include <cassert>

#include "broker/core/line.h"
#include "broker/core/schedule.h"

namespace sluice::core {
namespace {

/// Counts the share's percentage in its GPU's sums, or no longer.
void share_count(Gpu& gpu, const Tenant& tenant, bool in) {
  const auto add = [in](std::uint64_t& sum, std::uint64_t n) { sum = in ? sum + n : sum - n; };
  if (tenant.guaranteed()) add(gpu.guaranteed, tenant.sm_percent);
  if (tenant.guaranteed() && tenant.inference()) add(gpu.inference_guaranteed, tenant.sm_percent);
  if (tenant.sm_mode == SmMode::kEqual) return;
  add(gpu.plain_weight, tenant.sm_percent);
  if (tenant.inference()) add(gpu.inference_plain, tenant.sm_percent);
}

}  // namespace

Process* process_find(Tenant& tenant, ProcessId id) {
  for (Process& process : tenant.processes)
    if (process.id == id) return &process;
  return nullptr;
}

Tenant* tenant_find(State& state, TenantId id) {
  auto it = state.tenants.find(id);
  return it == state.tenants.end() ? nullptr : it->second.get();
}

void user_forget(State& state, std::uint32_t uid) {
  auto it = state.users.find(uid);
  if (it == state.users.end()) return;
  const UserCount& user = it->second;
  if (user.admitted == 0 && user.queued == 0 && user.host_bytes == 0) state.users.erase(it);
}

double equal_weight(const Gpu& gpu) {
  if (gpu.plain_count == 0) return 100.0;
  return static_cast<double>(gpu.plain_weight) / static_cast<double>(gpu.plain_count);
}

double weights_asked(const Gpu& gpu) {
  const auto equal = static_cast<double>(gpu.shares.size() - gpu.plain_count);
  return static_cast<double>(gpu.plain_weight - gpu.guaranteed) + equal * equal_weight(gpu);
}

double weights_scale(const Gpu& gpu) {
  if (gpu.guaranteed == 0) return 1;
  // Where everything is guaranteed the weights have this much, so that they do not starve; it is
  // within what a guarantee allows for (5 % of it).
  constexpr double kLeastLeft = 2;
  const double left = std::max(100.0 - static_cast<double>(gpu.guaranteed), kLeastLeft);
  return left / std::max(weights_asked(gpu), left);
}

double share_weight(const Gpu& gpu, const Share& share) {
  const Tenant& tenant = *share.tenant;
  const bool equal = tenant.sm_mode == SmMode::kEqual;
  const double asked = equal ? equal_weight(gpu) : static_cast<double>(tenant.sm_percent);
  return gpu.guaranteed == 0 || tenant.guaranteed() ? asked : asked * weights_scale(gpu);
}

double admitted_weight(const Gpu& gpu) {
  const double weights = weights_asked(gpu);
  if (gpu.guaranteed == 0) return weights;
  return static_cast<double>(gpu.guaranteed) + weights_scale(gpu) * weights;
}

double inference_weight(const Gpu& gpu) {
  const double all =
      static_cast<double>(gpu.inference_plain) + gpu.inference_equal * equal_weight(gpu);
  return guarantees_scaled(gpu, all, gpu.inference_guaranteed);
}

double guarantees_scaled(const Gpu& gpu, double all, std::uint64_t guaranteed) {
  if (gpu.guaranteed == 0) return all;
  const auto kept = static_cast<double>(guaranteed);
  return kept + (all - kept) * weights_scale(gpu);
}

std::uint8_t tenant_wants(const Tenant& tenant) {
  std::uint8_t mask = 0;
  for (const Process& process : tenant.processes)
    mask = static_cast<std::uint8_t>(mask | process.wants);
  return mask;
}

void share_book(State& state, Share& share) {
  assert(!share.booked);
  const Tenant& tenant = *share.tenant;
  Gpu& gpu = *state.gpus[share.gpu];
  share.booked = true;
  gpu.promised_min += tenant.promised;
  gpu.promised_max += tenant.memory_max;
  gpu.lowered |= tenant.memory_most > tenant.memory_max;
  std::erase(gpu.unbooked, &share);
  gpu.shares.push_back(&share);
  if (tenant.swap) gpu.swap_count++;
  if (tenant.sm_mode == SmMode::kFixed) gpu.fixed_count++;
  const bool equal = tenant.sm_mode == SmMode::kEqual;
  if (tenant.inference()) {
    gpu.inference_count++;
    if (equal) gpu.inference_equal++;
  }
  if (!equal) gpu.plain_count++;
  share_count(gpu, tenant, true);
}

void share_unbook(State& state, Share& share) {
  assert(share.booked && "a promise is returned once");
  const Tenant& tenant = *share.tenant;
  Gpu& gpu = *state.gpus[share.gpu];
  assert(gpu.promised_min >= tenant.promised && gpu.promised_max >= tenant.memory_max);
  share.booked = false;
  gpu.promised_min -= tenant.promised;
  gpu.promised_max -= tenant.memory_max;
  std::erase(gpu.shares, &share);
  gpu.unbooked.push_back(&share);
  if (tenant.swap) gpu.swap_count--;
  if (tenant.sm_mode == SmMode::kFixed) gpu.fixed_count--;
  const bool equal = tenant.sm_mode == SmMode::kEqual;
  if (tenant.inference()) {
    gpu.inference_count--;
    if (equal) gpu.inference_equal--;
  }
  if (!equal) gpu.plain_count--;
  share_count(gpu, tenant, false);
}

void share_forget(State& state, Share& share) {
  Gpu& gpu = *state.gpus[share.gpu];
  assert(!share.tenant->waiting && "who waits in line leaves it first");
  std::erase(gpu.on, &share);
  std::erase(gpu.unbooked, &share);
  std::erase(gpu.left, &share);
  if (gpu.holder == share.tenant) gpu.holder = nullptr;
  if (gpu.reserved == share.tenant) gpu.reserved = nullptr;
  if (gpu.reserved_before == share.tenant) gpu.reserved_before = nullptr;
  if (gpu.room_for == share.tenant) gpu.room_for = nullptr;
}

void tenant_book(State& state, Tenant& tenant, Nanos now) {
  gangs_settle(state, now);
  for (Share& share : tenant.shares) {
    if (tenant.vacated)
      state.gpus[share.gpu]->unbooked.push_back(&share);
    else
      share_book(state, share);
  }
  if (tenant.gang()) state.gangs.push_back(&tenant);
  tenant.owed_at = now;
  tenant.charged = true;
  gangs_reweigh(state);
}

void tenant_shares_add(const State& state, Tenant& tenant, const std::vector<std::uint32_t>& gpus,
                       Nanos now) {
  assert(tenant.shares.empty());
  for (std::uint32_t g : gpus) {
    Share share;
    share.tenant = &tenant;
    share.gpu = g;
    share.index = static_cast<std::uint32_t>(tenant.shares.size());
    share.accounted_at = share.settled_at = share.tokens_at = now;
    share.tokens_ns = static_cast<double>(state.policy.quantum_ns);
    tenant.shares.push_back(share);
  }
}

void tenant_rebook(State& state, Tenant& tenant, SmKind sm_kind, std::uint32_t sm_percent,
                   Bytes memory_max, Bytes memory_min, Nanos now) {
  assert(tenant.charged);
  gangs_settle(state, now);
  const Bytes most = std::max(memory_max, tenant.memory_most);
  Bytes promised = tenant.swap ? memory_min : most;
  for (const Share& share : tenant.shares) {
    const Gpu& gpu = *state.gpus[share.gpu];
    const Bytes others = gpu.promised_min - tenant.promised;
    const Bytes room = gpu.capacity - std::min(others, gpu.capacity);
    // A promise that rests while its GPU is used whole is not raised.
    promised = std::min(promised, share.booked ? room : tenant.promised);
  }
  for (Share& share : tenant.shares) {
    if (!share.booked) continue;
    Gpu& gpu = *state.gpus[share.gpu];
    if (tenant.waiting) line_out(state, share);
    gpu.promised_min = gpu.promised_min - tenant.promised + promised;
    gpu.promised_max = gpu.promised_max - tenant.memory_max + memory_max;
    gpu.lowered |= most > memory_max;
    share_count(gpu, tenant, false);
  }
  tenant.sm_kind = sm_kind;
  tenant.sm_percent = sm_percent;
  if (memory_max < tenant.memory_max) tenant.lowered_at = now;
  tenant.memory_max = memory_max;
  tenant.memory_most = most;
  tenant.memory_min = memory_min;
  tenant.promised = promised;
  tenant.quota_most = std::max(tenant.quota_most, memory_max);
  for (const Share& share : tenant.shares)
    if (share.booked) share_count(*state.gpus[share.gpu], tenant, true);
  gangs_reweigh(state);
  if (!tenant.waiting) return;
  for (Share& share : tenant.shares)
    if (share.booked) line_in(state, share, now);
}

void tenant_unbook(State& state, Tenant& tenant, Nanos now) {
  assert(tenant.charged && "a tenant's promises are returned once");
  gangs_settle(state, now);
  for (Share& share : tenant.shares)
    if (share.booked) share_unbook(state, share);
  std::erase(state.gangs, &tenant);
  tenant.charged = false;
  gangs_reweigh(state);
}

}  // namespace sluice::core

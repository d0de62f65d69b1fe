// Looking up and booking: the operations on the core's memory that every rule needs. No decisions
// here.
#include "broker/core/state.h"

#include <algorithm>
#include <cassert>

namespace sluice::core {

Process* process_find(Tenant& tenant, ProcessId id) {
  for (Process& process : tenant.processes)
    if (process.id == id) return &process;
  return nullptr;
}

Tenant* tenant_find(State& state, TenantId id) {
  auto it = state.tenants.find(id);
  return it == state.tenants.end() ? nullptr : it->second.get();
}

double equal_weight(const Gpu& gpu) {
  if (gpu.plain_count == 0) return 100.0;
  return static_cast<double>(gpu.plain_weight) / static_cast<double>(gpu.plain_count);
}

double share_weight(const Gpu& gpu, const Share& share) {
  if (share.tenant->sm_mode == SmMode::kEqual) return equal_weight(gpu);
  return static_cast<double>(share.tenant->sm_percent);
}

double admitted_weight(const Gpu& gpu) {
  const auto equal = static_cast<double>(gpu.shares.size() - gpu.plain_count);
  return static_cast<double>(gpu.plain_weight) + equal * equal_weight(gpu);
}

double inference_weight(const Gpu& gpu) {
  return static_cast<double>(gpu.inference_plain) + gpu.inference_equal * equal_weight(gpu);
}

std::uint8_t tenant_wants(const Tenant& tenant) {
  std::uint8_t mask = 0;
  for (const Process& process : tenant.processes)
    mask = static_cast<std::uint8_t>(mask | process.wants);
  return mask;
}

void tenant_book(State& state, Tenant& tenant) {
  for (Share& share : tenant.shares) {
    Gpu& gpu = *state.gpus[share.gpu];
    gpu.promised_min += tenant.memory_min;
    gpu.promised_max += tenant.memory_max;
    gpu.shares.push_back(&share);
    if (tenant.sm_mode == SmMode::kFixed) gpu.fixed_count++;
    const bool equal = tenant.sm_mode == SmMode::kEqual;
    if (tenant.inference()) {
      gpu.inference_count++;
      if (equal)
        gpu.inference_equal++;
      else
        gpu.inference_plain += tenant.sm_percent;
    }
    if (!equal) {
      gpu.plain_weight += tenant.sm_percent;
      gpu.plain_count++;
    }
  }
  if (tenant.gang()) state.gangs.push_back(&tenant);
  tenant.charged = true;
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

void tenant_rebook(State& state, Tenant& tenant, std::uint32_t sm_percent, Bytes memory_max,
                   Bytes memory_min) {
  assert(tenant.charged);
  const bool plain = tenant.sm_mode != SmMode::kEqual;
  for (Share& share : tenant.shares) {
    Gpu& gpu = *state.gpus[share.gpu];
    gpu.promised_min = gpu.promised_min - tenant.memory_min + memory_min;
    gpu.promised_max = gpu.promised_max - tenant.memory_max + memory_max;
    gpu.best_known = false;
    if (!plain) continue;
    gpu.plain_weight = gpu.plain_weight - tenant.sm_percent + sm_percent;
    if (tenant.inference())
      gpu.inference_plain = gpu.inference_plain - tenant.sm_percent + sm_percent;
  }
  tenant.sm_percent = sm_percent;
  tenant.memory_max = memory_max;
  tenant.memory_min = memory_min;
}

void tenant_unbook(State& state, Tenant& tenant) {
  assert(tenant.charged && "a tenant's promises are returned once");
  for (Share& share : tenant.shares) {
    Gpu& gpu = *state.gpus[share.gpu];
    assert(gpu.promised_min >= tenant.memory_min && gpu.promised_max >= tenant.memory_max);
    gpu.promised_min -= tenant.memory_min;
    gpu.promised_max -= tenant.memory_max;
    std::erase(gpu.shares, &share);
    if (tenant.sm_mode == SmMode::kFixed) gpu.fixed_count--;
    const bool equal = tenant.sm_mode == SmMode::kEqual;
    if (tenant.inference()) {
      gpu.inference_count--;
      if (equal)
        gpu.inference_equal--;
      else
        gpu.inference_plain -= tenant.sm_percent;
    }
    if (!equal) {
      gpu.plain_weight -= tenant.sm_percent;
      gpu.plain_count--;
    }
  }
  std::erase(state.gangs, &tenant);
  tenant.charged = false;
}

}  // namespace sluice::core

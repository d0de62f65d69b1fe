// Checks of a request, each refusal with its reason and its remedy.
#include "broker/core/request.h"

#include <algorithm>

#include "broker/core/limits.h"
#include "broker/core/placement.h"
#include "broker/core/texts.h"
#include "broker/protocol/gpu_index.h"

namespace sluice::core {
namespace {

void defaults_fill(const State& state, TenantAsked& ask) {
  const ClassPolicy& policy = state.policy.classes[static_cast<std::size_t>(ask.tenant_class)];
  ask.sm_default = ask.sm_default || ask.sm_percent == 0;
  if (ask.sm_percent == 0) ask.sm_percent = policy.sm_percent;
  if (!ask.sm_mode_given) ask.sm_mode = policy.sm_mode;
  ask.sm_kind = sm_kind_of(policy, ask.sm_mode, ask.sm_default, ask.sm_weight);
  if (ask.memory_max == 0) ask.memory_max = policy.memory_max;
  ask.swap = ask.swap && state.policy.swap && ask.tenant_class != TenantClass::kExclusive;
  // What is guaranteed to a swappable tenant is at least its context: refused_memory raises it.
  if (ask.memory_min == 0) ask.memory_min = ask.swap ? 1 : ask.memory_max;
  if (ask.gpu_count == 0) ask.gpu_count = 1;
}

/// Requests that no state of the machine could serve.
bool refused_shape(const State& state, const TenantAsked& ask, Actions& out) {
  auto refuse = [&](TenantRefused refusal) {
    out.emplace_back(std::move(refusal));
    return true;
  };
  const auto there = static_cast<std::size_t>(
      std::ranges::count_if(state.gpus, [](const auto& gpu) { return !gpu->lost; }));
  const std::size_t lost = state.gpus.size() - there;
  if (there == 0)
    return refuse(lost > 0 ? refusal_all_lost(ask.request, lost) : refusal_no_gpus(ask.request));
  if (static_cast<std::size_t>(ask.tenant_class) >= state.policy.classes.size())
    return refuse(refusal_malformed(ask.request,
                                    "the class is none of inference, debug, batch and exclusive"));
  if (ask.sm_percent > 100 || ask.sm_percent == 0)
    return refuse(refusal_malformed(ask.request, "a compute share of " +
                                                     std::to_string(ask.sm_percent) +
                                                     " % is not possible; ask for 1 to 100"));
  for (std::size_t i = 0; i < ask.pinned.size(); ++i) {
    const std::uint32_t gpu = protocol::gpu_index(state.gpus, ask.pinned[i]);
    if (gpu == state.gpus.size()) return refuse(refusal_unknown_gpu(ask.request, ask.pinned[i]));
    if (state.gpus[gpu]->lost) return refuse(refusal_pinned_lost(ask.request, ask.pinned[i]));
    if (std::find(ask.pinned.begin(), ask.pinned.begin() + static_cast<std::ptrdiff_t>(i),
                  ask.pinned[i]) != ask.pinned.begin() + static_cast<std::ptrdiff_t>(i))
      return refuse(
          refusal_malformed(ask.request, "the same GPU is named twice; name each GPU once"));
  }
  const std::size_t named = ask.pinned.empty() ? there : ask.pinned.size();
  const std::size_t most = std::min<std::size_t>(named, protocol::kTenantGpusMax);
  if (ask.gpu_count > most)
    return refuse(
        refusal_too_many_gpus(ask.request, ask.gpu_count, most, !ask.pinned.empty(), lost));
  return false;
}

/// Quotas below a context or beyond every GPU.
bool refused_memory(const State& state, TenantAsked& ask, Actions& out) {
  std::vector<Bytes> contexts;
  std::vector<Bytes> limits;
  for (const auto& gpu : state.gpus) {
    if (gpu->lost) continue;
    if (!ask.pinned.empty() && std::ranges::find(ask.pinned, gpu->uuid) == ask.pinned.end())
      continue;
    contexts.push_back(gpu->context_bytes);
    limits.push_back(std::min(gpu->capacity, gpu->limit_max(state.policy.oversell_memory)));
  }
  std::ranges::sort(contexts);
  std::ranges::sort(limits, std::greater<>());
  const std::size_t needed = std::min<std::size_t>(ask.gpu_count, contexts.size());
  const Bytes minimum = contexts[needed - 1];
  const Bytes largest = limits[needed - 1];
  TenantRefused refusal;
  if (ask.tenant_class == TenantClass::kExclusive) return false;
  if (ask.memory_max == 0)
    refusal = refusal_no_quota(ask.request, ask.tenant_class, std::max<Bytes>(minimum, 1));
  else if (ask.memory_max < minimum)
    refusal = refusal_below_context(ask.request, ask.memory_max, minimum);
  else if (ask.memory_max > largest)
    refusal = refusal_too_large(ask.request, ask.memory_max, largest, ask.gpu_count);
  else if (ask.memory_min > ask.memory_max)
    refusal = refusal_malformed(ask.request,
                                "the guaranteed memory (" + bytes_text(ask.memory_min) +
                                    ") is more than the quota (" + bytes_text(ask.memory_max) +
                                    "); lower memory_min or raise memory_max");
  else if (placement_candidates(state, ask).size() < ask.gpu_count)
    refusal = refusal_too_large(ask.request, ask.memory_max, largest, ask.gpu_count);
  if (refusal.code != RefusalCode::kNone) {
    out.emplace_back(std::move(refusal));
    return true;
  }
  // A context cannot be swapped, so what is guaranteed covers it.
  ask.memory_min = std::max(ask.memory_min, minimum);
  return false;
}

/// What this broker has no place for.
bool refused_place(const State& state, const TenantAsked& ask, Actions& out) {
  if (std::string excess = sums_excess(state, ask); !excess.empty()) {
    out.emplace_back(refusal_group(ask.request, std::move(excess)));
    return true;
  }
  if (std::ranges::any_of(state.queue,
                          [&](const auto& w) { return w->ask.request == ask.request; })) {
    out.emplace_back(
        refusal_malformed(ask.request, "this request is waiting already; wait for its answer"));
    return true;
  }
  if (state.tenants.size() + state.queue.size() >= state.policy.tenants_max) {
    out.emplace_back(refusal_full(ask.request, state.policy.tenants_max));
    return true;
  }
  return false;
}

}  // namespace

SmKind sm_kind_of(const ClassPolicy& policy, SmMode mode, bool by_default, bool weight) {
  const bool kept_by_class =
      policy.sm == SmRule::kGuaranteed || (policy.sm == SmRule::kAsked && !by_default);
  // 1/n of however many there will be is no promise.
  return kept_by_class && !weight && mode != SmMode::kEqual ? SmKind::kGuaranteed : SmKind::kWeight;
}

bool request_refused(const State& state, TenantAsked& ask, Actions& out) {
  defaults_fill(state, ask);
  return refused_shape(state, ask, out) || refused_memory(state, ask, out) ||
         refused_place(state, ask, out);
}

}  // namespace sluice::core

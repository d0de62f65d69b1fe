// Where a request fits.
//
// Memory admits: on each GPU the sum of memory_min is at most its capacity (never oversold), and
// the sum of memory_max at most oversell_memory times it. Best fit: the GPUs on which least room is
// left, so that large requests and whole-GPU requests keep finding some. An exclusive request needs
// GPUs without any tenant.
#include "broker/core/placement.h"

#include <algorithm>

namespace sluice::core {
namespace {

bool gpu_named(const TenantAsked& ask, const GpuUuid& uuid) {
  return ask.pinned.empty() || std::ranges::find(ask.pinned, uuid) != ask.pinned.end();
}

bool gpu_exclusive(const Gpu& gpu) {
  return std::ranges::any_of(gpu.shares, [](const Share* s) { return s->tenant->exclusive(); });
}

bool gpu_fits(const State& state, const Gpu& gpu, const TenantAsked& ask) {
  if (ask.tenant_class == TenantClass::kExclusive) return gpu.shares.empty();
  return !gpu_exclusive(gpu) && gpu.promised_min + ask.memory_min <= gpu.capacity &&
         gpu.promised_max + ask.memory_max <= gpu.limit_max(state.policy.oversell_memory);
}

Bytes gpu_room(const Gpu& gpu) {
  return gpu_exclusive(gpu) || gpu.promised_min > gpu.capacity ? 0
                                                               : gpu.capacity - gpu.promised_min;
}

/// Keeps the first `count` in the order of `better`; ties go to the lower index, so that the result
/// is repeatable.
template <class Better>
void first_of(std::vector<std::uint32_t>& list, std::size_t count, Better better) {
  std::ranges::stable_sort(list, better);
  if (list.size() > count) list.resize(count);
}

QueueReason why_not(const State& state, const TenantAsked& ask,
                    const std::vector<std::uint32_t>& candidates, std::size_t fitting,
                    std::size_t kept) {
  if (fitting + kept >= ask.gpu_count) return QueueReason::kPriority;
  if (ask.tenant_class == TenantClass::kExclusive) return QueueReason::kDrain;
  const auto whole = std::ranges::count_if(
      candidates, [&](std::uint32_t g) { return gpu_exclusive(*state.gpus[g]); });
  if (candidates.size() - static_cast<std::size_t>(whole) < ask.gpu_count)
    return QueueReason::kDrain;
  return ask.gpu_count > 1 && fitting + kept > 0 ? QueueReason::kGang : QueueReason::kResources;
}

}  // namespace

std::vector<std::uint32_t> placement_candidates(const State& state, const TenantAsked& ask) {
  std::vector<std::uint32_t> list;
  for (std::uint32_t g = 0; g < state.gpus.size(); ++g) {
    const Gpu& gpu = *state.gpus[g];
    if (!gpu_named(ask, gpu.uuid)) continue;
    const bool whole = ask.tenant_class == TenantClass::kExclusive;
    const Bytes most = std::min(gpu.capacity, gpu.limit_max(state.policy.oversell_memory));
    if (whole || (ask.memory_max >= gpu.context_bytes && ask.memory_max <= most)) list.push_back(g);
  }
  return list;
}

Placement placement_find(const State& state, const TenantAsked& ask,
                         const std::vector<bool>& kept) {
  const std::vector<std::uint32_t> candidates = placement_candidates(state, ask);
  Placement result;
  std::size_t fitting_but_kept = 0;
  for (std::uint32_t g : candidates) {
    if (!gpu_fits(state, *state.gpus[g], ask)) continue;
    if (kept[g])
      fitting_but_kept++;
    else
      result.gpus.push_back(g);
  }
  if (result.gpus.size() < ask.gpu_count) {
    result.reason = why_not(state, ask, candidates, result.gpus.size(), fitting_but_kept);
    result.gpus.clear();
    return result;
  }
  first_of(result.gpus, ask.gpu_count, [&](std::uint32_t a, std::uint32_t b) {
    return gpu_room(*state.gpus[a]) < gpu_room(*state.gpus[b]);
  });
  std::ranges::sort(result.gpus);
  return result;
}

std::vector<std::uint32_t> placement_plan(const State& state, const TenantAsked& ask) {
  std::vector<std::uint32_t> list = placement_candidates(state, ask);
  if (ask.tenant_class == TenantClass::kExclusive) {
    first_of(list, ask.gpu_count, [&](std::uint32_t a, std::uint32_t b) {
      return state.gpus[a]->shares.size() < state.gpus[b]->shares.size();
    });
  } else {
    first_of(list, ask.gpu_count, [&](std::uint32_t a, std::uint32_t b) {
      return gpu_room(*state.gpus[a]) > gpu_room(*state.gpus[b]);
    });
  }
  return list;
}

int placement_roomiest(const State& state, const TenantAsked& ask) {
  int best = -1;
  for (std::uint32_t g : placement_candidates(state, ask))
    if (best < 0 ||
        gpu_room(*state.gpus[g]) > gpu_room(*state.gpus[static_cast<std::size_t>(best)]))
      best = static_cast<int>(g);
  return best;
}

}  // namespace sluice::core

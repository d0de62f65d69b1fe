// Where a request fits: pure questions about GPUs, no change of anything. See placement.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// GPUs that the request may use at all, whatever is on them now (pinned, large enough, quota above
/// the context).
std::vector<std::uint32_t> placement_candidates(const State& state, const TenantAsked& ask);

/// Is there a promise of this size left on the GPU (the memory rules alone)?
bool promise_fits(const State& state, const Gpu& gpu, bool swap, Bytes memory_max,
                  Bytes memory_min);

/// What the swappable tenant of the GPU that has least of its quota guaranteed may hold beyond
/// that; without `except`.
Bytes spread_max(const Gpu& gpu, const Tenant* except = nullptr);

struct Placement {
  std::vector<std::uint32_t> gpus;  // gpu_count of them, empty = does not fit now
  QueueReason reason = QueueReason::kNone;
};

/// Best fit among the candidates that are not `kept` for requests ahead.
Placement placement_find(const State& state, const TenantAsked& ask, const std::vector<bool>& kept);

/// The GPUs that a request which must wait is expected to get: those with most room (exclusive:
/// fewest tenants). They are kept from requests behind it.
std::vector<std::uint32_t> placement_plan(const State& state, const TenantAsked& ask);

/// The candidate with most room, for people; -1 = none.
int placement_roomiest(const State& state, const TenantAsked& ask);

}  // namespace sluice::core

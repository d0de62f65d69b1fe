// What a request that waits keeps from other requests, and for how long. See backfill.cpp.
#pragma once

#include "broker/core/placement.h"
#include "broker/core/state.h"

namespace sluice::core {

/// A request that waits for room lets others pass for so long before it may hold GPUs. Most jobs
/// that share a GPU for debugging end within it, and no request was kept waiting.
inline constexpr Nanos kHoldAfterNs = 10'000'000'000;
/// The first hold of a request, and the longest; each hold that brought nothing doubles the next.
/// The longest is how long a request that fits can be kept waiting.
inline constexpr Nanos kHoldFirstNs = 10'000'000'000;
inline constexpr Nanos kHoldMostNs = 16 * kHoldFirstNs;

/// Begins a look through the queue from its front: no GPU is planned or kept, holds that are over
/// have ended.
void keeping_begin(State& state, Nanos now);
/// The request waits for room: notes what it plans to get, and keeps that from requests behind it.
void keeping_add(State& state, Prospects& prospects, Waiter& waiter);
/// No request gets anything before the next look.
void keeping_all(State& state);

/// Returns where the request fits now: on GPUs that no request ahead plans to get, else on those
/// that none keeps from it. Without GPUs where it has to wait. `prospect` is of its kind.
Placement placement_now(const State& state, Prospects::Kind& prospect, const TenantAsked& ask);

/// Whether a request of another user holds the GPU.
bool held_by_other(const State& state, std::uint32_t gpu, std::uint32_t uid);

/// After a look through the whole queue: lets requests hold GPUs where it is time.
void holds_decide(State& state, Prospects& prospects, Nanos now);
/// The request has just come into the queue and waits for room: notes when it may hold GPUs.
void holds_expect(State& state, const Waiter& waiter);

}  // namespace sluice::core

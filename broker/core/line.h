// Who waits for a GPU, in order: the shares that may run by how the policies rank them, those that
// a cap holds back by when it ends, and the sums that the policies ask for. A decision looks at the
// first of each and never at all who wait.
//
// The order rests on two properties of the rules (policy.h): within a lane (state.h) it
// is by one number per share, and that number changes only when the share is charged or wakes.
// Whoever changes it tells line_update.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// The lane of Gpu::ready in which the share stands while it may run.
std::size_t lane_of(const Share& share);
/// The share begins to want its GPU; the policies see it wake.
void line_enter(State& state, Share& share, Nanos now);
void line_leave(State& state, Share& share);
/// The account or the limits of a share changed: whether it may run, and where it stands. Nothing
/// to do for one that does not wait.
void line_update(State& state, Share& share, Nanos now);
/// The virtual time of the GPU follows the slowest share that competes now. After its turn a share
/// is not in line before its next message; it counts for the idle grace all the same. Without that
/// the clock jumped to a share far ahead, and took from the one that came back what it was owed. A
/// share that gave its lease back does not count. Waiting gangs do not either: other GPUs may keep
/// them.
void line_clock_advance(const State& state, Gpu& gpu, Nanos now);
/// Caps that have ended by now.
void line_release(State& state, Gpu& gpu, Nanos now);
/// When the next cap of the GPU ends.
Nanos line_release_at(const Gpu& gpu);

/// Before and after the percentage of a waiting share changes, or what it is.
void line_out(State& state, Share& share);
void line_in(State& state, Share& share, Nanos now);
/// Sum of the weights of the waiting shares that may run and are not inference.
double line_weight_others(const Gpu& gpu);

/// Returns the first share of a single-GPU tenant, by the latency band and then by the order rule.
/// Leaves out those that the latency band serves unless `band_too`. Null = none may run.
Share* line_first(const Gpu& gpu, bool band_too = true);

/// Asserts that order and sums are what looking at everybody would find.
void line_check(const State& state, std::uint32_t gpu);

}  // namespace sluice::core

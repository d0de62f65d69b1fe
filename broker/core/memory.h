// What is known of the memory of the GPUs, by the claims of their tenants. See memory.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// Bytes that may be negative: more is on a GPU than it should have.
using Room = std::int64_t;

/// What the share has on its GPU, or will have when the move under way is done.
Bytes share_on_gpu(const Share& share);
/// What jobs that have handed the GPU back, or vacated it, still have there; without `except`.
inline Bytes gpu_left(const Gpu& gpu, TenantId except = 0) {
  Bytes sum = 0;
  for (const Share* share : gpu.unbooked) {
    const Tenant& tenant = *share->tenant;
    if ((!tenant.exclusive() && !tenant.vacated) || tenant.id == except) continue;
    // A restored tenant has told nothing yet; what cannot be moved should be within its minimum.
    const bool untold = share->memory_seen_at < 0 && tenant.vacated && !tenant.frozen;
    sum += untold ? tenant.memory_min : share_on_gpu(*share);
  }
  return sum;
}
/// What moving it out by swap would free.
Bytes share_movable(const Share& share);
/// What the driver's checkpoint has of it, or would have.
Bytes share_freezable(const Share& share);
/// What bringing it back takes beyond what it has on its GPU.
Bytes share_return(const Share& share);
/// The room granted to it that it has not been seen to use.
Bytes share_claim(const Share& share, Nanos now);

/// Capacity less what is there, what is granted, and what no claims tell of.
Room gpu_free(const Gpu& gpu, Nanos now);
/// The driver had no room for `bytes` where room was expected: something that no claims tell of is
/// there. Believed for a while.
void gpu_surprise(const State& state, Gpu& gpu, Bytes bytes, Nanos now);

/// Are the claims of this GPU's tenants young enough to decide by? Asks for them where not, and
/// does not wait for the answer for long.
bool gpu_look(State& state, Gpu& gpu, Nanos age_max, Nanos now, Actions& out);
/// When gpu_look will not wait any longer; kNever = it does not wait.
Nanos gpu_look_at(const Gpu& gpu, Nanos now);
inline constexpr Nanos kClaimNs = 100'000'000;  // an allocation let in is made within this time
inline constexpr Nanos kFreshNs = 10'000'000;   // to bring memory back by
inline constexpr Nanos kLookAgainNs =
    100'000'000;  // while somebody waits for what nobody announces

void memory_seen(State& state, const MemorySeen& event, Nanos now);

/// Host memory that the user may still fill.
Bytes host_room(const State& state, std::uint32_t uid);
/// Charges the share's part of its user's host memory; 0 returns it.
void host_charge(State& state, Share& share, Bytes bytes);

}  // namespace sluice::core

// Memory on its way back.
//
// A job that has handed its GPUs back may live on and keep what it has there: that counts as long
// as it claims it, and is looked at again while somebody waits.
//
// A job keeps what it holds beyond a quota that was lowered. That stays promised to it
// (Tenant::memory_most) and is looked at again until it is back.
//
// A process is gone when its pidfd says so; the driver may take longer to free what it had. Whoever
// is promised that memory at once finds it taken. So what a process held when it ended stays on the
// books of its GPU (Gpu::returning) until the device's own figure has fallen by it: nobody is
// admitted to it, no allocation is told that there is room, nothing comes back into it.
//
// The device's figure counts everything there is, the claims only what tenants hold. The difference
// while nothing is on its way back is somebody else's (Gpu::foreign); what it is more than that
// afterwards is not free yet. Programs outside that come at just this time look the same, so it is
// believed for a bounded time without progress; then that is reported and the memory promised
// again, and the driver has the last word as everywhere. A GPU whose figure is not known (no NVML)
// holds nothing back.
#include "broker/core/returning.h"

#include <algorithm>

#include "broker/core/memory.h"
#include "broker/protocol/gpu_index.h"

namespace sluice::core {
namespace {

void changed(State& state, Gpu& gpu, Bytes left, Nanos now) {
  gpu.returning = left;
  gpu.returning_since = now;
  state.queue_dirty = state.room_dirty = true;
}

constexpr Nanos kExcessLookNs = 1'000'000'000;  // while no request waits

/// Some tenant of the GPU may hold more than its quota, which was lowered.
bool excess_there(Gpu& gpu) {
  if (gpu.lowered) {
    gpu.lowered = std::ranges::any_of(gpu.shares, [](const Share* share) {
      return share->tenant->memory_most > share->tenant->memory_max;
    });
  }
  return gpu.lowered;
}

/// Claims that bear on admission may have fallen since they were looked at.
bool claims_matter(const State& state, Gpu& gpu) {
  if (gpu.lost) return false;
  return excess_there(gpu) || (!state.queue.empty() && gpu_left(gpu) > 0);
}

}  // namespace

void returning_add(State& state, const Share& share, Bytes held, Nanos now) {
  Gpu& gpu = *state.gpus[share.gpu];
  if (!gpu.figures || gpu.lost) return;
  const Bytes most = std::max(share.tenant->quota_most, gpu.context_bytes);
  const Bytes more = std::min(held, most);
  if (more == 0) return;
  gpu.returning = std::min(gpu.returning + more, gpu.capacity);
  gpu.returning_since = now;
  gpu.device_look_at = now;
}

void device_seen(State& state, const DeviceSeen& event, Nanos now) {
  const std::uint32_t at = protocol::gpu_index(state.gpus, event.gpu);
  if (at == state.gpus.size() || state.gpus[at]->lost) return;
  Gpu& gpu = *state.gpus[at];
  gpu.used = event.used;
  gpu.used_at = now;
  const Bytes unclaimed = event.used - std::min(event.used, event.claimed_least);
  if (gpu.returning == 0) {
    if (event.claimed_least != event.claimed_most) return;  // they changed under the question
    gpu.figures = true;
    gpu.foreign = unclaimed;
    return;
  }
  const Bytes left = unclaimed - std::min(unclaimed, gpu.foreign);
  if (left < gpu.returning) changed(state, gpu, left, now);
}

void returning_decide(State& state, Nanos now, Actions& out) {
  for (auto& gpu : state.gpus) {
    if (claims_matter(state, *gpu) && now >= gpu->claims_look_at) {
      gpu->claims_look_at = now + (state.queue.empty() ? kExcessLookNs : kLookAgainNs);
      out.emplace_back(MemoryLookWanted{gpu->uuid});
    }
    if (gpu->returning == 0) continue;
    if (gpu->lost) {
      changed(state, *gpu, 0, now);
      continue;
    }
    if (now >= gpu->returning_since + kReturnMaxNs) {
      out.emplace_back(MemoryNotReturned{gpu->uuid, gpu->returning, now - gpu->returning_since});
      gpu->foreign += gpu->returning;
      changed(state, *gpu, 0, now);
      continue;
    }
    if (now < gpu->device_look_at) continue;
    gpu->device_look_at = now + kDeviceLookNs;
    out.emplace_back(DeviceLookWanted{gpu->uuid});
  }
}

Nanos returning_at(const State& state) {
  Nanos at = kNever;
  for (const auto& gpu : state.gpus) {
    if (gpu->returning > 0)
      at = std::min({at, gpu->device_look_at, gpu->returning_since + kReturnMaxNs});
    if (claims_matter(state, *gpu)) at = std::min(at, gpu->claims_look_at);
  }
  return at;
}

}  // namespace sluice::core

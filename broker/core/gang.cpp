// Gangs: tenants with several GPUs, opened and closed on all of them in one step.
//
// A waiting gang collects its turns: on each GPU, its turn has come when at the end of a slice (or
// while the GPU is free) the policies put it before everybody there; the turn is kept until it
// runs. With all turns in hand its GPUs are reserved, their holders closed, and it is opened when
// the last has drained. Meanwhile, singles run on its GPUs.
//
// No deadlock: a gang never holds a GPU while it waits for another, and between gangs there is one
// order (gang_vtime, lease time over weight; a later gang never reserves a GPU that an earlier
// waiting one needs). No starvation: whoever is served instead falls behind it in virtual time, and
// what the latency band takes is bounded - a gang that wanted to run and was kept from its
// guaranteed share by more than the band's burst is urgent and goes before the band for one
// quantum.
#include <algorithm>
#include <cassert>
#include <vector>

#include "broker/core/lease.h"
#include "broker/core/policy.h"
#include "broker/core/schedule.h"

namespace sluice::core {
namespace {

double weight_of(const State& state, const Tenant& tenant) {
  double least = 1e18;
  for (const Share& share : tenant.shares)
    least = std::min(least, share_weight(*state.gpus[share.gpu], share));
  return least;
}

/// The part of its GPUs' time that the gang is guaranteed, on the worst of them: sm_percent as long
/// as no more than 100 are admitted there, else its part of them.
double guarantee_of(const State& state, const Tenant& tenant) {
  double least = 1;
  for (const Share& share : tenant.shares) {
    const Gpu& gpu = *state.gpus[share.gpu];
    least = std::min(least, share_weight(gpu, share) / std::max(100.0, admitted_weight(gpu)));
  }
  return least;
}

/// Is the GPU in the hands of the latency band?
bool band_holds(Gpu& gpu) {
  Tenant* holder = gpu.holder;
  return holder != nullptr && holder->phase == Phase::kOpen && !holder->gang() &&
         band_serves(gpu, holder->shares.front());
}

/// Has the gang's turn come on the GPU of this share? An urgent gang takes the latency band's
/// place; against everybody else it needs its turn in any case.
bool turn_come(State& state, Share& share, Nanos now) {
  Gpu& gpu = *state.gpus[share.gpu];
  Tenant* holder = gpu.holder;
  if (holder != nullptr && now < holder->protected_until) return false;
  const bool over_band = share.tenant->inference() || gang_urgent(state, *share.tenant);
  const Share* best = best_single(state, gpu, now);
  const bool band = band_holds(gpu) || (best != nullptr && band_serves(gpu, *best));
  if (band && !over_band) return false;
  if (share.turn) return true;
  if (holder != nullptr && holder->phase == Phase::kOpen && !band_holds(gpu)) return false;
  best = best_single(state, gpu, now, !over_band);
  if (best == nullptr) return true;
  share.turn = policies_before(gpu, share, *best);
  return share.turn;
}

bool gang_before(const State& state, const Tenant* a, const Tenant* b) {
  const bool urgent_a = gang_urgent(state, *a);
  const bool urgent_b = gang_urgent(state, *b);
  if (urgent_a != urgent_b) return urgent_a;
  if (a->gang_vtime != b->gang_vtime) return a->gang_vtime < b->gang_vtime;
  return a->id < b->id;
}

std::vector<Tenant*> gangs_waiting(State& state, Nanos now) {
  std::vector<Tenant*> list;
  for (Tenant* gang : state.gangs)
    if (gang->waiting && tenant_may_run(state, *gang, now)) list.push_back(gang);
  std::ranges::sort(list,
                    [&](const Tenant* a, const Tenant* b) { return gang_before(state, a, b); });
  return list;
}

/// Its turn has come everywhere: closes who is in the way, or opens it. True = something changed.
bool gang_serve(State& state, Tenant& gang, Nanos now, Actions& out) {
  bool free = true;
  bool changed = false;
  for (Share& share : gang.shares) {
    Gpu& gpu = *state.gpus[share.gpu];
    gpu.reserved = &gang;
    if (gpu.holder != nullptr && gpu.holder->phase == Phase::kOpen) {
      lease_close(state, *gpu.holder, now, out);
      changed = true;
    }
    free = free && gpu.holder == nullptr;
  }
  if (!free) return changed;
  for (Share& share : gang.shares) state.gpus[share.gpu]->reserved = nullptr;
  const bool urgent = gang_urgent(state, gang);
  lease_open(state, gang, false, now, out);
  if (urgent) gang.protected_until = now + state.policy.quantum_ns;
  return true;
}

}  // namespace

bool gang_urgent(const State& state, const Tenant& tenant) {
  return tenant.owed_ns > static_cast<double>(state.policy.inference_burst_ns);
}

void gang_woke(State& state, Tenant& tenant) {
  const double credit = static_cast<double>(state.policy.quantum_ns) / weight_of(state, tenant);
  tenant.gang_vtime = std::max(tenant.gang_vtime, state.gang_vclock - credit);
}

void gangs_time_passed(State& state, Nanos now) {
  const auto passed = static_cast<double>(now - state.gangs_at);
  state.gangs_at = now;
  const auto burst = static_cast<double>(state.policy.inference_burst_ns);
  double slowest = 0;
  bool any = false;
  for (Tenant* gang : state.gangs) {
    const bool holds = gang->phase == Phase::kOpen || gang->phase == Phase::kClosing;
    if (!holds && !gang->waiting) continue;
    const double guaranteed = passed * guarantee_of(state, *gang);
    gang->owed_ns += holds ? guaranteed - passed : guaranteed;
    gang->owed_ns = std::clamp(gang->owed_ns, -burst, 2 * burst);
    if (holds) gang->gang_vtime += passed / weight_of(state, *gang);
    slowest = any ? std::min(slowest, gang->gang_vtime) : gang->gang_vtime;
    any = true;
  }
  if (any) state.gang_vclock = std::max(state.gang_vclock, slowest);
}

void gangs_take_turns(State& state, Tenant& holder, Nanos now) {
  if (state.gangs.empty()) return;
  for (Share& held : holder.shares) {
    Gpu& gpu = *state.gpus[held.gpu];
    const Share* best = best_single(state, gpu, now);
    for (Share* share : gpu.waiting) {
      Tenant& gang = *share->tenant;
      if (!gang.gang() || share->turn || !tenant_may_run(state, gang, now)) continue;
      const bool beats_holder = holder.gang() ? gang.gang_vtime <= holder.gang_vtime
                                              : !policies_before(gpu, held, *share);
      share->turn = beats_holder && (best == nullptr || policies_before(gpu, *share, *best));
    }
  }
}

bool gangs_decide(State& state, Nanos now, Actions& out) {
  if (state.gangs.empty()) return false;
  for (auto& gpu : state.gpus) gpu->reserved = nullptr;
  std::vector<bool> claimed(state.gpus.size(), false);
  for (Tenant* gang : gangs_waiting(state, now)) {
    bool ready = true;
    for (Share& share : gang->shares) {
      const Gpu& gpu = *state.gpus[share.gpu];
      const bool exclusive = gpu.holder != nullptr && gpu.holder->exclusive();
      const bool come = turn_come(state, share, now);
      ready = ready && !claimed[share.gpu] && !exclusive && come;
      claimed[share.gpu] = true;
    }
    if (ready && gang_serve(state, *gang, now, out)) return true;
  }
  return false;
}

}  // namespace sluice::core

// Whose turn it is.
//
// A GPU that is free goes to the waiting share that the policies put first. A holder keeps it until
// one of these: it says that it is idle while others wait; a share that preempts wants it; its
// slice (one quantum, counted only while others wait) is over and somebody who waits goes before
// it; its budget is spent; a gang's turn has come on all its GPUs. At the end of a slice the usage
// is asked for first, so that the order is by measured time; an answer that does not come within a
// millisecond is not waited for. Alone on its GPU a tenant has no slices and causes one event per
// second.
#include "broker/core/schedule.h"

#include <algorithm>
#include <cassert>

#include "broker/core/lease.h"
#include "broker/core/line.h"
#include "broker/core/policy.h"
#include "broker/core/runaway.h"
#include "broker/core/turn.h"
#include "broker/core/usage.h"

namespace sluice::core {
namespace {

constexpr Nanos kUsagePatienceNs = 1'000'000;
constexpr Nanos kAloneUsageNs = 1'000'000'000;  // keeps the books of a GPU with one holder fresh
/// A decision opens or closes at least one lease, and each lease of a step can be opened and closed
/// once or twice.
constexpr int kLeaseRoundsMax = 64;

bool others_wait(const State& state, const Tenant& holder) {
  return std::ranges::any_of(holder.shares, [&](const Share& share) {
    const Gpu& gpu = *state.gpus[share.gpu];
    // Who may have to make room is asked to say when it is idle.
    if (holder.swap && gpu.room_for != nullptr && gpu.room_for != &holder) return true;
    // A runaway delays it only as long as it uses the GPU.
    if (runaway_on(gpu)) return true;
    return line_first(gpu) != nullptr || std::ranges::any_of(gpu.waiting_gangs, [](const Share* s) {
             return tenant_may_run(*s->tenant);
           });
  });
}

bool preempted(State& state, Tenant& holder, Nanos now) {
  if (now < holder.protected_until) return false;
  for (Share& share : holder.shares) {
    Gpu& gpu = *state.gpus[share.gpu];
    const Share* best = line_first(gpu);
    if (best != nullptr && policies_preempt(state.policy, gpu, *best, share)) return true;
  }
  return false;
}

bool budget_spent(State& state, Tenant& holder, Nanos now) {
  return std::ranges::any_of(holder.shares, [&](Share& share) {
    return policies_run_until(state.policy, share, now) <= now;
  });
}

bool challenged(const State& state, const Tenant& holder) {
  for (const Share& share : holder.shares) {
    const Gpu& gpu = *state.gpus[share.gpu];
    const Share* best = line_first(gpu);
    if (best != nullptr && !policies_before(state.policy, gpu, share, *best)) return true;
  }
  return false;
}

/// Has the usage that was asked for arrived? Asks first, gives up after a moment.
bool usage_fresh(State& state, Tenant& holder, Nanos now, Actions& out) {
  if (!holder.slice_asked) {
    holder.slice_asked = true;
    usage_ask(state, holder, now, out);
    return false;
  }
  if (now >= holder.asked_usage_at + kUsagePatienceNs) return true;
  return std::ranges::all_of(holder.shares,
                             [&](const Share& s) { return s.settled_at >= holder.asked_usage_at; });
}

/// The end of a slice or of a budget. True = the lease was closed.
bool slice_decide(State& state, Tenant& holder, Nanos now, Actions& out) {
  const bool over = holder.slice_end <= now;
  if (!over && !holder.slice_asked && !budget_spent(state, holder, now)) return false;
  if (!usage_fresh(state, holder, now, out)) return false;
  holder.slice_asked = false;
  const bool spent = budget_spent(state, holder, now);
  if (over && !spent && holder.gang() && !holder.turn_ending && challenged(state, holder)) {
    lease_turn_ends(state, holder, now, out);
    holder.slice_end = std::max(holder.opened_at + holder.turn_left_ns, now);
    return false;
  }
  if (spent || (over && challenged(state, holder))) {
    lease_close(state, holder, now, out);
    return true;
  }
  if (!over) return false;
  gangs_take_turns(state, holder, now);
  holder.slice_end = now + state.policy.quantum_ns;
  return false;
}

/// How long the holder keeps its GPUs once others wait.
Nanos slice_of(const State& state, const Tenant& holder) {
  return holder.gang() ? holder.turn_left_ns - turn_step(holder) : state.policy.quantum_ns;
}

/// Until when its windows are not the usual ones.
Nanos windows_until(const State& state, const Tenant& holder) {
  if (holder.wide_until != 0) return holder.wide_until;
  const Share& share = holder.shares.front();
  return share.fills ? state.gpus[share.gpu]->pause_until : kNever;
}

/// Everything that can end an open lease. True = it was closed.
bool holder_decide(State& state, Tenant& holder, Nanos now, Actions& out) {
  if (holder.exclusive() || holder.phase != Phase::kOpen) return false;
  const bool contended = others_wait(state, holder);
  lease_contend(state, holder, contended, out);
  if (!contended) {
    holder.slice_end = kNever;
    if (now >= holder.asked_usage_at + kAloneUsageNs) usage_ask(state, holder, now, out);
  } else if (holder.slice_end == kNever)
    holder.slice_end = std::max(holder.opened_at + slice_of(state, holder), now);
  if (now >= windows_until(state, holder)) lease_windows_usual(state, holder, out);
  const bool given_back = contended && lease_idle(holder);
  if (given_back)
    for (Share& share : holder.shares) policies_gave_back(state.policy, share);
  if (given_back && holder.gang()) turn_paused(state, holder, now);
  if (given_back || preempted(state, holder, now)) {
    lease_close(state, holder, now, out);
    return true;
  }
  return slice_decide(state, holder, now, out);
}

bool gpu_decide(State& state, Gpu& gpu, Nanos now, Actions& out) {
  if (Tenant* holder = gpu.holder) {
    const bool first = state.gpus[holder->shares.front().gpu].get() == &gpu;  // a gang decides once
    return first && holder_decide(state, *holder, now, out);
  }
  if (gpu.reserved != nullptr) return false;
  Share* best = line_first(gpu);
  if (best == nullptr) return false;
  lease_open(state, *best->tenant, false, now, out);
  return true;
}

}  // namespace

Share& share_on(Tenant& tenant, std::uint32_t gpu) {
  for (Share& share : tenant.shares)
    if (share.gpu == gpu) return share;
  assert(false && "the tenant has a share of this GPU");
  __builtin_unreachable();
}

bool tenant_may_run(const Tenant& tenant) {
  return std::ranges::none_of(tenant.shares, &Share::capped);
}

void tenant_waiting_update(State& state, Tenant& tenant, Nanos now) {
  const bool may =
      tenant.phase == Phase::kClosed || (tenant.phase == Phase::kRunaway && tenant.gang());
  const bool in = tenant.residence == Residence::kIn;
  if (!in) state.room_dirty = true;  // it may want to come back
  const bool waiting =
      may && in && !tenant.released && !tenant.exclusive() && tenant_wants(tenant) != 0;
  if (waiting == tenant.waiting) return;
  gang_changes(state, tenant, now);
  tenant.waiting = waiting;
  if (waiting) tenant.waiting_since = now;
  if (tenant.gang()) gang_waits(state, tenant);
  for (Share& share : tenant.shares) {
    if (waiting) {
      line_enter(state, share, now);
    } else {
      line_leave(state, share);
      share.turn = false;
    }
  }
}

void schedule(State& state, Nanos now, Actions& out) {
  for (auto& gpu : state.gpus)
    if (gpu->holder != nullptr) lease_timers(state, *gpu->holder, now, out);
  runaways_decide(state, now, out);
  for (auto& gpu : state.gpus) {
    line_release(state, *gpu, now);
    line_clock_advance(state, *gpu, now);
  }
  bool changed = true;
  for (int round = 0; changed; ++round) {
    assert(round < kLeaseRoundsMax && "lease decisions settle");
    changed = gangs_decide(state, now, out);
    for (auto& gpu : state.gpus) changed = gpu_decide(state, *gpu, now, out) || changed;
  }
  runaways_judge(state);
}

Nanos schedule_at(State& state, Nanos now) {
  Nanos at = std::min(runaways_at(state), state.gangs_at);
  for (auto& gpu : state.gpus) {
    at = std::min(at, line_release_at(*gpu));
    Tenant* holder = gpu->holder;
    if (holder == nullptr || holder->exclusive()) continue;
    at = std::min(at, lease_timer_at(state, *holder));
    if (holder->phase != Phase::kOpen) continue;
    at = std::min(at, windows_until(state, *holder));
    if (holder->slice_asked)
      at = std::min(at, holder->asked_usage_at + kUsagePatienceNs);
    else
      at = std::min(at, holder->slice_end);
    if (holder->slice_asked) continue;
    if (holder->slice_end == kNever) at = std::min(at, holder->asked_usage_at + kAloneUsageNs);
    for (Share& share : holder->shares)
      at = std::min(at, policies_run_until(state.policy, share, now));
  }
  return at;
}

}  // namespace sluice::core

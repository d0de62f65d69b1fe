// Requests that fit pass those that wait, and those that wait are not passed for ever.
//
// How long jobs run is not known. A request that kept its GPUs for as long as it waited would keep
// all others out for as long as any one job goes on; one that kept nothing would never be served
// among small ones. So two things are kept:
//
// - From its own user a request keeps the GPUs that it plans to get for as long as it waits.
// - From the others it keeps them in turns. It lets them pass for kHoldAfterNs first. Then it
//   *holds*: for a bounded time no request behind it is admitted onto these GPUs, and no other
//   user's job is moved there. Whatever comes of it, afterwards no request holds any GPU for as
//   long as the hold took. All holds of the machine begin at one moment, so that a request for
//   several GPUs finds them free at one moment too.
//
// A request that takes no guaranteed share is not kept from a GPU where those ahead lack nothing
// but that, if there is memory for all of them: it delays none of them.
//
// A request that its own user's jobs keep out holds nothing: if all the others ended it would still
// wait. Only the first request of a user for a GPU holds. Requests with fewer holds behind them
// go first, so that one which cannot be served does not keep another one from its turn.
//
// A request for whole GPUs that shared jobs make room for (Policy::exclusive_room) holds at once,
// and for as long as a move may take: there the wait is bounded by itself.
#include "broker/core/backfill.h"

#include <algorithm>

namespace sluice::core {
namespace {

bool makes_room(const State& state, const Waiter& waiter) {
  return waiter.ask.tenant_class == TenantClass::kExclusive &&
         state.policy.exclusive_room != ExclusiveRoom::kWait;
}

Nanos hold_after(const State& state, const Waiter& waiter) {
  const Nanos ripe = waiter.asked_at + (makes_room(state, waiter) ? 0 : kHoldAfterNs);
  return std::max(ripe, state.holds_next);
}

Nanos hold_length(const State& state, const Waiter& waiter) {
  Nanos length = kHoldFirstNs;
  for (std::uint32_t i = 0; i < waiter.holds && length < kHoldMostNs; ++i) length *= 2;
  return makes_room(state, waiter) ? std::max(length, state.policy.move_timeout_ns) : length;
}

/// True if the request would fit on the GPU once all jobs of other users had ended.
bool others_are_in_the_way(const State& state, const Gpu& gpu, const Waiter& waiter) {
  if (makes_room(state, waiter)) return true;
  const TenantAsked& ask = waiter.ask;
  Bytes own = 0;
  std::uint32_t own_share = 0;
  bool any = false;
  for (const Share* share : gpu.shares) {
    if (share->tenant->uid != ask.uid) continue;
    any = true;
    own += share->tenant->promised;
    own_share += guarantee_of(*share->tenant);
  }
  if (ask.tenant_class == TenantClass::kExclusive) return !any;
  if (ask.sm_kind == SmKind::kGuaranteed && own_share + ask.sm_percent > 100) return false;
  return own + ask.memory_max <= gpu.capacity;
}

void kept_add(const State& state, std::uint32_t g, const Waiter& waiter, KeptFor& kept) {
  const TenantAsked& ask = waiter.ask;
  kept.more_than_share = kept.more_than_share || waiter.reason != QueueReason::kShare ||
                         !lacks_only_share(state, *state.gpus[g], ask);
  kept.most += ask.memory_max;
  kept.promise += ask.swap ? ask.memory_min : ask.memory_max;
}

void hold_mark(State& state, const Waiter& waiter) {
  for (const std::uint32_t g : waiter.held) {
    state.kept[g] = true;
    kept_add(state, g, waiter, state.kept_for[g]);
    if (waiter.ask.tenant_class != TenantClass::kExclusive) continue;
    state.gpus[g]->draining = true;
    if (makes_room(state, waiter)) state.gpus[g]->step_aside = true;
  }
}

/// Lets the request hold the GPUs that it would get first. False = others hold too many of them, or
/// holding would not help.
bool hold_begin(State& state, Prospects& prospects, Waiter& waiter, Nanos now) {
  GpuFlags without = state.kept;
  for (std::size_t g = 0; g < state.gpus.size(); ++g)
    without[g] = without[g] || !others_are_in_the_way(state, *state.gpus[g], waiter);
  waiter.held = prospects.kind_of(waiter.ask).plan_without(without);
  if (waiter.held.size() < waiter.ask.gpu_count) {
    waiter.held.clear();
    return false;
  }
  waiter.hold_until = now + hold_length(state, waiter);
  hold_mark(state, waiter);
  return true;
}

/// True if a request of this kind cannot delay one that lacks only a guaranteed share.
bool takes_no_share(const TenantAsked& ask) {
  return ask.sm_kind != SmKind::kGuaranteed && ask.tenant_class != TenantClass::kExclusive;
}

/// True if such a request delays none of those that keep the GPU from it: they lack only a share
/// there, and the GPU has memory for all of them. `own`: of its user, or null.
bool delays_none(const State& state, std::uint32_t g, const TenantAsked& ask, const KeptFor* own) {
  const KeptFor& others = state.kept_for[g];
  if (others.more_than_share || (own != nullptr && own->more_than_share)) return false;
  const Bytes most = ask.memory_max + others.most + (own != nullptr ? own->most : 0);
  const Bytes promise = (ask.swap ? ask.memory_min : ask.memory_max) + others.promise +
                        (own != nullptr ? own->promise : 0);
  return promise_fits(state, *state.gpus[g], true, most, promise);
}

bool holds_begin(State& state, Prospects& prospects, Nanos now) {
  std::vector<Waiter*> ready;
  for (const auto& waiter : state.queue)
    if (waiter->first && hold_after(state, *waiter) <= now) ready.push_back(waiter.get());
  std::ranges::stable_sort(ready, {}, &Waiter::holds);
  bool any = false;
  for (Waiter* waiter : ready) any = hold_begin(state, prospects, *waiter, now) || any;
  if (!any) return false;
  state.holds_since = now;
  state.room_dirty = true;  // shared jobs may have to step aside
  return true;
}

}  // namespace

void keeping_begin(State& state, Nanos now) {
  state.planned.assign(state.gpus.size(), false);
  state.kept.assign(state.gpus.size(), false);
  state.kept_for.assign(state.gpus.size(), {});
  state.kept_unseen = false;
  ++state.queue_looks;
  for (const auto& waiter : state.queue) {
    if (waiter->hold_until == 0 || now < waiter->hold_until) continue;
    waiter->hold_until = 0;
    waiter->held.clear();
    waiter->holds++;
  }
}

void keeping_add(State& state, Prospects& prospects, Waiter& waiter) {
  UserCount& user = state.users[waiter.ask.uid];
  if (user.kept_with != state.queue_looks) {
    user.kept.assign(state.gpus.size(), false);
    user.kept_for.assign(state.gpus.size(), {});
  }
  user.kept_with = state.queue_looks;
  waiter.first = true;
  for (const std::uint32_t g : prospects.kind_of(waiter.ask).plan()) {
    if (!state.planned[g]) prospects.planned_grew();
    waiter.first = waiter.first && !user.kept[g];
    state.planned[g] = user.kept[g] = true;
    kept_add(state, g, waiter, user.kept_for[g]);
  }
  hold_mark(state, waiter);
}

void keeping_all(State& state) {
  state.kept_unseen = true;
  state.planned.assign(state.gpus.size(), true);
  state.kept.assign(state.gpus.size(), true);
}

Placement placement_now(const State& state, Prospects::Kind& prospect, const TenantAsked& ask) {
  const Placement& apart = prospect.find();
  if (!apart.gpus.empty() || apart.reason != QueueReason::kPriority) return apart;
  const auto user = state.users.find(ask.uid);
  const bool waits = user != state.users.end() && user->second.kept_with == state.queue_looks;
  const bool passes = takes_no_share(ask);
  if (state.kept_unseen || (!waits && !passes)) return prospect.find_without(state.kept);
  GpuFlags kept = state.kept;
  for (std::uint32_t g = 0; g < kept.size(); ++g) {
    const KeptFor* own = waits ? &user->second.kept_for[g] : nullptr;
    if (waits && user->second.kept[g]) kept[g] = true;
    if (passes && kept[g] && delays_none(state, g, ask, own)) kept[g] = false;
  }
  return prospect.find_without(kept);
}

bool held_by_other(const State& state, std::uint32_t gpu, std::uint32_t uid) {
  return std::ranges::any_of(state.queue, [&](const auto& waiter) {
    return waiter->ask.uid != uid && waiter->hold_until != 0 &&
           std::ranges::find(waiter->held, gpu) != waiter->held.end();
  });
}

void holds_decide(State& state, Prospects& prospects, Nanos now) {
  const auto holding = [](const auto& waiter) { return waiter->hold_until != 0; };
  bool any = std::ranges::any_of(state.queue, holding);
  if (!any && state.holds_since != kNever) {
    state.holds_next = now + (now - state.holds_since);
    state.holds_since = kNever;
  }
  if (!any && now >= state.holds_next) any = holds_begin(state, prospects, now);
  state.holds_at = kNever;
  for (const auto& waiter : state.queue) {
    const Nanos at = any ? waiter->hold_until : waiter->first ? hold_after(state, *waiter) : 0;
    if (at > now) state.holds_at = std::min(state.holds_at, at);
  }
}

void holds_expect(State& state, const Waiter& waiter) {
  if (!waiter.first || state.holds_since != kNever) return;
  state.holds_at = std::min(state.holds_at, hold_after(state, waiter));
}

}  // namespace sluice::core

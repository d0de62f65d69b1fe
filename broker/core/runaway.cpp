// Runaways: tenants that did not drain in time.
//
// A kernel cannot be interrupted, nor can the driver's checkpoint take it off the GPU: ending its
// process is all that helps. What decides is the time for which others have wanted the GPU since
// the lease was closed (delayed_ns): at drain_timeout_ns the others go on beside the runaway, at
// runaway_after_ns it is warned, and kWarningNs later it is ended. A tenant that drains after the
// warning is spared. A kernel that delays no other tenant is never ended, however long it runs.
//
// An end may leave the tenant alive: a process of it can register after the kill. So the time
// begins anew with each end, and the tenant can be warned and ended again.
//
// What a tenant overran is its debt (fair.cpp, budget.cpp). A debt outlives its tenant: the next
// tenants of the user on that GPU begin with what is left of it. It is not handed over but goes on
// shrinking by the clock, so that no tenant can be sent ahead to take it away. The price: several
// tenants that begin at once owe it each. Its virtual time outlives it as well, and counts until a
// share could begin there: a tenant for each kernel does not begin behind all others each time, nor
// with another quantum of credit (fair.cpp). So does what a gang had beyond its guarantee: a gang
// for each kernel would be urgent each time. A tenant that is moved ends on the one GPU and begins
// on the other.
#include "broker/core/runaway.h"

#include <algorithm>
#include <utility>

#include "broker/core/line.h"
#include "broker/core/policy.h"
#include "broker/core/room.h"
#include "broker/core/schedule.h"
#include "broker/core/turn.h"

namespace sluice::core {
namespace {

/// Between warning and end: the helper thread of a process looks at its pages every millisecond
/// while it drains, and a busy host may keep it from that for tens of them.
constexpr Nanos kWarningNs = 200'000'000;

bool draining(const Tenant& tenant) {
  return tenant.phase == Phase::kClosing || tenant.phase == Phase::kRunaway;
}

/// Does a tenant other than this one use the GPU, or want to?
bool wanted_by_others(const Gpu& gpu, const Tenant& tenant) {
  if (gpu.holder != nullptr && gpu.holder != &tenant) return true;
  if (line_first(gpu) != nullptr) return true;
  return std::ranges::any_of(gpu.waiting_gangs, [&](const Share* s) {
    return s->tenant != &tenant && tenant_may_run(*s->tenant);
  });
}

bool delays(const State& state, const Tenant& tenant) {
  // A closing tenant that waits for memory waits for the others itself.
  if (tenant.phase == Phase::kClosing && wants_room(state, tenant)) return false;
  return std::ranges::any_of(tenant.shares, [&](const Share& share) {
    return share_undrained(share) > 0 && wanted_by_others(*state.gpus[share.gpu], tenant);
  });
}

/// True if a member of the gang waits at a gate: then it may be that for which the other members
/// spin, and the gang drains once its turn has come again. If it has come, that was not the reason.
bool locked_out(const Tenant& tenant) {
  return tenant.gang() && !tenant.turn_came &&
         std::ranges::any_of(tenant.processes,
                             [](const Process& p) { return (p.wants & ~p.drains) != 0; });
}

bool may_be_ended(const State& state, const Tenant& tenant) {
  return state.policy.runaway == RunawayPolicy::kEnd && tenant.phase == Phase::kRunaway &&
         tenant.end_at == kNever;
}

void warn(State& state, Tenant& tenant, Nanos now, Actions& out) {
  for (const Share& share : tenant.shares) {
    if (share_undrained(share) == 0) continue;
    out.emplace_back(RunawaySeen{tenant.id, share.index, RunawayStep::kWarned,
                                 now - tenant.closed_at, tenant.delayed_ns});
  }
  tenant.end_at = now + kWarningNs;
  state.ending.push_back(tenant.id);
}

/// Takes the warning back: the tenant can be warned again.
void unwarn(Tenant& tenant, RunawayStep step, Nanos now, Actions& out) {
  out.emplace_back(RunawaySeen{tenant.id, 0, step, now - tenant.closed_at, tenant.delayed_ns});
  tenant.end_at = kNever;
  tenant.delayed_ns = 0;
}

/// Calls `what` for every tenant that is on a GPU and does not drain, once for each of its GPUs.
template <class What>
void undrained_each(const State& state, What what) {
  for (const auto& gpu : state.gpus)
    for (Share* share : gpu->on)
      if (draining(*share->tenant)) what(*share->tenant);
}

double left_of(const PaidByClock& debt, Nanos now) {
  return std::max(debt.ns - static_cast<double>(now - debt.at) * debt.rate, 0.0);
}

/// Keeps the larger of what is left of it and `ns`. True = that is `ns`.
bool leave(PaidByClock& debt, double ns, double rate, Nanos now) {
  if (left_of(debt, now) >= ns) return false;
  debt = {ns, rate, now};
  return true;
}

/// Nothing is left of it.
bool paid(const State& state, std::uint32_t gpu, const UserDebt& debt, Nanos now) {
  return left_of(debt.overrun, now) <= 0 && left_of(debt.ahead, now) <= 0 &&
         debt.vtime_until <= state.gpus[gpu]->vclock;
}

}  // namespace

Nanos runaway_limit(const State& state, const Tenant& tenant) {
  constexpr Nanos kLockedOutFactor = 8;  // its turn may come late, but not for ever
  const Nanos limit = std::max(state.policy.runaway_after_ns, state.policy.drain_timeout_ns);
  return locked_out(tenant) ? kLockedOutFactor * limit : limit;
}

std::uint32_t share_undrained(const Share& share) {
  const auto bit = static_cast<std::uint8_t>(1U << share.index);
  return static_cast<std::uint32_t>(std::ranges::count_if(
      share.tenant->processes, [&](const Process& p) { return (p.drains & bit) != 0; }));
}

bool runaway_on(const Gpu& gpu) {
  return std::ranges::any_of(gpu.on,
                             [](const Share* s) { return s->tenant->phase == Phase::kRunaway; });
}

void runaway_time_passed(Tenant& tenant, Nanos now) {
  if (tenant.delays) tenant.delayed_ns += now - tenant.delayed_at;
  tenant.delayed_at = now;
}

void runaways_decide(State& state, Nanos now, Actions& out) {
  if (!state.any_drains && state.ending.empty()) return;
  undrained_each(state, [&](Tenant& tenant) {
    if (may_be_ended(state, tenant) && tenant.delayed_ns >= runaway_limit(state, tenant))
      warn(state, tenant, now, out);
  });
  std::erase_if(state.ending, [&](TenantId id) {
    Tenant* tenant = tenant_find(state, id);
    if (tenant == nullptr) return true;
    const bool ends = state.policy.runaway == RunawayPolicy::kEnd;
    if (ends && now < tenant->end_at) return false;
    unwarn(*tenant, ends ? RunawayStep::kEnded : RunawayStep::kSpared, now, out);
    return true;
  });
}

void runaway_drained(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (std::erase(state.ending, tenant.id) != 0) unwarn(tenant, RunawayStep::kSpared, now, out);
}

void runaway_turn_came(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (std::exchange(tenant.turn_came, true)) return;
  runaway_drained(state, tenant, now, out);
  tenant.delayed_ns = 0;
}

void runaways_judge(State& state) {
  state.any_drains = false;
  undrained_each(state, [&](Tenant& tenant) {
    state.any_drains = true;
    tenant.delays = delays(state, tenant);
  });
}

Nanos runaways_at(const State& state) {
  Nanos at = kNever;
  if (!state.any_drains && state.ending.empty()) return at;
  undrained_each(state, [&](const Tenant& tenant) {
    if (tenant.delays && may_be_ended(state, tenant))
      at = std::min(at, tenant.delayed_at + runaway_limit(state, tenant) - tenant.delayed_ns);
  });
  for (TenantId id : state.ending) {
    auto it = state.tenants.find(id);
    if (it != state.tenants.end()) at = std::min(at, it->second->end_at);
  }
  return at;
}

void debt_leave(State& state, Share& share, Nanos now) {
  Tenant& tenant = *share.tenant;
  if (tenant.exclusive()) return;
  if (state.debts.size() >= state.debts_sweep_at) {
    std::erase_if(state.debts, [&](const auto& entry) {
      return paid(state, entry.first.second, entry.second, now);
    });
    // Twice as many: on average, an end costs the look at a few.
    constexpr std::size_t kFew = 16;
    state.debts_sweep_at = 2 * state.debts.size() + kFew;
  }
  const Gpu& gpu = *state.gpus[share.gpu];
  const auto overrun = static_cast<double>(std::exchange(share.episode_overrun_ns, 0));
  policies_overran(state.policy, gpu, share, overrun, now);
  const double owed = policies_owed(state.policy, gpu, share, now);
  const double ahead = tenant.gang() ? std::max(-tenant.owed_ns, 0.0) : 0;
  const double begins = fair_begins(state.policy, gpu, share);
  if (owed <= 0 && ahead <= 0 && share.vtime <= begins) return;
  UserDebt& debt = state.debts[{tenant.uid, share.gpu}];
  debt.vtime = std::max(debt.vtime, share.vtime);
  debt.vtime_until = std::max(debt.vtime_until, share.vtime + gpu.vclock - begins);
  const double part = share_weight(gpu, share) / std::max(100.0, admitted_weight(gpu));
  if (leave(debt.overrun, owed, part, now)) debt.budget = tenant.sm_mode == SmMode::kFixed;
  leave(debt.ahead, ahead, part, now);
}

void debts_reordered(State& state) {
  for (auto& [key, debt] : state.debts) {
    debt.vtime = 0;
    if (!debt.budget) debt.overrun = {};
  }
}

void debt_take(State& state, Share& share, Nanos now) {
  Tenant& tenant = *share.tenant;
  const auto it = state.debts.find({tenant.uid, share.gpu});
  if (tenant.exclusive() || it == state.debts.end()) return;
  const UserDebt& debt = it->second;
  const Gpu& gpu = *state.gpus[share.gpu];
  if (debt.vtime_until > gpu.vclock) share.vtime = std::max(share.vtime, debt.vtime);
  const double more = left_of(debt.overrun, now) - policies_owed(state.policy, gpu, share, now);
  if (more > 0) policies_owe(state.policy, gpu, share, more, now);
  if (tenant.gang()) turn_begins_ahead(tenant, left_of(debt.ahead, now));
}

}  // namespace sluice::core

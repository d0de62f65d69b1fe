// Charging GPU time.
//
// While a share is on the GPU (open, or closed and not yet drained) its lease time is charged in
// full as it passes, as if it kept the GPU busy. When the meter's figure arrives, the charge of the
// present lease becomes the measured one. So a decision never waits for a measure, a measure that
// never comes costs only the tenant itself, and the totals are the measured ones. A meter sees work
// when it ends: as long as an open lease shows no progress, its work is taken to be in flight and
// the full charge stands (an endless kernel is never cheap).
//
// The meter's page belongs to the tenant, so its word is bounded on both sides. Never more than the
// time the share was on the GPU; a figure that runs backwards is ignored; and a lease held while
// others wait is charged at least half its open time: an honest program that keeps the GPU less
// than half busy gives a contended lease back when it is idle, so only a program that occupies the
// GPU without using it, or lies about it, meets this floor.
#include "broker/core/usage.h"

#include <algorithm>
#include <cassert>

#include "broker/core/line.h"
#include "broker/core/policy.h"

namespace sluice::core {
namespace {

constexpr double kContendedChargeMin = 0.5;

/// What the present lease is to be charged, by what is known of it.
Nanos episode_charge(const State& state, const Share& share) {
  const Nanos counted = std::max<Nanos>(share.episode_contended_ns - state.policy.idle_grace_ns, 0);
  const auto least = static_cast<Nanos>(kContendedChargeMin * static_cast<double>(counted));
  return std::max(share.episode_busy_ns, least);
}

}  // namespace

void share_account(State& state, Share& share, Nanos now) {
  const Nanos passed = now - share.accounted_at;
  share.accounted_at = now;
  if (!share.on || passed <= 0) return;
  share.lease_ns += passed;
  if (share.open) share.held_ns += passed;
  if (share.tenant->exclusive() || share.tenant->phase == Phase::kRunaway) return;
  if (share.open && share.contended) share.episode_contended_ns += passed;
  share.provisional_ns += passed;
  share.episode_charged_ns += passed;
  policies_charge(state.policy, *state.gpus[share.gpu], share, static_cast<double>(passed));
}

void share_settle(State& state, Share& share, Nanos busy_ns, Nanos now) {
  share_account(state, share, now);
  share.settled_at = now;
  if (share.tenant->exclusive()) return;
  const Nanos said = std::max<Nanos>(busy_ns - share.busy_seen_ns, 0);
  const Nanos real = std::min(said, share.lease_ns - share.busy_ns);
  assert(real >= 0 && "a share is never charged more than its lease time");
  share.busy_seen_ns = std::max(share.busy_seen_ns, busy_ns);
  share.busy_ns += real;
  share.episode_busy_ns += real;
  Gpu& gpu = *state.gpus[share.gpu];
  gpu.busy_ns += real;
  if (share.on && real == 0) return;  // nothing has ended: what runs is not seen yet
  share.provisional_ns = 0;
  const Nanos correction = episode_charge(state, share) - share.episode_charged_ns;
  share.episode_charged_ns += correction;
  if (correction == 0) return;
  policies_charge(state.policy, gpu, share, static_cast<double>(correction));
  line_update(state, share, now);
}

void usage_time_passed(State& state, Nanos now) {
  for (auto& gpu : state.gpus) {
    policies_time_passed(state.policy, *gpu, now);
    for (Share* share : gpu->on) share_account(state, *share, now);
  }
}

void usage_seen(State& state, const UsageSeen& event, Nanos now) {
  if (Tenant* tenant = tenant_find(state, event.tenant)) {
    if (event.gpu_index < tenant->shares.size())
      share_settle(state, tenant->shares[event.gpu_index], event.busy_ns, now);
    return;
  }
  for (Ghost& ghost : state.ghosts) {
    if (ghost.tenant != event.tenant || ghost.index != event.gpu_index) continue;
    const Nanos said = std::max<Nanos>(event.busy_ns - ghost.busy_seen_ns, 0);
    const Nanos real = std::min(said, ghost.allowance_ns);
    Gpu& gpu = *state.gpus[ghost.gpu];
    gpu.busy_ns += real;
    gpu.dead_busy_ns += real;
    ghost.allowance_ns = 0;
  }
}

void usage_ask(State&, Tenant& tenant, Nanos now, Actions& out) {
  tenant.asked_usage_at = now;
  if (tenant.exclusive()) return;
  for (const Share& share : tenant.shares) out.emplace_back(UsageWanted{tenant.id, share.index});
}

}  // namespace sluice::core

// Charging GPU time.
//
// While a share is on the GPU (open, or closed and not yet drained) its lease time is charged in
// full as it passes, as if it kept the GPU busy. When the meter's figure arrives, the charge of the
// present lease becomes the measured one. So a decision never waits for a measure, a measure that
// never comes costs only the tenant itself, and the totals are the measured ones. A meter sees work
// when it ends: as long as an open lease shows no progress, and until a closed one has drained, its
// work is taken to be in flight and the full charge stands (an endless kernel is never cheap, nor
// is one behind small ones). It stands for good where a process was killed: its meter tells no
// more.
//
// The meter's page belongs to the tenant, so its word is bounded on both sides. Never more than the
// time the share was on the GPU; a figure that runs backwards is ignored; and a lease held while
// others wait is charged its open time. An honest program gives a contended lease back when it is
// idle for the grace, so the unused time that it is charged are pauses in which no other tenant
// could use the GPU. The grace is one of them: with that for nothing, ten tenants that paused after
// each short kernel left 65 % of the time to one that was promised 90. What no meter sees, as
// settings of memory between launches, costs as much.
//
// A closed lease that others wait for is charged until it has drained, besides its turn: for what
// the meter says, and for what lies beyond it, but for what a busy host is late. A process that is
// stopped, or does not answer for another reason, keeps the GPU as a kernel does. Else a tenant
// that stops its processes for a moment at each drain, shorter than drain_timeout, took half of its
// neighbour's time for nothing.
//
// Beside a runaway the device divides its time between the processes that have work. The holder
// counts as one of them and a runaway as its processes that have not drained; each share is charged
// by that, however long its kernels lasted.
#include "broker/core/usage.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "broker/core/line.h"
#include "broker/core/policy.h"
#include "broker/core/runaway.h"
#include "broker/core/schedule.h"
#include "broker/core/turn.h"

namespace sluice::core {
namespace {

/// Of an overrun that lasted until the lease was a runaway's: its process may have been stopped
/// with nothing in flight, and others have had the GPU beside it.
constexpr double kRunawayChargeMin = 0.5;

/// The part of a lease and its drain that others waited for which counts against a gang's
/// guarantee, whatever its meter says. The pauses of its collectives take up to a sixth, and no
/// neighbour pays for more. A GPU counts the same that is idle while another one of the gang
/// drains.
constexpr double kGangUseLeast = 0.8;

/// What the present lease has used, by its meter.
Nanos episode_busy(const Share& share) {
  return share.episode_divided ? std::min(share.episode_busy_ns, share.episode_device_ns)
                               : share.episode_busy_ns;
}
/// The part of it for which others waited, pauses included, but for the last one: of a gang.
Nanos episode_kept(const State& state, const Share& share) {
  return std::max<Nanos>(share.episode_contended_ns - state.policy.idle_grace_ns, 0);
}

/// Makes what the present lease was charged `charge`. Returns the difference.
Nanos recharge(Nanos& charged, Nanos charge) { return charge - std::exchange(charged, charge); }

/// A gang's guarantee is of time in which it uses its GPUs; a weight divides the time for which it
/// has them, which was charged as it passed.
void gang_recharge(State& state, Share& share) {
  if (!share.tenant->gang() || !share.tenant->guaranteed()) return;
  const Nanos kept = episode_kept(state, share) + share.episode_withheld_ns;
  const auto least = static_cast<Nanos>(kGangUseLeast * static_cast<double>(kept));
  share.episode_unsettled_ns = 0;
  const Nanos more = recharge(share.episode_gang_ns, std::max(episode_busy(share), least));
  if (more != 0) gang_charged(state, share, static_cast<double>(more));
}

/// Of so much silence of a drain the share is not charged: a busy host wakes a process late, 0.1 ms
/// in the median and 5 ms one time in a hundred (sim/random.h). It saves up to a quantum of that,
/// at a fiftieth of the time: what is free in each drain was a third of the GPU for who held it so.
Nanos answer_grace(const State& state, Share& share, Nanos silent, Nanos now) {
  constexpr Nanos kAnswerPart = 50;
  const Nanos saved = share.answer_grace_ns + (now - share.answer_grace_at) / kAnswerPart;
  const Nanos grace = std::min(saved, state.policy.quantum_ns);
  share.answer_grace_at = now;
  share.answer_grace_ns = std::max<Nanos>(grace - silent, 0);
  return std::min(grace, silent);
}

/// What the device can have done for the share in `passed`.
Nanos device_time(const Gpu& gpu, const Share& share, Nanos passed) {
  std::int64_t all = 0;
  std::int64_t own = 0;
  for (const Share* other : gpu.on) {
    const bool runaway = other->tenant->phase == Phase::kRunaway;
    const std::int64_t contexts = runaway ? share_undrained(*other) : 1;
    all += contexts;
    if (other == &share) own = contexts;
  }
  return all == 0 ? 0 : passed * own / all;
}

/// After a drain: what the lease took beyond its end, as far as the meter confirms it or others
/// waited for it. The time of a runaway is charged at least in part, whatever the meter says.
void overrun_settle(State& state, Share& share, Nanos now) {
  const Nanos measured = std::exchange(share.episode_late_ns, 0);
  const Nanos most = std::exchange(share.episode_overrun_ns, 0);
  const Nanos delayed = std::exchange(share.episode_delayed_ns, 0);
  if (most == 0) return;
  const Nanos unmeasured = std::max<Nanos>(delayed - measured, 0);
  const Nanos silent = unmeasured - answer_grace(state, share, unmeasured, now);
  share.episode_silent_ns += silent;
  const Nanos real = measured + silent;
  const bool ran_away = most >= state.policy.drain_timeout_ns;
  const double sure = share.episode_lost ? 1 : ran_away ? kRunawayChargeMin : 0;
  const auto least = static_cast<Nanos>(sure * static_cast<double>(most));
  const Nanos overran = std::clamp(real, least, most);
  policies_overran(state.policy, *state.gpus[share.gpu], share, static_cast<double>(overran), now);
  line_update(state, share, now);
}

/// What of a measure is of the lease before this one: as much as that was charged in full. It
/// drained in the step in which this one was opened, so its overrun is settled now.
Nanos before_settle(State& state, Share& share, Nanos real, Nanos now) {
  if (share.before_ns == 0) return 0;
  const Nanos used = std::min(real, std::exchange(share.before_ns, 0));
  const Nanos silent = share.episode_silent_ns;
  share.episode_late_ns += used;
  overrun_settle(state, share, now);
  share.episode_silent_ns = silent;
  return used;
}

}  // namespace

void share_episode_begin(Share& share) {
  // A runaway that is opened again has not drained: its account goes on.
  const bool untold = !share.on && share.provisional_ns > 0;
  share.before_ns = untold ? share.before_ns + share.episode_charged_ns - share.episode_busy_ns : 0;
  share.episode_contended_ns = 0;
  share.episode_withheld_ns = 0;
  share.episode_unsettled_ns = 0;
  share.episode_busy_ns = 0;
  share.episode_charged_ns = 0;
  share.episode_gang_ns = 0;
  share.episode_device_ns = 0;
  share.episode_silent_ns = 0;
  share.episode_divided = share.episode_lost = false;
}

void share_account(State& state, Share& share, Nanos now) {
  const Nanos passed = now - share.accounted_at;
  share.accounted_at = now;
  if (!share.on || passed <= 0) return;
  share.lease_ns += passed;
  if (share.open) share.held_ns += passed;
  if (share.tenant->exclusive()) return;
  Gpu& gpu = *state.gpus[share.gpu];
  const Nanos charge = gpu.on.size() == 1 ? passed : device_time(gpu, share, passed);
  if (charge < passed) share.episode_divided = true;
  if (share.open && share.contended) share.episode_contended_ns += charge;
  share.provisional_ns += passed;
  share.episode_device_ns += charge;
  if (!share.open) share.episode_overrun_ns += charge;
  if (share.tenant->phase == Phase::kClosing && share.tenant->delays) {
    (share.tenant->gang() ? share.episode_withheld_ns : share.episode_delayed_ns) += charge;
    if (share.tenant->gang()) turn_overran(*share.tenant, charge);
  }
  // A gang whose members wait for each other pays when it has drained: it drains only if its turn
  // comes again.
  if (share.tenant->gang() && share.tenant->phase == Phase::kRunaway) return;
  share.episode_charged_ns += charge;
  share.episode_gang_ns += charge;
  share.episode_unsettled_ns += charge;
  policies_charge(state.policy, gpu, share, static_cast<double>(charge));
  gang_charged(state, share, static_cast<double>(charge));
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
  Gpu& gpu = *state.gpus[share.gpu];
  gpu.busy_ns += real;
  const Nanos mine = real - before_settle(state, share, real, now);
  share.episode_busy_ns += mine;
  const bool draining = share.on && share.tenant->phase != Phase::kOpen;
  if (share.tenant->phase != Phase::kOpen) share.episode_late_ns += mine;
  if (share.on && (mine == 0 || draining)) return;  // what runs is not seen yet
  if (!share.on) overrun_settle(state, share, now);
  share.provisional_ns = 0;
  if (share.episode_lost) return;  // the full charge stands
  gang_recharge(state, share);
  const Nanos turn = std::max(episode_busy(share), share.episode_contended_ns);
  const Nanos charge = turn + share.episode_silent_ns;
  const Nanos correction = recharge(share.episode_charged_ns, charge);
  if (correction == 0) return;
  policies_charge(state.policy, gpu, share, static_cast<double>(correction));
  line_update(state, share, now);
}

void usage_time_passed(State& state, Nanos now) {
  for (auto& gpu : state.gpus) {
    policies_time_passed(state.policy, *gpu, now);
    for (Share* share : gpu->on) {
      share_account(state, *share, now);
      runaway_time_passed(*share->tenant, now);
    }
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

// The turns of gangs.
//
// A change of turns costs a gang far more than a single: it opens when the last of its GPUs has
// drained, and the others are idle for some of that. What it takes is learned from the gang's own
// changes: the longest of late, because a mean of single drains says half of what the longest of
// several takes. A turn is kChangeFactor changes long, and as much longer as the gang is behind;
// that is looked at again in its last part, when its use has been measured. It is bounded by the
// share itself, so that a window of two seconds has its part, and by the latency band's burst where
// there are such tenants. Beside kernels that are longer than that it is as long as they are.
//
// A gang is urgent once it has missed 3.7 % of what it was guaranteed in two seconds in which it
// wanted to run, less what it will miss until it has its GPUs, or a burst altogether: then it goes
// before everything. It has missed what it was guaranteed and not charged. None of that is forgiven
// while it wants, but it misses nothing while a debt (fair.cpp) keeps it out; what it had beyond
// its guarantee counts within the two seconds, and else for a burst at most. But drains that others
// waited for are paid back in full before it is urgent again: a gang at 10 % with kernels of 500 ms
// had 21 %. The worst two seconds begin at the end of a turn. So the account of two seconds is from
// the least of each part of them: marks taken at any moment hid up to a turn of debt.
//
// An urgent gang comes while its GPUs are in the same kernel. Singles begin together when its turn
// ends. Once some have begun their second kernel, those that end their first one stand idle for
// most of a kernel. With four GPUs and kernels of 50 ms that took 5 % of the time, from the
// singles. So it comes when the longest kernel of late must have ended, and later only if it is not
// urgent before the second ones end at any time.
//
// A gang that has a weight, and no guarantee, is urgent once it has missed a burst altogether. It
// has its part in the long run, and requests beside it are as fast as alone.
//
// The latency band may not interrupt the turn of an urgent gang, which needs no narrow windows
// then: with one kernel in flight, its GPUs would be idle after each until the host has seen it.
//
// The latency band may interrupt a turn that is not urgent. The turn goes on afterwards, before
// singles; its other GPUs wait for that as long as a change of turns would take, and are lent to
// singles then. A gang may be idle within its turn for as long, and gives its GPUs back after that.
// Where its pauses are long enough for kernels of the others, as learned from both, it gives its
// GPUs back after the usual grace; what the others have in flight then ends within the pause. That
// costs it a change of turns in each step, which on a busy host is as long as the pause: a gang
// that has missed any of its guarantee in the last two seconds keeps them.
//
// In its last quarter a turn ends at the next moment in which the gang is idle on all its GPUs,
// which is between two steps. In a step, members would have to be let through until all are empty
// (lease.cpp).
#include "broker/core/turn.h"

#include <algorithm>
#include <utility>

#include "broker/core/policy.h"

namespace sluice::core {
namespace {

constexpr double kChangeFactor = 10;
/// What a turn brings beyond the guarantee is at most this times the guarantee: 4 % of two seconds.
constexpr double kAmplitudeNs = 80e6;
/// What it may miss of two seconds, times the guarantee: 3.7 %, less what is lost until it has its
/// GPUs. Where changes are long it has to be ahead. With 3.9 %, 5 of 40 runs of setup_gang at load
/// 0.25 (sim/scenarios.h) had two seconds with less than 95 % of the promise, with 3.7 % 2.
constexpr double kMissedNs = 74e6;
constexpr double kLostChanges = 1.25;
/// So many parts, of this length, are two seconds.
constexpr std::uint32_t kMarks = std::tuple_size_v<decltype(Missed::least_then)>;
constexpr Nanos kMarkNs = 125'000'000;
/// By so much, times the guarantee, one GPU may be below the mean: 5 % of two seconds. Ranks with
/// equal work were up to 3.5 % below.
constexpr double kApartNs = 100e6;
/// By so much of the difference a shorter time lowers the longest one of late.
constexpr Nanos kForgottenOf = 8;
/// The longest turn where no latency class is admitted and kernels of others are shorter: two
/// seconds have ten of them.
constexpr double kTurnMostNs = 200e6;
/// A drain shows the rest of a kernel: the longest kernel is this times the longest drain of late.
constexpr double kKernelDrains = 1.2;
/// After so many of the longest drains singles are in different kernels anyway.
constexpr Nanos kApartDrains = 2;
/// In flight at a time while the latency band may not interrupt: this part of a turn.
constexpr Nanos kWindowPart = 4;
/// The last part of a turn, in which it ends with the step.
constexpr Nanos kStepPart = 4;
/// A gang that is behind keeps its pauses if it uses at least this part of its time. One that uses
/// less would not have its guarantee either with them.
constexpr double kStepUseLeast = 0.5;
/// A turn that is left for more than so many quanta is over.
constexpr Nanos kLeftQuanta = 10;

/// The part of the time that is not the gang's.
double rest(const Tenant& gang) { return std::max(1 - gang.guarantee, 0.01); }

/// What a turn is worth: long beside what a change of turns takes, short beside two seconds.
double turn_least(const State& state, const Tenant& gang) {
  const auto quantum = static_cast<double>(state.policy.quantum_ns);
  const double changes = kChangeFactor * static_cast<double>(gang.change_ns);
  return std::max(std::min(changes, kAmplitudeNs * gang.guarantee / rest(gang)), quantum);
}

/// Guaranteed time that it did not get on this GPU in two seconds in which it wanted to run, which
/// end now or within a mark.
double missed_lately(const Share& share) {
  const auto& then = share.missed.least_then;
  const std::size_t oldest = share.tenant->missed_next;
  return share.missed.ns - std::min(then[oldest], then[(oldest + 1) % then.size()]);
}

/// On the GPU where that is most, as far as it is not far from the mean: a gang with a rank that
/// does nothing would have a fifth more on its other GPUs.
double missed_lately(const Tenant& gang) {
  double most = missed_lately(gang.shares.front());
  double sum = 0;
  for (const Share& share : gang.shares) {
    const double missed = missed_lately(share);
    most = std::max(most, missed);
    sum += missed;
  }
  return std::min(most, sum / static_cast<double>(gang.shares.size()) + kApartNs * gang.guarantee);
}

double turn_most(const State& state, const Tenant& gang) {
  const bool band = std::ranges::any_of(
      gang.shares, [&](const Share& s) { return state.gpus[s.gpu]->inference_count > 0; });
  if (band) return static_cast<double>(state.policy.inference_burst_ns);
  // A kernel of a single that was longer. With R its length, u the part of its turns that the gang
  // uses and g its guarantee: u T = g (T + R), as in scheduling.md.
  const auto gap = static_cast<double>(gang.gap_ns);
  if (gap <= kTurnMostNs) return kTurnMostNs;
  const double needs =
      gap * gang.guarantee / std::max(gang.step_use - gang.guarantee, rest(gang) / 2);
  return std::clamp(needs, kTurnMostNs, gap);
}

void mean_learn(Nanos& mean, Nanos took) { mean += (took - mean) / kForgottenOf; }
void longest_learn(Nanos& longest, Nanos took) {
  longest = std::max(took, longest - (longest - took) / kForgottenOf);
}

/// How long the gang has to run until it is not urgent any more.
double behind(const State& state, const Tenant& gang) {
  return std::max(-turn_patience(state, gang), 0.0) / rest(gang);
}

void mark(Tenant& gang) {
  for (Share& share : gang.shares) {
    share.missed.least_then[gang.missed_next] = share.missed.least;
    share.missed.least = share.missed.ns;
  }
  gang.missed_next = (gang.missed_next + 1) % kMarks;
}

/// What it was charged as it passed, and may be given back when its meters tell.
double unsettled(const Tenant& gang) {
  Nanos all = 0;
  for (const Share& share : gang.shares) all += share.episode_unsettled_ns;
  return static_cast<double>(all) / static_cast<double>(gang.shares.size());
}

/// What it used of its last lease, with the pause after it that was lent. Its meters tell that
/// after the lease has drained.
void step_use_learn(Tenant& gang) {
  Nanos used = 0;
  for (const Share& share : gang.shares) used += share.episode_busy_ns;
  const Nanos had = gang.closed_at - gang.opened_at + std::exchange(gang.paused_ns, 0);
  if (had <= 0) return;
  const double all = static_cast<double>(had) * static_cast<double>(gang.shares.size());
  const double use = std::min(static_cast<double>(used) / all, 1.0);
  gang.step_use += (use - gang.step_use) / static_cast<double>(kForgottenOf);
}

/// Since when it has waited and no gang has had its GPUs.
Nanos singles_since(const State& state, const Tenant& gang) {
  Nanos since = gang.waiting_since;
  for (const Share& share : gang.shares)
    since = std::max(since, state.gpus[share.gpu]->gang_left_at);
  return since;
}

/// The part of the GPU's time that gangs have at most by being urgent. Singles have half of
/// what is not promised to gangs: a gang that uses little of its leases is owed more and more, and
/// of several one is always urgent.
double gangs_most(const Gpu& gpu) {
  double promised = 0;
  for (const Share* share : gpu.shares)
    if (share->tenant->gang() && share->tenant->guaranteed()) promised += share->tenant->sm_percent;
  return (1 + promised / 100) / 2;
}

/// It wants its GPUs again.
void pause_ends(State& state, Tenant& gang, Nanos now) {
  if (gang.paused_at == 0) return;
  gang.paused_ns = std::min(now - gang.paused_at, state.policy.quantum_ns);
  mean_learn(gang.pause_ns, gang.paused_ns);
  gang.paused_at = 0;
  for (const Share& share : gang.shares) state.gpus[share.gpu]->pause_until = 0;
}

}  // namespace

Nanos turn_length(const State& state, const Tenant& gang) {
  const double least = turn_least(state, gang);
  const double most = std::max(least, turn_most(state, gang));
  return static_cast<Nanos>(std::min(least + behind(state, gang), most));
}

Nanos turn_urgent_at(const State& state, const Tenant& gang, Nanos at) {
  Nanos drain = 0;
  Nanos from = 0;
  for (const Share& share : gang.shares) {
    drain = std::max(drain, state.gpus[share.gpu]->drain_ns);
    from = std::max(from, state.gpus[share.gpu]->urgent_from);
  }
  if (gang.turn_left_ns > 0) return std::max(at, from);
  const Nanos left = gang.shares.front().left_at;
  const Nanos together = left + static_cast<Nanos>(kKernelDrains * static_cast<double>(drain));
  return std::max(at < left + kApartDrains * drain ? together : at, from);
}

double turn_patience(const State& state, const Tenant& gang) {
  const auto burst = static_cast<double>(state.policy.inference_burst_ns);
  if (!gang.guaranteed()) return burst - gang.owed_ns;
  const double lost = kLostChanges * static_cast<double>(gang.change_ns);
  const double most = (kMissedNs - lost) * gang.guarantee;
  const double soon = std::min(burst - gang.owed_ns, most - missed_lately(gang));
  return std::max(soon, -burst - gang.owed_ns);
}

bool turn_time_passed(const State& state, Tenant& gang, Nanos passed) {
  const auto burst = static_cast<double>(state.policy.inference_burst_ns);
  const double guaranteed = static_cast<double>(passed) * gang.guarantee;
  gang.overran_ns = std::clamp(gang.overran_ns - guaranteed, 0.0, kDebtMostNs);
  const double least = -burst - gang.overran_ns - unsettled(gang);
  gang.owed_ns = std::clamp(gang.owed_ns + guaranteed, least, kDebtMostNs);
  for (Share& share : gang.shares) {
    share.missed.ns += guaranteed;
    share.missed.least = std::min(share.missed.least, share.missed.ns);
  }
  gang.wanted_ns += passed;
  if (gang.wanted_ns < kMarkNs) return false;
  for (std::size_t i = 0; i < kMarks && gang.wanted_ns >= kMarkNs; ++i) {
    mark(gang);
    gang.wanted_ns -= kMarkNs;
  }
  gang.wanted_ns %= kMarkNs;
  return true;
}

void turn_overran(Tenant& gang, Nanos ns) {
  gang.overran_ns += static_cast<double>(ns) / static_cast<double>(gang.shares.size());
}

void turn_charged(Share& share, double ns) {
  share.tenant->owed_ns -= ns / static_cast<double>(share.tenant->shares.size());
  share.missed.ns -= ns;
}

Nanos turn_step(const Tenant& gang) { return gang.turn_left_ns / kStepPart; }

Nanos turn_grace(const State& state, const Tenant& tenant) {
  const Nanos grace = state.policy.idle_grace_ns;
  if (!tenant.gang() || tenant.turn_ending) return grace;
  const Nanos kept = std::max(grace, std::min(tenant.change_ns, state.policy.quantum_ns));
  const bool behind = tenant.guaranteed() && missed_lately(tenant) > 0;
  if (behind && tenant.step_use >= kStepUseLeast) return kept;
  // The pause has to be worth the grace that passes before others have it.
  const bool fits = std::ranges::all_of(tenant.shares, [&](const Share& s) {
    return state.gpus[s.gpu]->filler_ns + grace <= tenant.pause_ns;
  });
  return fits ? grace : kept;
}

Nanos turn_protected(const Tenant& gang) {
  return std::min(gang.turn_ns, static_cast<Nanos>(kTurnMostNs));
}

Nanos turn_window(const Tenant& gang) { return gang.turn_ns / kWindowPart; }

void turn_single_drained(State& state, const Tenant& single, Nanos now) {
  if (single.inference() || single.shares.size() > 1) return;
  const Nanos took = std::min(now - single.closed_at, state.policy.inference_burst_ns);
  Gpu& gpu = *state.gpus[single.shares.front().gpu];
  if (single.shares.front().fills) return mean_learn(gpu.filler_ns, took);
  longest_learn(gpu.drain_ns, took);
  gpu.filler_ns = std::min(gpu.filler_ns, gpu.drain_ns);
}

void turn_paused(State& state, Tenant& gang, Nanos now) {
  if (gang.turn_ending || gang.turn_left_ns <= 0) return;
  gang.paused_at = now;
  for (const Share& share : gang.shares) state.gpus[share.gpu]->pause_until = now + gang.pause_ns;
}

Nanos turn_pause_left(const Gpu& gpu, Nanos now) {
  return std::max<Nanos>(gpu.pause_until - now, 0);
}

void turn_comes(Tenant& gang, bool come, Nanos now) {
  if (!come) gang.change_from = 0;
  if (come && gang.change_from == 0) gang.change_from = now;
}

void turn_open(const State& state, Tenant& gang, bool urgent, Nanos now) {
  step_use_learn(gang);
  gang.gap_ns = std::min(now - singles_since(state, gang), state.policy.drain_timeout_ns);
  if (urgent || gang.turn_left_ns <= 0) gang.turn_ns = turn_length(state, gang);
  if (urgent || gang.turn_left_ns <= 0) gang.turn_left_ns = gang.turn_ns;
  const Nanos took = std::min(now - gang.change_from, state.policy.inference_burst_ns);
  longest_learn(gang.change_ns, took);
  gang.change_from = 0;
  gang.turn_ending = false;
  gang.wide_until = urgent ? now + gang.turn_ns - turn_window(gang) : 0;
}

void turn_ends(const State& state, Tenant& gang, Nanos now) {
  gang.turn_ending = true;
  const Nanos had = now - gang.opened_at;
  const auto most = std::max(static_cast<Nanos>(turn_most(state, gang)), gang.turn_ns);
  const Nanos more = std::min(static_cast<Nanos>(behind(state, gang)), most - had);
  gang.turn_left_ns = std::max(gang.turn_left_ns, had + more);
}

void turn_closed(State& state, Tenant& gang, bool over, Nanos now) {
  const Nanos held = now - gang.opened_at;
  gang.wide_until = 0;
  gang.turn_left_ns = over ? 0 : std::max<Nanos>(gang.turn_left_ns - held, 0);
  for (const Share& share : gang.shares) {
    Gpu& gpu = *state.gpus[share.gpu];
    const double most = gangs_most(gpu);
    const double respite = static_cast<double>(held) * (1 - most) / most;
    gpu.gang_left_at = now;
    gpu.urgent_from = std::max(gpu.urgent_from, now) + static_cast<Nanos>(respite);
  }
}

void turn_resumed(State& state, Tenant& gang, Nanos now) {
  pause_ends(state, gang, now);
  const Nanos left = gang.shares.front().left_at;
  if (now - left <= kLeftQuanta * state.policy.quantum_ns) return;
  gang.turn_left_ns = 0;
  turn_owed_nothing(gang);
}

void turn_owed_nothing(Tenant& gang) {
  gang.owed_ns = std::min(gang.owed_ns, 0.0);
  for (Share& share : gang.shares) {
    share.missed.ns -= std::max(missed_lately(share), 0.0);
    share.missed.least = std::min(share.missed.least, share.missed.ns);
  }
}

void turn_begins_ahead(Tenant& gang, double ns) {
  gang.overran_ns = std::max(gang.overran_ns, ns);
  gang.owed_ns = std::min(gang.owed_ns, -ns);
  for (Share& share : gang.shares) share.missed.ns = share.missed.least = gang.owed_ns;
}

}  // namespace sluice::core

// Gangs: tenants with several GPUs, opened and closed on all of them in one step.
//
// A waiting gang collects its turns: on each GPU, its turn has come when at the end of a slice (or
// while the GPU is free) the policies put it before everybody there; the turn is kept until it
// runs. With all turns in hand its GPUs are cleared: reserved, and their holders closed, those
// first that take longest to drain. It is opened when the last has drained. Meanwhile, singles run
// on its GPUs.
//
// No deadlock: a gang never holds a GPU while it waits for another, and between gangs there is one
// order (gang_vtime, lease time over weight; a later gang never reserves a GPU that an earlier
// waiting one needs). No starvation: whoever is served instead falls behind it in virtual time, and
// a gang that was kept from its guaranteed share goes before everything (turn.cpp).
#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "broker/core/lease.h"
#include "broker/core/line.h"
#include "broker/core/policy.h"
#include "broker/core/schedule.h"
#include "broker/core/turn.h"

namespace sluice::core {
namespace {

/// What the gang weighs on the GPU where that is least, and the part of its GPUs' time that the
/// gang is guaranteed, on the worst of them: sm_percent as long as no more than 100 are admitted
/// there, else its part of them.
struct GpuWeights {
  double equal = 0;
  double scale = 1;     // of what is not guaranteed
  double admitted = 0;  // 100 at least
};

void gang_weigh(const std::vector<GpuWeights>& gpus, Tenant& gang) {
  gang.weight = 1e18;
  gang.guarantee = 1;
  for (const Share& share : gang.shares) {
    const GpuWeights& gpu = gpus[share.gpu];
    const double asked =
        gang.sm_mode == SmMode::kEqual ? gpu.equal : static_cast<double>(gang.sm_percent);
    const double weight = gang.guaranteed() ? asked : asked * gpu.scale;
    gang.weight = std::min(gang.weight, weight);
    gang.guarantee = std::min(gang.guarantee, weight / gpu.admitted);
  }
}

/// Is the GPU in the hands of the latency band?
bool band_holds(Gpu& gpu) {
  Tenant* holder = gpu.holder;
  return holder != nullptr && holder->phase == Phase::kOpen && !holder->gang() &&
         band_serves(gpu, holder->shares.front());
}

/// May turns be noted on this GPU now? (Else at the end of the holder's slice.)
bool turns_open(Gpu& gpu) {
  return gpu.holder == nullptr || gpu.holder->phase != Phase::kOpen || band_holds(gpu);
}

/// Is the GPU the latency band's? Only an urgent gang takes its place; against everybody else that
/// one needs its turn all the same.
bool band_first(Gpu& gpu) {
  const Share* best = line_first(gpu);
  return band_holds(gpu) || (best != nullptr && band_serves(gpu, *best));
}

/// Does the gang go before all singles that the latency band does not serve? It is owed time, or a
/// turn of it was interrupted.
bool before_singles(const Tenant& gang, Nanos now) {
  return gang_urgent(gang, now) || gang.turn_left_ns > 0;
}

bool gang_holds(const Gpu& gpu) {
  return gpu.holder != nullptr && gpu.holder->gang() && gpu.holder->phase == Phase::kOpen;
}

bool goes_over_band(const Tenant& gang, Nanos now) {
  return gang.inference() || gang_urgent(gang, now);
}

/// Has the gang's turn come on the GPU of this share? Notes it.
bool turn_come(const State& state, Gpu& gpu, Share& share, Nanos now) {
  const Tenant& gang = *share.tenant;
  if (gpu.holder != nullptr && now < gpu.holder->protected_until) return false;
  const bool over_band = goes_over_band(gang, now);
  if (!over_band && band_first(gpu)) return false;
  if (share.turn) return true;
  if (before_singles(gang, now) && !gang_holds(gpu)) return share.turn = true;
  if (!turns_open(gpu)) return false;
  const Share* best = line_first(gpu, !over_band);
  if (best == nullptr) return true;
  share.turn = policies_before(state.policy, gpu, share, *best);
  return share.turn;
}

/// For every gang that waits for this GPU.
void turns_note(const State& state, Gpu& gpu, Nanos now) {
  if (gpu.waiting_gangs.empty() || !turns_open(gpu)) return;
  if (gpu.holder != nullptr && now < gpu.holder->protected_until) return;
  const bool band = band_first(gpu);
  const bool held_by_gang = gang_holds(gpu);
  const Share* best = line_first(gpu, !band);
  const double best_key = best == nullptr ? 0 : policies_key(state.policy, gpu, *best);
  for (Share* share : gpu.waiting_gangs) {
    const Tenant& gang = *share->tenant;
    if (share->turn || (band && !goes_over_band(gang, now)) || !tenant_may_run(gang)) continue;
    if (before_singles(gang, now) && !held_by_gang)
      share->turn = true;
    else if (best != nullptr)
      share->turn = gang.inference() ? policies_before(state.policy, gpu, *share, *best)
                                     : policies_key(state.policy, gpu, *share) < best_key;
  }
}

bool holds(const Tenant& gang) {
  return gang.phase == Phase::kOpen || gang.phase == Phase::kClosing;
}

/// When a waiting gang will be owed so much that it goes first.
void urgent_expect(const State& state, Tenant& gang) {
  constexpr double kFarNs = 1e18;
  gang.urgent_at = kNever;
  if (!gang.waiting) return;
  const double missing = turn_patience(state, gang);
  const double after = missing < 0 ? 0 : missing / gang.guarantee + 1;
  if (after < kFarNs)
    gang.urgent_at = turn_urgent_at(state, gang, gang.owed_at + static_cast<Nanos>(after));
}

/// Is it clearing its GPUs? One that closes another gang stays urgent.
bool reserves(const State& state, const Tenant& gang) {
  return std::ranges::any_of(gang.shares,
                             [&](const Share& s) { return state.gpus[s.gpu]->reserved == &gang; });
}

/// What changes of weights have left to do.
void gangs_weigh(State& state) {
  if (!state.gangs_stale) return;
  state.gangs_stale = false;
  if (state.gangs.empty()) return;
  std::vector<GpuWeights> gpus;
  for (const auto& gpu : state.gpus)
    gpus.push_back(
        {equal_weight(*gpu), weights_scale(*gpu), std::max(100.0, admitted_weight(*gpu))});
  for (Tenant* gang : state.gangs) {
    gang_weigh(gpus, *gang);
    urgent_expect(state, *gang);
  }
}

/// Brings what the gang is owed and its virtual time up to now; both go straight in between.
void gang_settle(State& state, Tenant& gang, Nanos now) {
  if (gang.owed_at < now) gangs_weigh(state);
  const Nanos passed = now - gang.owed_at;
  gang.owed_at = now;
  if (!holds(gang) && !gang.waiting) return;
  if (turn_time_passed(state, gang, passed)) urgent_expect(state, gang);
  if (holds(gang)) gang.gang_vtime += static_cast<double>(passed) / gang.weight;
}

/// When the last of the gang's GPUs will have drained, as far as the longest drains of late say.
Nanos last_drained_at(const State& state, const Tenant& gang, Nanos now) {
  Nanos last = now;
  for (const Share& share : gang.shares) {
    const Gpu& gpu = *state.gpus[share.gpu];
    if (gpu.holder == nullptr || gpu.holder->gang()) continue;
    const bool open = gpu.holder->phase == Phase::kOpen;
    last = std::max(last, (open ? now : gpu.holder->closed_at) + gpu.drain_ns);
  }
  return last;
}

/// Its turn has come everywhere: closes who is in the way, or opens it. True = something changed.
/// A GPU is cleared when twice its own longest drain is left until the last one has drained. Closed
/// at once, one that drains fast would be idle for the drain of the slowest in each turn. Drains
/// beyond a burst are not known (turn.cpp), nor those of inference.
bool gang_serve(State& state, Tenant& gang, Nanos now, Actions& out) {
  constexpr Nanos kFitDrains = 2;
  const Nanos last = last_drained_at(state, gang, now);
  bool free = true;
  bool changed = false;
  for (Share& share : gang.shares) {
    Gpu& gpu = *state.gpus[share.gpu];
    free = free && gpu.holder == nullptr;
    const Nanos until = last - kFitDrains * gpu.drain_ns;
    if (gpu.reserved_before != &gang && now < until &&
        (gpu.holder == nullptr || !gpu.holder->gang())) {
      state.gangs_at = std::min(state.gangs_at, until);
      continue;
    }
    gpu.reserved = &gang;
    if (gpu.holder != nullptr && gpu.holder->phase == Phase::kOpen) {
      lease_close(state, *gpu.holder, now, out);
      changed = true;
    }
  }
  if (!free) return changed;
  for (Share& share : gang.shares) state.gpus[share.gpu]->reserved = nullptr;
  const bool urgent = gang_urgent(gang, now);
  gang_settle(state, gang, now);
  turn_open(state, gang, urgent, now);
  lease_open(state, gang, false, now, out);
  if (urgent) gang.protected_until = now + turn_protected(gang);
  return true;
}

/// The virtual time of the gangs follows the slowest of those that wait or hold. To be called
/// before one joins or leaves them.
void clock_follow(State& state, Nanos now) {
  double slowest = 0;
  bool any = false;
  const auto consider = [&](const Tenant& gang) {
    slowest = any ? std::min(slowest, gang.gang_vtime) : gang.gang_vtime;
    any = true;
  };
  if (!state.gang_line.empty()) consider(*state.gang_line.front());
  for (auto& gpu : state.gpus) {
    Tenant* holder = gpu->holder;
    if (holder == nullptr || !holder->gang()) continue;
    gang_settle(state, *holder, now);
    consider(*holder);
  }
  if (any) state.gang_vclock = std::max(state.gang_vclock, slowest);
}

bool line_order(const Tenant* a, const Tenant* b) {
  return a->gang_vtime != b->gang_vtime ? a->gang_vtime < b->gang_vtime : a->id < b->id;
}

/// A gang that was interrupted comes back soon: keeps those of its GPUs that are free, and that the
/// latency band does not want, as long as a change of turns would take.
void gang_keep(State& state, Tenant& gang, Nanos now) {
  if (gang.turn_left_ns <= 0) return;
  const Nanos until = gang.waiting_since + gang.change_ns;
  if (now >= until) return;
  const bool some_held = std::ranges::any_of(
      gang.shares, [&](const Share& s) { return state.gpus[s.gpu]->holder != nullptr; });
  for (Share& share : gang.shares) {
    Gpu& gpu = *state.gpus[share.gpu];
    if (!some_held || gpu.holder != nullptr || gpu.reserved != nullptr || !share.turn) continue;
    if (band_first(gpu)) continue;
    gpu.reserved = &gang;
    state.gangs_at = std::min(state.gangs_at, until);
  }
}

/// Until when a gang that holds the GPU keeps it from other gangs. Several can have their turns in
/// hand. If each closed the one before at once, none would run.
Nanos kept_by_gang_until(const State& state, const Gpu& gpu) {
  return gang_holds(gpu) ? gpu.holder->opened_at + state.policy.quantum_ns : 0;
}

/// Serves the first gangs of the line as far as their turns have come. `claimed`: a GPU that an
/// earlier one waits for; with none left the rest of the line can have nothing. True = something
/// changed.
bool line_serve(State& state, bool urgent, std::size_t* left, Nanos now, Actions& out) {
  for (Tenant* gang : state.gang_line) {
    if (*left == 0) return false;
    if (gang_urgent(*gang, now) != urgent || !tenant_may_run(*gang)) continue;
    bool ready = true;
    for (Share& share : gang->shares) {
      Gpu& gpu = *state.gpus[share.gpu];
      ready = ready && !gpu.claimed && !(gpu.holder != nullptr && gpu.holder->exclusive());
      if (gpu.claimed) continue;
      gpu.claimed = true;
      --*left;
      ready = ready && turn_come(state, gpu, share, now);
      const Nanos until = kept_by_gang_until(state, gpu);
      if (now >= until) continue;
      ready = false;
      state.gangs_at = std::min(state.gangs_at, until);
    }
    turn_comes(*gang, ready, now);
    if (ready && gang_serve(state, *gang, now, out)) return true;
    if (!ready) gang_keep(state, *gang, now);
  }
  return false;
}

}  // namespace

bool gang_urgent(const Tenant& gang, Nanos now) { return now >= gang.urgent_at; }

void gang_changes(State& state, Tenant& gang, Nanos now) {
  if (!gang.gang()) return;
  clock_follow(state, now);
  gang_settle(state, gang, now);
}

void gang_closed(State& state, Tenant& gang, Nanos now) {
  turn_closed(state, gang, gang.turn_ending, now);
  for (const Share& share : gang.shares)
    for (Share* waiting : state.gpus[share.gpu]->waiting_gangs)
      if (!reserves(state, *waiting->tenant)) urgent_expect(state, *waiting->tenant);
}

void gang_charged(State& state, Share& share, double ns) {
  Tenant& gang = *share.tenant;
  if (!gang.gang()) return;
  turn_charged(share, ns);
  if (gang.waiting) urgent_expect(state, gang);
}

void gang_waits(State& state, Tenant& gang) {
  gangs_weigh(state);
  if (gang.waiting) {
    turn_resumed(state, gang, state.now);
    const double credit = static_cast<double>(state.policy.quantum_ns) / gang.weight;
    gang.gang_vtime = std::max(gang.gang_vtime, state.gang_vclock - credit);
    state.gang_line.insert(std::ranges::upper_bound(state.gang_line, &gang, line_order), &gang);
  } else {
    std::erase(state.gang_line, &gang);
  }
  urgent_expect(state, gang);
}

void gang_released(State& state, Tenant& gang, Nanos now) {
  // A budget keeps a fixed gang from its GPUs between any two turns.
  if (gang.sm_mode == SmMode::kFixed || !tenant_may_run(gang)) return;
  gang_settle(state, gang, now);
  turn_owed_nothing(gang);
  urgent_expect(state, gang);
}

void gangs_settle(State& state, Nanos now) {
  if (state.gangs.empty()) return;
  clock_follow(state, now);
  if (state.gangs_settled_at == now) return;
  state.gangs_settled_at = now;
  for (Tenant* gang : state.gangs) gang_settle(state, *gang, now);
}

void gangs_take_turns(State& state, Tenant& holder, Nanos now) {
  if (state.gangs.empty()) return;
  if (holder.gang()) gang_settle(state, holder, now);
  for (Share& held : holder.shares) {
    Gpu& gpu = *state.gpus[held.gpu];
    const Share* best = line_first(gpu);
    for (Share* share : gpu.waiting_gangs) {
      const Tenant& gang = *share->tenant;
      if (share->turn || !tenant_may_run(gang)) continue;
      const bool first = before_singles(gang, now);
      const bool beats_holder = holder.gang()
                                    ? gang.gang_vtime <= holder.gang_vtime
                                    : first || !policies_before(state.policy, gpu, held, *share);
      share->turn = beats_holder &&
                    (first || best == nullptr || policies_before(state.policy, gpu, *share, *best));
    }
  }
}

bool gangs_decide(State& state, Nanos now, Actions& out) {
  gangs_weigh(state);
  state.gangs_at = kNever;
  if (state.gangs.empty()) return false;
  std::size_t left = 0;
  for (auto& gpu : state.gpus) {
    gpu->reserved_before = std::exchange(gpu->reserved, nullptr);
    gpu->claimed = gpu->waiting_gangs.empty();
    left += gpu->claimed ? 0 : 1;
  }
  for (const bool urgent : {true, false})
    if (line_serve(state, urgent, &left, now, out)) return true;
  // Only now: a gang that was opened keeps its GPUs for a slice, whoever else could have had a
  // turn.
  for (auto& gpu : state.gpus) turns_note(state, *gpu, now);
  return false;
}

}  // namespace sluice::core

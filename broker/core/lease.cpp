// The life of a lease.
//
//   kClosed --open--> kOpen --close--> kClosing --every process drained--> kClosed
//                                         \--drain_timeout--> kRunaway --every process drained-->
//                                         kClosed
//
// A closing tenant keeps its GPUs: nobody else is opened before the drain is complete, or has timed
// out. A runaway gives its GPUs up (the others go on beside whatever it left running) and gets
// nothing more until it drains; only a gang may be opened again, because its members can be waiting
// for each other.
//
// That is also why a closing gang is let through window by window: when one member spins in a
// collective on one GPU while another waits at the gate of the next one, the closed gate itself
// keeps the first from draining. The gates that somebody waits at are opened for one window and
// closed again until all are empty together; the overrun is charged. A shim that sees one gate of
// its gang open and another closed lets one launch of each thread through (interpose/gate.cpp): who
// is behind comes level and not ahead.
#include "broker/core/lease.h"

#include <algorithm>
#include <cassert>

#include "broker/core/hold.h"
#include "broker/core/policy.h"
#include "broker/core/returning.h"
#include "broker/core/room.h"
#include "broker/core/runaway.h"
#include "broker/core/schedule.h"
#include "broker/core/tenancy.h"
#include "broker/core/turn.h"
#include "broker/core/usage.h"
#include "broker/protocol/pages.h"

namespace sluice::core {
namespace {

std::uint8_t bit(const Share& share) { return static_cast<std::uint8_t>(1U << share.index); }
void set(std::uint8_t& mask, std::uint8_t bits) { mask = static_cast<std::uint8_t>(mask | bits); }
void unset(std::uint8_t& mask, std::uint8_t bits) {
  mask = static_cast<std::uint8_t>(mask & ~bits);
}

/// How long a closing gang is let through. Every so often for longer: on a busy host those who wait
/// look late, and a window that has closed again before they did helped nobody.
Nanos let_window(const State& state, const Tenant& tenant) {
  constexpr int kLetsOfALength = 4;
  constexpr int kDoublingsMax = 6;
  const Nanos shortest = std::max<Nanos>(state.policy.inference_window_ns, 1);
  return shortest << std::min(tenant.lets / kLetsOfALength, kDoublingsMax);
}
/// How long it drains quietly before members that wait are looked for. In proportion: what a member
/// was let through for takes its own time to show on the one that waited, and a member that is let
/// through once more meanwhile is ahead instead of behind.
Nanos let_patience(const State& state, const Tenant& tenant) {
  return 2 * let_window(state, tenant);
}

/// When a closing tenant counts as a runaway. A wait for memory puts it off, but not for ever.
Nanos drain_over_at(const State& state, const Tenant& tenant) {
  constexpr Nanos kTimeoutsMax = 8;
  const Nanos timeout = state.policy.drain_timeout_ns;
  return std::min(tenant.drain_from + timeout, tenant.closed_at + kTimeoutsMax * timeout);
}

void word_emit(const State& state, const Share& share, Actions& out) {
  std::uint32_t flags = 0;
  if (share.open) flags |= protocol::kLeaseOpen;
  if (share.open && share.contended) flags |= protocol::kLeaseContended;
  if (share.open && share.tenant->exclusive()) flags |= protocol::kLeaseExclusive;
  out.emplace_back(LeaseSet{share.tenant->id, share.index, protocol::lease_word(share.epoch, flags),
                            share.window_ns, turn_grace(state, *share.tenant)});
}

/// While no other tenant is admitted there is no turn to keep short. What is in flight when one is
/// must drain in time, even if it takes twice as long as was learned.
Nanos window_alone(const State& state) { return state.policy.drain_timeout_ns / 2; }

void window_tell(const State& state, Share& share, Actions& out) {
  share.window_ns = lease_window(state, share);
  word_emit(state, share, out);
}

void share_open_word(State& state, Share& share, Actions& out) {
  share.epoch = protocol::lease_epoch_next(share.epoch);
  share.open = true;
  for (Process& process : share.tenant->processes) {
    const auto mine = static_cast<std::uint8_t>(process.wants & bit(share));
    set(process.active, mine);
    unset(process.wants, mine);
    unset(process.idle, bit(share));
  }
  word_emit(state, share, out);
}

void share_close_word(State& state, Share& share, Actions& out) {
  share.epoch = protocol::lease_epoch_next(share.epoch);
  share.open = false;
  share.contended = false;
  for (Process& process : share.tenant->processes) set(process.drains, bit(share));
  word_emit(state, share, out);
}

bool drain_pending(const Tenant& tenant) {
  return std::ranges::any_of(tenant.processes, [](const Process& p) { return p.drains != 0; }) ||
         std::ranges::any_of(tenant.shares, [](const Share& s) { return s.open; });
}

void gpus_give_up(State& state, Tenant& tenant) {
  for (Share& share : tenant.shares) {
    Gpu& gpu = *state.gpus[share.gpu];
    if (gpu.holder == &tenant) gpu.holder = nullptr;
  }
}

void overrun_count(State& state, Tenant& tenant, Nanos since, Nanos now) {
  for (Share& share : tenant.shares) state.gpus[share.gpu]->overrun_ns += now - since;
}

/// The drain is complete: nothing of the tenant is on its GPUs.
void lease_drained(State& state, Tenant& tenant, Nanos now, Actions& out) {
  gang_changes(state, tenant, now);
  if (tenant.phase == Phase::kRunaway) {
    overrun_count(state, tenant, tenant.runaway_at, now);
    state.room_dirty = true;  // its memory can be moved again
  }
  turn_single_drained(state, tenant, now);
  for (Share& share : tenant.shares) {
    share_account(state, share, now);
    share.on = false;
    share.left_at = now;
    std::erase(state.gpus[share.gpu]->on, &share);
    if (!tenant.gang() && !tenant.exclusive() && !lease_idle(tenant))
      state.gpus[share.gpu]->left.push_back(&share);
  }
  gpus_give_up(state, tenant);
  tenant.phase = Phase::kClosed;
  tenant.runaway = false;
  tenant.delays = false;
  runaway_drained(state, tenant, now, out);
  tenant.delayed_ns = 0;
  tenant.turn_came = false;
  tenant.next_let_at = kNever;
  tenant.let_until = kNever;
  tenant.idle_since = now;
  usage_ask(state, tenant, now, out);
  if (tenant.released) tenant_hand_back(state, tenant, now, out);
  tenant_waiting_update(state, tenant, now);
}

void drain_check(State& state, Tenant& tenant, Nanos now, Actions& out) {
  const bool draining = tenant.phase == Phase::kClosing || tenant.phase == Phase::kRunaway;
  if (draining && !drain_pending(tenant)) lease_drained(state, tenant, now, out);
}

void lease_runaway(State& state, Tenant& tenant, Nanos now, Actions& out) {
  gang_changes(state, tenant, now);
  for (Share& share : tenant.shares)
    if (share.open) share_close_word(state, share, out);
  std::uint8_t late = 0;
  for (const Process& process : tenant.processes) set(late, process.drains);
  tenant.phase = Phase::kRunaway;
  tenant.runaway = true;
  tenant.runaway_at = now;
  tenant.next_let_at = kNever;
  tenant.let_until = kNever;
  overrun_count(state, tenant, tenant.closed_at, now);
  gpus_give_up(state, tenant);
  for (Share& share : tenant.shares) {
    if ((late & bit(share)) == 0) continue;
    share.overruns++;
    state.gpus[share.gpu]->overruns++;
    out.emplace_back(RunawaySeen{tenant.id, share.index, RunawayStep::kSeen, now - tenant.closed_at,
                                 tenant.delayed_ns});
  }
  usage_ask(state, tenant, now, out);
  if (tenant.released) tenant_hand_back(state, tenant, now, out);
  tenant_waiting_update(state, tenant, now);
}

/// Opens the gates of a closing gang at which a drained member waits while another one has not
/// drained. A member that waits with work in flight is ahead, not behind: more would only take it
/// further.
void let_through(State& state, Tenant& tenant, Nanos now, Actions& out) {
  tenant.next_let_at = now + let_patience(state, tenant);
  std::uint8_t locked_out = 0;  // a member that is empty itself waits there
  for (const Process& process : tenant.processes)
    set(locked_out, static_cast<std::uint8_t>(process.wants & ~process.drains));
  if (locked_out == 0) return;
  for (Share& share : tenant.shares)
    if ((locked_out & bit(share)) != 0) share_open_word(state, share, out);
  tenant.let_until = now + let_window(state, tenant);
  ++tenant.lets;
}

void let_end(State& state, Tenant& tenant, Nanos now, Actions& out) {
  for (Share& share : tenant.shares)
    if (share.open) share_close_word(state, share, out);
  tenant.let_until = kNever;
  tenant.next_let_at = now + let_patience(state, tenant);
}

}  // namespace

Nanos lease_window(const State& state, const Share& share) {
  const Tenant& tenant = *share.tenant;
  if (tenant.exclusive()) return 0;
  const auto of_class =
      state.policy.classes[static_cast<std::size_t>(tenant.tenant_class)].window_ns;
  const Nanos own = tenant.window_ns > 0 ? tenant.window_ns : of_class;
  const Nanos narrow = state.policy.inference_window_ns;
  const Gpu& gpu = *state.gpus[share.gpu];
  if (gpu.alone() && own > 0) return std::max(own, window_alone(state));
  if (tenant.inference() || gpu.inference_count == 0 || narrow <= 0) return own;
  const Nanos window = tenant.wide_until != 0 ? std::max(narrow, turn_window(tenant)) : narrow;
  return own > 0 ? std::min(own, window) : window;
}

void lease_introduce(State& state, Tenant& tenant, Actions& out) {
  for (Share& share : tenant.shares) window_tell(state, share, out);
}

void lease_open(State& state, Tenant& tenant, bool contended, Nanos now, Actions& out) {
  assert(tenant.phase == Phase::kClosed || tenant.phase == Phase::kRunaway);
  assert(!tenant.released && "an over tenant is never opened");
  assert(tenant.residence == Residence::kIn && "a tenant that is held is never opened");
  gang_changes(state, tenant, now);
  if (tenant.phase == Phase::kRunaway) {
    runaway_turn_came(state, tenant, now, out);
    state.room_dirty = true;  // its memory can be moved again
  }
  for (Process& process : tenant.processes) process.active = process.idle = process.drains = 0;
  for (Share& share : tenant.shares) {
    Gpu& gpu = *state.gpus[share.gpu];
    assert(gpu.holder == nullptr && "one holder per GPU");
    share_account(state, share, now);
    gpu.holder = &tenant;
    gpu.leases_granted++;
    share_episode_begin(share);
    if (!share.on) gpu.on.push_back(&share);
    share.on = true;
    share.contended = contended;
    share.turn = false;
    const Nanos pause = turn_pause_left(gpu, now);
    const bool filled = share.fills;
    share.fills = pause > 0 && !tenant.gang() && !tenant.inference();
    if (tenant.gang() || share.fills || filled) share.window_ns = lease_window(state, share);
    if (share.fills && (share.window_ns == 0 || share.window_ns > pause)) share.window_ns = pause;
    share_open_word(state, share, out);
  }
  tenant.phase = Phase::kOpen;
  tenant.delays = false;
  tenant.opened_at = now;
  tenant.asked_usage_at = now;
  tenant.slice_end = contended ? now + state.policy.quantum_ns : kNever;
  tenant.slice_asked = false;
  tenant.protected_until = now;
  tenant_waiting_update(state, tenant, now);
}

void lease_close(State& state, Tenant& tenant, Nanos now, Actions& out) {
  assert(tenant.phase == Phase::kOpen);
  if (tenant.gang()) gang_closed(state, tenant, now);
  for (Process& process : tenant.processes) process.drains = 0;
  for (Share& share : tenant.shares) {
    share_account(state, share, now);
    state.gpus[share.gpu]->leases_revoked++;
    share_close_word(state, share, out);
  }
  tenant.phase = Phase::kClosing;
  tenant.closed_at = tenant.drain_from = now;
  tenant.slice_end = kNever;
  tenant.slice_asked = false;
  tenant.let_until = kNever;
  tenant.lets = 0;
  tenant.next_let_at = tenant.gang() ? now + let_patience(state, tenant) : kNever;
  drain_check(state, tenant, now, out);
}

void lease_contend(const State& state, Tenant& tenant, bool contended, Actions& out) {
  for (Share& share : tenant.shares) {
    if (share.contended == contended) continue;
    share.contended = contended;
    word_emit(state, share, out);
  }
}

void lease_windows_usual(const State& state, Tenant& tenant, Actions& out) {
  tenant.wide_until = 0;
  for (Share& share : tenant.shares) {
    share.fills = false;
    window_tell(state, share, out);
  }
}

void lease_turn_ends(const State& state, Tenant& gang, Nanos now, Actions& out) {
  turn_ends(state, gang, now);
  for (const Share& share : gang.shares) word_emit(state, share, out);
}

void lease_timers(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (tenant.phase != Phase::kClosing) return;
  // Who waits for memory may be whom its kernels wait for: first that has to be answered.
  if (wants_room(state, tenant)) tenant.drain_from = now;
  if (now >= drain_over_at(state, tenant)) {
    lease_runaway(state, tenant, now, out);
    return;
  }
  if (now >= tenant.let_until)
    let_end(state, tenant, now, out);
  else if (tenant.let_until == kNever && now >= tenant.next_let_at)
    let_through(state, tenant, now, out);
  drain_check(state, tenant, now, out);
}

Nanos lease_timer_at(const State& state, const Tenant& tenant) {
  if (tenant.phase != Phase::kClosing) return kNever;
  const Nanos timeout = drain_over_at(state, tenant);
  return std::min(
      {timeout, tenant.let_until, tenant.let_until == kNever ? tenant.next_let_at : kNever});
}

bool lease_idle(const Tenant& tenant) {
  bool said = false;
  for (const Process& process : tenant.processes) {
    if ((process.active & ~process.idle) != 0) return false;
    said = said || process.idle != 0;
  }
  return said ||
         std::ranges::none_of(tenant.processes, [](const Process& p) { return p.active != 0; });
}

void gate_wanted(State& state, const GateWanted& event, Nanos now, Actions& out) {
  auto it = state.processes.find(event.process);
  if (it == state.processes.end()) return;
  Tenant& tenant = *it->second;
  if (event.gpu_index >= tenant.shares.size()) return;
  Share& share = tenant.shares[event.gpu_index];
  if (share.open || event.epoch != share.epoch) return;  // crossed an opening: the gate passes now
  set(process_find(tenant, event.process)->wants, bit(share));
  tenant_waiting_update(state, tenant, now);
  if (tenant.phase == Phase::kClosing) lease_timers(state, tenant, now, out);
}

void gate_idle(State& state, const GateIdle& event) {
  auto it = state.processes.find(event.process);
  if (it == state.processes.end()) return;
  Tenant& tenant = *it->second;
  if (tenant.phase != Phase::kOpen || event.gpu_index >= tenant.shares.size()) return;
  Share& share = tenant.shares[event.gpu_index];
  if (event.epoch == share.epoch) set(process_find(tenant, event.process)->idle, bit(share));
}

void gate_drained(State& state, const Drained& event, Nanos now, Actions& out) {
  auto it = state.processes.find(event.process);
  if (it == state.processes.end()) return;
  Tenant& tenant = *it->second;
  if (event.gpu_index >= tenant.shares.size()) return;
  Share& share = tenant.shares[event.gpu_index];
  if (share.open || event.epoch != share.epoch) return;
  unset(process_find(tenant, event.process)->drains, bit(share));
  drain_check(state, tenant, now, out);
}

void process_joined(State& state, const ProcessJoined& event) {
  Tenant* tenant = tenant_find(state, event.tenant);
  if (tenant == nullptr || state.processes.contains(event.process)) return;
  tenant->processes.push_back(Process{event.process});
  hold_joined(*tenant, tenant->processes.back());
  if (tenant->residence != Residence::kIn) state.room_dirty = true;
  state.processes.emplace(event.process, tenant);
}

// It can neither ask nor say that it is idle any more. The lease is the tenant's: other members ask
// again and get it when it is their turn. The drain is awaited as ever (its claims tell of it).
// Whole GPUs stay with their job until it is over.
void process_detached(State& state, const ProcessDetached& event, Nanos now, Actions& out) {
  auto it = state.processes.find(event.process);
  if (it == state.processes.end()) return;
  Tenant& tenant = *it->second;
  if (tenant.exclusive()) return;
  process_find(tenant, event.process)->wants = 0;  // it says so again when it is back
  if (tenant.phase == Phase::kOpen) lease_close(state, tenant, now, out);
  tenant_waiting_update(state, tenant, now);
}

void process_gone(State& state, const ProcessGone& event, Nanos now, Actions& out) {
  auto it = state.processes.find(event.process);
  if (it == state.processes.end()) return;
  Tenant& tenant = *it->second;
  for (Share& share : tenant.shares) share.episode_lost |= event.lost && share.on;
  state.processes.erase(it);
  std::erase_if(tenant.processes, [&](const Process& p) { return p.id == event.process; });
  wants_forget_process(state, tenant, event.process);
  for (std::size_t i = 0; i < std::min(event.held.size(), tenant.shares.size()); ++i)
    returning_add(state, tenant.shares[i], event.held[i], now);
  if (!state.wants.empty())  // somebody waits for memory such as it had
    for (const Share& share : tenant.shares)
      out.emplace_back(MemoryLookWanted{state.gpus[share.gpu]->uuid});
  if (tenant.processes.empty() && !tenant.founder_alive) {
    tenant_end(state, tenant, now, out);
    return;
  }
  if (event.lost && tenant.exclusive() && !tenant.released && !tenant.processes.empty())
    out.emplace_back(RankLost{tenant.id, state.policy.rank_loss == RankLoss::kEnd});
  if (tenant.phase == Phase::kOpen && tenant.processes.empty() && !tenant.exclusive())
    lease_close(state, tenant, now, out);
  drain_check(state, tenant, now, out);
  tenant_waiting_update(state, tenant, now);
}

void founder_gone(State& state, const FounderGone& event, Nanos now, Actions& out) {
  Tenant* tenant = tenant_find(state, event.tenant);
  if (tenant == nullptr) return;
  tenant->founder_alive = false;
  if (tenant->processes.empty()) tenant_end(state, *tenant, now, out);
}

void founder_adopted(State& state, const FounderAdopted& event) {
  if (Tenant* tenant = tenant_find(state, event.tenant)) tenant->founder_alive = true;
}

void job_released(State& state, const JobReleased& event, Nanos now, Actions& out) {
  Tenant* tenant = tenant_find(state, event.tenant);
  if (tenant == nullptr || tenant->released) return;
  tenant->released = true;
  if (tenant->phase == Phase::kOpen)
    lease_close(state, *tenant, now, out);
  else if (tenant->phase == Phase::kClosed)
    tenant_hand_back(state, *tenant, now, out);
  tenant_waiting_update(state, *tenant, now);
}

void windows_refresh(State& state, Gpu& gpu, bool all, Actions& out) {
  const Company company = gpu.alone()               ? Company::kNone
                          : gpu.inference_count > 0 ? Company::kInference
                                                    : Company::kOthers;
  if (company == gpu.company && !all) return;
  gpu.company = company;
  for (Share* share : gpu.shares) {
    if (all)
      window_tell(state, *share, out);
    else
      lease_window_renew(state, *share, out);
  }
}

void lease_window_renew(State& state, Share& share, Actions& out) {
  if (lease_window(state, share) != share.window_ns) window_tell(state, share, out);
}

}  // namespace sluice::core

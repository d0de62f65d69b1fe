// Who may enter.
//
// A request is checked once: what no waiting could mend is refused at once, with the reason and the
// remedy. What fits is admitted, the rest waits in one queue, in order of arrival. A later request
// passes those ahead where it fits and none of them keeps the GPU from it (backfill.cpp). A request
// that waits for its user's limit keeps nothing: its wait is its user's. A tenant that has vacated
// its GPUs and returns goes before new requests, and no request keeps its GPUs from it: what it has
// left there might be what that request waits for.
#include "broker/core/admission.h"

#include <algorithm>
#include <cassert>

#include "broker/core/backfill.h"
#include "broker/core/binding.h"
#include "broker/core/limits.h"
#include "broker/core/placement.h"
#include "broker/core/request.h"
#include "broker/core/tenancy.h"
#include "broker/core/texts.h"
#include "broker/core/vacate.h"

namespace sluice::core {
namespace {

using protocol::QueueLimit;

/// The limit that keeps the request waiting. A tenant that returns is counted in its limits
/// already.
QueueLimit limit_of(const State& state, const TenantAsked& ask) {
  return ask.returns == 0 ? limit_reached(state, ask).which : QueueLimit::kNone;
}

/// Has the request in front precedence over the other? One that waits for a limit keeps no GPU from
/// others. Its limit it keeps from the requests that have the same one.
bool goes_first(const Waiter& front, const Waiter& other) {
  if (front.reason != QueueReason::kUserLimit) return true;
  if (other.reason != QueueReason::kUserLimit) return false;
  const bool of_all =
      front.limit == QueueLimit::kAllRunning || front.limit == QueueLimit::kAllMemory;
  return of_all ? front.ask.group == other.ask.group : front.ask.uid == other.ask.uid;
}

TenantQueued queued_action(const State& state, std::size_t index) {
  const Waiter& waiter = *state.queue[index];
  TenantQueued action{waiter.ask.request, waiter.position, waiter.reason, 0, 0, {}, {}, {}};
  if (waiter.reason == QueueReason::kUserLimit) {
    const Limit limit = limit_reached(state, waiter.ask);
    action.limit = limit.which;
    action.promised = limit.used;
    action.capacity = limit.most;
  } else if (waiter.reason == QueueReason::kShare && waiter.roomiest >= 0) {
    action.promised = state.gpus[static_cast<std::size_t>(waiter.roomiest)]->guaranteed;
    action.capacity = 100;
  } else if (waiter.roomiest >= 0) {
    const Gpu& gpu = *state.gpus[static_cast<std::size_t>(waiter.roomiest)];
    action.promised = gpu.promised_min;
    action.capacity = gpu.capacity;
  }
  for (std::size_t i = index; i-- > 0;) {
    if (!goes_first(*state.queue[i], waiter)) continue;
    action.ahead = state.queue[i]->ask.name;
    action.ahead_uid = state.queue[i]->ask.uid;
    break;
  }
  return action;
}

/// It waits no longer; its place in the queue is still there.
void waiter_leaves(State& state, const Waiter& waiter) {
  const std::uint32_t uid = waiter.ask.uid;
  assert(state.users[uid].queued > 0);
  state.users[uid].queued--;
  state.queue_dirty = true;
  user_forget(state, uid);
}

void waiter_remove(State& state, std::size_t index) {
  waiter_leaves(state, *state.queue[index]);
  state.queue.erase(state.queue.begin() + static_cast<std::ptrdiff_t>(index));
}

/// True = the request was answered for good.
bool refused_waiting(State& state, const TenantAsked& ask, QueueReason reason, Actions& out) {
  const auto position = static_cast<std::uint32_t>(state.queue.size() + 1);
  const UserCount user = state.users.contains(ask.uid) ? state.users[ask.uid] : UserCount{};
  const std::uint32_t per_user = state.policy.tenants_per_user_max;
  if (ask.no_wait || ask.dry_run) {
    const std::string why = wait_text(state, ask, reason);
    if (ask.dry_run)
      out.emplace_back(refusal_dry_run(ask.request, why, position));
    else if (reason == QueueReason::kUserLimit)
      out.emplace_back(refusal_limit(ask.request, why));
    else
      out.emplace_back(
          refusal_no_room(ask.request, why, position, instead_text(state, ask, reason)));
    return true;
  }
  if (user.queued >= per_user) {
    out.emplace_back(refusal_user_queue(ask.request, ask.uid, per_user));
    return true;
  }
  return false;
}

/// The GPU with most of what it waits for.
int roomiest_for(Prospects::Kind& prospect, QueueReason reason) {
  return reason == QueueReason::kShare ? prospect.least_guaranteed() : prospect.roomiest();
}

void waiter_place(Waiter& waiter, std::size_t index, QueueReason reason) {
  const auto position = static_cast<std::uint32_t>(index + 1);
  if (waiter.position == position && waiter.reason == reason) return;
  waiter.position = position;
  waiter.reason = reason;
  waiter.news = true;
}

/// One request of the queue: admitted (true), or its reason and plan renewed.
bool waiter_try(State& state, Prospects& prospects, std::size_t index, Nanos now, Actions& out) {
  Waiter& waiter = *state.queue[index];
  Prospects::Kind& prospect = prospects.kind_of(waiter.ask);
  waiter.limit = limit_of(state, waiter.ask);
  const bool limit = waiter.limit != QueueLimit::kNone;
  const Placement placement = limit ? Placement{{}, QueueReason::kUserLimit}
                              : waiter.ask.returns != 0
                                  ? prospect.find_without(GpuFlags(state.gpus.size()))
                                  : placement_now(state, prospect, waiter.ask);
  if (!placement.gpus.empty()) {
    if (waiter.ask.returns != 0)
      vacated_return(state, *tenant_find(state, waiter.ask.returns), now, out);
    else
      tenant_admit(state, waiter.ask, waiter.asked_at, placement.gpus, now, out);
    prospects.changed();
    waiter_leaves(state, waiter);
    state.admissions++;
    return true;
  }
  waiter_place(waiter, index, placement.reason);
  waiter.first = false;
  if (!limit) keeping_add(state, prospects, waiter);
  waiter.roomiest = roomiest_for(prospect, waiter.reason);
  return false;
}

/// Tells those whose place or reason is another, from the front.
void queue_tell(State& state, Actions& out) {
  std::size_t& at = state.queue_told;
  for (; at < state.queue.size(); ++at) {
    if (!state.queue[at]->news) continue;
    if (state.notes >= kNotesPerStep) return;
    state.queue[at]->news = false;
    if (state.queue[at]->ask.returns != 0) continue;  // `sluice status` says where it stands
    state.notes++;
    out.emplace_back(queued_action(state, at));
  }
}

/// What GPUs are kept for, of the round before: as far as a round that is cut does not come.
struct Keeping {
  explicit Keeping(State& state) {
    for (auto& gpu : state.gpus) {
      before.push_back({gpu->draining, gpu->step_aside});
      gpu->draining = gpu->step_aside = false;
    }
  }
  void take_back(State& state) const {
    for (std::size_t g = 0; g < state.gpus.size(); ++g) {
      state.gpus[g]->draining = state.gpus[g]->draining || before[g].first;
      state.gpus[g]->step_aside = state.gpus[g]->step_aside || before[g].second;
    }
    keeping_all(state);  // no request passes those that were not looked at
  }
  std::vector<std::pair<bool, bool>> before;
};

/// Refuses what the loss of a GPU has made impossible.
void queue_purge(State& state, Actions& out) {
  for (std::size_t i = 0; i < state.queue.size();) {
    const TenantAsked& ask = state.queue[i]->ask;
    const std::size_t have = placement_candidates(state, ask).size();
    if (have >= ask.gpu_count) {
      ++i;
      continue;
    }
    if (ask.returns == 0) out.emplace_back(refusal_gpu_lost(ask.request, have));
    waiter_remove(state, i);
  }
}

/// Refuses what has waited too long.
void queue_expire(State& state, Nanos now, Actions& out) {
  for (std::size_t i = 0; i < state.queue.size();) {
    const Waiter& waiter = *state.queue[i];
    if (now < waiter.deadline) {
      ++i;
      continue;
    }
    out.emplace_back(refusal_timeout(waiter.ask.request, now - waiter.asked_at,
                                     wait_text(state, waiter.ask, waiter.reason), waiter.position,
                                     instead_text(state, waiter.ask, waiter.reason)));
    waiter_remove(state, i);
  }
}

}  // namespace

void tenant_asked(State& state, const TenantAsked& event, Nanos now, Actions& out) {
  TenantAsked ask = event;
  if (request_refused(state, ask, out)) return;
  state.planned.resize(state.gpus.size(), false);
  state.kept.resize(state.gpus.size(), false);
  state.kept_for.resize(state.gpus.size());
  Prospects prospects(state);
  const QueueLimit limit = limit_of(state, ask);
  const Placement placement = limit != QueueLimit::kNone
                                  ? Placement{{}, QueueReason::kUserLimit}
                                  : placement_now(state, prospects.kind_of(ask), ask);
  if (!placement.gpus.empty()) {
    tenant_admit(state, ask, now, placement.gpus, now, out);
    return;
  }
  if (refused_waiting(state, ask, placement.reason, out)) return;
  auto made = std::make_unique<Waiter>();
  Waiter& waiter = *made;
  waiter.ask = std::move(ask);
  waiter.asked_at = now;
  if (waiter.ask.wait_ns_max > 0) waiter.deadline = now + waiter.ask.wait_ns_max;
  waiter.reason = placement.reason;
  waiter.limit = limit;
  waiter.position = static_cast<std::uint32_t>(state.queue.size() + 1);
  state.users[waiter.ask.uid].queued++;
  state.queue_deadline = std::min(state.queue_deadline, waiter.deadline);
  waiter.roomiest = roomiest_for(prospects.kind_of(waiter.ask), waiter.reason);
  if (waiter.reason != QueueReason::kUserLimit) {
    keeping_add(state, prospects, waiter);
    holds_expect(state, waiter);
  }
  state.queue.push_back(std::move(made));
  out.emplace_back(queued_action(state, state.queue.size() - 1));
}

void request_gone(State& state, const RequestGone& event) {
  for (std::size_t i = 0; i < state.queue.size(); ++i) {
    if (state.queue[i]->ask.request != event.request) continue;
    waiter_remove(state, i);
    return;
  }
}

void queue_return(State& state, TenantAsked ask, Nanos now) {
  if (queue_return_find(state, ask.returns) != nullptr) return;
  auto waiter = std::make_unique<Waiter>();
  waiter->ask = std::move(ask);
  waiter->asked_at = now;
  state.users[waiter->ask.uid].queued++;
  const auto first_new =
      std::ranges::find_if(state.queue, [](const auto& other) { return other->ask.returns == 0; });
  state.queue.insert(first_new, std::move(waiter));
  state.queue_dirty = true;
}

const Waiter* queue_return_find(const State& state, TenantId tenant) {
  for (const auto& waiter : state.queue)
    if (waiter->ask.returns == tenant) return waiter.get();
  return nullptr;
}

void queue_return_renew(State& state, TenantAsked ask) {
  const auto found = std::ranges::find_if(
      state.queue, [&](const auto& waiter) { return waiter->ask.returns == ask.returns; });
  if (found != state.queue.end()) (*found)->ask = std::move(ask);
}

void queue_return_gone(State& state, TenantId tenant) {
  const auto found = std::ranges::find_if(
      state.queue, [&](const auto& waiter) { return waiter->ask.returns == tenant; });
  if (found != state.queue.end())
    waiter_remove(state, static_cast<std::size_t>(found - state.queue.begin()));
}

void queue_resume(State& state) {
  state.admissions = state.notes = 0;
  if (!state.queue_cut) return;
  state.queue_cut = false;
  state.queue_dirty = true;
}

bool queue_unfinished(const State& state) {
  return state.queue_cut || state.queue_told < state.queue.size();
}

void queue_pump(State& state, Nanos now, Actions& out) {
  if (now >= state.queue_deadline) queue_expire(state, now, out);
  if (now >= state.holds_at) state.queue_dirty = true;
  if (!state.queue_dirty) {
    queue_tell(state, out);
    return;
  }
  state.queue_dirty = false;
  if (std::ranges::any_of(state.gpus, [](const auto& gpu) { return gpu->lost; }))
    queue_purge(state, out);
  keeping_begin(state, now);
  const Keeping keeping(state);
  Prospects prospects(state);
  state.queue_cut = false;
  std::size_t waiting = 0;  // those behind close up as they are looked at, not at each admission
  for (std::size_t i = 0; i < state.queue.size(); ++i) {
    if (waiting != i) state.queue[waiting] = std::move(state.queue[i]);
    state.queue_cut = state.admissions >= kAdmissionsPerStep;
    if (state.queue_cut) waiter_place(*state.queue[waiting], waiting, state.queue[waiting]->reason);
    if (state.queue_cut || !waiter_try(state, prospects, waiting, now, out)) ++waiting;
  }
  state.queue.resize(waiting);
  if (state.queue_cut)
    keeping.take_back(state);
  else
    holds_decide(state, prospects, now);
  if (state.policy.exclusive_room != ExclusiveRoom::kWait) state.room_dirty = true;
  state.queue_dirty = false;
  state.queue_deadline = kNever;
  for (const auto& waiter : state.queue)
    state.queue_deadline = std::min(state.queue_deadline, waiter->deadline);
  state.queue_told = 0;
  if (!state.queue_cut) queue_tell(state, out);  // else nobody's place is final
}

}  // namespace sluice::core

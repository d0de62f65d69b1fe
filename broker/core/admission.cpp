// Who may enter.
//
// A request is checked once: what no waiting could mend is refused at once, with the reason and the
// remedy. What fits is admitted, the rest waits in one queue, first come, first served. The queue
// is back-filled conservatively: every request that waits for room keeps the GPUs on which it is
// expected to fit first (exclusive: the GPUs with fewest tenants, which so drain empty), and a
// later one is admitted only onto GPUs that no earlier one keeps. So nobody behind takes the room
// that somebody ahead is waiting for. A request that waits for its user's limit keeps nothing: its
// wait is its user's.
#include "broker/core/admission.h"

#include <algorithm>
#include <cassert>

#include "broker/core/aside.h"
#include "broker/core/command.h"
#include "broker/core/lease.h"
#include "broker/core/limits.h"
#include "broker/core/line.h"
#include "broker/core/memory.h"
#include "broker/core/placement.h"
#include "broker/core/room.h"
#include "broker/core/schedule.h"
#include "broker/core/stay.h"
#include "broker/core/texts.h"
#include "broker/core/usage.h"

namespace sluice::core {
namespace {

void defaults_fill(const State& state, TenantAsked& ask) {
  const ClassPolicy& policy = state.policy.classes[static_cast<std::size_t>(ask.tenant_class)];
  if (ask.sm_percent == 0) ask.sm_percent = policy.sm_percent;
  if (!ask.sm_mode_given) ask.sm_mode = policy.sm_mode;
  if (ask.memory_max == 0) ask.memory_max = policy.memory_max;
  ask.swap = ask.swap && state.policy.swap && ask.tenant_class != TenantClass::kExclusive;
  // What is guaranteed to a swappable tenant is at least its context: refused_memory raises it.
  if (ask.memory_min == 0) ask.memory_min = ask.swap ? 1 : ask.memory_max;
  if (ask.gpu_count == 0) ask.gpu_count = 1;
}

/// Requests that no state of the machine could serve.
bool refused_shape(const State& state, const TenantAsked& ask, Actions& out) {
  auto refuse = [&](TenantRefused refusal) {
    out.emplace_back(std::move(refusal));
    return true;
  };
  const auto there = static_cast<std::size_t>(
      std::ranges::count_if(state.gpus, [](const auto& gpu) { return !gpu->lost; }));
  const std::size_t lost = state.gpus.size() - there;
  if (there == 0)
    return refuse(lost > 0 ? refusal_all_lost(ask.request, lost) : refusal_no_gpus(ask.request));
  if (static_cast<std::size_t>(ask.tenant_class) >= state.policy.classes.size())
    return refuse(refusal_malformed(ask.request,
                                    "the class is none of inference, debug, batch and exclusive"));
  if (ask.sm_percent > 100 || ask.sm_percent == 0)
    return refuse(refusal_malformed(ask.request, "a compute share of " +
                                                     std::to_string(ask.sm_percent) +
                                                     " % is not possible; ask for 1 to 100"));
  for (std::size_t i = 0; i < ask.pinned.size(); ++i) {
    const auto gpu =
        std::ranges::find_if(state.gpus, [&](const auto& g) { return g->uuid == ask.pinned[i]; });
    if (gpu == state.gpus.end()) return refuse(refusal_unknown_gpu(ask.request, ask.pinned[i]));
    if ((*gpu)->lost) return refuse(refusal_pinned_lost(ask.request, ask.pinned[i]));
    if (std::find(ask.pinned.begin(), ask.pinned.begin() + static_cast<std::ptrdiff_t>(i),
                  ask.pinned[i]) != ask.pinned.begin() + static_cast<std::ptrdiff_t>(i))
      return refuse(
          refusal_malformed(ask.request, "the same GPU is named twice; name each GPU once"));
  }
  const std::size_t named = ask.pinned.empty() ? there : ask.pinned.size();
  const std::size_t most = std::min<std::size_t>(named, protocol::kTenantGpusMax);
  if (ask.gpu_count > most)
    return refuse(
        refusal_too_many_gpus(ask.request, ask.gpu_count, most, !ask.pinned.empty(), lost));
  return false;
}

/// Quotas below a context or beyond every GPU.
bool refused_memory(const State& state, TenantAsked& ask, Actions& out) {
  std::vector<Bytes> contexts;
  std::vector<Bytes> limits;
  for (const auto& gpu : state.gpus) {
    if (gpu->lost) continue;
    if (!ask.pinned.empty() && std::ranges::find(ask.pinned, gpu->uuid) == ask.pinned.end())
      continue;
    contexts.push_back(gpu->context_bytes);
    limits.push_back(std::min(gpu->capacity, gpu->limit_max(state.policy.oversell_memory)));
  }
  std::ranges::sort(contexts);
  std::ranges::sort(limits, std::greater<>());
  const std::size_t needed = std::min<std::size_t>(ask.gpu_count, contexts.size());
  const Bytes minimum = contexts[needed - 1];
  const Bytes largest = limits[needed - 1];
  TenantRefused refusal;
  if (ask.tenant_class == TenantClass::kExclusive) return false;
  if (ask.memory_max == 0)
    refusal = refusal_no_quota(ask.request, ask.tenant_class, std::max<Bytes>(minimum, 1));
  else if (ask.memory_max < minimum)
    refusal = refusal_below_context(ask.request, ask.memory_max, minimum);
  else if (ask.memory_max > largest)
    refusal = refusal_too_large(ask.request, ask.memory_max, largest, ask.gpu_count);
  else if (ask.memory_min > ask.memory_max)
    refusal = refusal_malformed(ask.request,
                                "the guaranteed memory (" + bytes_text(ask.memory_min) +
                                    ") is more than the quota (" + bytes_text(ask.memory_max) +
                                    "); lower memory_min or raise memory_max");
  else if (placement_candidates(state, ask).size() < ask.gpu_count)
    refusal = refusal_too_large(ask.request, ask.memory_max, largest, ask.gpu_count);
  if (refusal.code != RefusalCode::kNone) {
    out.emplace_back(std::move(refusal));
    return true;
  }
  // A context cannot be swapped, so what is guaranteed covers it.
  ask.memory_min = std::max(ask.memory_min, minimum);
  return false;
}

bool limited(const State& state, const TenantAsked& ask) {
  return limit_reached(state, ask).which != protocol::QueueLimit::kNone;
}

/// Why it waits, for people.
std::string why_text(const State& state, const TenantAsked& ask, QueueReason reason) {
  return reason == QueueReason::kUserLimit ? limit_text(ask, limit_reached(state, ask))
                                           : reason_text(reason);
}

/// When the request may be expected to start: its place times the time between the last starts out
/// of the queue. 0 = too few have been seen, or it waits for its user's own jobs.
Nanos start_expected(const State& state, const Waiter& waiter) {
  constexpr std::uint32_t kStartsSeenMin = 3;
  if (state.starts < kStartsSeenMin || waiter.reason == QueueReason::kUserLimit) return 0;
  const double ns = state.start_interval_ns * waiter.position;
  return std::max<Nanos>(static_cast<Nanos>(ns), 1);
}

void start_note(State& state, Nanos now) {
  constexpr double kNewPart = 0.25;  // of the running mean
  if (state.started_last > 0) {
    const auto interval = static_cast<double>(now - state.started_last);
    state.start_interval_ns = state.starts == 0
                                  ? interval
                                  : state.start_interval_ns * (1 - kNewPart) + interval * kNewPart;
    state.starts++;
  }
  state.started_last = now;
}

TenantQueued queued_action(const State& state, std::size_t index) {
  const Waiter& waiter = *state.queue[index];
  TenantQueued action{waiter.ask.request, waiter.position, waiter.reason, 0, 0, {}, 0, {}};
  action.expected_start_ns = start_expected(state, waiter);
  if (waiter.reason == QueueReason::kUserLimit) {
    const Limit limit = limit_reached(state, waiter.ask);
    action.limit = limit.which;
    action.promised = limit.used;
    action.capacity = limit.most;
  } else if (waiter.roomiest >= 0) {
    const Gpu& gpu = *state.gpus[static_cast<std::size_t>(waiter.roomiest)];
    action.promised = gpu.promised_min;
    action.capacity = gpu.capacity;
  }
  if (index > 0) action.ahead = state.queue[index - 1]->ask.name;
  return action;
}

std::unique_ptr<Tenant> tenant_make(const State& state, const TenantAsked& ask, Nanos asked_at,
                                    Nanos now, const std::vector<std::uint32_t>& gpus) {
  auto tenant = std::make_unique<Tenant>();
  tenant->uid = ask.uid;
  tenant->tenant_class = ask.tenant_class;
  tenant->sm_mode = ask.sm_mode;
  tenant->sm_percent = ask.sm_percent;
  tenant->memory_max = ask.memory_max;
  tenant->memory_min = ask.memory_min;
  tenant->swap = ask.swap;
  tenant->window_ns = ask.window_ns;
  tenant->name = ask.name;
  tenant->group = ask.group;
  tenant->pinned = ask.pinned;
  tenant->asked_at = asked_at;
  tenant->admitted_at = tenant->in_since = tenant->idle_since = now;
  tenant_shares_add(state, *tenant, gpus, now);
  if (tenant->exclusive()) {  // the whole of every GPU it gets, but for what cannot be moved off it
    Bytes smallest = ~Bytes{0};
    for (std::uint32_t g : gpus) {
      Bytes left = 0;
      gpu_shares_each(*state.gpus[g], [&](const Share& share) { left += share_on_gpu(share); });
      const Bytes capacity = state.gpus[g]->capacity;
      smallest = std::min(smallest, capacity - std::min(left, capacity));
    }
    tenant->memory_max = tenant->memory_min = smallest;
    tenant->sm_percent = 100;
    tenant->sm_mode = SmMode::kBestEffort;
  }
  tenant->promised = tenant->swap ? tenant->memory_min : tenant->memory_max;
  tenant->quota_most = tenant->memory_max;
  return tenant;
}

void tenant_admit(State& state, const TenantAsked& ask, Nanos asked_at,
                  const std::vector<std::uint32_t>& gpus, Nanos now, Actions& out) {
  std::unique_ptr<Tenant> made = tenant_make(state, ask, asked_at, now, gpus);
  Tenant& tenant = *made;
  TenantAdmitted action{ask.request,
                        0,
                        {},
                        tenant.memory_max,
                        tenant.memory_min,
                        tenant.sm_percent,
                        tenant.sm_mode,
                        ask.dry_run,
                        tenant.swap};
  for (std::uint32_t g : gpus) action.gpus.push_back(state.gpus[g]->uuid);
  if (ask.dry_run) {
    out.emplace_back(std::move(action));
    return;
  }
  tenant.id = action.tenant = state.next_tenant++;
  state.tenants.emplace(tenant.id, std::move(made));
  state.users[tenant.uid].admitted++;
  sums_add(state, tenant);
  if (tenant.exclusive()) aside_take(state, tenant, out);
  tenant_book(state, tenant, now);
  out.emplace_back(std::move(action));
  lease_introduce(state, tenant, out);
  for (Share& share : tenant.shares) windows_refresh(state, *state.gpus[share.gpu], false, out);
  if (tenant.exclusive()) lease_open(state, tenant, false, now, out);
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

/// What the request gets now, given what is kept for those ahead of it.
Placement placement_now(const State& state, const TenantAsked& ask) {
  if (limited(state, ask)) return Placement{{}, QueueReason::kUserLimit};
  return placement_find(state, ask, state.kept);
}

void plan_keep(State& state, Prospects& prospects, Prospects::Kind& prospect,
               const Waiter& waiter) {
  if (waiter.reason == QueueReason::kUserLimit) return;
  for (std::uint32_t g : prospect.plan()) {
    const bool first = !state.kept[g];  // nobody steps aside for who is not the next one there
    state.kept[g] = true;
    if (first) prospects.kept_grew();
    if (waiter.ask.tenant_class != TenantClass::kExclusive) continue;
    Gpu& gpu = *state.gpus[g];
    gpu.draining = true;
    if (first && state.policy.exclusive_room != ExclusiveRoom::kWait) gpu.step_aside = true;
  }
}

/// True = the request was answered for good.
bool refused_waiting(State& state, const TenantAsked& ask, QueueReason reason, Actions& out) {
  const auto position = static_cast<std::uint32_t>(state.queue.size() + 1);
  const UserCount user = state.users.contains(ask.uid) ? state.users[ask.uid] : UserCount{};
  const std::uint32_t per_user = state.policy.tenants_per_user_max;
  if (ask.no_wait || ask.dry_run) {
    const std::string why = why_text(state, ask, reason);
    const bool limit = reason == QueueReason::kUserLimit && !ask.dry_run;
    out.emplace_back(limit ? refusal_limit(ask.request, why)
                           : refusal_no_room(ask.request, why, position, ask.dry_run));
    return true;
  }
  if (user.queued >= per_user) {
    out.emplace_back(refusal_user_queue(ask.request, ask.uid, per_user));
    return true;
  }
  return false;
}

bool all_kept(const State& state) {
  return std::ranges::all_of(state.kept, [](bool k) { return k; });
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
  QueueReason reason = QueueReason::kPriority;
  if (limited(state, waiter.ask)) {
    reason = QueueReason::kUserLimit;
  } else if (!all_kept(state)) {
    const Placement& placement = prospect.find();
    if (!placement.gpus.empty()) {
      start_note(state, now);
      tenant_admit(state, waiter.ask, waiter.asked_at, placement.gpus, now, out);
      prospects.changed();
      waiter_leaves(state, waiter);
      state.admissions++;
      return true;
    }
    reason = placement.reason;
  }
  waiter_place(waiter, index, reason);
  plan_keep(state, prospects, prospect, waiter);
  waiter.roomiest = prospect.roomiest();
  return false;
}

/// Tells those whose place or reason is another, from the front.
void queue_tell(State& state, Actions& out) {
  std::size_t& at = state.queue_told;
  for (; at < state.queue.size(); ++at) {
    if (!state.queue[at]->news) continue;
    if (state.notes >= kNotesPerStep) return;
    state.notes++;
    state.queue[at]->news = false;
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
    state.kept.assign(state.gpus.size(), true);  // nobody passes those who were not looked at
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
    out.emplace_back(refusal_gpu_lost(ask.request, have));
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
                                     why_text(state, waiter.ask, waiter.reason), waiter.position));
    waiter_remove(state, i);
  }
}

}  // namespace

void tenant_asked(State& state, const TenantAsked& event, Nanos now, Actions& out) {
  TenantAsked ask = event;
  defaults_fill(state, ask);
  if (refused_shape(state, ask, out) || refused_memory(state, ask, out)) return;
  if (std::string excess = sums_excess(state, ask); !excess.empty()) {
    out.emplace_back(refusal_group(ask.request, std::move(excess)));
    return;
  }
  if (std::ranges::any_of(state.queue,
                          [&](const auto& w) { return w->ask.request == ask.request; })) {
    out.emplace_back(
        refusal_malformed(ask.request, "this request is waiting already; wait for its answer"));
    return;
  }
  if (state.tenants.size() + state.queue.size() >= state.policy.tenants_max) {
    out.emplace_back(refusal_full(ask.request, state.policy.tenants_max));
    return;
  }
  state.kept.resize(state.gpus.size(), false);
  const Placement placement = placement_now(state, ask);
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
  waiter.position = static_cast<std::uint32_t>(state.queue.size() + 1);
  state.users[waiter.ask.uid].queued++;
  state.queue_deadline = std::min(state.queue_deadline, waiter.deadline);
  Prospects prospects(state);
  Prospects::Kind& prospect = prospects.kind_of(waiter.ask);
  plan_keep(state, prospects, prospect, waiter);
  waiter.roomiest = prospect.roomiest();
  state.room_dirty = true;  // others may have to step aside for it
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

void tenant_hand_back(State& state, Tenant& tenant, Nanos now, Actions& out) {
  if (!tenant.exclusive() || !tenant.charged) return;
  tenant_unbook(state, tenant, now);
  aside_return(state, tenant, now, out);
  for (Share& share : tenant.shares) windows_refresh(state, *state.gpus[share.gpu], false, out);
  state.queue_dirty = true;
}

void tenant_end(State& state, Tenant& tenant, Nanos now, Actions& out) {
  assert(tenant.processes.empty());
  gang_changes(state, tenant, now);
  if (tenant.waiting && tenant.gang()) std::erase(state.gang_line, &tenant);
  for (Share& share : tenant.shares) {
    share_account(state, share, now);
    if (tenant.waiting) line_leave(state, share);
    state.gpus[share.gpu]->dead_busy_ns += share.busy_ns - share.elsewhere_ns;
    if (share.provisional_ns > 0 && !tenant.exclusive()) {
      state.ghosts.push_back(Ghost{tenant.id, share.index, share.gpu, share.busy_seen_ns,
                                   share.lease_ns - share.busy_ns});
      out.emplace_back(UsageWanted{tenant.id, share.index});
    }
  }
  tenant.waiting = false;
  if (tenant.charged) tenant_unbook(state, tenant, now);
  for (Share& share : tenant.shares) share_forget(state, share);
  wants_forget(state, tenant);
  stay_forget(state, tenant);
  commands_fail(state, tenant, RefusalCode::kUnknownTenant, "it has ended", now, out);
  if (tenant.exclusive()) aside_return(state, tenant, now, out);
  sums_remove(state, tenant);
  for (Share& share : tenant.shares) windows_refresh(state, *state.gpus[share.gpu], false, out);
  assert(state.users[tenant.uid].admitted > 0);
  state.users[tenant.uid].admitted--;
  user_forget(state, tenant.uid);
  out.emplace_back(TenantEnded{tenant.id});
  state.queue_dirty = true;
  state.tenants.erase(tenant.id);
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
  if (!state.queue_dirty) {
    queue_tell(state, out);
    return;
  }
  state.queue_dirty = false;
  if (std::ranges::any_of(state.gpus, [](const auto& gpu) { return gpu->lost; }))
    queue_purge(state, out);
  state.kept.assign(state.gpus.size(), false);
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
  if (state.queue_cut) keeping.take_back(state);
  if (state.policy.exclusive_room != ExclusiveRoom::kWait) state.room_dirty = true;
  state.queue_dirty = false;
  state.queue_deadline = kNever;
  for (const auto& waiter : state.queue)
    state.queue_deadline = std::min(state.queue_deadline, waiter->deadline);
  state.queue_told = 0;
  if (!state.queue_cut) queue_tell(state, out);  // else nobody's place is final
}

}  // namespace sluice::core

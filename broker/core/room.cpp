// Making room.
//
// One queue, first come first served, of two kinds of wants: an allocation that the driver has
// refused, and a tenant that is out and has work again (or is to come back). The first in the queue
// that waits on a GPU keeps whatever becomes free there; those behind it wait, so nobody starves. A
// want that nothing could ever serve blocks nobody: an allocation is told so at once, a tenant
// waits for others to end. Only a gang that cannot stop before its allocation is made goes first.
//
// Who makes room is chosen in victims.cpp. The claims decide only how much room is expected; the
// driver has the last word, and whoever finds no room all the same asks again and keeps its place.
#include "broker/core/room.h"

#include <algorithm>
#include <cassert>

#include "broker/core/leaving.h"
#include "broker/core/memory.h"
#include "broker/core/refusal.h"
#include "broker/core/stay.h"
#include "broker/core/victims.h"
#include "broker/protocol/pages.h"

namespace sluice::core {
namespace {

enum class Answer : std::uint8_t { kRoom, kWait, kNever };

Bytes leaving(const State& state, const Gpu& gpu, const Tenant& asker, Nanos now) {
  Bytes sum = 0;
  gpu_shares_each(gpu, [&](const Share& share) {
    if (share.tenant != &asker) sum += stay_leaving(state, share, now);
  });
  return sum;
}

/// Tenants of a broker before this one whose processes have not come back tell nothing yet.
bool claims_to_come(const Gpu& gpu, Nanos now) {
  constexpr Nanos kComeNs = 10'000'000'000;
  bool any = false;
  gpu_shares_each(gpu, [&](const Share& share) {
    const Tenant& tenant = *share.tenant;
    any = any || (tenant.restored && tenant.swap && share.held == 0 && !tenant.processes.empty() &&
                  now < tenant.restored_at + kComeNs);
  });
  return any;
}

/// Room for `bytes` of the tenant on this GPU; gets somebody out of the way where that helps.
Answer gpu_serve(State& state, Gpu& gpu, Bytes bytes, const Tenant& asker, Nanos now,
                 Actions& out) {
  const Room free = gpu_free(gpu, now);
  const auto need = static_cast<Room>(bytes);
  if (free >= need) return Answer::kRoom;
  const Room expected = free + static_cast<Room>(leaving(state, gpu, asker, now) + gpu.returning);
  gpu.room_for = &asker;
  if (expected >= need) return Answer::kWait;
  if (!gpu_look(state, gpu, kLookAgainNs, now, out)) return Answer::kWait;
  const auto missing = static_cast<Bytes>(need - expected);
  const Victims found = victims_find(state, gpu, asker, missing, now);
  for (Tenant* victim : found.chosen) {
    victim->victim = true;
    stay_look(state, *victim);
  }
  if (!found.chosen.empty()) return Answer::kWait;
  if (!found.later && !claims_to_come(gpu, now)) {
    gpu.room_for = nullptr;
    return Answer::kNever;
  }
  state.room_at = std::min({state.room_at, found.later_at, now + kLookAgainNs});
  return Answer::kWait;
}

void room_answer(Share& share, bool none, Actions& out) {
  share.room_word = protocol::room_next(share.room_word, none);
  out.emplace_back(RoomSet{share.tenant->id, share.index, share.room_word});
}

/// True = the want has been answered.
bool allocation_serve(State& state, Want& want, Tenant& tenant, GpuFlags& blocked, Nanos now,
                      Actions& out) {
  Share& share = tenant.shares[want.index];
  Gpu& gpu = *state.gpus[share.gpu];
  // Who is to go out is served after that, unless it cannot stop before: a rank that spins for one
  // that waits for memory does not drain.
  const bool here = tenant.residence == Residence::kIn && !stay_out_wanted(tenant);
  const bool drains = tenant.residence == Residence::kLeaving && tenant.phase != Phase::kClosed;
  if ((!here && !drains) || blocked[share.gpu]) return false;
  const Refusal refusal =
      gpu.lost ? Refusal::kSettled : refusal_judge(state, gpu, want, tenant.uid, now, out);
  if (refusal == Refusal::kUnproven) return false;
  Answer answer = Answer::kRoom;
  if (refusal == Refusal::kSettled)
    answer = gpu.lost ? Answer::kNever : gpu_serve(state, gpu, want.bytes, tenant, now, out);
  if (answer == Answer::kWait) {
    blocked[share.gpu] = true;
    return false;
  }
  if (answer == Answer::kRoom && refusal == Refusal::kSettled) {
    share.claim = want.bytes;
    share.claim_held = share.held;
    share.claim_until = now + kClaimNs;
    share.claim_since = want.since;
  }
  refusal_answered(gpu, want, share, answer == Answer::kNever, now);
  room_answer(share, answer == Answer::kNever, out);
  return true;
}

/// A process in the driver's checkpoint need not answer: its calls return once it is back, and
/// until then it does nothing that the answers are for.
bool answers_pending(const Tenant& tenant) {
  return !tenant.frozen && std::ranges::any_of(tenant.processes, [](const Process& p) {
    return (p.acks | p.moves) != 0;
  });
}

/// True = it is on its way back.
bool return_serve(State& state, Tenant& tenant, GpuFlags& blocked, Nanos now, Actions& out) {
  if (answers_pending(tenant)) return false;
  if (now < tenant.retry_at) {
    state.room_at = std::min(state.room_at, tenant.retry_at);
    return false;
  }
  bool wait = false;
  bool never = false;
  for (const Share& share : tenant.shares) {
    Gpu& gpu = *state.gpus[share.gpu];
    if (gpu.lost) return false;
    if (share_return(share) == 0) continue;
    if (blocked[share.gpu]) {
      wait = true;
      continue;
    }
    const Answer answer = gpu_serve(state, gpu, share_return(share), tenant, now, out);
    never = never || answer == Answer::kNever;
    wait = wait || answer == Answer::kWait;
    if (answer == Answer::kRoom && !gpu_look(state, gpu, kFreshNs, now, out)) wait = true;
  }
  if (never) {
    state.room_at = std::min(state.room_at, now + kLookAgainNs);
    return false;
  }
  if (wait) {
    for (const Share& share : tenant.shares) blocked[share.gpu] = true;
    return false;
  }
  stay_return(state, tenant, now, out);
  return true;
}

void want_add(State& state, Want want, Nanos out_since) {
  auto later = [&](const Want& other) {
    if (other.since != want.since) return other.since > want.since;
    const Tenant* tenant = tenant_find(state, other.tenant);
    return other.back && want.back && tenant != nullptr && tenant->out_since > out_since;
  };
  state.wants.insert(std::ranges::find_if(state.wants, later), std::move(want));
}

/// A gang that is to stop and has not: one of its ranks may spin for the one that waits for memory,
/// and until that has it nobody else gets the GPUs, nor what the gang itself would leave free.
bool holds_up(const Tenant& tenant, const Want& want) {
  return !want.back && tenant.gang() && tenant.phase == Phase::kClosing;
}

/// Those of the queue that come first whatever their place, or the others.
void wants_serve(State& state, bool urgent, GpuFlags& blocked, Nanos now, Actions& out) {
  for (std::size_t i = 0; i < state.wants.size();) {
    const Want want = state.wants[i];
    Tenant& tenant = *tenant_find(state, want.tenant);
    if (holds_up(tenant, want) != urgent) {
      ++i;
      continue;
    }
    const bool served = want.back
                            ? return_serve(state, tenant, blocked, now, out)
                            : allocation_serve(state, state.wants[i], tenant, blocked, now, out);
    if (!served) {
      ++i;
      continue;
    }
    if (want.back) tenant.back_since = want.since;  // until it is in
    state.wants.erase(state.wants.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

/// Who is out and wants to come back is in the queue, and nobody else is.
void returns_collect(State& state, Nanos now) {
  std::erase_if(state.wants, [&](const Want& want) {
    return want.back && !stay_back_wanted(state, *tenant_find(state, want.tenant));
  });
  for (Tenant* tenant : state.moving) {
    if (!stay_back_wanted(state, *tenant)) {
      if (tenant->residence == Residence::kOut) tenant->back_since = 0;
      continue;
    }
    const bool queued = std::ranges::any_of(
        state.wants, [&](const Want& want) { return want.back && want.tenant == tenant->id; });
    const Nanos since = tenant->back_since != 0 ? tenant->back_since : now;
    if (!queued) want_add(state, Want{tenant->id, true, 0, 0, since, {}}, tenant->out_since);
  }
}

}  // namespace

void memory_wanted(State& state, const MemoryWanted& event, Nanos now) {
  auto it = state.processes.find(event.process);
  if (it == state.processes.end()) return;
  Tenant& tenant = *it->second;
  if (event.gpu_index >= tenant.shares.size()) return;
  Share& share = tenant.shares[event.gpu_index];
  if (event.room != share.room_word) return;  // answered while it was on its way
  const Bytes bytes = std::clamp<Bytes>(event.bytes, 1, std::max<Bytes>(tenant.quota_most, 1));
  state.room_dirty = true;
  for (Want& want : state.wants) {
    if (want.back || want.tenant != tenant.id || want.index != event.gpu_index) continue;
    want.bytes = std::max(want.bytes, bytes);
    if (std::ranges::find(want.askers, event.process) == want.askers.end())
      want.askers.push_back(event.process);
    return;
  }
  // Room that was made for it and taken by others before it came: it keeps its place.
  const Nanos since = share_claim(share, now) > 0 ? share.claim_since : now;
  share.claim = 0;
  Want want{tenant.id, false, event.gpu_index, bytes, since, {event.process}};
  refusal_note(want, share, *state.gpus[share.gpu], now);
  want_add(state, std::move(want), 0);
}

void room_decide(State& state, Nanos now, Actions& out) {
  for (auto& gpu : state.gpus) gpu->room_for = nullptr;
  returns_collect(state, now);
  if (state.wants.empty()) return;
  GpuFlags blocked(state.gpus.size(), false);
  wants_serve(state, true, blocked, now, out);
  wants_serve(state, false, blocked, now, out);
  for (const auto& gpu : state.gpus)
    if (gpu->room_for != nullptr)
      state.room_at = std::min({state.room_at, now + kLookAgainNs, gpu_look_at(*gpu, now)});
  state.room_at = std::max(state.room_at, now + 1);
}

bool wants_room(const State& state, const Tenant& tenant) {
  return std::ranges::any_of(state.wants,
                             [&](const Want& want) { return want.tenant == tenant.id; });
}

void wants_forget_process(State& state, const Tenant& tenant, ProcessId process) {
  std::erase_if(state.wants, [&](Want& want) {
    if (want.back || want.tenant != tenant.id) return false;
    std::erase(want.askers, process);
    return want.askers.empty();
  });
  state.room_dirty = true;
}

void wants_forget(State& state, const Tenant& tenant) {
  std::erase_if(state.wants, [&](const Want& want) { return want.tenant == tenant.id; });
  state.room_dirty = true;
}

}  // namespace sluice::core

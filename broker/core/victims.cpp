// Who makes room.
//
// Victims are idle tenants first, longest idle first; then whoever has been in for a swap quantum,
// longest in first. As few as do: one that suffices alone goes before several. Nobody is moved
// before those that may be moved suffice, nobody for its own want, and together no more than their
// users have host memory left for: what one of them takes there the next one does not have. Where
// taking them in that order does not suffice the best choice within the host memory is looked for,
// by the same search for now and for later: who is told to wait will find what was promised.
#include "broker/core/victims.h"

#include <algorithm>
#include <numeric>

#include "broker/core/leaving.h"
#include "broker/core/memory.h"
#include "broker/core/room.h"

namespace sluice::core {
namespace {

constexpr Nanos kIdleParts = 10;    // idle = for this part of the swap quantum
constexpr int kSearchSteps = 4096;  // for the best choice of one user's; then the best so far

struct Candidate {
  Tenant* tenant = nullptr;
  Bytes gain = 0;  // on the GPU
  Bytes host = 0;  // what it takes in the host, all its GPUs together
  bool idle = false;
  Nanos order = 0;  // lower goes first
};

struct Candidates {
  std::vector<Candidate> now;
  std::vector<Candidate> later;  // may be moved at another time
  Nanos later_at = kNever;       // when the first of them may
};

/// Host memory that users have left, as victims are chosen.
using HostRooms = std::map<std::uint32_t, Bytes>;

bool idle(const Tenant& tenant) {
  return tenant.phase == Phase::kClosed && tenant_wants(tenant) == 0;
}

bool coming(const State& state, const Tenant& tenant, Nanos now) {
  return (tenant.residence == Residence::kSwappingIn ||
          tenant.residence == Residence::kRestoring) &&
         !stay_stuck(state, tenant, now);
}

Nanos movable_at(const State& state, const Tenant& tenant) {
  const Nanos quantum = state.policy.swap_quantum_ns;
  Nanos at = tenant.in_since + quantum;
  if (idle(tenant) && !wants_room(state, tenant))
    at = std::min(at, tenant.idle_since + quantum / kIdleParts);
  return std::max(at, tenant.retry_at);
}

/// What moving the share out frees. What is on its way in can go out again, all of it.
Bytes movable_of(const Share& share) {
  return share.tenant->residence == Residence::kSwappingIn ? share.movable : share_movable(share);
}

Bytes movable_all(const Tenant& tenant) {
  Bytes sum = 0;
  for (const Share& share : tenant.shares) sum += movable_of(share);
  return sum;
}

/// True if a member of the gang may have come back from another broker with work that spins for a
/// member at a gate: it acknowledges no hold before the gang has had a turn with all its members.
bool may_spin(const Tenant& tenant) {
  constexpr Nanos kComeNs = 1'000'000'000;  // within which members find a new broker
  return tenant.gang() && tenant.waiting && tenant.restored_at > 0 &&
         tenant.opened_at < tenant.restored_at + kComeNs;
}

/// Could it ever be moved out for somebody, its user's host memory aside?
bool may_be_victim(const State& state, const Tenant& tenant, Nanos now) {
  if (may_spin(tenant)) return false;
  if (!tenant.swap || stay_lost(tenant) || tenant.move_failures >= kMoveFailuresMax) return false;
  const bool here = tenant.residence == Residence::kIn && !stay_out_wanted(tenant);
  return (here || coming(state, tenant, now)) && tenant.phase != Phase::kRunaway;
}

Candidates candidates_find(const State& state, const Gpu& gpu, const Tenant& asker, Nanos now) {
  Candidates found;
  gpu_shares_each(gpu, [&](Share& share) {
    Tenant& tenant = *share.tenant;
    const Bytes claimed = share_claim(share, now);  // movable like the rest, as soon as it is used
    const Bytes gain = movable_of(share) + claimed;
    if (&tenant == &asker || gain == 0 || !may_be_victim(state, tenant, now)) return;
    const bool in = tenant.residence == Residence::kIn;
    const Nanos at = in ? movable_at(state, tenant) : kNever;  // its arrival is an event
    const bool claims =
        std::ranges::any_of(tenant.shares, [&](const Share& s) { return share_claim(s, now) > 0; });
    const bool rests = idle(tenant) && !wants_room(state, tenant);
    const Candidate candidate{&tenant, gain, movable_all(tenant), rests,
                              rests ? tenant.idle_since : tenant.in_since};
    if (in && at <= now && !claims) {
      found.now.push_back(candidate);
      return;
    }
    found.later.push_back(candidate);
    found.later_at = std::min(found.later_at, claims ? now + kClaimNs : at);
  });
  std::ranges::stable_sort(found.now, [](const Candidate& a, const Candidate& b) {
    if (a.idle != b.idle) return a.idle;
    return a.order != b.order ? a.order < b.order : a.tenant->id < b.tenant->id;
  });
  return found;
}

Bytes gain_sum(const std::vector<Candidate>& of) {
  return std::accumulate(of.begin(), of.end(), Bytes{0},
                         [](Bytes sum, const Candidate& c) { return sum + c.gain; });
}

HostRooms rooms_now(const State& state, const std::vector<Candidate>& of) {
  HostRooms rooms;
  for (const Candidate& candidate : of)
    rooms.try_emplace(candidate.tenant->uid, stay_host_left(state, candidate.tenant->uid));
  return rooms;
}

/// The same when everybody who is on the way in has arrived: what they had in the host is returned.
HostRooms rooms_later(const State& state, const std::vector<Candidate>& of, Nanos now) {
  HostRooms rooms = rooms_now(state, of);
  for (const Tenant* tenant : state.moving) {
    const auto room = rooms.find(tenant->uid);
    if (room == rooms.end() || !coming(state, *tenant, now) || stay_out_wanted(*tenant)) continue;
    for (const Share& share : tenant->shares) room->second += share.host_bytes;
  }
  return rooms;
}

void pick(const Candidate& candidate, HostRooms& rooms, Bytes* missing,
          std::vector<Candidate>* picked) {
  picked->push_back(candidate);
  rooms[candidate.tenant->uid] -= candidate.host;
  *missing -= std::min(*missing, candidate.gain);
}

/// The first of this kind that is enough alone, else the largest until it is enough.
void pick_of_kind(std::vector<Candidate> kind, HostRooms& rooms, Bytes* missing,
                  std::vector<Candidate>* picked) {
  if (*missing == 0) return;
  auto fits = [&](const Candidate& c) { return c.host <= rooms[c.tenant->uid]; };
  const auto alone =
      std::ranges::find_if(kind, [&](const Candidate& c) { return c.gain >= *missing && fits(c); });
  if (alone != kind.end()) {
    pick(*alone, rooms, missing, picked);
    return;
  }
  std::ranges::stable_sort(kind, std::greater<>(), &Candidate::gain);
  for (const Candidate& candidate : kind) {
    if (*missing == 0) return;
    if (fits(candidate)) pick(candidate, rooms, missing, picked);
  }
}

/// Of one user's candidates those that free most and fit into its host memory together.
struct Search {
  std::vector<Candidate> from;
  Bytes room = 0;
  int steps = kSearchSteps;
  Bytes best = 0;
  std::vector<Candidate> chosen;
  std::vector<Candidate> path;

  /// `left` = gain of those from `i` on.
  void run(std::size_t i, Bytes gain, Bytes used, Bytes left) {
    if (gain > best) {
      best = gain;
      chosen = path;
    }
    if (i == from.size() || gain + left <= best || --steps < 0) return;
    const Candidate& candidate = from[i];
    left -= candidate.gain;
    if (candidate.host <= room - used) {
      path.push_back(candidate);
      run(i + 1, gain + candidate.gain, used + candidate.host, left);
      path.pop_back();
    }
    run(i + 1, gain, used, left);
  }
};

/// Those that free most within their users' host memory.
std::vector<Candidate> best_within(const std::vector<Candidate>& from, const HostRooms& rooms) {
  std::vector<Candidate> best;
  for (const auto& [uid, room] : rooms) {
    Search search;
    search.room = room;
    for (const Candidate& candidate : from)
      if (candidate.tenant->uid == uid) search.from.push_back(candidate);
    std::ranges::stable_sort(search.from, [](const Candidate& a, const Candidate& b) {
      return a.gain != b.gain ? a.gain > b.gain : a.tenant->id < b.tenant->id;
    });
    search.run(0, 0, 0, gain_sum(search.from));
    best.insert(best.end(), search.chosen.begin(), search.chosen.end());
  }
  return best;
}

/// Who goes; empty = all together do not suffice.
std::vector<Candidate> victims_pick(const std::vector<Candidate>& from, const HostRooms& rooms,
                                    Bytes missing) {
  std::vector<Candidate> picked;
  const auto busy = std::ranges::find_if(from, [](const Candidate& c) { return !c.idle; });
  HostRooms rooms_left = rooms;
  Bytes left = missing;
  pick_of_kind({from.begin(), busy}, rooms_left, &left, &picked);
  pick_of_kind({busy, from.end()}, rooms_left, &left, &picked);
  if (left > 0) picked = best_within(from, rooms);
  Bytes sum = gain_sum(picked);
  if (sum < missing) return {};
  std::erase_if(picked, [&](const Candidate& candidate) {  // the last one may have made it needless
    if (sum - candidate.gain < missing) return false;
    sum -= candidate.gain;
    return true;
  });
  return picked;
}

}  // namespace

Victims victims_find(const State& state, const Gpu& gpu, const Tenant& asker, Bytes missing,
                     Nanos now) {
  const Candidates found = candidates_find(state, gpu, asker, now);
  Victims victims;
  for (const Candidate& c : victims_pick(found.now, rooms_now(state, found.now), missing))
    victims.chosen.push_back(c.tenant);
  if (!victims.chosen.empty()) return victims;
  std::vector<Candidate> all = found.now;
  all.insert(all.end(), found.later.begin(), found.later.end());
  victims.later = gain_sum(best_within(all, rooms_later(state, all, now))) >= missing;
  victims.later_at = found.later_at;
  return victims;
}

}  // namespace sluice::core

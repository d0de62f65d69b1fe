// What must be true after every step, whatever came. A breach is a bug: the text says which, and
// the process aborts. The tests and the simulator call this after each step.
#include <assert.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "broker/core/admission.h"
#include "broker/core/backfill.h"
#include "broker/core/lease.h"
#include "broker/core/leaving.h"
#include "broker/core/limits.h"
#include "broker/core/line.h"
#include "broker/core/memory.h"
#include "broker/core/placement.h"
#include "broker/core/policy.h"
#include "broker/core/schedule.h"
#include "broker/core/state.h"
#include "broker/protocol/pages.h"

namespace sluice::core {
namespace {

struct Check {
  std::string where;

  void operator()(bool held, const char* what) const {
    if (held) return;
    const std::string text = "invariant: " + std::string(what) + " (" + where + ")";
    __assert_fail(text.c_str(), "broker/core/invariants.cpp", 0, "invariants_check");
  }
};

bool held(const Tenant& tenant) {
  return tenant.phase == Phase::kOpen || tenant.phase == Phase::kClosing;
}

void promises_check(const State& state, std::size_t g) {
  const Gpu& gpu = *state.gpus[g];
  const Check check{"GPU " + std::to_string(g)};
  Bytes min = 0;
  Bytes max = 0;
  std::uint32_t inference = 0;
  std::uint64_t weight = 0;
  std::uint64_t guaranteed = 0;
  bool exclusive = false;
  for (const Share* share : gpu.shares) {
    const Tenant& tenant = *share->tenant;
    check(state.tenants.contains(tenant.id), "a share has a live tenant");
    check(share->gpu == g, "a share is booked on its own GPU");
    check(share->booked, "what is listed is booked");
    check(tenant.gang() || share->fills || share->window_ns == lease_window(state, *share),
          "a window is as the tenants on its GPU ask for");
    check(tenant.memory_most >= tenant.memory_max && tenant.memory_most >= tenant.promised,
          "what a tenant may still hold covers its quota and its promise");
    min += tenant.promised;
    max += tenant.memory_max;
    inference += tenant.inference() ? 1U : 0U;
    weight += tenant.sm_mode == SmMode::kEqual ? 0 : tenant.sm_percent;
    guaranteed += guarantee_of(tenant);
    check(!tenant.guaranteed() || tenant.sm_mode != SmMode::kEqual, "an n-th part is a weight");
    exclusive = exclusive || tenant.exclusive();
  }
  check(min == gpu.promised_min && max == gpu.promised_max, "promises add up");
  check(inference == gpu.inference_count && weight == gpu.plain_weight, "weights add up");
  check(guaranteed == gpu.guaranteed && guaranteed <= 100, "guaranteed shares are 100 at most");
  check(min <= gpu.capacity, "guaranteed memory is within the capacity");
  check(gpu.returning == 0 || (gpu.figures && gpu.returning <= gpu.capacity),
        "what is on its way back was seen on the device");
  for (const Share* share : gpu.unbooked) {
    const Tenant& tenant = *share->tenant;
    check(state.tenants.contains(tenant.id) && share->gpu == g && !share->booked,
          "what is here without a promise is a live tenant's");
    check(
        tenant.exclusive() ? !tenant.charged
                           : tenant.vacated || state.tenants.contains(share->aside_by),
        "a share without a promise was handed back or vacated, or stepped aside for a live tenant");
  }
  check(!exclusive || gpu.shares.size() == 1, "an exclusive GPU has one tenant");
}

void holder_check(const State& state, std::size_t g) {
  const Gpu& gpu = *state.gpus[g];
  const Check check{"GPU " + std::to_string(g)};
  std::size_t open = 0;
  for (const Share* share : gpu.on) {
    check(share->on && share->gpu == g, "what is on a GPU knows it");
    check(state.tenants.contains(share->tenant->id), "every lease has a live tenant");
    const bool holds = share->tenant == gpu.holder;
    check(holds == held(*share->tenant), "who holds a GPU is its holder");
    check(holds || share->tenant->runaway, "only runaways are on a GPU besides its holder");
    open += share->open ? 1U : 0U;
    check(!share->open || holds, "an open lease is the holder's");
  }
  check(open <= 1, "one open lease per GPU");
  if (gpu.holder != nullptr) {
    check(state.tenants.contains(gpu.holder->id), "the holder lives");
    check(held(*gpu.holder), "the holder's lease is open or closing");
  }
  for (const Share* share : gpu.waiting) {
    check(share->tenant->waiting && share->tenant != gpu.holder, "who waits does not hold");
    check(tenant_wants(*share->tenant) != 0, "who waits wants");
  }
}

/// Nobody who may run waits for a GPU that is free, unless it is reserved for a gang that is about
/// to be opened.
void idle_check(const State& state, std::size_t g) {
  const Gpu& gpu = *state.gpus[g];
  const Check check{"GPU " + std::to_string(g)};
  if (gpu.holder != nullptr) return;
  if (gpu.reserved != nullptr) {
    check(gpu.reserved->waiting, "a GPU is reserved for a gang that waits");
    check(std::ranges::any_of(gpu.reserved->shares,
                              [&](const Share& s) { return state.gpus[s.gpu]->holder != nullptr; }),
          "a gang with all its GPUs free is opened");
    return;
  }
  for (const Share* share : gpu.waiting)
    check(share->tenant->gang() || share->capped, "nobody waits for a free GPU");
}

void tenant_check(const State& state, const Tenant& tenant) {
  const Check check{"tenant " + std::to_string(tenant.id)};
  check(tenant.founder_alive || !tenant.processes.empty(), "a tenant without processes is over");
  check(!tenant.waiting || tenant.phase == Phase::kClosed || tenant.phase == Phase::kRunaway,
        "an open tenant does not wait");
  check(!tenant.released || tenant.phase != Phase::kOpen, "an over tenant holds nothing");
  bool pending = false;
  for (const Process& process : tenant.processes) {
    auto it = state.processes.find(process.id);
    check(it != state.processes.end() && it->second == &tenant, "processes are known");
    pending = pending || process.drains != 0;
  }
  for (const Share& share : tenant.shares) {
    const bool let = tenant.phase == Phase::kClosing && tenant.gang();
    check(share.open == (tenant.phase == Phase::kOpen) || let,
          "a gang is open on all its GPUs or on none");
    check(share.on == (tenant.phase != Phase::kClosed), "a lease is on the GPU until it drained");
    check(share.busy_ns >= 0 && share.busy_ns <= share.lease_ns, "busy time is within lease time");
    check(share.provisional_ns >= 0 && share.held_ns <= share.lease_ns, "charges are not negative");
    const Gpu& gpu = *state.gpus[share.gpu];
    const bool listed = std::ranges::find(gpu.waiting, &share) != gpu.waiting.end();
    check(listed == tenant.waiting, "who waits is listed");
    check(!held(tenant) || gpu.holder == &tenant, "a lease holds all its GPUs");
    pending = pending || share.open;
  }
  if (tenant.phase == Phase::kClosing) check(pending, "a drain that is complete is over");
}

bool idle_word(const Share& share) { return (share.hold_word & protocol::kHoldSet) == 0; }

/// Holds and leases never contradict each other, and nothing is ordered of who has not stopped.
void stay_check(const State& state, const Tenant& tenant) {
  const Check check{"tenant " + std::to_string(tenant.id)};
  const bool in = tenant.residence == Residence::kIn;
  const bool held = !in && tenant.residence != Residence::kLeaving;
  check(!in || !stay_out_wanted(tenant), "who is to be out is on the way");
  check(in || !tenant.waiting, "who is not in does not wait for a lease");
  check(in || tenant.phase != Phase::kOpen, "who is not in has no lease");
  check(!held || tenant.phase == Phase::kClosed, "who is held has drained");
  check(in || std::ranges::find(state.moving, &tenant) != state.moving.end(),
        "who is not in is looked after");
  check(!tenant.frozen || tenant.residence == Residence::kOut ||
            tenant.residence == Residence::kRestoring || tenant.residence == Residence::kHeld,
        "who is in the driver's checkpoint is out");
  for (const Share& share : tenant.shares) {
    check(held != idle_word(share), "the hold word says whether it is held");
    check(!held || (!share.open && !share.on), "a held share is not on its GPU");
    check(!in || share.host_bytes == 0, "who is in has nothing charged in the host");
    check(share.swapped <= share.movable && share.movable <= share.held, "parts are of the whole");
    check(share.left <= share.held - share.swapped, "what is left on the GPU is not in the host");
  }
  for (const Process& process : tenant.processes) {
    check(held || (process.acks | process.moves) == 0, "only who is held has to answer");
    check((process.acks & ~process.moves) == 0 || tenant.residence == Residence::kHeld ||
              tenant.residence == Residence::kOut ||
              tenant.residence == Residence::kCheckpointing ||
              tenant.residence == Residence::kRestoring,
          "nothing is ordered of who has not stopped");
  }
  for (const Share& share : tenant.shares)
    check(tenant.exclusive() || share.booked == (share.aside_by == 0 && !tenant.vacated),
          "a tenant that stepped aside, or vacated its GPUs, has no promise there");
  const bool out = tenant.residence == Residence::kOut ||
                   tenant.residence == Residence::kCheckpointing;  // on its way to another GPU
  check(!tenant.vacated || out, "a tenant that has vacated its GPUs is out");
  check(!tenant.vacated || tenant.suspended || tenant.rests || tenant.released ||
            queue_return_find(state, tenant.id) != nullptr,
        "a tenant that has vacated its GPUs and is to come back is in the queue");
}

/// Whoever is first in the queue for memory and fits is served; who waits is looked at again.
void wants_check(const State& state, Nanos now) {
  const Check check{"room"};
  for (const Want& want : state.wants) {
    auto it = state.tenants.find(want.tenant);
    check(it != state.tenants.end(), "who wants memory lives");
    const Tenant& tenant = *it->second;
    check(!want.back || tenant.residence == Residence::kOut, "who wants to come back is out");
    for (ProcessId id : want.askers)
      check(state.processes.contains(id), "the process that wants memory lives");
    check(want.back || !want.askers.empty(), "a process wants it");
  }
  if (state.wants.empty()) return;
  check(state.room_at != kNever || !state.moving.empty(),
        "who waits for memory is looked at again");
  const Want& first = state.wants.front();
  const Tenant& tenant = *state.tenants.find(first.tenant)->second;
  if (first.back || tenant.residence != Residence::kIn) return;
  const Share& share = tenant.shares[first.index];
  check(first.doubted || gpu_free(*state.gpus[share.gpu], now) < static_cast<Room>(first.bytes),
        "nobody waits for memory that is free");
}

void sums_check(const State& state) {
  const Check check{"sums"};
  std::map<std::string, Sum> groups;
  std::map<std::pair<std::string, std::uint32_t>, Sum> members;
  for (const auto& [id, tenant] : state.tenants)
    for (Sum* sum : {&groups[tenant->group], &members[{tenant->group, tenant->uid}]}) {
      sum->tenants++;
      sum->memory += tenant->memory_max * tenant->shares.size();
    }
  check(groups == state.groups && members == state.members,
        "what users and groups have together adds up");
}

void queue_check(const State& state) {
  std::unordered_map<std::uint32_t, UserCount> users;
  for (const auto& [id, tenant] : state.tenants) {
    users[tenant->uid].admitted++;
    for (const Share& share : tenant->shares) users[tenant->uid].host_bytes += share.host_bytes;
  }
  for (std::size_t i = 0; i < state.queue.size(); ++i) {
    const Waiter& waiter = *state.queue[i];
    const Check check{"request " + std::to_string(waiter.ask.request)};
    check(waiter.position == i + 1, "positions count from 1 without gaps");
    check(waiter.reason != QueueReason::kNone, "who waits is told why");
    check(!waiter.news || (i >= state.queue_told && queue_unfinished(state)),
          "who stands elsewhere now is still to be told");
    check(waiter.deadline >= state.queue_deadline, "the earliest deadline is known");
    users[waiter.ask.uid].queued++;
  }
  const Check check{"users"};
  check(users.size() == state.users.size(), "counts return to zero");
  for (const auto& [uid, count] : users) {
    auto it = state.users.find(uid);
    check(it != state.users.end() && it->second.admitted == count.admitted &&
              it->second.queued == count.queued && it->second.host_bytes == count.host_bytes,
          "per-user counts add up");
  }
}

/// No request waits for admission that fits: what is at a limit is at it, and the others have no
/// room but where requests ahead keep the GPUs from them: their user's own ones, or those that hold
/// them, which none does for long.
void admission_check(const State& state) {
  if (queue_unfinished(state)) return;
  GpuFlags held(state.gpus.size(), false);
  std::unordered_map<std::uint32_t, bool> behind;  // a request of its user waits ahead
  for (const auto& waiter : state.queue) {
    const Check check{"request " + std::to_string(waiter->ask.request)};
    if (waiter->reason == QueueReason::kUserLimit) {
      check(limit_reached(state, waiter->ask).which != protocol::QueueLimit::kNone,
            "who waits for a limit is at it");
      continue;
    }
    const Nanos most = std::max(kHoldMostNs, state.policy.move_timeout_ns);
    check(waiter->hold_until <= state.now + most, "no hold is longer than the longest");
    GpuFlags kept = held;
    const UserCount& user = state.users.at(waiter->ask.uid);
    const bool own = std::exchange(behind[waiter->ask.uid], true);
    for (std::size_t g = 0; own && g < kept.size(); ++g) kept[g] = kept[g] || user.kept[g];
    check(placement_find(state, waiter->ask, kept).gpus.empty(), "nobody waits for what is free");
    for (const std::uint32_t g : waiter->held) held[g] = true;
  }
}

void totals_check(const State& state) {
  std::vector<Nanos> busy(state.gpus.size(), 0);
  std::size_t processes = 0;
  for (const auto& [id, tenant] : state.tenants) {
    processes += tenant->processes.size();
    for (const Share& share : tenant->shares) busy[share.gpu] += share.busy_ns - share.elsewhere_ns;
  }
  for (std::size_t g = 0; g < state.gpus.size(); ++g)
    Check{"GPU " + std::to_string(g)}(
        state.gpus[g]->busy_ns == state.gpus[g]->dead_busy_ns + busy[g],
        "a GPU's busy time is that of its tenants, living and dead");
  Check{"processes"}(processes == state.processes.size(), "every process has a tenant");
}

}  // namespace

void invariants_check(const State& state, Nanos now) {
  for (std::size_t g = 0; g < state.gpus.size(); ++g) {
    promises_check(state, g);
    holder_check(state, g);
    line_check(state, static_cast<std::uint32_t>(g));
    idle_check(state, g);
  }
  for (const auto& [id, tenant] : state.tenants) {
    tenant_check(state, *tenant);
    stay_check(state, *tenant);
  }
  wants_check(state, std::max(now, state.now));
  sums_check(state);
  queue_check(state);
  admission_check(state);
  totals_check(state);
}

}  // namespace sluice::core

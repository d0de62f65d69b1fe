// The sentences follow the rules of placement.cpp: what is named is the first rule that a GPU
// breaks, on the GPU that is nearest to having room.
#include "broker/core/binding.h"

#include <algorithm>
#include <array>

#include "broker/core/admission.h"
#include "broker/core/limits.h"
#include "broker/core/memory.h"
#include "broker/core/placement.h"
#include "broker/core/policy.h"
#include "broker/core/runaway.h"
#include "broker/core/texts.h"

namespace sluice::core {
namespace {

std::string gpu_name(std::uint32_t g) { return "GPU " + std::to_string(g); }

std::string holder_text(const Tenant& tenant) {
  return "job " + std::to_string(tenant.id) + " (" + tenant.name + ") of user " +
         std::to_string(tenant.uid);
}

std::string asker_text(const TenantAsked& ask) {
  return ask.name + " of user " + std::to_string(ask.uid);
}

Bytes taken(const Gpu& gpu) { return gpu.promised_min + gpu.returning + gpu_left(gpu); }

Bytes left(Bytes of, Bytes used) { return of > used ? of - used : 0; }

Bytes quotas_left(const State& state, const Gpu& gpu) {
  return left(gpu.limit_max(state.policy.oversell_memory), gpu.promised_max);
}

Bytes quota_of(const Tenant& tenant) { return tenant.memory_max; }
/// With what a swappable tenant brings back in its turn.
Bytes promise_of(const Tenant& tenant) { return tenant.memory_most; }
Bytes percent_of(const Tenant& tenant) { return guarantee_of(tenant); }
std::string percent_text(Bytes percent) { return std::to_string(percent) + " %"; }

using Part = Bytes (*)(const Tenant&);

/// The tenant there with the largest part of a sum; null where no tenant has one.
const Tenant* largest(const Gpu& gpu, Part part) {
  const Tenant* most = nullptr;
  for (const Share* share : gpu.shares) {
    const Tenant* tenant = share->tenant;
    if (part(*tenant) > (most == nullptr ? 0 : part(*most))) most = tenant;
  }
  return most;
}

std::string idle_mark(const Tenant& tenant) { return "{idle " + std::to_string(tenant.id) + "}"; }

/// "; job 3 (train) of user 1000 has most of it: 2 GiB, idle for 12 min". Most is more than half;
/// where no tenant has that: "; 4 jobs have it, the largest part 25 %: job 3 (train) of user 1000".
std::string most_text(const Gpu& gpu, Part part, std::string (*text)(Bytes)) {
  const Tenant* holder = largest(gpu, part);
  if (holder == nullptr) return "";
  std::size_t holders = 0;
  Bytes sum = 0;
  for (const Share* share : gpu.shares) {
    const Bytes one = part(*share->tenant);
    holders += one > 0 ? 1 : 0;
    sum += one;
  }
  const Bytes most = part(*holder);
  const std::string owner = holder_text(*holder);
  if (most <= sum / 2)
    return "; " + std::to_string(holders) + " jobs have it, the largest part " + text(most) + ": " +
           owner + idle_mark(*holder);
  return "; " + owner + " has " + (holders == 1 ? "all" : "most") + " of it: " + text(most) +
         idle_mark(*holder);
}

std::string asks_text(const TenantAsked& ask, const std::string& amount) {
  return ", and this job asks for " + amount +
         (ask.gpu_count > 1 ? " on each of " + std::to_string(ask.gpu_count) + " GPUs" : "");
}

/// What quotas may add up to, where that is another sum than the GPU's memory.
std::string oversold_text(const State& state, const Gpu& gpu) {
  if (gpu.limit_max(state.policy.oversell_memory) == gpu.capacity) return "";
  return " (oversell " + decimal_text(state.policy.oversell_memory) + " of " +
         bytes_text(gpu.capacity) + ")";
}

/// Why the memory of the GPU does not do; empty = it does.
std::string memory_text(const State& state, std::uint32_t g, const TenantAsked& ask) {
  const Gpu& gpu = *state.gpus[g];
  const Bytes limit = gpu.limit_max(state.policy.oversell_memory);
  const std::string asks = asks_text(ask, bytes_text(ask.memory_max));
  if (gpu.promised_max + ask.memory_max > limit)
    return "the quotas on " + gpu_name(g) + " add up to " + bytes_text(gpu.promised_max) + " of " +
           bytes_text(limit) + oversold_text(state, gpu) + asks +
           most_text(gpu, quota_of, bytes_text);
  if (promise_fits(state, gpu, ask)) return "";
  const Bytes back = gpu.returning + gpu_left(gpu);
  const Bytes turns = spread_max(gpu);
  std::string text = "of " + bytes_text(gpu.capacity) + " on " + gpu_name(g) + ", " +
                     bytes_text(gpu.promised_min) + " is promised";
  if (turns != 0)
    text += ", " + bytes_text(turns) + " is kept for memory that comes back from the host";
  if (back != 0)
    text += ", " + bytes_text(back) + " of jobs that ended or were moved out is not free yet";
  return text + asks + most_text(gpu, promise_of, bytes_text);
}

/// Why the GPU's time does not do, where it does not.
std::string share_text(const State& state, std::uint32_t g, const TenantAsked& ask) {
  const Gpu& gpu = *state.gpus[g];
  return "the guarantees on " + gpu_name(g) + " add up to " + std::to_string(gpu.guaranteed) +
         " of 100 %" + asks_text(ask, percent_text(ask.sm_percent)) +
         most_text(gpu, percent_of, percent_text);
}

bool takes_tenants(const Gpu& gpu) { return !gpu.closed_to_new && !gpu.exclusive(); }

bool has_room(const State& state, const Gpu& gpu, const TenantAsked& ask) {
  return takes_tenants(gpu) && promise_fits(state, gpu, ask) &&
         share_fits(gpu, ask.sm_kind, ask.sm_percent);
}

/// Of the GPUs beside the one that is named: how many lack room as well. Nothing where none does.
std::string others_text(const State& state, const std::vector<std::uint32_t>& candidates,
                        const TenantAsked& ask) {
  const auto lacking = std::ranges::count_if(
      candidates, [&](std::uint32_t g) { return !has_room(state, *state.gpus[g], ask); });
  if (lacking < 2) return "";
  return "; " + std::to_string(lacking - 1) + " more " +
         (lacking == 2 ? "GPU has no room for it" : "GPUs have no room for it");
}

/// Why the memory does not do on the GPU that is nearest to having room; empty = on each it does.
std::string memory_nearest_text(const State& state, const std::vector<std::uint32_t>& candidates,
                                const TenantAsked& ask) {
  std::string text;
  Bytes most = 0;
  for (const std::uint32_t g : candidates) {
    const Gpu& gpu = *state.gpus[g];
    if (!takes_tenants(gpu)) continue;
    const Bytes room = std::min(quotas_left(state, gpu), left(gpu.capacity, taken(gpu)));
    if (!text.empty() && room <= most) continue;
    std::string one = memory_text(state, g, ask);
    if (one.empty()) continue;
    text = std::move(one);
    most = room;
  }
  return text;
}

/// Why the time does not do on the GPU that guarantees least of those that have the memory.
std::string share_nearest_text(const State& state, const std::vector<std::uint32_t>& candidates,
                               const TenantAsked& ask) {
  std::string text;
  std::uint64_t least = 0;
  for (const std::uint32_t g : candidates) {
    const Gpu& gpu = *state.gpus[g];
    if (!takes_tenants(gpu) || (!text.empty() && gpu.guaranteed >= least)) continue;
    if (share_fits(gpu, ask.sm_kind, ask.sm_percent)) continue;
    if (!promise_fits(state, gpu, ask)) continue;
    text = share_text(state, g, ask);
    least = gpu.guaranteed;
  }
  return text;
}

/// What keeps a GPU from a request that finds no GPU open to it.
enum class Closed : std::uint8_t { kNot, kDrained, kWhole, kShared, kReturning };

Closed closed_by(const Gpu& gpu, const TenantAsked& ask) {
  if (gpu.closed_to_new) return Closed::kDrained;
  if (gpu.exclusive()) return Closed::kWhole;
  if (ask.tenant_class != TenantClass::kExclusive) return Closed::kNot;
  if (!gpu.shares.empty()) return Closed::kShared;
  return gpu.returning > 0 ? Closed::kReturning : Closed::kNot;
}

std::string closed_text(const State& state, std::uint32_t g, Closed why) {
  const Gpu& gpu = *state.gpus[g];
  if (why == Closed::kDrained) return gpu_name(g) + " is " + drained_text(gpu.drain);
  if (why == Closed::kWhole) {
    const Tenant& owner = *gpu.shares.front()->tenant;
    return gpu_name(g) + " is used whole by " + holder_text(owner) + idle_mark(owner);
  }
  if (why == Closed::kReturning)
    return "no job is on " + gpu_name(g) + ", but " + bytes_text(gpu.returning) +
           " of jobs that ended is not free yet";
  const Tenant& holder = *largest(gpu, quota_of);
  const std::size_t others = gpu.shares.size() - 1;
  return gpu_name(g) + " is not empty yet: " + holder_text(holder) + " is on it" +
         idle_mark(holder) +
         (others == 0
              ? ""
              : ", and " + std::to_string(others) + (others == 1 ? " more job" : " more jobs"));
}

/// Why the first GPU that is closed to the request is, what closes how many others, and how many
/// GPUs it wants.
std::string drain_text(const State& state, const std::vector<std::uint32_t>& candidates,
                       const TenantAsked& ask) {
  constexpr std::array<const char*, 5> kOthers = {"", "drained", "used whole", "not empty",
                                                  "not free yet"};
  std::string text;
  std::array<std::size_t, kOthers.size()> more{};
  bool shared = false;
  for (const std::uint32_t g : candidates) {
    const Closed why = closed_by(*state.gpus[g], ask);
    if (why == Closed::kNot) continue;
    shared |= why == Closed::kShared;
    if (text.empty())
      text = closed_text(state, g, why);
    else
      ++more[static_cast<std::size_t>(why)];
  }
  if (text.empty()) return reason_text(QueueReason::kDrain);
  for (std::size_t why = 1; why < kOthers.size(); ++why)
    if (more[why] != 0)
      text += "; " + std::to_string(more[why]) +
              (more[why] == 1 ? " more GPU is " : " more GPUs are ") + kOthers[why];
  const bool whole = ask.tenant_class == TenantClass::kExclusive;
  if (whole && shared && state.policy.exclusive_room != ExclusiveRoom::kWait)
    text += "; jobs with movable memory make room for it";
  if (whole || ask.gpu_count > 1)
    text += "; this job asks for " + std::to_string(ask.gpu_count) +
            (whole ? " whole GPU" : " GPU") + (ask.gpu_count == 1 ? "" : "s");
  return text;
}

/// Does the request keep one of these GPUs from later ones of its user, or hold it against others?
bool keeps_any(const Waiter& waiter, std::uint32_t uid, Prospects& prospects,
               const std::vector<std::uint32_t>& gpus) {
  if (waiter.reason == QueueReason::kUserLimit) return false;
  const bool own = waiter.ask.uid == uid;
  const auto& kept = own ? prospects.kind_of(waiter.ask).plan() : waiter.held;
  return std::ranges::any_of(
      gpus, [&](std::uint32_t g) { return std::ranges::find(kept, g) != kept.end(); });
}

/// Which request goes first where there would be room.
std::string priority_text(const State& state, const TenantAsked& ask) {
  const Placement room = placement_find(state, ask, GpuFlags(state.gpus.size(), false));
  Prospects prospects(state);
  for (const auto& waiter : state.queue) {
    if (waiter->ask.request == ask.request) break;
    if (!keeps_any(*waiter, ask.uid, prospects, room.gpus)) continue;
    return "there is room, but " + asker_text(waiter->ask) +
           " asked before, waits for the same GPUs and goes first " +
           (waiter->ask.uid == ask.uid ? "as long as it waits" : "for a while");
  }
  return reason_text(QueueReason::kPriority);
}

/// What a job waits for that pays an overrun back; empty = it does not.
std::string debt_text(const State& state, const Tenant& tenant, Nanos now) {
  constexpr Nanos kWorthATextNs = 50'000'000;
  for (const Share& share : tenant.shares) {
    if (!tenant.waiting || share.on || !share.capped) continue;
    const Debt debt = policies_debt(state.policy, *state.gpus[share.gpu], share, now);
    if (debt.ns < kWorthATextNs) continue;
    return "it pays back " + duration_text(debt.ns) + " of GPU time that jobs of user " +
           std::to_string(tenant.uid) + " took beyond their share: it runs again in about " +
           duration_about(debt.paid_in) +
           (tenant.sm_mode == SmMode::kFixed ? "" : ", or as soon as no other job wants its GPU");
  }
  return "";
}

}  // namespace

std::string drained_text(const GpuDrain& drain) {
  return "drained by user " + std::to_string(drain.uid) +
         (drain.reason.empty() ? "" : " (" + drain.reason + ")") +
         (drain.until_text.empty() ? "" : ", until " + drain.until_text);
}

namespace {

std::string binding_text(const State& state, const TenantAsked& ask, QueueReason reason) {
  const std::vector<std::uint32_t> candidates = placement_candidates(state, ask);
  if (candidates.empty()) return reason_text(reason);
  if (reason == QueueReason::kPriority) return priority_text(state, ask);
  if (reason == QueueReason::kDrain) return drain_text(state, candidates, ask);
  const bool share = reason == QueueReason::kShare;
  std::string text = share ? share_nearest_text(state, candidates, ask)
                           : memory_nearest_text(state, candidates, ask);
  if (text.empty()) return reason_text(reason);
  text += others_text(state, candidates, ask);
  if (reason != QueueReason::kGang && !(share && ask.gpu_count > 1)) return text;
  return "fewer than " + std::to_string(ask.gpu_count) + " GPUs have room at once: " + text;
}

/// Where a request that names its GPUs would go if it named none; empty = it would wait as well.
std::vector<std::uint32_t> unbound(const State& state, const TenantAsked& ask) {
  if (ask.pinned.empty() || ask.joins || ask.returns != 0) return {};
  TenantAsked any = ask;
  any.pinned.clear();
  GpuFlags kept = state.planned;
  kept.resize(state.gpus.size());
  return placement_find(state, any, kept).gpus;
}

}  // namespace

std::string wait_text(const State& state, const TenantAsked& ask, QueueReason reason) {
  if (reason == QueueReason::kUserLimit) return limit_text(ask, limit_reached(state, ask));
  std::string text = binding_text(state, ask, reason);
  std::string where;
  for (const std::uint32_t g : unbound(state, ask))
    where += (where.empty() ? "" : " and ") + gpu_name(g);
  if (!where.empty()) text += "; without --gpu it would get " + where + " now";
  return text;
}

std::string instead_text(const State& state, const TenantAsked& ask, QueueReason reason) {
  std::string text;
  switch (reason) {
    case QueueReason::kResources:
    case QueueReason::kGang:
      text = ", or ask for less";
      break;
    case QueueReason::kShare:
      text = ", or ask for less, or for a weight (--weight)";
      break;
    case QueueReason::kUserLimit:
      text = ", or end one of these jobs";
      break;
    case QueueReason::kNone:
    case QueueReason::kPriority:
    case QueueReason::kDrain:
      break;
  }
  return text + (unbound(state, ask).empty() ? "" : ", or leave --gpu out");
}

std::string stopped_text(const State& state, const Tenant& tenant, Nanos now) {
  const std::string id = std::to_string(tenant.id);
  if (const TenantId by = tenant_aside_by(tenant); by != 0)
    return "it is put aside for job " + std::to_string(by) +
           ", which has its GPU as a whole; it comes back by itself after that";
  const bool runaway = tenant.phase == Phase::kRunaway;
  const std::string by =
      tenant.suspended_by == tenant.uid ? "" : " by user " + std::to_string(tenant.suspended_by);
  if (tenant.suspended && !runaway && tenant.residence != Residence::kOut)
    return "it is being suspended" + by +
           ": its GPU memory goes to the host once its work on the GPU has ended, and its "
           "processes "
           "wait until `sluice resume " +
           id + "`";
  if (tenant.suspended && !runaway)
    return "it is suspended" + by +
           ": its GPU memory is on the host, what it was promised is free for others, and its "
           "processes wait until `sluice resume " +
           id + "`";
  if (tenant.rests)
    return "it used no GPU for long: its GPU memory is on the host, and what it was promised is "
           "free for others until it wants its GPU";
  if (const Waiter* waiter = queue_return_find(state, tenant.id))
    return "it waits in the queue to get its GPU back: " +
           wait_text(state, waiter->ask, waiter->reason);
  if (runaway) {
    const bool ends = state.policy.runaway == RunawayPolicy::kEnd;
    return "it is a runaway: for " + duration_text(now - tenant.drain_from) +
           " it has not given its GPU back (a kernel of it runs, or it is stopped), and " +
           (ends ? "it is ended once others have waited " +
                       duration_text(runaway_limit(state, tenant)) + " for it"
                 : "the others share the GPU with it");
  }
  if (tenant.residence == Residence::kSwappingIn || tenant.residence == Residence::kRestoring)
    return "its memory is on its way back to its GPU";
  if (tenant.residence != Residence::kIn && tenant.residence != Residence::kLeaving)
    return "its memory is on the host, for others' turn; it comes back by itself";
  return debt_text(state, tenant, now);
}

}  // namespace sluice::core

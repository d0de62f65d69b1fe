// The sentences follow the rules of placement.cpp: what is named is the first rule that a GPU
// breaks, on the GPU that is nearest to having room.
#include "broker/core/binding.h"

#include <algorithm>

#include "broker/core/admission.h"
#include "broker/core/limits.h"
#include "broker/core/memory.h"
#include "broker/core/placement.h"
#include "broker/core/policy.h"
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

/// "; job 3 (train) of user 1000 has most of it: 2 GiB, idle for 12 min".
std::string most_text(const Gpu& gpu, Part part, std::string (*text)(Bytes)) {
  const Tenant* holder = largest(gpu, part);
  if (holder == nullptr) return "";
  const auto holders = std::ranges::count_if(
      gpu.shares, [part](const Share* share) { return part(*share->tenant) > 0; });
  return "; " + holder_text(*holder) + " has " + (holders == 1 ? "all" : "most") +
         " of it: " + text(part(*holder)) + idle_mark(*holder);
}

std::string asks_text(const TenantAsked& ask, const std::string& amount) {
  return ", and this job asks for " + amount +
         (ask.gpu_count > 1 ? " on each of " + std::to_string(ask.gpu_count) + " GPUs" : "");
}

/// Why the memory of the GPU does not do; empty = it does.
std::string memory_text(const State& state, std::uint32_t g, const TenantAsked& ask) {
  const Gpu& gpu = *state.gpus[g];
  const Bytes limit = gpu.limit_max(state.policy.oversell_memory);
  const std::string asks = asks_text(ask, bytes_text(ask.memory_max));
  if (gpu.promised_max + ask.memory_max > limit)
    return "the quotas on " + gpu_name(g) + " add up to " + bytes_text(gpu.promised_max) + " of " +
           bytes_text(limit) + asks + most_text(gpu, quota_of, bytes_text);
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

/// Why the GPU takes no new tenant; empty = it may.
std::string closed_text(const State& state, std::uint32_t g, const TenantAsked& ask) {
  const Gpu& gpu = *state.gpus[g];
  if (gpu.closed_to_new) return gpu_name(g) + " is " + drained_text(gpu.drain);
  if (gpu.exclusive()) {
    const Tenant& owner = *gpu.shares.front()->tenant;
    return gpu_name(g) + " is used whole by " + holder_text(owner) + idle_mark(owner);
  }
  if (ask.tenant_class != TenantClass::kExclusive || gpu.shares.empty()) return "";
  const Tenant& holder = *largest(gpu, quota_of);
  const std::size_t others = gpu.shares.size() - 1;
  return gpu_name(g) + " is not empty yet: " + holder_text(holder) + " is on it" +
         idle_mark(holder) + (others == 0 ? "" : " and " + std::to_string(others) + " more");
}

/// Why the first GPU that takes no new tenant does not, and how many more do not.
std::string drain_text(const State& state, const std::vector<std::uint32_t>& candidates,
                       const TenantAsked& ask) {
  std::string text;
  std::size_t more = 0;
  for (const std::uint32_t g : candidates) {
    const std::string one = closed_text(state, g, ask);
    if (!one.empty() && !text.empty()) ++more;
    if (text.empty()) text = one;
  }
  if (text.empty()) return reason_text(QueueReason::kDrain);
  if (more == 0) return text;
  return text + ", and " + std::to_string(more) + " more " +
         (more == 1 ? "GPU takes" : "GPUs take") + " no new job";
}

/// Which request goes first where there would be room.
std::string priority_text(const State& state, const TenantAsked& ask) {
  for (const auto& waiter : state.queue) {
    if (waiter->ask.request == ask.request) break;
    if (waiter->reason == QueueReason::kUserLimit) continue;
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
           duration_text(debt.paid_in) +
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

std::string wait_text(const State& state, const TenantAsked& ask, QueueReason reason) {
  if (reason == QueueReason::kUserLimit) return limit_text(ask, limit_reached(state, ask));
  const std::vector<std::uint32_t> candidates = placement_candidates(state, ask);
  if (candidates.empty()) return reason_text(reason);
  if (reason == QueueReason::kPriority) return priority_text(state, ask);
  if (reason == QueueReason::kDrain) return drain_text(state, candidates, ask);
  const bool share = reason == QueueReason::kShare;
  std::string text = share ? share_nearest_text(state, candidates, ask)
                           : memory_nearest_text(state, candidates, ask);
  if (text.empty()) return reason_text(reason);
  if (reason != QueueReason::kGang && !(share && ask.gpu_count > 1)) return text;
  return "fewer than " + std::to_string(ask.gpu_count) + " GPUs have room at once: " + text;
}

std::string stopped_text(const State& state, const Tenant& tenant, Nanos now) {
  const std::string id = std::to_string(tenant.id);
  if (const TenantId by = tenant_aside_by(tenant); by != 0)
    return "it is put aside for job " + std::to_string(by) +
           ", which has its GPU as a whole; it comes back by itself after that";
  if (tenant.suspended)
    return "it is suspended" +
           (tenant.suspended_by == tenant.uid ? ""
                                              : " by user " + std::to_string(tenant.suspended_by)) +
           ": its GPU memory is on the host, what it was promised is free for others, and its "
           "processes wait until `sluice resume " +
           id + "`";
  if (tenant.rests)
    return "it used no GPU for long: its GPU memory is on the host, and what it was promised is "
           "free for others until it wants its GPU";
  if (const Waiter* waiter = queue_return_find(state, tenant.id))
    return "it waits in the queue to get its GPU back: " +
           wait_text(state, waiter->ask, waiter->reason);
  if (tenant.phase == Phase::kRunaway) {
    const bool ends = state.policy.runaway == RunawayPolicy::kEnd;
    return "it is a runaway: for " + duration_text(now - tenant.drain_from) +
           " it has not given its GPU back (a kernel of it runs, or it is stopped), and " +
           (ends ? "it is ended once others have waited " +
                       duration_text(state.policy.runaway_after_ns) + " for it"
                 : "the others share the GPU with it");
  }
  if (tenant.residence == Residence::kSwappingIn || tenant.residence == Residence::kRestoring)
    return "its memory is on its way back to its GPU";
  if (tenant.residence != Residence::kIn && tenant.residence != Residence::kLeaving)
    return "its memory is on the host, for others' turn; it comes back by itself";
  return debt_text(state, tenant, now);
}

}  // namespace sluice::core

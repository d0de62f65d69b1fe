// What users and groups may have together: sums over the admitted, counted once for the group and
// once for each of its users. A request that would exceed one waits (reason UserLimit) until others
// have ended; one that exceeds it alone is refused at once. The bounds are the policy's, looked up
// by the group's name each time, so that new ones hold at once; nobody who runs is ended by them.
#include "broker/core/limits.h"

#include <algorithm>

#include "broker/core/texts.h"

namespace sluice::core {
namespace {

const GroupPolicy* policy_of(const State& state, const std::string& group) {
  auto it = state.policy.groups.find(group);
  return it == state.policy.groups.end() ? nullptr : &it->second;
}

/// Whole GPUs count with the smallest that it may get.
Bytes memory_of(const State& state, const TenantAsked& ask) {
  if (ask.tenant_class != TenantClass::kExclusive) return ask.memory_max * ask.gpu_count;
  Bytes least = ~Bytes{0};
  for (const auto& gpu : state.gpus)
    if (ask.pinned.empty() || std::ranges::find(ask.pinned, gpu->uuid) != ask.pinned.end())
      least = std::min(least, gpu->capacity);
  return least * ask.gpu_count;
}

Bytes memory_of(const Tenant& tenant) { return tenant.memory_max * tenant.shares.size(); }

using protocol::QueueLimit;

/// Of the user's own bounds, or of those of all; none = it stays within both.
Limit beyond(const SumLimits& limits, const Sum& sum, Bytes more, bool user) {
  if (limits.tenants_max > 0 && sum.tenants + 1 > limits.tenants_max)
    return {user ? QueueLimit::kUserRunning : QueueLimit::kAllRunning, sum.tenants,
            limits.tenants_max};
  if (limits.memory_max > 0 && sum.memory + more > limits.memory_max)
    return {user ? QueueLimit::kUserMemory : QueueLimit::kAllMemory, sum.memory, limits.memory_max};
  return {};
}

template <class Key>
Sum sum_of(const std::map<Key, Sum>& sums, const Key& key) {
  auto it = sums.find(key);
  return it == sums.end() ? Sum{} : it->second;
}

template <class Key>
void sum_take(std::map<Key, Sum>& sums, const Key& key, Bytes memory) {
  auto it = sums.find(key);
  it->second.tenants--;
  it->second.memory -= memory;
  if (it->second.tenants == 0) sums.erase(it);
}

}  // namespace

std::string sums_excess(const State& state, const TenantAsked& ask) {
  const GroupPolicy* policy = policy_of(state, ask.group);
  if (policy == nullptr) return {};
  const Bytes memory = memory_of(state, ask);
  const bool user = beyond(policy->per_user, {}, memory, true).most > 0;
  if (!user && beyond(policy->all, {}, memory, false).most == 0) return {};
  const SumLimits& limits = user ? policy->per_user : policy->all;
  return "profile " + ask.group + " allows " + (user ? "each user " : "all its users together ") +
         bytes_text(limits.memory_max) + " of GPU memory, asked were " + bytes_text(memory) +
         (ask.gpu_count > 1 ? " on " + std::to_string(ask.gpu_count) + " GPUs" : "") +
         ", so waiting would not help; ask for less";
}

Limit limit_reached(const State& state, const TenantAsked& ask) {
  const auto user = state.users.find(ask.uid);
  const std::uint32_t most = state.policy.tenants_per_user_max;
  if (user != state.users.end() && user->second.admitted >= most)
    return {QueueLimit::kUserTenants, user->second.admitted, most};
  const GroupPolicy* policy = policy_of(state, ask.group);
  if (policy == nullptr) return {};
  const Bytes memory = memory_of(state, ask);
  const Limit own =
      beyond(policy->per_user, sum_of(state.members, std::pair{ask.group, ask.uid}), memory, true);
  return own.most > 0 ? own : beyond(policy->all, sum_of(state.groups, ask.group), memory, false);
}

static std::string jobs_text(std::uint64_t n) {
  return std::to_string(n) + (n == 1 ? " job" : " jobs");
}

std::string limit_text(const TenantAsked& ask, const Limit& limit) {
  const std::string profile = "profile " + ask.group;
  switch (limit.which) {
    case QueueLimit::kNone:
      break;
    case QueueLimit::kUserTenants:
      return "user " + std::to_string(ask.uid) + " has " + jobs_text(limit.used) +
             ", as many as one user may have";
    case QueueLimit::kUserRunning:
      return "user " + std::to_string(ask.uid) + " has " + jobs_text(limit.used) +
             " running, as many as " + profile + " allows each user";
    case QueueLimit::kUserMemory:
      return "the jobs of user " + std::to_string(ask.uid) + " have " + bytes_text(limit.used) +
             " of the " + bytes_text(limit.most) + " of GPU memory that " + profile +
             " allows each user";
    case QueueLimit::kAllRunning:
      return "the users of " + profile + " have " + jobs_text(limit.used) +
             " running, as many as it allows all of them together";
    case QueueLimit::kAllMemory:
      return "the jobs with " + profile + " have " + bytes_text(limit.used) + " of the " +
             bytes_text(limit.most) + " of GPU memory that it allows all its users together";
  }
  return reason_text(QueueReason::kUserLimit);
}

void sums_add(State& state, const Tenant& tenant) {
  for (Sum* sum : {&state.groups[tenant.group], &state.members[{tenant.group, tenant.uid}]}) {
    sum->tenants++;
    sum->memory += memory_of(tenant);
  }
}

void sums_remove(State& state, const Tenant& tenant) {
  sum_take(state.groups, tenant.group, memory_of(tenant));
  sum_take(state.members, std::pair{tenant.group, tenant.uid}, memory_of(tenant));
}

}  // namespace sluice::core

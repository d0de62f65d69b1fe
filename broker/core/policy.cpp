// The list of rules and the questions put to all of them.
#include "broker/core/policy.h"

#include <algorithm>
#include <cassert>
#include <iterator>

namespace sluice::core {
namespace {

using PolicyList = std::vector<const SharePolicy*>;

const PolicyList& capping() {
  static const PolicyList list = [] {
    PolicyList chosen;
    std::ranges::copy_if(policies(), std::back_inserter(chosen), &SharePolicy::caps);
    return chosen;
  }();
  return list;
}

const PolicyList& ordering() {
  static const PolicyList list = [] {
    PolicyList chosen;
    std::ranges::copy_if(policies(), std::back_inserter(chosen), &SharePolicy::orders);
    assert(chosen.size() <= std::tuple_size_v<Rank> && "Rank has room for every rule that orders");
    return chosen;
  }();
  return list;
}

}  // namespace

std::span<const SharePolicy* const> policies() {
  static const SharePolicy* const list[] = {&latency_band(), &fixed_budget(), &weighted_fair()};
  return list;
}

void policies_time_passed(const Policy& policy, Gpu& gpu, Nanos now) {
  for (const SharePolicy* p : policies()) p->time_passed(policy, gpu, now);
}

void policies_woke(const Policy& policy, const Gpu& gpu, Share& share, Nanos now) {
  for (const SharePolicy* p : policies()) p->share_woke(policy, gpu, share, now);
}

void policies_charge(const Policy& policy, Gpu& gpu, Share& share, double ns) {
  if (share.tenant->waiting) gpu.best_known = false;
  for (const SharePolicy* p : policies()) p->share_charged(policy, gpu, share, ns);
}

bool policies_may_run(const Policy& policy, Share& share, Nanos now) {
  return std::ranges::all_of(capping(),
                             [&](const SharePolicy* p) { return p->may_run(policy, share, now); });
}

Nanos policies_may_run_at(const Policy& policy, const Share& share, Nanos now) {
  Nanos at = kNever;
  for (const SharePolicy* p : capping()) at = std::min(at, p->may_run_at(policy, share, now));
  return at;
}

Nanos policies_run_until(const Policy& policy, Share& share, Nanos now) {
  Nanos until = kNever;
  for (const SharePolicy* p : capping()) until = std::min(until, p->run_until(policy, share, now));
  return until;
}

bool policies_timed(const Gpu& gpu) {
  return std::ranges::any_of(policies(), [&](const SharePolicy* p) { return p->timed(gpu); });
}

Rank policies_rank(const Gpu& gpu, const Share& share) {
  Rank rank{};
  std::size_t i = 0;
  for (const SharePolicy* p : ordering()) rank[i++] = p->rank(gpu, share);
  return rank;
}

bool policies_before(const Gpu& gpu, const Share& a, const Share& b) {
  return policies_rank(gpu, a) < policies_rank(gpu, b);
}

bool policies_preempt(const Gpu& gpu, const Share& waiting, const Share& holder) {
  return std::ranges::any_of(
      policies(), [&](const SharePolicy* p) { return p->preempts(gpu, waiting, holder); });
}

}  // namespace sluice::core

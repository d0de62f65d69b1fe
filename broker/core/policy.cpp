// The list of rules and the questions put to all of them.
#include "broker/core/policy.h"

#include <algorithm>

namespace sluice::core {

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
  for (const SharePolicy* p : policies()) p->share_charged(policy, gpu, share, ns);
}

bool policies_may_run(const Policy& policy, Share& share, Nanos now) {
  return std::ranges::all_of(policies(),
                             [&](const SharePolicy* p) { return p->may_run(policy, share, now); });
}

Nanos policies_may_run_at(const Policy& policy, const Share& share, Nanos now) {
  Nanos at = kNever;
  for (const SharePolicy* p : policies()) at = std::min(at, p->may_run_at(policy, share, now));
  return at;
}

Nanos policies_run_until(const Policy& policy, Share& share, Nanos now) {
  Nanos until = kNever;
  for (const SharePolicy* p : policies()) until = std::min(until, p->run_until(policy, share, now));
  return until;
}

bool policies_before(const Gpu& gpu, const Share& a, const Share& b) {
  for (const SharePolicy* p : policies()) {
    const double rank_a = p->rank(gpu, a);
    const double rank_b = p->rank(gpu, b);
    if (rank_a != rank_b) return rank_a < rank_b;
  }
  return false;
}

bool policies_preempt(const Gpu& gpu, const Share& waiting, const Share& holder) {
  return std::ranges::any_of(
      policies(), [&](const SharePolicy* p) { return p->preempts(gpu, waiting, holder); });
}

}  // namespace sluice::core

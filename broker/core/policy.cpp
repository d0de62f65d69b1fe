// The list of rules and the questions put to all of them.
#include "broker/core/policy.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <vector>

namespace sluice::core {
namespace {

using PolicyList = std::vector<const SharePolicy*>;

/// The rules under one order, and those of them that have a say in a question put for every
/// waiting share.
struct PolicySet {
  explicit PolicySet(const SharePolicy& order)
      : all{&latency_band(), &fixed_budget(), &order},
        capping(having(&SharePolicy::caps)),
        ordering(having(&SharePolicy::orders)) {
    assert(ordering.size() <= std::tuple_size_v<Rank> &&
           "Rank has room for every rule that orders");
  }
  PolicyList having(bool (SharePolicy::*property)() const) const {
    PolicyList chosen;
    std::ranges::copy_if(all, std::back_inserter(chosen), property);
    return chosen;
  }
  PolicyList all, capping, ordering;
};

const PolicySet& set_of(Order order) {
  static const PolicySet sets[kOrders] = {PolicySet(weighted_fair()), PolicySet(round_robin()),
                                          PolicySet(first_come())};
  return sets[static_cast<std::size_t>(order)];
}

const PolicySet& set_of(const Policy& policy) { return set_of(policy.order); }

}  // namespace

std::optional<Order> order_named(std::string_view name) {
  for (std::size_t i = 0; i < kOrders; ++i) {
    const auto order = static_cast<Order>(i);
    if (name == set_of(order).all.back()->name()) return order;
  }
  return std::nullopt;
}

void policies_chosen(const Policy& policy, Gpu& gpu, Nanos now) {
  set_of(policy).all.back()->chosen(policy, gpu, now);
}

void policies_time_passed(const Policy& policy, Gpu& gpu, Nanos now) {
  for (const SharePolicy* p : set_of(policy).all) p->time_passed(policy, gpu, now);
}

void policies_woke(const Policy& policy, const Gpu& gpu, Share& share, Nanos now) {
  for (const SharePolicy* p : set_of(policy).all) p->share_woke(policy, gpu, share, now);
}

void policies_gave_back(const Policy& policy, Share& share) {
  for (const SharePolicy* p : set_of(policy).all) p->share_gave_back(share);
}

void policies_charge(const Policy& policy, Gpu& gpu, Share& share, double ns) {
  for (const SharePolicy* p : set_of(policy).all) p->share_charged(policy, gpu, share, ns);
}

void policies_overran(const Policy& policy, const Gpu& gpu, Share& share, double ns, Nanos now) {
  // A kernel that begins at the end of a quantum and a late answer of a busy host are no overrun.
  // Virtual time repays them. With less, tenants with kernels of 50 ms were debtors beside requests
  // that pause, and the GPU was idle 9 % of the time while they waited.
  constexpr Nanos kOrdinaryQuanta = 6;
  if (ns <= static_cast<double>(kOrdinaryQuanta * policy.quantum_ns + share.window_ns)) return;
  for (const SharePolicy* p : set_of(policy).all) p->share_overran(policy, gpu, share, ns, now);
}

double policies_owed(const Policy& policy, const Gpu& gpu, Share& share, Nanos now) {
  double most = 0;
  for (const SharePolicy* p : set_of(policy).all)
    most = std::max(most, p->owed(policy, gpu, share, now));
  return most;
}

void policies_owe(const Policy& policy, const Gpu& gpu, Share& share, double ns, Nanos now) {
  for (const SharePolicy* p : set_of(policy).all) p->owe(policy, gpu, share, ns, now);
}

Debt policies_debt(const Policy& policy, const Gpu& gpu, const Share& share, Nanos now) {
  Debt debt;
  Share as_of_now = share;
  for (const SharePolicy* p : set_of(policy).all) {
    const double owed = p->owed(policy, gpu, as_of_now, now);
    if (owed < static_cast<double>(std::max<Nanos>(debt.ns, 1))) continue;
    const double paid_in = owed / p->repays(policy, gpu, as_of_now, now);
    debt = {static_cast<Nanos>(owed), static_cast<Nanos>(paid_in)};
  }
  return debt;
}

bool policies_may_run(const Policy& policy, const Gpu& gpu, Share& share, Nanos now) {
  return std::ranges::all_of(set_of(policy).capping, [&](const SharePolicy* p) {
    return p->may_run(policy, gpu, share, now);
  });
}

Nanos policies_may_run_at(const Policy& policy, const Gpu& gpu, const Share& share, Nanos now) {
  Nanos at = kNever;
  for (const SharePolicy* p : set_of(policy).capping)
    at = std::min(at, p->may_run_at(policy, gpu, share, now));
  return at;
}

Nanos policies_run_until(const Policy& policy, Share& share, Nanos now) {
  Nanos until = kNever;
  for (const SharePolicy* p : set_of(policy).capping)
    until = std::min(until, p->run_until(policy, share, now));
  return until;
}

Rank policies_rank(const Policy& policy, const Gpu& gpu, const Share& share) {
  Rank rank{};
  std::size_t i = 0;
  for (const SharePolicy* p : set_of(policy).ordering) rank[i++] = p->rank(policy, gpu, share);
  return rank;
}

double policies_key(const Policy& policy, const Gpu& gpu, const Share& share) {
  return set_of(policy).all.back()->rank(policy, gpu, share);
}

bool policies_before(const Policy& policy, const Gpu& gpu, const Share& a, const Share& b) {
  return policies_rank(policy, gpu, a) < policies_rank(policy, gpu, b);
}

bool policies_preempt(const Policy& policy, const Gpu& gpu, const Share& waiting,
                      const Share& holder) {
  return std::ranges::any_of(
      set_of(policy).all, [&](const SharePolicy* p) { return p->preempts(gpu, waiting, holder); });
}

}  // namespace sluice::core

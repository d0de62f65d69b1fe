// Weighted fairness: every share has a virtual time, the GPU time charged to it divided by its
// weight; the one furthest behind goes first (start-time fair queueing, Goyal et al. 1996, with the
// lag of a sleeper bounded on both sides).
//
// A share that wakes is brought forward to the GPU's virtual time less a bounded credit: enough to
// be served soon, never enough to make up for the time it slept. A share that ran far ahead (the
// latency band) has its lag bounded too.
//
// Virtual time alone forgives an overrun. It is bounded, and where the others pause for a moment
// the GPU's virtual time catches up with the only share that waits. So an overrun is a debt as
// well. The clock pays it back at the share's part of what wants the GPU, and until then the share
// waits while a share without a debt uses the GPU or has used it within kPauseQuanta.
#include <algorithm>

#include "broker/core/policy.h"
#include "broker/core/schedule.h"

namespace sluice::core {
namespace {

constexpr Nanos kCreditQuanta = 1;   // how far behind the others a waking share may start
constexpr Nanos kAheadQuanta = 100;  // how far ahead of them, at most
/// A program that works pauses on the host for less than this many quanta. A debtor that took each
/// pause for its turn would overrun again in it.
constexpr Nanos kPauseQuanta = 10;

/// True if the clock keeps the share's account of overruns: the budget does so for fixed shares.
bool owes(const Share& share) {
  const Tenant& tenant = *share.tenant;
  return !tenant.exclusive() && tenant.sm_mode != SmMode::kFixed;
}

/// True if the share competes for the GPU and owes nothing.
bool rivals(const Policy& policy, const Share& share, Nanos now) {
  const Tenant& tenant = *share.tenant;
  if (share.debt_ns > 0 || tenant.phase == Phase::kRunaway) return false;
  if (share.on || (tenant.waiting && tenant_may_run(tenant))) return true;
  return share.left_at > 0 && now - share.left_at < kPauseQuanta * policy.quantum_ns;
}

/// True if `share` competes with another one that owes nothing.
bool harms(const Policy& policy, const Gpu& gpu, const Share& share, Nanos now) {
  return std::ranges::any_of(gpu.shares, [&](const Share* other) {
    return other != &share && rivals(policy, *other, now);
  });
}

/// Sum of the weights of the shares that `share` competes with, not older than a quantum: counted
/// for each decision it would cost as much as there are tenants.
double rivals_weight(const Policy& policy, const Gpu& gpu, const Share& share, Nanos now) {
  if (gpu.rivals_at == kNever || now - gpu.rivals_at >= policy.quantum_ns) {
    gpu.rivals_weight = 0;
    for (const Share* other : gpu.shares)
      if (rivals(policy, *other, now)) gpu.rivals_weight += share_weight(gpu, *other);
    gpu.rivals_at = now;
  }
  const double own = rivals(policy, share, now) ? share_weight(gpu, share) : 0;
  return std::max(gpu.rivals_weight - own, 0.0);
}

/// The share's part of the time, against those that it competes with.
double part(const Policy& policy, const Gpu& gpu, const Share& share, Nanos now) {
  const double own = share_weight(gpu, share);
  return own / (own + rivals_weight(policy, gpu, share, now));
}

void pay(const Policy& policy, const Gpu& gpu, Share& share, Nanos now) {
  if (share.debt_ns > 0) {
    const auto passed = static_cast<double>(now - share.debt_at);
    share.debt_ns = std::max(share.debt_ns - passed * part(policy, gpu, share, now), 0.0);
    if (share.debt_ns < 1) share.debt_ns = 0;  // the clock counts whole nanoseconds
  }
  share.debt_at = now;
}

class WeightedFair final : public SharePolicy {
 public:
  const char* name() const override { return "fair"; }
  bool orders() const override { return true; }
  bool caps() const override { return true; }

  void chosen(const Policy&, Gpu& gpu, Nanos) const override {
    gpu_shares_each(gpu, [&gpu](Share& share) {
      share.vtime = gpu.vclock;
      share.debt_ns = 0;
    });
  }

  void share_woke(const Policy& policy, const Gpu& gpu, Share& share, Nanos) const override {
    share.vtime = std::clamp(share.vtime, fair_begins(policy, gpu, share),
                             gpu.vclock + fair_lead(policy, share_weight(gpu, share)));
  }

  void share_charged(const Policy&, Gpu& gpu, Share& share, double ns) const override {
    share.vtime += ns / share_weight(gpu, share);
  }

  /// During the overrun the share was entitled to its part of the time: the rest is the debt.
  void share_overran(const Policy& policy, const Gpu& gpu, Share& share, double ns,
                     Nanos now) const override {
    if (!owes(share)) return;
    owe(policy, gpu, share, ns * (1 - part(policy, gpu, share, now)), now);
  }

  double owed(const Policy& policy, const Gpu& gpu, Share& share, Nanos now) const override {
    pay(policy, gpu, share, now);
    return share.debt_ns;
  }

  void owe(const Policy& policy, const Gpu& gpu, Share& share, double ns,
           Nanos now) const override {
    if (!owes(share)) return;
    pay(policy, gpu, share, now);
    share.debt_ns = std::min(share.debt_ns + ns, kDebtMostNs);
  }

  double repays(const Policy& policy, const Gpu& gpu, const Share& share,
                Nanos now) const override {
    return part(policy, gpu, share, now);
  }

  bool may_run(const Policy& policy, const Gpu& gpu, Share& share, Nanos now) const override {
    if (share.debt_ns <= 0 || !owes(share)) return true;
    pay(policy, gpu, share, now);
    return share.debt_ns <= 0 || !harms(policy, gpu, share, now);
  }

  /// When to look again: a rival may have left by then.
  Nanos may_run_at(const Policy& policy, const Gpu& gpu, const Share& share,
                   Nanos now) const override {
    if (!owes(share) || !share.capped) return kNever;
    const double wait = share.debt_ns / part(policy, gpu, share, now) + 1;
    const Nanos pause = kPauseQuanta * policy.quantum_ns;
    return now + std::max<Nanos>(std::min(static_cast<Nanos>(wait), pause), 1);
  }

  double rank(const Policy&, const Gpu&, const Share& share) const override { return share.vtime; }
};

}  // namespace

const SharePolicy& weighted_fair() {
  static const WeightedFair policy;
  return policy;
}

double fair_begins(const Policy& policy, const Gpu& gpu, const Share& share) {
  const auto credit = static_cast<double>(kCreditQuanta * policy.quantum_ns);
  return gpu.vclock - credit / share_weight(gpu, share);
}

double fair_lead(const Policy& policy, double weight) {
  return static_cast<double>(kAheadQuanta * policy.quantum_ns) / weight;
}

void fair_clock_advance(Gpu& gpu, double slowest_vtime) {
  gpu.vclock = std::max(gpu.vclock, slowest_vtime);
}

}  // namespace sluice::core

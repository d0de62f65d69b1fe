// Fixed shares: sm_percent is a cap as well as a floor. A share in fixed mode has a budget of GPU
// time that fills at sm_percent of the clock and is spent by what it is charged, on an idle GPU
// too.
//
// The budget may go below zero (work in flight is not cut), which delays the next opening, so the
// long-run use is exact: below zero it is a debt, as far as kDebtMostNs. It is opened again when
// the budget is worth a quantum, not before: a trickle of tiny leases would waste the GPU. While it
// waits it may save up to five quanta, so that waiting behind others costs it nothing; while it
// sleeps, one: an idle share has no claim to a burst. What it could not save because of another
// share's overrun it is given when that overrun becomes a debt: the one pays, the other receives.
#include <algorithm>
#include <utility>

#include "broker/core/policy.h"

namespace sluice::core {
namespace {

constexpr double kSavedWaitingQuanta = 5;
constexpr double kSavedIdleQuanta = 1;
constexpr Nanos kLeaseMinNs = 500'000;  // do not look at a running budget more often than this

bool fixed(const Share& share) {
  return share.tenant->sm_mode == SmMode::kFixed && !share.tenant->exclusive();
}
double rate(const Share& share) { return static_cast<double>(share.tenant->sm_percent) / 100.0; }

void fill(const Policy& policy, Share& share, Nanos now) {
  const auto quantum = static_cast<double>(policy.quantum_ns);
  const bool busy = share.tenant->waiting || share.on;
  const double most = quantum * (busy ? kSavedWaitingQuanta : kSavedIdleQuanta);
  const double filled = share.tokens_ns + static_cast<double>(now - share.tokens_at) * rate(share);
  const double kept = std::max(share.tokens_ns, std::min(filled, most));
  share.clipped_ns = busy ? share.clipped_ns + filled - kept : 0;
  const double back = std::clamp(most - kept, 0.0, share.repaid_ns);
  share.repaid_ns -= back;
  share.tokens_ns = kept + back;
  share.tokens_at = now;
}

class FixedBudget final : public SharePolicy {
 public:
  const char* name() const override { return "budget"; }
  bool caps() const override { return true; }

  void share_woke(const Policy& policy, const Gpu&, Share& share, Nanos now) const override {
    if (fixed(share)) fill(policy, share, now);
  }

  void share_charged(const Policy&, Gpu&, Share& share, double ns) const override {
    if (!fixed(share)) return;
    share.tokens_ns = std::max(share.tokens_ns - ns, -kDebtMostNs);
  }

  /// The overrun took `ns` from the others: each fixed share gets its part of that back, as far as
  /// it has waited for it.
  void share_overran(const Policy& policy, const Gpu& gpu, Share& share, double ns,
                     Nanos now) const override {
    for (Share* other : gpu.shares) {
      if (other == &share || !fixed(*other)) continue;
      fill(policy, *other, now);
      const double lost = std::min(std::exchange(other->clipped_ns, 0), ns * rate(*other));
      other->repaid_ns = std::min(other->repaid_ns + lost, kDebtMostNs);
    }
  }

  double owed(const Policy& policy, const Gpu&, Share& share, Nanos now) const override {
    if (!fixed(share)) return 0;
    fill(policy, share, now);
    return std::max(-share.tokens_ns, 0.0);
  }

  void owe(const Policy& policy, const Gpu&, Share& share, double ns, Nanos now) const override {
    if (!fixed(share)) return;
    fill(policy, share, now);
    share.tokens_ns = std::max(share.tokens_ns - ns, -kDebtMostNs);
  }

  double repays(const Policy&, const Gpu&, const Share& share, Nanos) const override {
    return rate(share);
  }

  bool may_run(const Policy& policy, const Gpu&, Share& share, Nanos now) const override {
    if (!fixed(share)) return true;
    fill(policy, share, now);
    if (share.tokens_ns <= 0) share.capped = true;
    if (share.tokens_ns >= static_cast<double>(policy.quantum_ns) - 1) share.capped = false;
    return !share.capped;
  }

  Nanos may_run_at(const Policy& policy, const Gpu&, const Share& share, Nanos now) const override {
    if (!fixed(share) || !share.capped) return kNever;
    const double missing = static_cast<double>(policy.quantum_ns) - share.tokens_ns;
    return share.tokens_at + std::max<Nanos>(static_cast<Nanos>(missing / rate(share)), 0) +
           (share.tokens_at < now ? 0 : 1);
  }

  Nanos run_until(const Policy& policy, Share& share, Nanos now) const override {
    if (!fixed(share)) return kNever;
    fill(policy, share, now);
    if (share.tokens_ns <= 0) return now;
    return now + std::max(static_cast<Nanos>(share.tokens_ns), kLeaseMinNs);
  }
};

}  // namespace

const SharePolicy& fixed_budget() {
  static const FixedBudget policy;
  return policy;
}

}  // namespace sluice::core

// Weighted fairness: every share has a virtual time, the GPU time charged to it divided by its
// weight; the one furthest behind goes first (start-time fair queueing, Goyal et al. 1996, with the
// lag of a sleeper bounded on both sides).
//
// A share that wakes is brought forward to the GPU's virtual time less a bounded credit: enough to
// be served soon, never enough to make up for the time it slept. A share that ran far ahead (an
// overrun, the latency band) has its debt bounded too, so that no accident locks anybody out for
// good.
#include <algorithm>

#include "broker/core/policy.h"

namespace sluice::core {
namespace {

constexpr Nanos kCreditQuanta = 1;   // how far behind the others a waking share may start
constexpr Nanos kAheadQuanta = 100;  // how far ahead of them, at most

class WeightedFair final : public SharePolicy {
 public:
  const char* name() const override { return "fair"; }
  bool orders() const override { return true; }

  void chosen(const Policy&, Gpu& gpu, Nanos) const override {
    for (Share* share : gpu.shares) share->vtime = gpu.vclock;
  }

  void share_woke(const Policy& policy, const Gpu& gpu, Share& share, Nanos) const override {
    const double weight = share_weight(gpu, share);
    const double credit = static_cast<double>(kCreditQuanta * policy.quantum_ns) / weight;
    const double debt = static_cast<double>(kAheadQuanta * policy.quantum_ns) / weight;
    share.vtime = std::clamp(share.vtime, gpu.vclock - credit, gpu.vclock + debt);
  }

  void share_charged(const Policy&, Gpu& gpu, Share& share, double ns) const override {
    share.vtime += ns / share_weight(gpu, share);
  }

  double rank(const Policy&, const Gpu&, const Share& share) const override { return share.vtime; }
};

}  // namespace

const SharePolicy& weighted_fair() {
  static const WeightedFair policy;
  return policy;
}

void fair_clock_advance(Gpu& gpu, double slowest_vtime) {
  gpu.vclock = std::max(gpu.vclock, slowest_vtime);
}

}  // namespace sluice::core

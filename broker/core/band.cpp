// The latency band: an inference share that wants the GPU gets it at the next fence, as long as the
// inference shares together have not used more than their guaranteed part of the time by more than
// a burst.
//
// One credit per GPU: it grows with time at the guaranteed part (weights of the admitted inference
// shares over those plus the weights of the others that are active now) and shrinks by what
// inference is charged, below zero as far as kDebtMostNs. While it is positive, inference goes
// first and cuts others short; when it is used up, inference queues by fairness like the others. So
// over any time T inference takes by preemption at most guaranteed * T + burst, and the others keep
// their floor. Where no other tenant is active the guaranteed part is 1: the band never holds idle
// time back. While no inference is admitted it goes on growing as it did last: a tenant for each
// request would have a full credit each time.
//
// The credit does not know what gangs take: one that is behind goes before the band (turn.cpp). So
// inference queues by fairness as well while it is far ahead of a guaranteed tenant. Without that a
// tenant of 6 % had nothing beside inference of 40 % and a gang of 54.
#include <algorithm>

#include "broker/core/line.h"
#include "broker/core/policy.h"

namespace sluice::core {
namespace {

/// Half of two seconds in virtual time, which is GPU time over per cent.
constexpr double kMissedHalf = 1e9 / 100;

/// How far inference may be before a guaranteed tenant in virtual time: half of two seconds, and a
/// burst at least. fair.cpp forgets a lead beyond its own bound, so this one is below half of that.
/// It is one for all inference shares, so that the first of them is the first that is served.
double ahead_most(const Gpu& gpu) {
  const double weight = inference_weight(gpu);
  const auto burst = static_cast<double>(gpu.policy->inference_burst_ns);
  return std::min(std::max(kMissedHalf, burst / weight), fair_lead(*gpu.policy, weight) / 2);
}

/// Is the inference share so far before a guaranteed tenant that wants the GPU? The GPU's virtual
/// time follows the slowest; one that has just woken may be behind it. Only `fair` keeps them.
bool leaves_others_behind(const Gpu& gpu, const Share& inference) {
  if (gpu.policy->order != Order::kFair) return false;
  double least = inference.vtime;
  const auto look = [&](const Share& share) {
    if (lane_of(share) == kGuaranteedLane) least = std::min(least, share.vtime);
  };
  if (const Share* first = gpu.ready[kGuaranteedLane].first()) look(*first);
  // A share that has drained is in `left` until its next message.
  for (const Share* share : gpu.left) look(*share);
  for (const Share* share : gpu.on)
    if (share->tenant == gpu.holder) look(*share);
  const double ahead = inference.vtime - std::max(least, gpu.vclock);
  return ahead > 0 && ahead > ahead_most(gpu);
}

class LatencyBand final : public SharePolicy {
 public:
  const char* name() const override { return "band"; }
  bool orders() const override { return true; }

  void time_passed(const Policy& policy, Gpu& gpu, Nanos now) const override {
    const Nanos passed = now - gpu.band_at;
    if (passed == 0) return;
    gpu.band_at = now;
    if (gpu.inference_count > 0) gpu.band_rate = band_guarantee(gpu);
    // Before it grows: what inference had of the time that has passed is charged in this step.
    const auto burst = static_cast<double>(policy.inference_burst_ns);
    gpu.band_credit_ns = std::clamp(gpu.band_credit_ns, -kDebtMostNs, burst);
    gpu.band_credit_ns += static_cast<double>(passed) * gpu.band_rate;
  }

  void share_charged(const Policy&, Gpu& gpu, Share& share, double ns) const override {
    if (share.tenant->inference()) gpu.band_credit_ns -= ns;
  }

  double rank(const Policy&, const Gpu& gpu, const Share& share) const override {
    return band_serves(gpu, share) ? 0 : 1;
  }

  bool preempts(const Gpu& gpu, const Share& waiting, const Share& holder) const override {
    return band_serves(gpu, waiting) && !holder.tenant->inference();
  }
};

}  // namespace

const SharePolicy& latency_band() {
  static const LatencyBand policy;
  return policy;
}

bool band_serves(const Gpu& gpu, const Share& share) {
  return share.tenant->inference() && gpu.band_credit_ns > 0 && !leaves_others_behind(gpu, share);
}

double band_guarantee(const Gpu& gpu) {
  const double inference = inference_weight(gpu);
  double others = line_weight_others(gpu);
  for (const Share* share : gpu.on)
    if (share->tenant == gpu.holder && !share->tenant->inference())
      others += share_weight(gpu, *share);
  return inference <= 0 ? 0 : inference / (inference + others);
}

}  // namespace sluice::core

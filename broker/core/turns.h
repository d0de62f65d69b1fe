// What the two orders by turns have in common: a place in line, kept until the turn is used up. A
// turn is counted in time on the GPU, busy or not: what the meter says comes too late for a turn
// that it should end, and is another rule's affair.
#pragma once

#include "broker/core/policy.h"

namespace sluice::core {

class TurnOrder : public SharePolicy {
 public:
  bool orders() const override { return true; }

  void chosen(const Policy&, Gpu& gpu, Nanos now) const override {
    gpu_shares_each(gpu, [now](Share& share) {
      turn_begin(share, share.tenant->waiting ? share.tenant->waiting_since : now);
    });
  }

  void share_woke(const Policy& policy, const Gpu&, Share& share, Nanos now) const override {
    if (share.place_at == kNever || used_up(policy, share)) turn_begin(share, now);
  }

  double rank(const Policy& policy, const Gpu&, const Share& share) const override {
    if (!share.open) return static_cast<double>(share.place_at);
    return used_up(policy, share) ? static_cast<double>(kNever) : 0;  // nobody cuts a turn short
  }

 protected:
  virtual Nanos turn_max_ns(const Policy&) const = 0;

 private:
  static void turn_begin(Share& share, Nanos now) {
    share.place_at = now;
    share.turn_from_ns = share.lease_ns;
  }
  bool used_up(const Policy& policy, const Share& share) const {
    return share.lease_ns - share.turn_from_ns >= turn_max_ns(policy);
  }
};

}  // namespace sluice::core

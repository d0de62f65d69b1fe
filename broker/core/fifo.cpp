// First come, first served: who has the GPU keeps it until its burst is over, that is, until it is
// idle while others wait. The next is whoever has waited longest. A burst ends after twenty quanta
// in any case: one that never pauses would starve the others.
//
// Guarantee: a burst of up to twenty quanta is never cut for another share of its own band, and
// nobody waits longer than one such burst and its drain for each of those ahead.
#include "broker/core/turns.h"

namespace sluice::core {
namespace {

constexpr Nanos kBurstQuanta = 20;

class FirstCome final : public TurnOrder {
 public:
  const char* name() const override { return "fifo"; }

  void share_gave_back(Share& share) const override { share.place_at = kNever; }

 protected:
  Nanos turn_max_ns(const Policy& policy) const override {
    return kBurstQuanta * policy.quantum_ns;
  }
};

}  // namespace

const SharePolicy& first_come() {
  static const FirstCome policy;
  return policy;
}

}  // namespace sluice::core

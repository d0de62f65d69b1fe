// Round robin: one turn of a quantum each, in the order of coming into line, whatever the
// percentages. Who is cut short keeps the place and the rest of the turn; work in flight at the end
// of a turn is not held against anybody, so long kernels gain.
//
// Guarantee: between two turns of one share every other one has at most one, so nobody waits longer
// than a quantum and a drain for each of the others.
#include "broker/core/turns.h"

namespace sluice::core {
namespace {

class RoundRobin final : public TurnOrder {
 public:
  const char* name() const override { return "round-robin"; }

 protected:
  Nanos turn_max_ns(const Policy& policy) const override { return policy.quantum_ns; }
};

}  // namespace

const SharePolicy& round_robin() {
  static const RoundRobin policy;
  return policy;
}

}  // namespace sluice::core

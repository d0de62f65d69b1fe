// The failure of somebody else, as it shows here.
#pragma once

#include "trainer/base/failure.h"

namespace sluice::train {

/// Another rank has ended or hangs: the echo of somebody else's failure.
class PeerFailure : public Failure {
 public:
  using Failure::Failure;
};

}  // namespace sluice::train

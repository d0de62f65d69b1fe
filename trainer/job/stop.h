// Being asked to end: SIGTERM and SIGINT are blocked and looked at where the program is ready for
// them, so that no handler runs inside a driver or network call. Make one before any thread exists
// (threads inherit the mask).
#pragma once

#include <signal.h>

#include "trainer/base/clock.h"

namespace sluice::train {

class StopSignal {
 public:
  StopSignal();

  /// True once SIGTERM or SIGINT has come; stays true.
  bool asked();
  /// Sleeps until the clock shows `at`; returns at once, with true, when asked to stop.
  bool sleep_until(Nanos at);

 private:
  sigset_t signals_;
  bool asked_ = false;
};

}  // namespace sluice::train

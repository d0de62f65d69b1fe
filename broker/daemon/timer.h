// A timer in the loop, on CLOCK_MONOTONIC: either one moment or a steady beat.
#pragma once

#include <cstdint>

#include "broker/daemon/loop.h"

namespace sluice::daemon {

/// CLOCK_MONOTONIC now, nanoseconds: the clock of all that the broker decides. The log and the
/// loop's account of slow turns read theirs themselves.
std::int64_t clock_ns();

class Timer {
 public:
  Timer(Loop& loop, Loop::Handler handler, const char* name = "timer");
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  /// Fires once at `at_ns` (a moment already past fires at once); replaces what was set before.
  void at(std::int64_t at_ns);
  void every(std::int64_t period_ns);
  void clear();

 private:
  Loop& loop_;
  devices::Fd fd_;
  Loop::Key key_ = 0;
};

}  // namespace sluice::daemon

// SIGINT and SIGTERM interrupt a wait while a SignalWatch lives; afterwards they are as they were,
// for a program that takes this one's place.
#pragma once

#include <signal.h>

namespace sluice::cli {

class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  /// The signal that has come since; 0 = none.
  static int seen();

 private:
  struct sigaction interrupt_ {};
  struct sigaction terminate_ {};
};

}  // namespace sluice::cli

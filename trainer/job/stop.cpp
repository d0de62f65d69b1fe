// See stop.h.
#include "trainer/job/stop.h"

#include <cerrno>

namespace sluice::train {

StopSignal::StopSignal() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

bool StopSignal::asked() { return sleep_until(0); }

bool StopSignal::sleep_until(Nanos at) {
  while (!asked_) {
    const Nanos now = now_ns();
    const timespec wait = timespec_of(at > now ? at - now : 0);
    if (sigtimedwait(&signals_, nullptr, &wait) > 0) {
      asked_ = true;
    } else if (errno == EAGAIN) {
      break;
    }
  }
  return asked_;
}

}  // namespace sluice::train

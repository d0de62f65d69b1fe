// timerfd behind the Timer interface.
#include "broker/daemon/timer.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <time.h>

#include <algorithm>

namespace sluice::daemon {
namespace {

constexpr std::int64_t kSecond_ns = 1'000'000'000;

timespec to_timespec(std::int64_t ns) { return {ns / kSecond_ns, ns % kSecond_ns}; }

}  // namespace

std::int64_t clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond_ns + now.tv_nsec;
}

Timer::Timer(Loop& loop, Loop::Handler handler, const char* name)
    : loop_(loop), fd_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!fd_) {
    loop_.fault_set(errno);
    return;
  }
  key_ = loop_.add(
      fd_.get(),
      [this, call = std::move(handler)] {
        std::uint64_t expirations;
        if (read(fd_.get(), &expirations, sizeof expirations) == sizeof expirations) call();
      },
      name);
}

Timer::~Timer() { loop_.remove(key_); }

void Timer::at(std::int64_t at_ns) {
  itimerspec spec{};
  spec.it_value = to_timespec(std::max<std::int64_t>(at_ns, 1));  // zero would disarm
  timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

void Timer::every(std::int64_t period_ns) {
  itimerspec spec{};
  spec.it_value = to_timespec(period_ns);
  spec.it_interval = spec.it_value;
  timerfd_settime(fd_.get(), 0, &spec, nullptr);
}

void Timer::clear() {
  const itimerspec none{};
  timerfd_settime(fd_.get(), 0, &none, nullptr);
}

}  // namespace sluice::daemon

// The one clock of the job logs: CLOCK_MONOTONIC nanoseconds, which all processes of a machine
// share.
#pragma once

#include <time.h>

#include <cstdint>

namespace sluice::train {

using Nanos = std::int64_t;

inline constexpr Nanos kNanosPerSecond = 1'000'000'000;
inline constexpr Nanos kNanosPerMilli = 1'000'000;

inline Nanos now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Nanos>(time.tv_sec) * kNanosPerSecond + time.tv_nsec;
}

inline timespec timespec_of(Nanos ns) {
  return {static_cast<time_t>(ns / kNanosPerSecond), static_cast<long>(ns % kNanosPerSecond)};
}

inline double seconds_of(Nanos ns) { return static_cast<double>(ns) / 1e9; }
inline double millis_of(Nanos ns) { return static_cast<double>(ns) / 1e6; }
inline Nanos nanos_of_seconds(double seconds) { return static_cast<Nanos>(seconds * 1e9); }

/// Sleeps until the clock shows `at`, or until a signal handler ran (false).
inline bool sleep_until(Nanos at) {
  const timespec time = timespec_of(at);
  return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == 0;
}

}  // namespace sluice::train

// What the tests of a guest share: a process under the preloaded shim, over the fake driver and a
// broker small enough for a test. Each case is a process of its own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "tests/interpose/fake_driver.h"
#include "tests/interpose/test_broker.h"

namespace sluice::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kRacesWatched = true;  // by ThreadSanitizer
#else
inline constexpr bool kRacesWatched = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kMemoryWatched = true;  // by AddressSanitizer
#else
inline constexpr bool kMemoryWatched = false;
#endif

inline constexpr unsigned long long kMiB = 1 << 20;
inline constexpr unsigned long long kGiB = 1 << 30;

inline CUresult launch_on(CUstream stream) {
  return cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
}
inline CUresult launch() { return launch_on(nullptr); }

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

inline bool eventually(const std::function<bool()>& condition, int timeout_ms = kPatience_ms) {
  for (int i = 0; i < timeout_ms && !condition(); ++i) sleep_ms(1);
  return condition();
}

class GuestTest : public ::testing::Test {
 protected:
  void start(unsigned long long quota, unsigned long long context = 0) {
    broker = std::make_unique<TestBroker>(quota, context);
    broker->environment_set();
  }
  std::unique_ptr<TestBroker> broker;
};

}  // namespace sluice::test

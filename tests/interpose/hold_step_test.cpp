// The order in which a hold's acknowledgement looks at captures and at who touches the device, over
// a program that goes by the protocol of touch.h.
#include "interpose/gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace sluice::interpose {
namespace {

// A thread that found no hold, or a capture, goes on, and may begin a capture of its own.
TEST(HoldStep, NoneIsAcknowledgedAsACaptureBegins) {
  constexpr int kRounds = 20'000;
  threads_prepare();
  std::atomic<int> round{0}, done{0};
  std::thread program([&] {
    ThreadRecord* thread = thread_record();
    for (int i = 1; i <= kRounds; ++i) {
      while (round.load() < i) {
      }
      // In the middle of a call that began before the hold.
      for (int turns = i % 256; turns > 0; --turns) __atomic_signal_fence(__ATOMIC_SEQ_CST);
      store_release(captures_active, 1u);
      store_release(thread->touching, 0u);
      done = i;
    }
  });
  ThreadRecord* thread = nullptr;
  while (thread == nullptr) {
    for (int i = 0; i < thread_count(); ++i) {
      if (thread_at(i) != this_thread) thread = thread_at(i);
    }
  }
  int wrong = 0;
  for (int i = 1; i <= kRounds; ++i) {
    store_release(captures_active, 0u);
    store_release(thread->touching, 1u);
    round = i;
    wrong += hold_step(0, 1) ? 1 : 0;
    while (done.load() < i) {
    }
  }
  program.join();
  store_release(captures_active, 0u);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace sluice::interpose

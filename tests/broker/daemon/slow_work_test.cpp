// Work beside the loop: one that hangs holds up neither the loop nor other work nor the end.
#include "broker/daemon/slow_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

namespace sluice::daemon {
namespace {

constexpr int kSlowPatience_ms = 10'000;

TEST(SlowThreads, WhatWorkFindsRunsInTheLoop) {
  Loop loop;
  SlowThreads slow(loop);
  const std::thread::id here = std::this_thread::get_id();
  std::thread::id worked, handled;
  slow.run([&]() -> Loop::Handler {
    worked = std::this_thread::get_id();
    return [&] { handled = std::this_thread::get_id(); };
  });
  for (int i = 0; i < 1000 && handled == std::thread::id(); ++i) loop.turn(kSlowPatience_ms);
  EXPECT_NE(worked, here);
  EXPECT_EQ(handled, here);
}

TEST(SlowThreads, OneThatHangsHoldsNobodyUp) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<bool> over = false;
  int done = 0;
  {
    Loop loop;
    SlowThreads slow(loop);
    slow.run([released, &over, &done]() -> Loop::Handler {
      released.wait();
      over = true;
      return [&done] { done += 100; };
    });
    for (int i = 0; i < 50; ++i)
      slow.run([&done]() -> Loop::Handler { return [&done] { ++done; }; });
    for (int i = 0; i < 1000 && done < 50; ++i) loop.turn(kSlowPatience_ms);
    EXPECT_EQ(done, 50);
  }  // the end does not wait for it
  release.set_value();
  while (!over) std::this_thread::yield();
  EXPECT_EQ(done, 50) << "what it found reaches nobody";
}

// While all threads hang, askers come and go.
TEST(SlowThreads, WorkThatIsWantedNoMoreIsForgotten) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  Loop loop;
  SlowThreads slow(loop);
  for (int i = 0; i < 8; ++i)
    slow.run([released]() -> Loop::Handler {
      released.wait();
      return {};
    });
  const auto token = std::make_shared<int>();
  bool done = false;
  slow.run([&done]() -> Loop::Handler { return [&done] { done = true; }; }, token);
  const auto asked = std::make_shared<int>();
  for (int i = 0; i < 10'000; ++i)
    slow.run([asked]() -> Loop::Handler { return {}; }, std::make_shared<int>());
  EXPECT_LE(asked.use_count(), 200);
  release.set_value();
  for (int i = 0; i < 1000 && !done; ++i) loop.turn(kSlowPatience_ms);
  EXPECT_TRUE(done) << "what is wanted is done";
}

}  // namespace
}  // namespace sluice::daemon

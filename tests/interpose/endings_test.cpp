// What ends while its handle is given to another thread for the next of its kind: nothing of the
// next one is taken off the account with it. Over the fake driver.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/interpose/guest.h"

namespace {

using namespace sluice::test;

const auto kReusedContext = reinterpret_cast<CUcontext>(0x4000);

class EndingsTest : public GuestTest {
 protected:
  void SetUp() override {
    start(kGiB);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  }
  static void context_make() {
    CUcontext made = kReusedContext;
    EXPECT_EQ(cuCtxCreate_v4(&made, nullptr, 0, 0), CUDA_SUCCESS);
  }
  static void context_work() {
    CUdeviceptr pointer = 0;
    context_make();
    fake.context = kReusedContext;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 20 * kMiB), CUDA_SUCCESS);
  }
};

TEST_F(EndingsTest, WhatTheNextContextOfAHandleHasStays) {
  static std::thread other;
  static std::atomic<bool> begun;
  context_make();  // nothing is done in it, so that nobody has met it
  fake.on_enter = [](const char* function) {
    if (function != std::string("cuCtxDestroy_v2") || begun.exchange(true)) return;
    other = std::thread(context_work);
    sleep_ms(50);  // what the other does without waiting, it has done by then
  };
  ASSERT_EQ(cuCtxDestroy_v2(kReusedContext), CUDA_SUCCESS);
  ASSERT_TRUE(begun);
  other.join();
  EXPECT_EQ(broker->account().held_bytes.load(), 20 * kMiB);
}

// However many others are ending contexts in that moment.
TEST_F(EndingsTest, ManyContextsEndAtOneMoment) {
  constexpr size_t kOthers = 40;
  static std::thread next;
  static std::atomic<size_t> waiting;
  static std::atomic<bool> done;
  static const auto first = std::this_thread::get_id();
  std::vector<CUcontext> others;
  for (size_t i = 1; i <= kOthers; ++i) {
    others.push_back(reinterpret_cast<CUcontext>(0x4000 + i * 64));
    ASSERT_EQ(cuCtxCreate_v4(&others.back(), nullptr, 0, 0), CUDA_SUCCESS);
  }
  context_make();
  fake.on_enter = [](const char* function) {
    if (function != std::string("cuCtxDestroy_v2")) return;
    if (std::this_thread::get_id() == first) {
      next = std::thread(context_work);
      sleep_ms(50);
      return;
    }
    ++waiting;
    while (!done) sleep_ms(1);
  };
  std::vector<std::thread> threads;
  for (CUcontext other : others)
    threads.emplace_back([other] { EXPECT_EQ(cuCtxDestroy_v2(other), CUDA_SUCCESS); });
  while (waiting < kOthers) sleep_ms(1);
  EXPECT_EQ(cuCtxDestroy_v2(kReusedContext), CUDA_SUCCESS);
  next.join();
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(broker->account().held_bytes.load(), 20 * kMiB);
}

}  // namespace

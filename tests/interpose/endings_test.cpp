// What ends while its handle is given to another thread for the next of its kind: nothing of the
// next one is taken off the account with it. Over the fake driver.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

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

}  // namespace

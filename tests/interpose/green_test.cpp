// Green contexts under the preloaded shim, over the fake driver: what was made of one ends with it,
// and nobody asks the driver about it any more; what was allocated there is the primary context's.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "tests/interpose/guest.h"
#include "tests/interpose/recording.h"

namespace {

using namespace sluice::protocol;
using namespace sluice::test;

const auto kGreen = reinterpret_cast<CUgreenCtx>(0x4000);
const auto kConverted = reinterpret_cast<CUcontext>(0x4100);

class GreenTest : public GuestTest {
 protected:
  void begin(bool movable = false) {
    broker = std::make_unique<TestBroker>(kGiB, 30 * kMiB);
    if (movable) broker->swap_set();
    broker->environment_set();
    broker->lease_store(kLeaseOpen);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
  }
  // The fake driver leaves the handle as it is.
  void green_begin() {
    CUgreenCtx green = kGreen;
    CUcontext context = kConverted;
    ASSERT_EQ(cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxFromGreenCtx(&context, green), CUDA_SUCCESS);
    current(context);
  }
  void current(CUcontext context) {
    fake.context = context;
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  void green_end() {
    ASSERT_EQ(cuGreenCtxDestroy(kGreen), CUDA_SUCCESS);
    current(primary);
    fake_calls.count = 0;
  }
  // The names of calls since its end that name the context.
  static std::string calls_of_the_dead() {
    std::string names;
    const int count = fake_calls.count;
    EXPECT_LT(count, kRecordedCallsMax);
    for (int i = 0; i < count && i < kRecordedCallsMax; ++i) {
      const RecordedCall& one = fake_calls.calls[i];
      for (int k = 0; k < one.argument_count; ++k)
        if (one.arguments[k] == argument_digest(kConverted)) names += std::string(one.symbol) + " ";
    }
    return names;
  }
  unsigned long long held() { return broker->account().held_bytes.load(); }
  CUcontext primary = nullptr;
};

TEST_F(GreenTest, NobodyAsksAboutADestroyedOne) {
  begin();
  green_begin();
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(1, nullptr, 1, nullptr), CUDA_SUCCESS);
  green_end();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(launch(), CUDA_SUCCESS);
    sleep_ms(20);  // the helper looks
    broker->lease_store(0);
    ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
    broker->hold_store(true);
    ASSERT_TRUE(broker->wait_held());
    broker->hold_store(false);
    broker->lease_store(kLeaseOpen);
  }
  EXPECT_EQ(calls_of_the_dead(), "");
}

TEST_F(GreenTest, WorkOfADestroyedOneIsOver) {
  begin();
  green_begin();
  fake.events_pending = 1;
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  green_end();
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
}

TEST_F(GreenTest, WhatWasAllocatedThereStaysUntilItIsFreedOrThePrimaryContextEnds) {
  begin();
  green_begin();
  CUdeviceptr freed = 0, left = 0;
  ASSERT_EQ(cuMemAlloc_v2(&freed, 3 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc_v2(&left, 5 * kMiB), CUDA_SUCCESS);
  green_end();
  EXPECT_EQ(held(), 38 * kMiB);
  ASSERT_EQ(cuMemFree_v2(freed), CUDA_SUCCESS);
  EXPECT_EQ(held(), 35 * kMiB);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST_F(GreenTest, MovableMemoryOfADestroyedOneIsThePrimaryContexts) {
  begin(true);
  green_begin();
  CUdeviceptr pointer = 0, other = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, 4 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc_v2(&other, 4 * kMiB), CUDA_SUCCESS);
  green_end();
  ASSERT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS);
  EXPECT_EQ(held(), 34 * kMiB);
  // Out and in again.
  broker->lease_store(0);
  broker->hold_store(true);
  ASSERT_TRUE(broker->wait_held());
  for (const uint32_t order : {kHoldOut, kHoldIn})
    ASSERT_TRUE(broker->wait_moved(broker->order_store(order)));
  EXPECT_EQ(calls_of_the_dead(), "");
}

// It holds the primary context as programs do, and may be the last to.
TEST_F(GreenTest, ThePrimaryContextEndsWithTheLastOne) {
  begin();
  green_begin();
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, 3 * kMiB), CUDA_SUCCESS);
  ++fake.context_active;  // the fake driver's green contexts hold nothing
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(held(), 33 * kMiB);
  fake.on_enter = [](const char* function) {
    if (function == std::string("cuGreenCtxDestroy")) fake.context_active = 0;
  };
  green_end();
  EXPECT_EQ(held(), 0u);
}

// Then its work is over, too.
TEST_F(GreenTest, NorIsThePrimaryContextAskedThatEndedWithOne) {
  begin();
  fake.events_pending = 1;
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  green_begin();
  ++fake.context_active;
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  broker->lease_store(0);
  EXPECT_FALSE(broker->wait_for(MessageType::kDrained, broker->epoch(), 50));
  fake.on_enter = [](const char* function) {
    if (function == std::string("cuGreenCtxDestroy")) fake.context_active = 0;
  };
  ASSERT_EQ(cuGreenCtxDestroy(kGreen), CUDA_SUCCESS);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
}

// A handle comes again, and a thread to which the dead context was current sets the new one. What
// it launches then is seen where the new one is.
TEST_F(GreenTest, AThreadThatHadADeadContextSeesTheNextOneOfItsHandle) {
  begin();
  const auto other = reinterpret_cast<CUcontext>(0x4200);
  std::atomic<int> step{0};
  std::thread program([&] {
    EXPECT_EQ(cuCtxSetCurrent(kConverted), CUDA_SUCCESS);
    EXPECT_EQ(launch(), CUDA_SUCCESS);
    step = 1;
    while (step != 2) sleep_ms(1);
    EXPECT_EQ(cuCtxSetCurrent(kConverted), CUDA_SUCCESS);
    fake.events_pending = 1;
    EXPECT_EQ(launch(), CUDA_SUCCESS);
    step = 3;
    while (step != 4) sleep_ms(1);
  });
  fake.context = kConverted;
  CUcontext made = kConverted;
  ASSERT_EQ(cuCtxCreate_v2(&made, 0, 0), CUDA_SUCCESS);
  while (step != 1) sleep_ms(1);
  ASSERT_EQ(cuCtxDestroy_v2(made), CUDA_SUCCESS);
  // The record goes to a context that ends while the thread's work goes on.
  made = other;
  ASSERT_EQ(cuCtxCreate_v2(&made, 0, 0), CUDA_SUCCESS);
  current(other);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  made = kConverted;
  ASSERT_EQ(cuCtxCreate_v2(&made, 0, 0), CUDA_SUCCESS);
  fake.context = kConverted;
  step = 2;
  while (step != 3) sleep_ms(1);
  fake.context = other;
  ASSERT_EQ(cuCtxDestroy_v2(other), CUDA_SUCCESS);
  fake.context = kConverted;
  broker->lease_store(0);
  EXPECT_FALSE(broker->wait_for(MessageType::kDrained, broker->epoch(), 150));
  fake.events_pending = 0;
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  step = 4;
  program.join();
}

// One on a GPU that the job has not got would be a context there, whose memory and launches no
// limit reaches.
TEST_F(GreenTest, ThereIsNoneOnAGpuThatTheJobHasNotGot) {
  fake.device_count = 2;
  begin();
  CUgreenCtx green = kGreen;
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuGreenCtxCreate(&green, nullptr, 1, CU_GREEN_CTX_DEFAULT_STREAM),
            CUDA_ERROR_NOT_PERMITTED);
  EXPECT_NE(
      testing::internal::GetCapturedStderr().find(
          "sluice: device 1 is none of this job's GPUs, so the program gets no context there"),
      std::string::npos);
  for (int i = 0; i < fake_calls.count && i < kRecordedCallsMax; ++i)
    EXPECT_STRNE(fake_calls.calls[i].symbol, "cuGreenCtxCreate");
}

// A program that nobody announced gets the GPU of its first context, of whichever kind.
TEST_F(GreenTest, TheFirstContextMayBeAGreenOne) {
  fake.device_count = 2;
  broker = std::make_unique<TestBroker>(kGiB, 30 * kMiB, kFakeUuidBase + 1);
  broker->environment_set();
  for (const char* name : {"SLUICE_TENANT", "SLUICE_TENANT_LIMITS"}) unsetenv(name);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(broker->registrations(), 0);
  CUgreenCtx green = kGreen;
  ASSERT_EQ(cuGreenCtxCreate(&green, nullptr, 1, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
  EXPECT_EQ(broker->registrations(), 1);
  EXPECT_EQ(broker->wish(), broker->lease().gpus[0].gpu);
}

// Limits of its own narrow what the broker gives; they do not choose the GPU before the program
// does.
TEST_F(GreenTest, TheFirstContextChoosesTheGpuUnderLimitsOfItsOwnToo) {
  fake.device_count = 2;
  broker = std::make_unique<TestBroker>(kGiB, 30 * kMiB, kFakeUuidBase + 1);
  broker->environment_set();
  for (const char* name : {"SLUICE_TENANT", "SLUICE_TENANT_LIMITS"}) unsetenv(name);
  setenv("SLUICE_MEMORY", "100MiB", 1);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(broker->registrations(), 0);
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 1), CUDA_SUCCESS);
  EXPECT_EQ(broker->registrations(), 1);
  EXPECT_EQ(broker->wish(), broker->lease().gpus[0].gpu);
}

std::atomic<int> states_read;
std::atomic<bool> state_goes;

// Another thread may end the primary context when the first one has just seen that it is there.
TEST_F(GreenTest, NorIsThePrimaryContextThatAnotherThreadEndsMeanwhile) {
  begin();
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  green_begin();
  fake.on_state = [] {
    if (states_read++ > 0) return;
    while (!state_goes) sleep_ms(1);
  };
  std::thread program([] { EXPECT_EQ(cuGreenCtxDestroy(kGreen), CUDA_SUCCESS); });
  while (states_read == 0) sleep_ms(1);
  std::thread other([] { EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS); });
  sleep_ms(200);
  state_goes = true;
  program.join();
  other.join();
  fake.events_pending = 1;  // whoever asks for the dead context's work waits for ever
  broker->lease_store(0);
  broker->hold_store(true);
  EXPECT_TRUE(broker->wait_held());
}

}  // namespace

// Allocations that the driver has no room for and the quota allows: how often the driver is asked
// again. The fake driver finds room at a given question, so nothing here depends on time.
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "tests/interpose/guest.h"

namespace {

using namespace sluice::test;

// Questions to the driver before the broker has said that it has no room to give.
constexpr int kBrokersRounds = 3;
int asked, room_at;

class GuestRoomTest : public GuestTest {
 protected:
  void SetUp() override {
    start(kGiB);
    broker->lease_store(sluice::protocol::kLeaseOpen);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    asked = 0;
    fake.alloc_result = CUDA_ERROR_OUT_OF_MEMORY;
    fake.on_enter = [](const char* function) {
      if (strcmp(function, "an allocation") != 0) return;
      if (++asked == room_at) fake.alloc_result = CUDA_SUCCESS;
    };
  }
  void promise(unsigned long long bytes) { broker->lease().gpus[0].memory_min_bytes = bytes; }
  CUcontext context = nullptr;
  CUdeviceptr pointer = 0;
};

TEST_F(GuestRoomTest, WhatIsPromisedIsAskedForAgainWhenTheBrokerHasNoRoom) {
  promise(kGiB);
  room_at = kBrokersRounds + 1;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(asked, room_at);
  EXPECT_EQ(broker->wants().size(), 1u) << "the broker is asked once";
  EXPECT_EQ(broker->account().gate_waits.load(), 0u) << "it waited for no lease";
  EXPECT_EQ(broker->account().held_bytes.load(), kMiB);
}

TEST_F(GuestRoomTest, ThatEnds) {
  promise(kGiB);
  room_at = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_GT(asked, kBrokersRounds);
  EXPECT_EQ(broker->account().held_bytes.load() + broker->account().reserved_bytes.load(), 0u);
  EXPECT_EQ(broker->account().refused.load(), 0u);
}

TEST_F(GuestRoomTest, WhatIsNotPromisedIsRefusedAtOnce) {
  promise(kMiB - 1);
  room_at = kBrokersRounds + 1;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(asked, kBrokersRounds);
}

// Another thread may wait for the end of the capture, and the capture for this thread.
TEST_F(GuestRoomTest, NothingWaitsDuringACapture) {
  promise(kGiB);
  room_at = 2;
  CUstream stream = reinterpret_cast<CUstream>(0x40);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc_v2(&pointer, kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
}

// A thread is stopped between what it has reserved and the driver's refusal. Others wait for what
// they may have then.
TEST_F(GuestRoomTest, WhatAStoppedThreadHasReservedIsWaitedFor) {
  static constexpr int kStopped_ms = 200;
  static std::atomic<bool> reserved{false};
  fake.alloc_result = CUDA_SUCCESS;
  fake.on_enter = [](const char* function) {
    if (strcmp(function, "an allocation") != 0) return;
    const bool is_first = !reserved.exchange(true);
    if (is_first) sleep_ms(kStopped_ms);
    fake.alloc_result = is_first ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  };
  std::thread stopped([this] {
    CUdeviceptr none = 0;
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&none, kGiB - kMiB), CUDA_ERROR_INVALID_VALUE);
  });
  ASSERT_TRUE(eventually([] { return reserved.load(); }));
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 2 * kMiB), CUDA_SUCCESS);
  stopped.join();
  EXPECT_EQ(broker->account().held_bytes.load(), 2 * kMiB);
}

}  // namespace

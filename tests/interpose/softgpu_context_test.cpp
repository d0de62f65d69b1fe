// Contexts that end under other threads, and brokers that come anew, over the software GPU: nothing
// that still runs is taken to have passed.
#include <thread>

#include "tests/interpose/softgpu_launch.h"

namespace {

using sluice::protocol::kLeaseExclusive;
using sluice::protocol::kLeaseOpen;
using namespace sluice::test;

constexpr unsigned kSecond = 1'600'000;  // about one, of a thread that counts

class ContextTest : public SoftGpuLaunchTest {
 protected:
  void SetUp() override {
    SoftGpuLaunchTest::SetUp();
    broker->lease_store(kLeaseOpen);
    kernel_load();
  }
  bool drained() { return broker->account().drained_epoch.load() == broker->epoch(); }
  // Another broker takes this one's place, and knows nothing of what it said.
  std::unique_ptr<TestBroker> broker_next(std::uint32_t lease) {
    auto next = std::make_unique<TestBroker>(kQuota, kContext);
    next->gpu_uuid_set(devices[0]->settings().uuid);
    next->lease_store(lease);
    return next;
  }
  void broker_take(std::unique_ptr<TestBroker> next) {
    next->path_take(*broker);
    broker = std::move(next);
    ASSERT_TRUE(eventually([&] { return broker->registrations() > 0; }));
  }
};

// One thread resets the primary context; another has it for its own and goes on when it is there
// again, by the same handle.
TEST_F(ContextTest, AThreadWhoseContextWasResetByAnotherIsSeenAgain) {
  for (const std::uint32_t flags : {0u, kLeaseExclusive}) {
    SCOPED_TRACE(flags);
    broker->lease_store(kLeaseOpen | flags);
    ASSERT_EQ(launch(100), CUDA_SUCCESS);
    std::thread([&] {
      CUcontext again = nullptr;
      EXPECT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
      EXPECT_EQ(cuDevicePrimaryCtxRetain(&again, 0), CUDA_SUCCESS);
      EXPECT_EQ(again, context) << "else this shows nothing";
    }).join();
    kernel_load();
    ASSERT_EQ(launch(kSecond / 2), CUDA_SUCCESS);
    broker->lease_store(0);
    ASSERT_TRUE(eventually([&] { return drained(); }));
    EXPECT_EQ(cuStreamQuery(nullptr), CUDA_SUCCESS) << "drained, and something still runs";
  }
  broker->lease_store(kLeaseOpen);
}

// A hold is acknowledged when everything in the context has passed, also what was no launch, and
// whatever was asked for another broker's hold of the same number.
TEST_F(ContextTest, AHoldOfANewBrokerAsksTheContextAgain) {
  std::uint32_t* word = nullptr;
  ASSERT_EQ(cuMemHostAlloc(reinterpret_cast<void**>(&word), 4, CU_MEMHOSTALLOC_DEVICEMAP),
            CUDA_SUCCESS);
  *word = 0;
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  broker->lease_store(0);
  broker->hold_store(true);
  ASSERT_TRUE(broker->wait_held());
  const std::uint32_t first = broker->hold_epoch();
  broker->hold_store(false);
  broker->die();
  auto next = broker_next(kLeaseOpen);
  broker_take(std::move(next));
  CUdeviceptr word_device = 0;
  ASSERT_EQ(cuMemHostGetDevicePointer(&word_device, word, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitValue32(stream, word_device, 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32Async(result, 7, 1, stream), CUDA_SUCCESS);
  broker->lease_store(0);
  broker->hold_store(true);
  ASSERT_EQ(broker->hold_epoch(), first) << "else this shows nothing";
  EXPECT_FALSE(broker->wait_held(300)) << "with a memset that waits";
  __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
  EXPECT_TRUE(broker->wait_held());
  broker->hold_store(false);
  broker->lease_store(kLeaseOpen);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
}

// What is launched while nobody binds anything is not counted; the next broker's first drain waits
// for it all the same.
TEST_F(ContextTest, WhatWasLaunchedWithoutABrokerIsWaitedForByTheNext) {
  ASSERT_EQ(launch(100), CUDA_SUCCESS);
  broker->lease_store(0);
  ASSERT_TRUE(eventually([&] { return drained(); }));
  auto next = broker_next(0);
  broker->die();
  ASSERT_EQ(launch(3 * kSecond), CUDA_SUCCESS);  // after the grace
  broker_take(std::move(next));
  ASSERT_TRUE(eventually([&] { return drained(); }));
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_SUCCESS) << "drained, and something still runs";
  broker->lease_store(kLeaseOpen);
}

}  // namespace

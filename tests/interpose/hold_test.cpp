// Holds over the fake driver: who waits, when the hold is acknowledged, and that nothing reaches
// the driver from then on. Each case is a process of its own.
#include <gtest/gtest.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "tests/interpose/guest.h"

namespace {

using sluice::protocol::kLeaseExclusive;
using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;
using sluice::test::launch;
using sluice::test::sleep_ms;
using sluice::test::TestBroker;

class HoldTest : public ::testing::Test {
 protected:
  void SetUp() override {
    broker = std::make_unique<TestBroker>(1ull << 30);
    broker->environment_set();
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  }
  void hold_set() {
    broker->lease_store(0);
    broker->hold_store(true);
  }
  std::unique_ptr<TestBroker> broker;
};

TEST_F(HoldTest, AHoldIsAcknowledgedInTheSlotAndByANote) {
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  hold_set();
  EXPECT_TRUE(broker->wait_for(MessageType::kHeld, broker->hold_epoch()));
  EXPECT_EQ(broker->account().held_epoch.load(), broker->hold_epoch());
  // The next one is another hold.
  broker->hold_store(false);
  broker->hold_store(true);
  EXPECT_TRUE(broker->wait_held());
}

TEST_F(HoldTest, NoHoldIsAcknowledgedUnderAnOpenLease) {
  broker->lease_store(kLeaseOpen);
  broker->hold_store(true);
  EXPECT_FALSE(broker->wait_held(100));
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_held());
}

// The looks are 20 us apart at first, each a 16th more than the one before.
TEST_F(HoldTest, TheFirstHoldIsLookedAtAsSeldomAsLaterOnes) {
  using Clock = std::chrono::steady_clock;
  constexpr int kLooks = 40;
  static std::atomic<int> looks;
  static Clock::time_point first, last;
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(1, nullptr, 1, nullptr), CUDA_SUCCESS);
  fake.events_pending = 1;
  fake.on_enter = [](const char* function) {
    if (strcmp(function, "cuEventQuery") != 0 || looks == kLooks) return;
    (looks == 0 ? first : last) = Clock::now();
    ++looks;
  };
  hold_set();
  while (looks < kLooks) sleep_ms(1);
  fake.on_enter = nullptr;
  EXPECT_GT(last - first, std::chrono::milliseconds(2));
  fake.events_pending = 0;
  EXPECT_TRUE(broker->wait_held());
}

TEST_F(HoldTest, ItWaitsForCopiesAndNotOnlyForLaunches) {
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(1, nullptr, 1, nullptr), CUDA_SUCCESS);
  fake.events_pending = 1;
  hold_set();
  // No launch, so the lease drains; the copy is still under way.
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  EXPECT_FALSE(broker->wait_held(100));
  fake.events_pending = 0;
  EXPECT_TRUE(broker->wait_held());
}

TEST_F(HoldTest, TheDrainThatEndsAnExclusiveLeaseComesFirst) {
  broker->lease_store(kLeaseOpen | kLeaseExclusive);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  fake.events_pending = 1;
  hold_set();
  EXPECT_FALSE(broker->wait_held(100));
  fake.events_pending = 0;
  EXPECT_TRUE(broker->wait_held());
}

TEST_F(HoldTest, CallsWaitForItsEndAndTheTimeIsCounted) {
  hold_set();
  ASSERT_TRUE(broker->wait_held());
  std::atomic<bool> done{false};
  std::thread program([&] {
    EXPECT_EQ(cuMemcpyHtoD_v2(1, nullptr, 1), CUDA_SUCCESS);
    done = true;
  });
  sleep_ms(120);
  EXPECT_FALSE(done);
  broker->hold_store(false);
  program.join();
  EXPECT_EQ(broker->account().gate_waits.load(), 1u);
  EXPECT_GT(broker->account().gate_wait_ns.load(), 50'000'000u);
}

// Of the driver's checkpoint (series 580, 595) it is known that a process ends with SIGSEGV whose
// first call after its restore synchronises a context or a stream. Such a call, and every other
// that a program makes while it is held, reaches the driver only after the hold.
TEST_F(HoldTest, TheFirstSynchronisationAfterARestoreMeetsNoCheckpoint) {
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  const auto held_out = [&](const char* name, auto call) {
    SCOPED_TRACE(name);
    hold_set();
    ASSERT_TRUE(broker->wait_held());
    fake.held = 1;  // the driver has the process in its checkpoint
    fake.calls_while_held = 0;
    const auto waits = broker->account().gate_waits.load();
    std::atomic<bool> done{false};
    std::thread program([&] {
      EXPECT_EQ(call(), CUDA_SUCCESS);
      done = true;
    });
    sleep_ms(120);
    EXPECT_FALSE(done);
    EXPECT_EQ(fake.calls_while_held, 0u) << fake.held_offender;
    fake.held = 0;  // restored and unlocked
    broker->hold_store(false);
    broker->lease_store(kLeaseOpen);
    program.join();
    EXPECT_EQ(broker->account().gate_waits.load(), waits + 1);
  };
  held_out("context", [] { return cuCtxSynchronize(); });
  held_out("stream", [] { return cuStreamSynchronize(nullptr); });
}

// And one that is under way when the hold comes is over before it is acknowledged.
TEST_F(HoldTest, ASynchronisationUnderWayIsWaitedFor) {
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  fake.wait_on_sync = 1;
  std::thread program([] { EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS); });
  while (fake.syncs_waiting == 0) sleep_ms(1);
  hold_set();
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  EXPECT_FALSE(broker->wait_held(100));
  fake.wait_on_sync = 0;
  EXPECT_TRUE(broker->wait_held());
  program.join();
}

TEST_F(HoldTest, NothingIsAskedOfTheDriverByTheShimItselfMeanwhile) {
  broker->lease_store(kLeaseOpen);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(launch(), CUDA_SUCCESS);
  hold_set();
  ASSERT_TRUE(broker->wait_held());
  fake.held = 1;
  sleep_ms(700);  // the helper looks at least every half second
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_SUCCESS);
  fake.held = 0;
  // The program's own question, and none of ours.
  EXPECT_EQ(fake.calls_while_held, 1u) << fake.held_offender;
}

TEST_F(HoldTest, ACaptureInProgressRunsToItsEndAndNoOtherBegins) {
  const auto stream = reinterpret_cast<CUstream>(0x99);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuMemcpyHtoD_v2(1, nullptr, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  hold_set();
  EXPECT_FALSE(broker->wait_held(100));
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 4096), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(pointer, nullptr, 1, stream), CUDA_SUCCESS);
  // Another stream is drawn into it, with all that this takes.
  CUevent event = nullptr;
  EXPECT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(reinterpret_cast<CUstream>(0xaa), event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_TRUE(broker->wait_held());
  std::atomic<bool> begun{false};
  std::thread program([&] {
    EXPECT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    begun = true;
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  });
  sleep_ms(100);
  EXPECT_FALSE(begun);
  broker->hold_store(false);
  program.join();
}

TEST_F(HoldTest, WithoutABrokerItOpensAfterTheGrace) {
  hold_set();
  ASSERT_TRUE(broker->wait_held());
  broker->die();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(cuMemcpyHtoD_v2(1, nullptr, 1), CUDA_SUCCESS);
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1500));
}

// A broker that dies and is replaced while an allocation waits: the account moves to the new pages,
// which must not wait for the allocation.
TEST_F(HoldTest, AnAllocationThatWaitsDoesNotKeepTheProcessFromANewBroker) {
  hold_set();
  ASSERT_TRUE(broker->wait_held());
  std::thread program([] {
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 4096), CUDA_SUCCESS);
  });
  sleep_ms(50);
  TestBroker next(1ull << 30);
  broker->die();
  next.path_take(*broker);
  program.join();
  EXPECT_EQ(next.account().held_bytes.load(), 4096u);
}

std::atomic<int> launches_inside;
std::atomic<bool> launches_return;

// Which may be on its way into a stream of another GPU than its thread's.
TEST(HoldGpusTest, ADrainWaitsForExclusiveLaunchesOfAnyGpu) {
  TestBroker broker(1ull << 30);
  unsigned char other[16];
  for (unsigned char& byte : other) byte = kFakeUuidBase + 1;
  broker.gpu_add(other);
  broker.environment_set();
  broker.lease_store(kLeaseOpen | kLeaseExclusive);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  fake.on_launch = [](const FakeLaunch&) {
    ++launches_inside;
    while (!launches_return) sleep_ms(1);
    return CUDA_SUCCESS;
  };
  std::thread program([] { EXPECT_EQ(launch(), CUDA_SUCCESS); });
  while (launches_inside == 0) sleep_ms(1);
  broker.lease_store(0, 1);
  const auto drained = [&] { return broker.account(0, 1).drained_epoch.load() == broker.epoch(1); };
  EXPECT_FALSE(sluice::test::eventually(drained, 200));
  launches_return = true;
  EXPECT_TRUE(sluice::test::eventually(drained));
  program.join();
}

}  // namespace

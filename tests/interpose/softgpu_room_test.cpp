// Room on the device: a stranger has its memory, so the driver refuses what the quota allows, and
// the broker is asked. Each case is a process of its own.
#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/interpose/softgpu_partner.h"
#include "tests/interpose/softgpu_ways.h"

namespace {

using namespace sluice::test;
using sluice::protocol::kHoldIn;
using sluice::protocol::kHoldOut;
using sluice::protocol::kLeaseOpen;
using sluice::protocol::kRoomNone;

class RoomTest : public SoftGpuTest {
 protected:
  explicit RoomTest(bool swap = false)
      : SoftGpuTest([swap] {
          Options o;
          o.swap = swap;
          return o;
        }()) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(kLeaseOpen);
    stranger.start(true);
    ASSERT_EQ(stranger.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
  }
  void TearDown() override {
    stranger.end(SIGKILL);
    SoftGpuTest::TearDown();
  }
  // Leaves less than a MiB of the device.
  void fill() {
    const uint64_t left = 256 * kMiB - device_total() - kMiB / 2;
    const PartnerMessage answer = stranger.ask(PartnerOp::kAlloc, left);
    ASSERT_EQ(answer.result, CUDA_SUCCESS);
    filler = answer.value;
  }
  void make_room() { ASSERT_EQ(stranger.ask(PartnerOp::kFree, filler).result, CUDA_SUCCESS); }
  bool wanted(size_t count) {
    return eventually([&] { return broker->wants().size() >= count; });
  }
  Partner stranger;
  uint64_t filler = 0;
};

TEST_F(RoomTest, EveryAllocationWaitsForRoomAndThenSucceeds) {
  broker->room_hold();
  for (const Way& way : kWays) {
    if (!way.waits_for_room) continue;
    fill();
    const size_t before = broker->wants().size();
    uint64_t out = 0;
    std::atomic<bool> done{false};
    std::thread program([&] {
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      EXPECT_EQ(way.call(1, &out), CUDA_SUCCESS) << way.name;
      done = true;
    });
    ASSERT_TRUE(wanted(before + 1)) << way.name;
    const auto want = broker->wants().back();
    EXPECT_GE(want.bytes, kMiB) << way.name;
    EXPECT_LE(want.bytes, kContext) << way.name;
    EXPECT_EQ(broker->account().reserved_bytes.load(), 0u) << "nothing is kept from others";
    EXPECT_FALSE(done) << way.name;
    make_room();
    broker->room_answer(false);
    program.join();
    EXPECT_NE(out, 0u) << way.name;
    large_undo(way, out, context);
  }
}

TEST_F(RoomTest, WhenNoRoomCanBeMadeTheDriversErrorIsTold) {
  fill();
  for (const Way& way : kWays) {
    uint64_t out = 0x77;
    EXPECT_EQ(way.call(1, &out), CUDA_ERROR_OUT_OF_MEMORY) << way.name;
    EXPECT_EQ(out, 0x77u) << way.name;
    EXPECT_EQ(broker->account().refused.load(), 0u) << "it was not the quota: " << way.name;
  }
  EXPECT_EQ(broker->wants().size(),
            static_cast<size_t>(std::count_if(std::begin(kWays), std::end(kWays),
                                              [](const Way& way) { return way.waits_for_room; })));
  EXPECT_EQ(held(), kContext);
}

TEST_F(RoomTest, AnAnswerThatBroughtNoRoomIsFollowedByAnotherQuestion) {
  fill();
  broker->room_hold();
  CUdeviceptr p = 0;
  std::thread program([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&p, 8 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  });
  for (size_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(wanted(round));
    EXPECT_EQ(broker->wants().back().bytes, 8 * kMiB);
    EXPECT_EQ(broker->wants().back().room, 2 * (round - 1));
    broker->room_answer(false);
  }
  ASSERT_TRUE(wanted(4));
  broker->room_answer(true);
  program.join();
  // An old answer of that kind is none to the next one.
  std::thread later([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&p, 8 * kMiB), CUDA_SUCCESS);
  });
  ASSERT_TRUE(wanted(5));
  EXPECT_EQ(broker->wants().back().room & kRoomNone, kRoomNone);
  make_room();
  broker->room_answer(false);
  later.join();
}

TEST_F(RoomTest, TwoThatWaitDoNotKeepTheQuotaFromEachOther) {
  fill();
  broker->room_hold();
  // Either fits the quota beside the context, not both; the one that comes second is told so.
  std::atomic<int> good{0}, refused{0};
  std::vector<std::thread> programs;
  for (int i = 0; i < 2; ++i) {
    programs.emplace_back([&] {
      CUdeviceptr p = 0;
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      const CUresult result = cuMemAlloc(&p, 40 * kMiB);
      (result == CUDA_SUCCESS ? good : refused)++;
    });
  }
  ASSERT_TRUE(wanted(2));
  make_room();
  broker->room_answer(false);
  for (std::thread& program : programs) program.join();
  EXPECT_EQ(good, 1);
  EXPECT_EQ(refused, 1);
}

TEST_F(RoomTest, WithoutABrokerTheDriversErrorIsToldAfterTheGrace) {
  fill();
  broker->room_hold();
  std::atomic<bool> done{false};
  std::thread program([&] {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&p, 8 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
    done = true;
  });
  ASSERT_TRUE(wanted(1));
  broker->die();
  const auto begin = std::chrono::steady_clock::now();
  program.join();
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1500));
  EXPECT_TRUE(done);
}

TEST_F(RoomTest, ABrokerThatIsReplacedIsAskedAnew) {
  fill();
  broker->room_hold();
  std::thread program([&] {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&p, 8 * kMiB), CUDA_SUCCESS);
  });
  ASSERT_TRUE(wanted(1));
  auto next = std::make_unique<TestBroker>(options.quota, options.context_told);
  next->gpu_uuid_set(devices[0]->settings().uuid);
  next->room_hold();
  broker->die();
  next->path_take(*broker);
  broker.swap(next);
  ASSERT_TRUE(wanted(1));
  make_room();
  broker->room_answer(false);
  program.join();
  EXPECT_EQ(held(), kContext + 8 * kMiB);
}

TEST_F(RoomTest, NobodyWaitsWhileACaptureIsInProgress) {
  fill();
  broker->room_hold();
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc(&p, 8 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(broker->wants().empty());
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
}

class RoomSwapTest : public RoomTest {
 protected:
  RoomSwapTest() : RoomTest(true) {}
};

TEST_F(RoomSwapTest, AHoldIsAcknowledgedAndCarriedOutWhileAThreadWaitsForRoom) {
  CUdeviceptr mine = 0;
  ASSERT_EQ(cuMemAlloc(&mine, 8 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32(mine, 0x1234567, 2 * kMiB), CUDA_SUCCESS);
  fill();
  broker->room_hold();
  std::thread program([&] {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&p, 3 * kMiB), CUDA_SUCCESS);
  });
  ASSERT_TRUE(wanted(1));
  EXPECT_EQ(broker->wants().back().bytes, 4 * kMiB) << "granules";
  broker->lease_store(0);
  broker->hold_store(true);
  ASSERT_TRUE(broker->wait_held());
  ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldOut)));
  EXPECT_EQ(held(), kContext);
  make_room();
  broker->room_answer(false);
  ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldIn)));
  broker->hold_store(false);
  broker->lease_store(kLeaseOpen);
  program.join();
  unsigned word = 0;
  ASSERT_EQ(cuMemcpyDtoH(&word, mine + 4 * kMiB, 4), CUDA_SUCCESS);
  EXPECT_EQ(word, 0x1234567u);
}

}  // namespace

// The meter over a driver made of plain functions: unions of intervals, bursts, captures, lost
// contexts.
#include "interpose/meter.h"
#include "interpose/covered.h"

#include <gtest/gtest.h>

#include <thread>

#include <memory>
#include <random>
#include <vector>

namespace sluice::interpose {
namespace {

struct FakeEvent {
  double ns;
};
std::vector<std::unique_ptr<FakeEvent>> events;  // a context that ends leaves its own to the driver
double device_ns;
bool pending, capturing;
int touched_while_capturing;
CUresult record_result;

void driver_fill() {
  device_ns = 0;
  pending = capturing = false;
  touched_while_capturing = 0;
  events.clear();
  record_result = CUDA_SUCCESS;
  driver.cuEventCreate = [](CUevent* e, unsigned) {
    *e = reinterpret_cast<CUevent>(events.emplace_back(new FakeEvent{0}).get());
    return CUDA_SUCCESS;
  };
  driver.cuEventDestroy_v2 = [](CUevent e) {
    std::erase_if(events, [e](const auto& event) { return event.get() == static_cast<void*>(e); });
    return CUDA_SUCCESS;
  };
  driver.cuEventRecord = [](CUevent e, CUstream) {
    touched_while_capturing += capturing;
    reinterpret_cast<FakeEvent*>(e)->ns = device_ns;
    return record_result;
  };
  driver.cuEventQuery = [](CUevent) { return pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS; };
  driver.cuEventElapsedTime = [](float* ms, CUevent a, CUevent b) {
    *ms = static_cast<float>(
        (reinterpret_cast<FakeEvent*>(b)->ns - reinterpret_cast<FakeEvent*>(a)->ns) / 1e6);
    return CUDA_SUCCESS;
  };
  driver.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* s) {
    *s = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  driver.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
}

class MeterTest : public ::testing::Test {
 protected:
  MeterTest() {
    meter_reset_after_fork();
    driver_fill();
    device_totals[0] = DeviceTotals{};
    context = context_record(reinterpret_cast<CUcontext>(0x10), 0);
    stream = stream_record(*context, reinterpret_cast<CUstream>(0x20), thread_record());
  }
  // What the gate does for launches that the meter looks behind.
  void launch(StreamRecord& s, double ns) {
    if (s.launches() == s.done.launches && s.fence_count == 0)
      (void)fence_record(*context, s, true);
    device_ns += ns;
    ++s.owner_launches;
  }
  ContextRecord* context;
  StreamRecord* stream;
};

TEST(IntervalsTest, AgreeWithABruteForceUnion) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Intervals intervals;
    std::vector<bool> covered(200);
    double sum = 0;
    for (int i = 0; i < 12; ++i) {
      const int begin = static_cast<int>(random() % 190),
                end = begin + static_cast<int>(random() % 10);
      double expected = 0;
      for (int x = begin; x < end; ++x) {
        expected += covered[static_cast<size_t>(x)] ? 0 : 1;
        covered[static_cast<size_t>(x)] = true;
      }
      sum += expected;
      EXPECT_DOUBLE_EQ(intervals.add(begin, end), expected);
    }
    EXPECT_GE(sum, 0);
  }
}

TEST(IntervalsTest, ForgottenTimeIsNotCountedTwice) {
  Intervals intervals;
  double sum = 0;
  for (int i = 0; i < 100; ++i) sum += intervals.add(10 * i, 10 * i + 5);
  EXPECT_DOUBLE_EQ(sum, 500);
  EXPECT_DOUBLE_EQ(intervals.add(0, 5), 0);
}

TEST_F(MeterTest, ABurstCountsFromItsStartToItsLastFenceAndIdleTimeDoesNot) {
  launch(*stream, 1e6);
  launch(*stream, 2e6);
  fences_complete(*context, nullptr, false);
  fences_harvest(*context);
  EXPECT_EQ(device_totals[0].busy_ns, 3'000'000u);
  EXPECT_EQ(launches_in_flight(*context), 0u);
  device_ns += 50e6;  // the program thinks
  launch(*stream, 1e6);
  fences_complete(*context, nullptr, false);
  fences_harvest(*context);
  EXPECT_EQ(device_totals[0].busy_ns, 4'000'000u);
  EXPECT_EQ(device_totals[0].launches, 3u);
}

TEST_F(MeterTest, NothingIsDoneBeforeItsFenceHasPassed) {
  pending = true;
  launch(*stream, 1e6);
  fences_complete(*context, nullptr, false);
  fences_harvest(*context);
  EXPECT_EQ(launches_in_flight(*context), 1u);
  InFlight seen{};
  in_flight_add(*context, InFlight{}, &seen);
  EXPECT_EQ(seen.stream, stream);
  EXPECT_EQ(seen.launches, 1u);
  pending = false;
  const uint32_t generation = stream->generation;
  fences_harvest(*context);
  EXPECT_EQ(launches_in_flight(*context), 0u);
  EXPECT_NE(stream->generation, generation);
}

TEST_F(MeterTest, OverlappingStreamsAreCountedOnce) {
  StreamRecord* other = stream_record(*context, reinterpret_cast<CUstream>(0x30), thread_record());
  launch(*stream, 0);
  launch(*other, 5e6);
  fences_complete(*context, nullptr, false);
  fences_harvest(*context);
  EXPECT_EQ(device_totals[0].busy_ns, 5'000'000u);
}

TEST_F(MeterTest, ACapturingStreamIsNeverTouched) {
  launch(*stream, 1e6);
  capturing = true;
  captures_active = 1;
  fences_complete(*context, nullptr, true);
  EXPECT_EQ(touched_while_capturing, 0);
  EXPECT_EQ(launches_in_flight(*context), 1u);
  capturing = false;
  captures_active = 0;
  fences_complete(*context, nullptr, true);
  fences_harvest(*context);
  EXPECT_EQ(launches_in_flight(*context), 0u);
}

TEST_F(MeterTest, TheHelperLeavesAnotherThreadsDefaultStreamAlone) {
  StreamRecord* mine = stream_record(*context, CU_STREAM_PER_THREAD, thread_record());
  launch(*mine, 1e6);
  fences_complete(*context, nullptr, true);
  EXPECT_EQ(mine->fenced.launches, 0u);
  fences_complete(*context, nullptr, false);
  EXPECT_EQ(mine->fenced.launches, 1u);
}

TEST_F(MeterTest, ABrokenContextDoesNotStayInFlightForEver) {
  launch(*stream, 1e6);
  record_result = CUDA_ERROR_ILLEGAL_ADDRESS;
  fences_complete(*context, nullptr, true);
  EXPECT_EQ(launches_in_flight(*context), 0u);
}

TEST_F(MeterTest, LongRunsKeepTheirPrecisionAndTheirEvents) {
  for (int i = 0; i < 20000; ++i) {
    launch(*stream, 1e6);
    fences_complete(*context, nullptr, false);
    fences_harvest(*context);
    device_ns += 1e6;
  }
  // 40 s of device time in float milliseconds: a fixed base would be off by microseconds at every
  // interval.
  EXPECT_NEAR(static_cast<double>(device_totals[0].busy_ns), 20000e6, 20000e6 * 1e-3);
  EXPECT_LE(events.size(), 4u);
}

TEST_F(MeterTest, AWindowNarrowsTheBudget) {
  context->mean_ns = 100'000;
  stream->looked_ns = 1;
  stream->owner_launches = 100;
  stream->done.launches = 100;
  EXPECT_EQ(launch_budget(*context, *stream, {0, 2, 100'000, false}), 500'000);
  stream->owner_launches = 200;
  stream->done.launches = 198;
  EXPECT_EQ(launch_budget(*context, *stream, {300'000, 3, 100'000, false}), 100'000);
  // Streams with work of their own get their part.
  StreamRecord* other = stream_record(*context, reinterpret_cast<CUstream>(0x30), thread_record());
  other->owner_launches = 1;
  stream->owner_launches = 201;
  EXPECT_EQ(launch_budget(*context, *stream, {600'000, 4, 100'000, false}), 100'000);
}

TEST_F(MeterTest, ADestroyedStreamStaysUntilItsFencesHavePassed) {
  pending = true;
  launch(*stream, 1e6);
  const uint32_t generation = stream->generation;
  stream_forget(*context, stream->stream);
  EXPECT_NE(stream->generation, generation);
  fences_harvest(*context);
  EXPECT_GT(launches_in_flight(*context), 0u);
  pending = false;
  fences_harvest(*context);
  EXPECT_EQ(context->streams, nullptr);
  EXPECT_EQ(device_totals[0].busy_ns, 1'000'000u);
}

}  // namespace
// A map of its own for each test: several processes of a tenant look into one.
class CoveredTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBit = 1ull << sluice::interpose::kCoveredBitShift;
  static constexpr uint64_t kLap =
      kBit * sluice::interpose::kCoveredBitsPerWord * sluice::protocol::kChargedWords;
  double take(uint64_t begin_bit, uint64_t end_bit) {
    return sluice::interpose::covered_take(map, kStart + begin_bit * kBit, kStart + end_bit * kBit);
  }
  static constexpr uint64_t kStart = 1000 * kLap;
  sluice::protocol::AtomicU64 map[sluice::protocol::kChargedWords] = {};
};

TEST_F(CoveredTest, AMomentIsChargedOnce) {
  EXPECT_EQ(take(100, 200), 1);
  EXPECT_EQ(take(100, 200), 0);
  EXPECT_EQ(take(120, 150), 0);
  // In front and behind, and what several covered in between.
  EXPECT_EQ(take(50, 150), 0.5);
  EXPECT_EQ(take(0, 400), (50.0 + 200.0) / 400);
}

// However the pieces lie to the bits, who saw the same time in one piece finds all of it charged.
TEST_F(CoveredTest, PiecesThatFollowEachOtherLeaveNoneOut) {
  constexpr uint64_t kPiece = kBit * 13 / 10;
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(sluice::interpose::covered_take(map, kStart + i * kPiece, kStart + (i + 1) * kPiece),
              1);
  }
  EXPECT_EQ(sluice::interpose::covered_take(map, kStart, kStart + 1000 * kPiece), 0);
}

TEST_F(CoveredTest, IntervalsThatFollowEachOtherAreChargedWhole) {
  for (uint64_t i = 0; i < 100'000; ++i) {
    const uint64_t begin_ns = kStart + i * 333'333, end_ns = begin_ns + 333'333;
    ASSERT_EQ(sluice::interpose::covered_take(map, begin_ns, end_ns), 1) << i;
  }
}

// In whatever order they are learned.
TEST_F(CoveredTest, AnIntervalThatIsLearnedLate) {
  EXPECT_EQ(take(300, 400), 1);
  EXPECT_EQ(take(0, 100), 1);
  EXPECT_EQ(take(0, 400), 0.5);
}

TEST_F(CoveredTest, WhatIsShorterThanTheMapSeesIsChargedWhole) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(sluice::interpose::covered_take(map, kStart + 1, kStart + kBit), 1);
  }
}

TEST_F(CoveredTest, WhatIsOlderThanTheMapIsChargedWhole) {
  constexpr uint64_t kLapBits = kLap / kBit;
  EXPECT_EQ(take(10, 100), 1);
  EXPECT_EQ(take(10 + kLapBits, 100 + kLapBits), 1);
  EXPECT_EQ(take(10, 100), 1);  // the words speak of a later time by now
  EXPECT_EQ(take(10 + kLapBits, 100 + kLapBits), 0);
  // A kernel of eight laps: what the map can say of its end is said.
  EXPECT_EQ(take(20 * kLapBits, 28 * kLapBits + 1), 1);
  EXPECT_NEAR(take(20 * kLapBits, 28 * kLapBits + 1), 7.0 / 8, 0.001);
}

TEST_F(CoveredTest, TwoAtOnceChargeTheUnion) {
  constexpr uint64_t kIntervals = 160;  // less than a lap
  static_assert(kIntervals * 101 < kLap / kBit);
  for (int repeat = 0; repeat < 50; ++repeat) {
    double charged[2] = {};
    const auto take_all = [&](int which) {
      for (uint64_t i = 0; i < kIntervals; ++i) charged[which] += take(i * 101, i * 101 + 101);
    };
    std::thread other(take_all, 0);
    take_all(1);
    other.join();
    ASSERT_NEAR(charged[0] + charged[1], kIntervals, 1e-6);
    for (auto& word : map) word.store(0);
  }
}

}  // namespace sluice::interpose

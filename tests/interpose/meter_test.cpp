// The meter over a driver made of plain functions: bursts, captures, lost contexts.
#include "interpose/meter.h"

#include <gtest/gtest.h>

#include <thread>

#include <algorithm>
#include <memory>
#include <vector>

namespace sluice::interpose {
namespace {

struct FakeEvent {
  double ns;
  bool of_context;
};
std::vector<std::unique_ptr<FakeEvent>> events;  // a context that ends leaves its own to the driver
double device_ns;
double pending_from_ns;  // events later than this have not passed
bool pending, capturing, stream_busy;
unsigned stream_flags;
int touched_while_capturing;
CUresult record_result, query_result;
// Of contexts: recorded so often, with what result, not passed yet, with what time.
constexpr double kTrueTime = -1, kNoTime = -2;
int contexts_recorded;
CUresult context_record_result;
bool contexts_pending;
double context_event_ns;

void driver_fill() {
  device_ns = 0;
  pending_from_ns = 1e30;
  pending = capturing = stream_busy = false;
  stream_flags = CU_STREAM_DEFAULT;
  touched_while_capturing = 0;
  events.clear();
  record_result = context_record_result = query_result = CUDA_SUCCESS;
  contexts_recorded = 0;
  contexts_pending = false;
  context_event_ns = kTrueTime;
  driver.cuCtxRecordEvent = [](CUcontext, CUevent e) {
    ++contexts_recorded;
    *reinterpret_cast<FakeEvent*>(e) = {
        context_event_ns == kTrueTime ? device_ns : context_event_ns, true};
    return context_record_result;
  };
  driver.cuEventCreate = [](CUevent* e, unsigned) {
    *e = reinterpret_cast<CUevent>(events.emplace_back(new FakeEvent{0, false}).get());
    return CUDA_SUCCESS;
  };
  driver.cuEventDestroy_v2 = [](CUevent e) {
    std::erase_if(events, [e](const auto& event) { return event.get() == static_cast<void*>(e); });
    return CUDA_SUCCESS;
  };
  driver.cuEventRecord = [](CUevent e, CUstream) {
    touched_while_capturing += capturing;
    *reinterpret_cast<FakeEvent*>(e) = {device_ns, false};
    return record_result;
  };
  driver.cuEventQuery = [](CUevent e) {
    const auto& event = *reinterpret_cast<FakeEvent*>(e);
    const bool waits =
        pending || event.ns > pending_from_ns || (contexts_pending && event.of_context);
    return waits ? CUDA_ERROR_NOT_READY : query_result;
  };
  driver.cuEventElapsedTime = [](float* ms, CUevent a, CUevent b) {
    if (reinterpret_cast<FakeEvent*>(b)->ns == kNoTime) return CUDA_ERROR_INVALID_HANDLE;
    *ms = static_cast<float>(
        (reinterpret_cast<FakeEvent*>(b)->ns - reinterpret_cast<FakeEvent*>(a)->ns) / 1e6);
    return CUDA_SUCCESS;
  };
  driver.cuStreamQuery = [](CUstream) {
    touched_while_capturing += capturing;
    return stream_busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
  };
  driver.cuStreamGetFlags = [](CUstream, unsigned* flags) {
    *flags = stream_flags;
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
  // The device's clock is the host's, and it is so much earlier.
  void clocks_agree(double ago_ns) {
    device_ns = static_cast<double>(clock_now_ns()) - ago_ns;
    context->base =
        reinterpret_cast<CUevent>(events.emplace_back(new FakeEvent{device_ns, false}).get());
    context->base_ns = device_ns;
    context->host_ahead_ns = 0.1;  // 0 is for unknown
    context->host_known_ns = device_ns;
  }
  ContextRecord* context;
  StreamRecord* stream;
};

TEST_F(MeterTest, ABurstCountsFromItsStartToItsLastFenceAndIdleTimeDoesNot) {
  launch(*stream, 1e6);
  launch(*stream, 2e6);
  fences_complete(*context, nullptr, Others::kLeave);
  fences_harvest(*context);
  EXPECT_EQ(device_totals[0].busy_ns, 3'000'000u);
  EXPECT_EQ(launches_in_flight(*context), 0u);
  device_ns += 50e6;  // the program thinks
  launch(*stream, 1e6);
  fences_complete(*context, nullptr, Others::kLeave);
  fences_harvest(*context);
  EXPECT_EQ(device_totals[0].busy_ns, 4'000'000u);
  EXPECT_EQ(device_totals[0].launches, 3u);
}

TEST_F(MeterTest, NothingIsDoneBeforeItsFenceHasPassed) {
  pending = true;
  launch(*stream, 1e6);
  fences_complete(*context, nullptr, Others::kLeave);
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
  fences_complete(*context, nullptr, Others::kLeave);
  fences_harvest(*context);
  EXPECT_EQ(device_totals[0].busy_ns, 5'000'000u);
}

// Each stream's kernel of 10 ms ends, all at the same time.
void round_learn(Overlap& overlap, int streams) {
  for (int i = 0; i < streams; ++i) overlap.learn(10e6, i == 0 ? 10e6 : 0);
}

TEST(OverlapTest, IsExactForKernelsLongerThanItsMemory) {
  Overlap overlap{};
  for (int i = 0; i < 10; ++i) round_learn(overlap, 16);
  EXPECT_NEAR(overlap.of(32), 16, 0.01);
}

TEST(OverlapTest, ManyMoreStreamsAreLearnedWithinTwoRounds) {
  Overlap overlap{};
  for (int i = 0; i < 10; ++i) round_learn(overlap, 2);
  EXPECT_NEAR(overlap.of(32), 2, 0.01);
  for (int i = 0; i < 2; ++i) round_learn(overlap, 16);
  EXPECT_GE(overlap.of(32), 12);
}

TEST_F(MeterTest, ACapturingStreamIsNeverTouched) {
  launch(*stream, 1e6);
  capturing = true;
  captures_active = 1;
  fences_complete(*context, nullptr, Others::kFence);
  EXPECT_EQ(touched_while_capturing, 0);
  EXPECT_EQ(launches_in_flight(*context), 1u);
  capturing = false;
  captures_active = 0;
  fences_complete(*context, nullptr, Others::kFence);
  fences_harvest(*context);
  EXPECT_EQ(launches_in_flight(*context), 0u);
}

// What is behind the work of another thread's default stream is behind the whole context's.
class TailsTest : public MeterTest {
 protected:
  void SetUp() override {
    context->tails = Tails::kCan;
    mine = stream_record(*context, CU_STREAM_PER_THREAD, thread_record());
  }
  // By a thread that did not launch.
  void elsewhere_complete(Others others) {
    std::thread([&] {
      (void)thread_record();
      fences_complete(*context, nullptr, others);
    }).join();
  }
  StreamRecord* mine = nullptr;
};

TEST_F(TailsTest, AnotherThreadFencesTheContext) {
  launch(*mine, 1e6);
  elsewhere_complete(Others::kLeave);
  EXPECT_EQ(mine->fenced.launches, 0u);
  const uint32_t generation = mine->generation;
  elsewhere_complete(Others::kFence);
  EXPECT_EQ(contexts_recorded, 1);
  EXPECT_EQ(mine->fenced.launches, 1u);
  EXPECT_TRUE(mine->awaits_context());
  EXPECT_NE(mine->generation, generation) << "its thread's next launch would not look";
  device_ns += 50e6;
  fences_harvest(*context);
  EXPECT_EQ(launches_in_flight(*context), 0u);
  EXPECT_EQ(device_totals[0].busy_ns, 1'000'000u);
  EXPECT_EQ(context->mean_ns, 0) << "it says nothing of how long a kernel takes";
}

TEST_F(TailsTest, TheThreadItselfFencesItsStream) {
  launch(*mine, 1e6);
  fences_complete(*context, nullptr, Others::kLeave);
  EXPECT_EQ(mine->fenced.launches, 1u);
  EXPECT_FALSE(mine->awaits_context());
  EXPECT_EQ(contexts_recorded, 0);
}

TEST_F(TailsTest, WithoutEventsOfContextsEveryLaunchIsFenced) {
  context->tails = Tails::kUnknown;
  context_record_result = CUDA_ERROR_NOT_FOUND;
  context->mean_ns = 1000;
  mine->looked_ns = 1;
  mine->owner_launches = 100;
  EXPECT_EQ(launch_budget(*context, *mine, {0, 2, 1000, false}), 0);
  EXPECT_EQ(mine->fenced.launches, 100u);
  EXPECT_EQ(context->tails, Tails::kCannot);
  mine->owner_launches = 101;
  elsewhere_complete(Others::kFence);
  EXPECT_EQ(mine->fenced.launches, 100u);
  EXPECT_EQ(launch_budget(*context, *mine, {0, 3, 1000, false}), 0);
  EXPECT_EQ(mine->fenced.launches, 101u);
  EXPECT_EQ(contexts_recorded, 1) << "it is asked for once";
}

TEST_F(TailsTest, WithThemABurstIsFencedTogether) {
  context->tails = Tails::kUnknown;
  context->mean_ns = 1000;
  mine->looked_ns = 1;
  mine->owner_launches = 100;
  EXPECT_EQ(launch_budget(*context, *mine, {0, 2, 1000, false}), 500'000);
  EXPECT_EQ(mine->fenced.launches, 0u);
  EXPECT_EQ(context->tails, Tails::kCan);
}

// An event of a context breaks every capture in it, however its streams came into one.
TEST_F(TailsTest, NotDuringACapture) {
  context->mean_ns = 1000;
  const CUstream capturing_stream = reinterpret_cast<CUstream>(0x40);
  const CUcontext elsewhere = reinterpret_cast<CUcontext>(0x11);
  const struct {
    CUcontext begun_under;
    bool spreads, fenced, fenced_before;
  } cases[] = {{context->context, false, false, true},
               {elsewhere, false, true, true},
               {elsewhere, true, false, true}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.spreads);
    ASSERT_TRUE(capture_begins(c.begun_under, capturing_stream));
    if (c.spreads) captures_spread();
    launch(*mine, 1e6);
    mine->looked_ns = 1;
    elsewhere_complete(Others::kFence);
    EXPECT_EQ(mine->launches() == mine->fenced.launches, c.fenced);
    const int32_t budget = launch_budget(*context, *mine, {0, 2, 1000, false});
    EXPECT_EQ(budget > 0, c.fenced);
    launch(*mine, 1e6);
    elsewhere_complete(Others::kFenceBeforeCapture);
    EXPECT_EQ(mine->launches() == mine->fenced.launches, c.fenced_before);
    capture_ended(capturing_stream);
    fences_complete(*context, nullptr, Others::kFence);
    fences_harvest(*context);
  }
  // With the last capture its spreading is over.
  ASSERT_TRUE(capture_begins(elsewhere, capturing_stream));
  EXPECT_EQ(captures_of(context->context), 0u);
  capture_ended(capturing_stream);
}

// The per-thread stream of each context is another one, and all have the same handle.
TEST_F(TailsTest, NorBehindTheEndOfAnothersCaptureOfItsPerThreadStream) {
  static CUcontext current;
  driver.cuCtxGetCurrent = [](CUcontext* out) {
    *out = current;
    return CUDA_SUCCESS;
  };
  const CUcontext elsewhere = reinterpret_cast<CUcontext>(0x11);
  for (const CUcontext one : {context->context, elsewhere}) {
    current = one;
    ASSERT_TRUE(capture_begins(one, CU_STREAM_PER_THREAD));
  }
  EXPECT_TRUE(capture_is_origin(CU_STREAM_PER_THREAD));
  capture_ended(CU_STREAM_PER_THREAD);
  EXPECT_FALSE(capture_is_origin(CU_STREAM_PER_THREAD));
  EXPECT_EQ(captures_of(elsewhere), 0u);
  EXPECT_EQ(captures_of(context->context), 1u);
  current = context->context;
  EXPECT_TRUE(capture_is_origin(CU_STREAM_PER_THREAD));
  capture_ended(CU_STREAM_PER_THREAD);
  EXPECT_EQ(load_acquire(captures_active), 0u);
}

// Other streams of the context may be busy for long.
TEST_F(TailsTest, AFenceOfItsOwnTellsTheEndBeforeTheContextsPasses) {
  launch(*mine, 1e6);
  elsewhere_complete(Others::kFence);
  contexts_pending = true;
  launch(*mine, 2e6);
  fences_complete(*context, nullptr, Others::kLeave);
  fences_harvest(*context);
  EXPECT_EQ(launches_in_flight(*context), 0u);
  EXPECT_EQ(device_totals[0].busy_ns, 3'000'000u);
  EXPECT_EQ(mine->fence_count, 0u);
}

TEST_F(TailsTest, AnEventOfAContextThatHasNoTimeEndedWhenItWasSeen) {
  launch(*mine, 1e6);
  fences_complete(*context, nullptr, Others::kLeave);
  fences_harvest(*context);
  ASSERT_EQ(device_totals[0].busy_ns, 1'000'000u);
  for (const double wrong_ns : {1.0, 1e18, kNoTime}) {
    SCOPED_TRACE(wrong_ns);
    const uint64_t before_ns = device_totals[0].busy_ns;
    // As on a device whose clock is the host's.
    device_ns = static_cast<double>(clock_now_ns());
    mine->start_recorded_ns = static_cast<uint64_t>(device_ns);
    context->host_ahead_ns = 0;
    context->host_known_ns = 0;
    launch(*mine, 0);
    mine->start_recorded_ns = 0;
    context_event_ns = wrong_ns;
    elsewhere_complete(Others::kFence);
    fences_harvest(*context);
    const auto now_ns = static_cast<double>(clock_now_ns());
    const auto grown_ns = static_cast<double>(device_totals[0].busy_ns - before_ns);
    EXPECT_GT(grown_ns, 0);
    EXPECT_LE(grown_ns, now_ns - device_ns + 1000);
    device_ns = now_ns;
  }
}

TEST_F(TailsTest, TheStreamOfAThreadThatHasEndedIsForgottenWithItsWork) {
  StreamRecord* theirs = nullptr;
  std::thread([&] {
    theirs = stream_record(*context, CU_STREAM_PER_THREAD, thread_record());
    launch(*theirs, 1e6);
  }).join();
  fences_harvest(*context);
  EXPECT_EQ(launches_in_flight(*context), 1u);
  // A new thread may have the old one's record, and has another stream.
  std::thread([&] {
    StreamRecord* other = stream_record(*context, CU_STREAM_PER_THREAD, thread_record());
    EXPECT_NE(other, theirs);
    EXPECT_EQ(other->launches(), 0u);
  }).join();
  fences_complete(*context, nullptr, Others::kFence);
  EXPECT_EQ(contexts_recorded, 1);
  fences_harvest(*context);
  EXPECT_EQ(launches_in_flight(*context), 0u);
  for (const StreamRecord* s = context->streams; s != nullptr; s = s->next) {
    EXPECT_NE(s, theirs);
    EXPECT_TRUE(!s->per_thread || s == mine);
  }
}

TEST_F(MeterTest, ABrokenContextDoesNotStayInFlightForEver) {
  launch(*stream, 1e6);
  record_result = CUDA_ERROR_ILLEGAL_ADDRESS;
  fences_complete(*context, nullptr, Others::kFence);
  EXPECT_EQ(launches_in_flight(*context), 0u);
}

// What was fenced before the fault says that less is done than is.
TEST_F(MeterTest, NorDoesOneWithFencesThatHaveNotPassed) {
  for (const CUresult fault : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_HANDLE}) {
    pending = true;
    launch(*stream, 1e6);
    fences_complete(*context, nullptr, Others::kFence);
    launch(*stream, 1e6);
    record_result = fault;
    fences_complete(*context, nullptr, Others::kFence);
    pending = false;
    fences_harvest(*context);
    EXPECT_EQ(launches_in_flight(*context), 0u);
    record_result = CUDA_SUCCESS;
  }
  // Want of memory is no fault: the work goes on.
  launch(*stream, 1e6);
  record_result = CUDA_ERROR_OUT_OF_MEMORY;
  fences_complete(*context, nullptr, Others::kFence);
  fences_harvest(*context);
  EXPECT_EQ(launches_in_flight(*context), 1u);
  record_result = CUDA_SUCCESS;
  fences_complete(*context, nullptr, Others::kFence);
  fences_harvest(*context);
  EXPECT_EQ(launches_in_flight(*context), 0u);
}

// Between its launches the stream did something else.
TEST_F(MeterTest, WhatLiesBetweenLaunchesIsNotCharged) {
  launch(*stream, 1e6);
  stream_interrupt(*context, stream->stream);
  EXPECT_TRUE(stream->interrupted);
  EXPECT_EQ(stream->fenced.launches, 1u);
  device_ns += 50e6;
  stream->interrupted = false;
  (void)fence_record(*context, *stream, true);
  launch(*stream, 2e6);
  fences_complete(*context, nullptr, Others::kLeave);
  fences_harvest(*context);
  EXPECT_EQ(device_totals[0].busy_ns, 3'000'000u);
  // An idle stream begins anew anyway.
  stream_interrupt(*context, stream->stream);
  EXPECT_FALSE(stream->interrupted);
}

// A long kernel in one stream, and in another more short ones by themselves than intervals are
// remembered: it is charged whole, whether it has ended when the oldest are forgotten or goes on.
TEST_F(MeterTest, MoreShortWorkThanIsRememberedBesideOneThatTakesLong) {
  for (const bool is_over : {false, true}) {
    SCOPED_TRACE(is_over);
    StreamRecord* other =
        stream_record(*context, reinterpret_cast<CUstream>(0x30), thread_record());
    const double begin_ns = device_ns;
    const uint64_t before_ns = device_totals[0].busy_ns;
    const double end_ns = begin_ns + 30e3 * (2 * kIntervalsMax + 10);
    launch(*stream, 0);
    fences_harvest(*context);
    device_ns = end_ns;
    fences_complete(*context, stream, Others::kLeave);
    pending_from_ns = end_ns - 1;
    device_ns = begin_ns;
    for (unsigned i = 0; i < 2 * kIntervalsMax; ++i) {
      launch(*other, 10e3);
      fences_complete(*context, other, Others::kLeave);
      fences_harvest(*context);
      device_ns += 20e3;
      // Seen to have ended by the looks into the other stream only.
      if (is_over && i == kIntervalsMax - 2) pending_from_ns = 1e30;
    }
    pending_from_ns = 1e30;
    device_ns = end_ns;
    fences_harvest(*context);
    const auto charged_ns = static_cast<double>(device_totals[0].busy_ns - before_ns);
    EXPECT_NEAR(charged_ns, end_ns - begin_ns, 1e3);
    device_ns += 1e6;
  }
}

// A start fence that had to wait for another stream passes later than the launch behind it came.
TEST_F(MeterTest, AStartThatHadToWaitLosesNothing) {
  constexpr double kAheadNs = 1e9, kLateNs = 40e3;
  for (const double waited_ns : {0.0, 25e3, 1e6}) {
    SCOPED_TRACE(waited_ns);
    const uint64_t before_ns = device_totals[0].busy_ns;
    const double recorded_ns = device_ns;
    stream->start_recorded_ns = static_cast<uint64_t>(recorded_ns + kAheadNs);
    device_ns += waited_ns;
    (void)fence_record(*context, *stream, true);
    stream->start_recorded_ns = 0;
    stream->start_late_ns = kLateNs;
    stream->start_given_ns = static_cast<uint64_t>(recorded_ns + kLateNs + kAheadNs);
    const double begin_ns = std::max(device_ns, recorded_ns + kLateNs);
    device_ns = begin_ns + 100e3;
    ++stream->owner_launches;
    fences_complete(*context, nullptr, Others::kLeave);
    fences_harvest(*context);
    EXPECT_NEAR(static_cast<double>(device_totals[0].busy_ns - before_ns), 100e3, 1e3);
    device_ns += 1e6;
  }
}

// What a process that was stopped, or got no processor, has left without a fence.
class UnseenTest : public MeterTest {
 protected:
  static constexpr double kLaunchNs = 1e6, kStoppedNs = 5e9;
  // Three launches that nothing is behind, and nobody looked for five seconds since.
  void SetUp() override {
    clocks_agree(kStoppedNs);
    stream->start_recorded_ns = static_cast<uint64_t>(device_ns);
    for (int i = 0; i < 3; ++i) launch(*stream, kLaunchNs);
    fences_harvest(*context);
    context->mean_ns = kLaunchNs;
    context->looked_ns = static_cast<uint64_t>(device_ns);
    stream->seen = stream->launches();
    device_ns = static_cast<double>(clock_now_ns());
  }
  double charged_ns() { return static_cast<double>(device_totals[0].busy_ns); }
};

TEST_F(UnseenTest, WhatEndedMeanwhileIsNotChargedForAllOfIt) {
  fences_complete(*context, nullptr, Others::kLeave);
  fences_harvest(*context);
  EXPECT_GE(charged_ns(), 3 * kLaunchNs);
  EXPECT_LE(charged_ns(), 9 * kLaunchNs + kUnseenMarginNs + 1e6);
  EXPECT_EQ(launches_in_flight(*context), 0u);
}

TEST_F(UnseenTest, WhatIsThereYetIsChargedWhole) {
  stream_busy = true;
  fences_complete(*context, nullptr, Others::kLeave);
  fences_harvest(*context);
  EXPECT_GE(charged_ns(), kStoppedNs);
}

// The program goes on sooner than anybody looks.
TEST_F(UnseenTest, WhatIsThereAnewIsChargedFromThere) {
  stream_busy = true;
  ++stream->owner_launches;
  fences_complete(*context, nullptr, Others::kLeave);
  device_ns += kLaunchNs;
  ++stream->owner_launches;
  fences_complete(*context, nullptr, Others::kLeave);
  fences_harvest(*context);
  EXPECT_GE(charged_ns(), 4 * kLaunchNs);
  EXPECT_LE(charged_ns(), 12 * kLaunchNs + kUnseenMarginNs + 1e6);
  EXPECT_EQ(launches_in_flight(*context), 0u);
}

// A drain would not wait for it.
TEST_F(UnseenTest, WhatAnotherThreadLaunchesMeanwhileIsNotOver) {
  static StreamRecord* launched_into;
  launched_into = stream;
  driver.cuStreamQuery = [](CUstream) {
    ++launched_into->foreign_launches;
    return CUDA_SUCCESS;
  };
  EXPECT_TRUE(unseen_end(*context, *stream));
  EXPECT_EQ(launches_in_flight(*context), 1u);
}

// Of which nobody knows how long it takes.
TEST_F(UnseenTest, WhatWasNeverMeasuredIsChargedWhole) {
  context->mean_ns = 0;
  fences_complete(*context, nullptr, Others::kLeave);
  fences_harvest(*context);
  EXPECT_GE(charged_ns(), kStoppedNs);
}

TEST_F(UnseenTest, ACapturingStreamIsNotAsked) {
  capturing = true;
  captures_active = 1;
  fences_complete(*context, nullptr, Others::kLeave);
  EXPECT_EQ(touched_while_capturing, 0);
  capturing = false;
  captures_active = 0;
}

// A kernel that faults was there until then: seen by the fences before and behind it, by the one
// behind it, or where none can be put any more.
TEST_F(MeterTest, AKernelThatFailsIsChargedUntilItFails) {
  constexpr double kRanNs = 30e6;
  for (int seen = 0; seen < 3; ++seen) {
    SCOPED_TRACE(seen);
    clocks_agree(kRanNs);
    context->intervals.clear();  // the same time again
    const uint64_t before_ns = device_totals[0].busy_ns;
    stream->start_recorded_ns = static_cast<uint64_t>(device_ns);
    launch(*stream, 0);
    stream->start_recorded_ns = 0;
    if (seen > 0) fences_harvest(*context);
    if (seen == 2) record_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    fences_complete(*context, nullptr, Others::kLeave);
    query_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    fences_harvest(*context);
    const auto charged_ns = static_cast<double>(device_totals[0].busy_ns - before_ns);
    EXPECT_GE(charged_ns, kRanNs);
    EXPECT_LE(charged_ns, static_cast<double>(clock_now_ns()) - device_ns);
    EXPECT_EQ(launches_in_flight(*context), 0u);
    record_result = query_result = CUDA_SUCCESS;
  }
}

// What is in a stream that blocks is waited for by the legacy stream's next launch, and by way of
// it by all others that block.
TEST_F(MeterTest, ByWayOfTheLegacyStreamOthersWait) {
  StreamRecord* legacy = stream_record(*context, nullptr, thread_record());
  EXPECT_TRUE(context->legacy_used);
  for (const bool is_blocking : {true, false}) {
    SCOPED_TRACE(is_blocking);
    stream->blocks = StreamRecord::Blocks::kUnknown;
    stream_flags = is_blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    launch(*legacy, 1e6);
    launch(*stream, 1e6);
    legacy_interrupt(*context);
    EXPECT_TRUE(legacy->interrupted);
    EXPECT_FALSE(stream->interrupted) << "its next launch does not wait yet";
    EXPECT_TRUE(context->legacy_waits);
    blocking_interrupt(*context);
    EXPECT_EQ(stream->interrupted, is_blocking);
    EXPECT_FALSE(context->legacy_waits);
    legacy->interrupted = stream->interrupted = false;
    fences_complete(*context, nullptr, Others::kLeave);
    fences_harvest(*context);
  }
}

TEST_F(MeterTest, TheLegacyStreamStandsBetweenTheLaunchesOfOthers) {
  for (const CUstream legacy : {CUstream{nullptr}, CU_STREAM_LEGACY}) {
    launch(*stream, 1e6);
    stream_interrupt(*context, legacy);
    EXPECT_TRUE(stream->interrupted);
    stream->interrupted = false;
    stream_interrupt(*context, reinterpret_cast<CUstream>(0x99));
    EXPECT_FALSE(stream->interrupted);
    fences_harvest(*context);
  }
}

// A stream that was destroyed without a fence is waited for by an event of the context.
TEST_F(MeterTest, ADestroyedStreamThatCouldNotBeFenced) {
  launch(*stream, 1e6);
  record_result = CUDA_ERROR_OUT_OF_MEMORY;
  stream_forget(*context, stream->stream);
  record_result = CUDA_SUCCESS;
  EXPECT_EQ(launches_in_flight(*context), 1u);
  fences_complete(*context, nullptr, Others::kFence);
  EXPECT_EQ(contexts_recorded, 2);  // whether there are such, and this one
  fences_harvest(*context);
  EXPECT_EQ(launches_in_flight(*context), 0u);
  EXPECT_EQ(context->streams, nullptr);
}

TEST_F(MeterTest, LongRunsKeepTheirPrecisionAndTheirEvents) {
  for (int i = 0; i < 20000; ++i) {
    launch(*stream, 1e6);
    fences_complete(*context, nullptr, Others::kLeave);
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
}  // namespace sluice::interpose

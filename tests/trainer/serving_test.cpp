// The serving loop on a clock of the test's own: batching, dropping, several models, and that a
// server that stands still is charged for it.
#include "trainer/infer/serving.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace sluice::train {
namespace {

constexpr Nanos kMilli = kNanosPerMilli;
constexpr Nanos kAnyLength = 1000 * kNanosPerSecond;

/// A batch takes base + each x size; once, from stall_at on, stall longer.
class FakeEngine final : public ServingEngine {
 public:
  Nanos now() override { return now_; }
  bool sleep_until(Nanos at) override {
    if (stop_at > 0 && std::max(at, now_) >= stop_at) {
      now_ = std::max(now_, stop_at);
      return true;
    }
    now_ = std::max(now_, at);
    return false;
  }
  void answer(std::span<const Request> batch) override {
    if (stall > 0 && now_ >= stall_at) now_ += std::exchange(stall, 0);
    now_ += base + each * static_cast<Nanos>(batch.size());
    models.push_back(batch.front().model);
    sizes.push_back(batch.size());
    for (const Request& request : batch) EXPECT_EQ(request.model, batch.front().model);
  }
  void served(std::span<const Request> batch) override { told_served += batch.size(); }
  void dropped(const Request& request) override { told_dropped.push_back(request.id); }

  Nanos base = kMilli, each = 0, stall = 0, stall_at = 0, stop_at = 0;
  std::vector<std::uint32_t> models, told_dropped;
  std::vector<std::size_t> sizes;
  std::size_t told_served = 0;

 private:
  Nanos now_ = 0;
};

std::vector<Arrival> at_millis(const std::vector<double>& times) {
  std::vector<Arrival> out;
  for (const double at : times) out.push_back({static_cast<Nanos>(at * 1e6), 0});
  return out;
}

/// One every `gap` ms.
std::vector<Arrival> regular(int count, double gap) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) times.push_back(i * gap);
  return at_millis(times);
}

ServingRecord serve(const std::vector<Arrival>& arrivals, const BatchPolicy& policy,
                    FakeEngine& engine, std::size_t models = 1, Nanos drain = kAnyLength) {
  const ServingRecord out = schedule_serve(arrivals, 0, models, policy, drain, engine);
  EXPECT_EQ(engine.told_served, out.served.size());
  EXPECT_EQ(engine.told_dropped.size(), out.dropped.size());
  return out;
}

// 5,000 requests, one every 2 ms, each served in 1 ms by itself; the server stands still for 1 s.
// The 500 that arrive meanwhile wait for what is left of the second, and the queue empties at 1 ms
// a request: the request k ms after the stall began waits 1000 - k / 2.
TEST(ServingLoop, AStalledServerIsChargedForAllWhoArrivedMeanwhile) {
  FakeEngine engine;
  engine.stall = 1000 * kMilli;
  engine.stall_at = 1000 * kMilli;
  const auto record = serve(regular(5000, 2), {.batch_max = 1}, engine);
  ASSERT_EQ(record.served.size(), 5000u);
  const auto over = [&](Nanos limit, bool from_start) {
    return std::count_if(record.served.begin(), record.served.end(), [&](const Request& r) {
      return r.done_ns - (from_start ? r.start_ns : r.arrival_ns) > limit;
    });
  };
  // What a client that waits for each answer before it asks again would have seen: one slow
  // request.
  EXPECT_EQ(over(100 * kMilli, true), 1);
  // 1000 - k / 2 > 100 for k < 1800, and there is one request for every 2 ms.
  EXPECT_NEAR(static_cast<double>(over(100 * kMilli, false)), 900, 2);
  for (const Request& request : record.served) {
    const Nanos since = request.arrival_ns - 1000 * kMilli;
    if (since < 0 || since > 1900 * kMilli) continue;
    EXPECT_NEAR(millis_of(request.latency_ns()), 1001 - millis_of(since) / 2, 1.0);
  }
  const LatencySummary sum = latency_summary(record, kAllModels, 100 * kMilli, 10);
  EXPECT_EQ(sum.p50_ns, kMilli);
  // 1 % of 5,000 are the 50 slowest, which arrived in the first 100 ms of the stall.
  EXPECT_NEAR(millis_of(sum.p99_ns), 950, 2);
  EXPECT_NEAR(millis_of(sum.p999_ns), 996, 2);
  EXPECT_NEAR(sum.attainment, 4100.0 / 5000, 0.001);
  EXPECT_NEAR(sum.goodput_per_s, 410, 1);
}

TEST(ServingLoop, WaitsForABatchToFillAndNotLonger) {
  FakeEngine engine;
  // Three come together and fill a batch at 2 ms; one alone waits its 10 ms, until 30.
  const auto record =
      serve(at_millis({0, 1, 2, 20}), {.batch_max = 3, .wait_ns = 10 * kMilli}, engine);
  EXPECT_EQ(engine.sizes, (std::vector<std::size_t>{3, 1}));
  EXPECT_EQ(record.served[0].start_ns, 2 * kMilli);
  EXPECT_EQ(record.served[0].done_ns, 3 * kMilli);
  EXPECT_EQ(record.served[3].start_ns, 30 * kMilli);
  EXPECT_EQ(record.batches, (std::vector<std::uint64_t>{0, 1, 0, 1}));
}

TEST(ServingLoop, WithoutAWaitItTakesWhatHasComeWhileItWasBusy) {
  FakeEngine engine;
  engine.base = 10 * kMilli;
  serve(at_millis({0, 1, 2, 3, 4, 5}), {.batch_max = 4}, engine);
  EXPECT_EQ(engine.sizes, (std::vector<std::size_t>{1, 4, 1}));
}

TEST(ServingLoop, LargerBatchesServeALoadThatSingleRequestsCannot) {
  // 1 ms a batch and 0.1 ms a request, one request every 0.5 ms.
  const auto p99 = [](std::size_t batch_max) {
    FakeEngine engine;
    engine.each = kMilli / 10;
    const auto record = serve(regular(2000, 0.5), {.batch_max = batch_max}, engine);
    return millis_of(latency_summary(record, kAllModels, kMilli, 1).p99_ns);
  };
  EXPECT_GT(p99(1), 1000);
  EXPECT_LT(p99(8), 3);
}

TEST(ServingLoop, TheModelWhoseRequestIsOldestGoesFirst) {
  FakeEngine engine;
  engine.base = 10 * kMilli;
  const std::vector<Arrival> arrivals = {
      {0, 2}, {kMilli, 1}, {2 * kMilli, 0}, {3 * kMilli, 1}, {4 * kMilli, 0}};
  const auto record = serve(arrivals, {.batch_max = 8}, engine, 3);
  EXPECT_EQ(engine.models, (std::vector<std::uint32_t>{2, 1, 0}));
  EXPECT_EQ(engine.sizes, (std::vector<std::size_t>{1, 2, 2}));
  std::uint64_t served = 0;
  for (std::int64_t model = 0; model < 3; ++model) {
    served += latency_summary(record, model, kMilli, 1).served;
  }
  EXPECT_EQ(served, 5u);
  EXPECT_EQ(latency_summary(record, 1, kMilli, 1).p50_ns, 17 * kMilli);
  EXPECT_EQ(latency_summary(record, 1, kMilli, 1).p99_ns, 19 * kMilli);
}

TEST(ServingLoop, AFullQueueDropsWhatArrives) {
  FakeEngine engine;
  engine.base = 10 * kMilli;
  // 0 is being served until 10; 1 and 2 wait; 3, 4 and 5 find the queue full; 6 comes after 1 left.
  const auto record =
      serve(at_millis({0, 1, 2, 3, 4, 5, 11}), {.batch_max = 1, .queue_max = 2}, engine);
  EXPECT_EQ(engine.told_dropped, (std::vector<std::uint32_t>{3, 4, 5}));
  EXPECT_EQ(record.served.size(), 4u);
  EXPECT_EQ(record.depth_max, 2u);
  EXPECT_DOUBLE_EQ(record.depth_mean, (0 + 0 + 1 + 2 + 2 + 2 + 1) / 7.0);
  const LatencySummary sum = latency_summary(record, kAllModels, kAnyLength, 1);
  EXPECT_EQ(sum.dropped, 3u);
  EXPECT_DOUBLE_EQ(sum.attainment, 4.0 / 7);
}

TEST(ServingLoop, WhatIsNotServedInTimeIsCountedAndChargedAtLeastItsWait) {
  FakeEngine engine;
  engine.base = 100 * kMilli;
  const auto record = serve(regular(10, 1), {.batch_max = 1}, engine, 1, 250 * kMilli);
  EXPECT_EQ(record.served.size(), 3u);  // until 300, which is after 9 + 250
  ASSERT_EQ(record.unserved.size(), 7u);
  const LatencySummary sum = latency_summary(record, kAllModels, 150 * kMilli, 1);
  EXPECT_EQ(sum.p50_ns, 293 * kMilli);  // the fifth of 100, 199, 291 to 298
  EXPECT_DOUBLE_EQ(sum.attainment, 0.1);
}

TEST(ServingLoop, AskedToStopItLosesNothingThatHadNotArrived) {
  FakeEngine engine;
  engine.stop_at = 50 * kMilli;
  const auto record = serve(regular(100, 10), {.batch_max = 4}, engine);
  EXPECT_TRUE(record.stopped);
  EXPECT_EQ(record.served.size() + record.unserved.size(), 6u);
}

TEST(ServingLoop, OfNothingThereIsNothingToSay) {
  FakeEngine engine;
  const auto record = serve({}, {.batch_max = 2}, engine);
  const LatencySummary sum = latency_summary(record, kAllModels, kMilli, 0);
  EXPECT_EQ(sum.all(), 0u);
  EXPECT_EQ(sum.p99_ns, 0);
  EXPECT_EQ(sum.attainment, 0);
  EXPECT_EQ(sum.goodput_per_s, 0);
}

}  // namespace
}  // namespace sluice::train

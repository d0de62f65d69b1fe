// When buckets are reduced and what that is said to take: the order, the overlap, and failures.
#include "trainer/train/reduction.h"

#include <atomic>

#include "tests/trainer/device_fixture.h"
#include "trainer/train/tensor_sums.h"

namespace sluice::tests {
namespace {

using namespace sluice::train;

constexpr Nanos kLinkNs = 1'000'000;

/// Notes what is reduced when; its link takes a millisecond for each bucket.
class NotedReduction final : public BucketReduction {
 public:
  void reduce(Stream&, const Bucket& bucket) override {
    if (bucket.begin == fails_at) throw PeerFailure("planted");
    begins.push_back(bucket.begin);
    ++done;
  }
  Nanos link_ns(const Bucket&) const override { return kLinkNs; }
  double bus_bytes(const Bucket&) const override { return 1; }

  std::vector<std::size_t> begins;
  std::atomic<int> done{0};
  std::size_t fails_at = SIZE_MAX;
};

class ReducerTest : public DeviceTest {
 protected:
  bool await(int count) {
    const Nanos deadline = now_ns() + 10 * kNanosPerSecond;
    while (reduction_.done < count && now_ns() < deadline) sleep_until(now_ns() + kNanosPerMilli);
    return reduction_.done >= count;
  }
  std::unique_ptr<Communicator> comm_ = alone_comm();
  NotedReduction reduction_;
  const std::vector<Bucket> buckets_ = {{70, 30}, {40, 30}, {10, 30}, {0, 10}};
};

TEST_F(ReducerTest, ABucketBeginsWhenItsLastGradientIsFinal) {
  GradientReducer reducer(*comm_, reduction_, stream(), buckets_, true);
  for (int step = 0; step < 3; ++step) {
    reduction_.begins.clear();
    reduction_.done = 0;
    reducer.ready(71);  // one float too few
    reducer.ready(40);
    ASSERT_TRUE(await(2));
    stream().link_delay(20 * kLinkNs);  // the rest of the backward pass, long enough to hide two
    reducer.ready(11);
    reducer.ready(0);
    const ReductionTimes times = reducer.finish();
    EXPECT_EQ(reduction_.begins, (std::vector<std::size_t>{70, 40, 10, 0}));
    if (!stream().device().is_software()) continue;
    EXPECT_EQ(times.collective_ns, 4 * kLinkNs);
    // To the nanosecond but for the events' floats.
    EXPECT_NEAR(static_cast<double>(times.exposed_ns), 2.0 * kLinkNs, 0.01 * kLinkNs);
  }
}

TEST_F(ReducerTest, WithoutOverlapNothingBeginsBeforeTheEndOfTheBackwardPass) {
  GradientReducer reducer(*comm_, reduction_, stream(), buckets_, false);
  reducer.ready(40);
  reducer.ready(0);
  sleep_until(now_ns() + 20 * kNanosPerMilli);
  EXPECT_EQ(reduction_.done, 0);
  const ReductionTimes times = reducer.finish();
  EXPECT_EQ(reduction_.begins, (std::vector<std::size_t>{70, 40, 10, 0}));
  if (!stream().device().is_software()) return;
  EXPECT_EQ(times.collective_ns, 4 * kLinkNs);
  EXPECT_GE(times.exposed_ns, times.collective_ns);
}

TEST_F(ReducerTest, WhatACollectiveThrowsComesOutOfTheStep) {
  reduction_.fails_at = 10;
  GradientReducer reducer(*comm_, reduction_, stream(), buckets_, true);
  reducer.ready(0);
  EXPECT_THROW(reducer.finish(), PeerFailure);
  EXPECT_EQ(reduction_.begins, (std::vector<std::size_t>{70, 40}));
}

TEST(OverlapRatio, IsThePartThatIsNotExposed) {
  EXPECT_DOUBLE_EQ(ReductionTimes::overlap_ratio(25, 100), 0.75);
  EXPECT_DOUBLE_EQ(ReductionTimes::overlap_ratio(120, 100), 0);
  EXPECT_DOUBLE_EQ(ReductionTimes::overlap_ratio(0, 0), 0);
}

/// All-reduces of four ranks, each of which takes the stream a link's time.
class LinkComm final : public Communicator {
 public:
  const char* name() const override { return "link"; }
  void all_reduce(Stream& stream, CUdeviceptr, std::size_t, DataType, Reduction) override {
    stream.link_delay(kLinkNs);
  }
  void reduce_scatter(Stream&, CUdeviceptr, CUdeviceptr, std::size_t, DataType,
                      Reduction) override {}
  void all_gather(Stream&, CUdeviceptr, CUdeviceptr, std::size_t, DataType) override {}
  void broadcast(Stream&, CUdeviceptr, std::size_t, DataType, int) override {}
  void reduce(Stream&, CUdeviceptr, std::size_t, DataType, Reduction, int) override {}
  void send(Stream&, CUdeviceptr, std::size_t, DataType, int) override {}
  void receive(Stream&, CUdeviceptr, std::size_t, DataType, int) override {}
  void group_begin() override {}
  void group_end() override {}
  void barrier(Stream&) override {}
  Nanos link_ns(Operation, std::size_t) const override { return kLinkNs; }
};

class TensorSumsTest : public DeviceTest {
 protected:
  LinkComm comm_;
};

TEST_F(TensorSumsTest, AModelledLinkSaysWhatSumsTake) {
  TensorSums sums(comm_, stream(), 4, true);
  for (int sum = 0; sum < 3; ++sum) sums.sum(0, 100);
  const ReductionTimes times = sums.take();
  EXPECT_EQ(times.tensor_ns, 3 * kLinkNs);
  EXPECT_EQ(times.collective_ns, times.tensor_ns);
  EXPECT_EQ(times.exposed_ns, times.tensor_ns);
  EXPECT_EQ(times.stage_wait_ns, 0);
  EXPECT_DOUBLE_EQ(times.bus_bytes, 3 * 1.5 * 400);
  EXPECT_GT(times.wall_ns, 0);
  EXPECT_EQ(sums.take().tensor_ns, 0) << "of those since then";
}

// As on hardware, whose link is in no figure but what events say.
TEST_F(TensorSumsTest, EventsSayWhatSumsTakeElsewhere) {
  if (!stream().device().is_software()) GTEST_SKIP() << "no link is modelled on hardware";
  TensorSums sums(comm_, stream(), 4, false);
  for (const int count : {3, 1, 2}) {  // events are used again, and more are made
    for (int sum = 0; sum < count; ++sum) sums.sum(0, 100);
    const ReductionTimes times = sums.take();
    // To the nanosecond but for the events' floats; a busy host may come between.
    EXPECT_GE(static_cast<double>(times.tensor_ns), 0.99 * count * kLinkNs);
    EXPECT_EQ(times.exposed_ns, times.tensor_ns);
    EXPECT_EQ(times.wall_ns, times.tensor_ns);
  }
  EXPECT_EQ(sums.take().tensor_ns, 0);
}

}  // namespace
}  // namespace sluice::tests

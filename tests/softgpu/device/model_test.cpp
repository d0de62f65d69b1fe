// The fluid model in its own time: no clock, no sleeping. Queues are filled by hand and the segment
// is advanced to chosen moments.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "softgpu/device/device.h"

namespace {

using namespace softgpu::device;

constexpr double kMs = 1e6;

class Model : public ::testing::Test {
 protected:
  Model() : segment(std::make_unique<Segment>()) {
    segment->sm_count = 16;
    segment->slice_ns = 2'000'000;
    segment->switch_ns = 5000;
    segment->now_ns = 1e9;
    for (int pid = 1; pid <= 3; ++pid) segment->clients[pid - 1].pid = pid;
  }
  /// An operation of `ms` at full width `width`; open ones never end.
  void push(std::uint32_t queue, std::uint32_t client, double ms, double width, bool open = false,
            WorkKind kind = WorkKind::kCompute) {
    const std::uint32_t place = places[queue] = client * kQueuesEach + queue;
    Queue& q = segment->queues[place];
    if (q.tail == 0) q.head = q.tail = 1;
    Work& work = q.ring[q.tail++ % kQueueDepth];
    work = Work{};
    work.kind = kind;
    work.state = open ? WorkState::kOpen : WorkState::kClosed;
    work.cost = ms * kMs * width;
    work.width = width;
    queue_active(*segment, place, true);
  }
  void advance(double ms) { model_advance(*segment, 1e9 + ms * kMs); }
  double finished_ms(std::uint32_t queue, std::uint64_t number) const {
    const Queue& q = segment->queues[places.at(queue)];
    return q.head > number ? (q.ring[number % kQueueDepth].finish_ns - 1e9) / kMs : -1;
  }
  double busy_ns() const {
    double sum = 0;
    for (const Account& account : segment->clients) sum += account.busy_ns;
    return sum;
  }
  std::unique_ptr<Segment> segment;
  std::map<std::uint32_t, std::uint32_t> places;  // where the queues of the tests are
};

TEST_F(Model, OneOperationTakesItsTime) {
  push(0, 0, 5, 16);
  advance(4.9);
  EXPECT_EQ(finished_ms(0, 1), -1);
  advance(10);
  EXPECT_NEAR(finished_ms(0, 1), 5, 1e-3);
  EXPECT_NEAR(busy_ns(), 5 * kMs, 10);
  EXPECT_NEAR(segment->clients[0].sm_ns, 5 * kMs * 16, 100);
}

TEST_F(Model, AStreamIsInOrder) {
  push(0, 0, 1, 16);
  push(0, 0, 2, 16);
  advance(10);
  EXPECT_NEAR(finished_ms(0, 1), 1, 1e-3);
  EXPECT_NEAR(finished_ms(0, 2), 3, 1e-3);
}

TEST_F(Model, NarrowStreamsOfOneProcessRunTogether) {
  push(0, 0, 4, 8);
  push(1, 0, 4, 8);
  advance(10);
  EXPECT_NEAR(finished_ms(0, 1), 4, 1e-3);
  EXPECT_NEAR(finished_ms(1, 1), 4, 1e-3);
  EXPECT_NEAR(busy_ns(), 4 * kMs, 10);
}

TEST_F(Model, WideStreamsOfOneProcessShareTheSms) {
  push(0, 0, 4, 16);
  push(1, 0, 4, 16);
  advance(20);
  EXPECT_NEAR(finished_ms(0, 1), 8, 1e-3);
  EXPECT_NEAR(finished_ms(1, 1), 8, 1e-3);
}

TEST_F(Model, ProcessesTakeTurnsInSlices) {
  push(0, 0, 1000, 16);
  push(1, 1, 1000, 16);
  push(2, 2, 1000, 16);
  advance(600);
  for (int client = 0; client < 3; ++client)
    EXPECT_NEAR(segment->clients[client].busy_ns, 200 * kMs, 3 * kMs) << client;
}

TEST_F(Model, ANarrowKernelOfAnotherProcessStillCostsItsSlice) {
  push(0, 0, 1000, 16);
  push(1, 1, 1000, 1);
  advance(400);
  EXPECT_NEAR(segment->clients[0].busy_ns, 200 * kMs, 3 * kMs);
  EXPECT_NEAR(segment->clients[1].busy_ns, 200 * kMs, 3 * kMs);
  EXPECT_NEAR(segment->clients[1].sm_ns, 200 * kMs, 3 * kMs);
}

TEST_F(Model, AnEndlessKernelIsPreempted) {
  push(0, 0, 0, 16, true);
  push(1, 1, 10, 16);
  advance(100);
  EXPECT_NEAR(finished_ms(1, 1), 20, 3);
  EXPECT_NEAR(segment->clients[0].busy_ns, 90 * kMs, 1 * kMs);
}

TEST_F(Model, WeightsLengthenSlices) {
  segment->clients[0].weight = 2;
  push(0, 0, 1000, 16);
  push(1, 1, 1000, 16);
  push(2, 2, 1000, 16);
  advance(800);
  EXPECT_NEAR(segment->clients[0].busy_ns, 400 * kMs, 5 * kMs);
  EXPECT_NEAR(segment->clients[1].busy_ns, 200 * kMs, 3 * kMs);
  EXPECT_NEAR(segment->clients[2].busy_ns, 200 * kMs, 3 * kMs);
}

TEST_F(Model, ASwitchCostsDeviceTime) {
  segment->switch_ns = 500'000;
  push(0, 0, 1000, 16);
  push(1, 1, 1000, 16);
  advance(100);
  // The switch is part of the slice: 2 ms of which 1.5 are left.
  EXPECT_NEAR(busy_ns(), 75 * kMs, 1 * kMs);
}

TEST_F(Model, AloneThereAreNoSwitches) {
  segment->switch_ns = 500'000;
  push(0, 0, 1000, 16);
  advance(100);
  EXPECT_NEAR(busy_ns(), 100 * kMs, 10);
}

TEST_F(Model, AHungKernelKeepsItsTurnAndComesNoFurther) {
  segment->faults[0].kind = FaultKind::kHang;
  segment->faults[0].pid = 1;
  segment->fault_count = 1;
  push(0, 0, 5, 16);
  push(1, 1, 10, 16);
  advance(100);
  EXPECT_EQ(finished_ms(0, 1), -1);
  EXPECT_NEAR(finished_ms(1, 1), 20, 3);
  EXPECT_NEAR(segment->clients[0].busy_ns, 90 * kMs, 1 * kMs);
  segment->fault_count = 0;
  advance(200);
  EXPECT_NEAR(finished_ms(0, 1), 105, 1e-3);
}

TEST_F(Model, AHungCopyHoldsNobodyUp) {
  segment->faults[0].kind = FaultKind::kHang;
  segment->faults[0].pid = 1;
  segment->fault_count = 1;
  push(0, 0, 5, 1, false, WorkKind::kCopyIn);
  push(1, 1, 5, 1, false, WorkKind::kCopyIn);
  advance(100);
  EXPECT_EQ(finished_ms(0, 1), -1);
  EXPECT_NEAR(finished_ms(1, 1), 5, 1e-3);
}

TEST_F(Model, CopiesAndKernelsOverlap) {
  push(0, 0, 5, 16);
  push(1, 0, 5, 1, false, WorkKind::kCopyIn);
  push(2, 1, 5, 1, false, WorkKind::kCopyOut);
  advance(20);
  EXPECT_NEAR(finished_ms(0, 1), 5, 1e-3);
  EXPECT_NEAR(finished_ms(1, 1), 5, 1e-3);
  EXPECT_NEAR(finished_ms(2, 1), 5, 1e-3);
}

TEST_F(Model, CopiesInOneDirectionShareTheEngineAndLinksDoNot) {
  push(0, 0, 5, 1, false, WorkKind::kCopyIn);
  push(1, 1, 5, 1, false, WorkKind::kCopyIn);
  push(2, 0, 5, 1, false, WorkKind::kLink);
  push(3, 1, 5, 1, false, WorkKind::kLink);
  advance(20);
  EXPECT_NEAR(finished_ms(0, 1), 10, 1e-3);
  EXPECT_NEAR(finished_ms(2, 1), 5, 1e-3);
  EXPECT_NEAR(finished_ms(3, 1), 5, 1e-3);
  EXPECT_EQ(busy_ns(), 0);
}

}  // namespace

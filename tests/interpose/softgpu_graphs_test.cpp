// Memory of graphs on a device that others have filled: to launch one graph the driver takes the
// memory of another that lies idle, and tells nobody. Relaunched, that one takes memory anew, which
// is asked for as the first time.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/interpose/allocating_graph.h"
#include "tests/interpose/softgpu_partner.h"
#include "tests/interpose/softgpu_ways.h"

extern "C" CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec*, CUgraph,
                                                      CUDA_GRAPH_INSTANTIATE_PARAMS*);

namespace {

using namespace sluice::test;

constexpr size_t kDevice = 256 * kMiB;
constexpr size_t kRoom = 140 * kMiB;  // the quota
constexpr size_t kIdle = 40 * kMiB;   // of the graph that is stripped

class SoftGpuGraphsTest : public SoftGpuTest {
 protected:
  SoftGpuGraphsTest() : SoftGpuTest({.quota = kRoom, .device_bytes = kDevice}) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
    idle = allocating_graph(0, kIdle);
    ASSERT_EQ(run(idle), CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_LE(held_total(), kRoom);
    SoftGpuTest::TearDown();
  }
  static CUresult run(CUgraphExec exec) {
    const CUresult result = cuGraphLaunch(exec, nullptr);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    return result;
  }
  // Somebody who is not of the tenant leaves only so much of the device.
  void neighbour_comes(size_t left) {
    neighbour.start(true);
    ASSERT_EQ(neighbour.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
    ASSERT_EQ(neighbour.ask(PartnerOp::kAlloc, kDevice - device_total() - left).result,
              CUDA_SUCCESS);
  }
  void neighbour_goes() {
    neighbour.end(SIGKILL);
    ASSERT_TRUE(eventually([&] { return device_total() == device_bytes(); }));
  }
  // Launches a graph of so many bytes for which the idle one is stripped; then the rest of the
  // quota is the program's, of the device there is enough, and the idle one does not fit any more.
  void is_asked_for_again(size_t other_bytes) {
    CUgraphExec other = allocating_graph(0, other_bytes);
    ASSERT_EQ(run(other), CUDA_SUCCESS);
    ASSERT_EQ(device_bytes(), kContext + other_bytes) << "the idle one was to be stripped";
    EXPECT_EQ(held(), device_bytes()) << "launched for another's memory";
    neighbour_goes();
    CUdeviceptr rest = 0;
    ASSERT_EQ(cuMemAlloc(&rest, kRoom - kContext - other_bytes), CUDA_SUCCESS);
    EXPECT_EQ(run(idle), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuGraphUpload(idle, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(device_bytes(), kRoom);
    EXPECT_EQ(run(other), CUDA_SUCCESS) << "it has its memory";
    agrees("without room");
    ASSERT_EQ(cuMemFree(rest), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&rest, kRoom - kContext - other_bytes - kIdle), CUDA_SUCCESS);
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(run(idle), CUDA_SUCCESS) << round;
      EXPECT_EQ(run(other), CUDA_SUCCESS) << round;
    }
    agrees("with room for both");
    EXPECT_EQ(device_bytes(), kRoom);
  }
  Partner neighbour;
  CUgraphExec idle = nullptr;
};

TEST_F(SoftGpuGraphsTest, WhatASmallerGraphWasGivenIsAskedForAgain) {
  neighbour_comes(0);
  is_asked_for_again(20 * kMiB);
}

// What is reserved grows, though less than it would have.
TEST_F(SoftGpuGraphsTest, WhatALargerGraphWasGivenIsAskedForAgain) {
  neighbour_comes(20 * kMiB);
  is_asked_for_again(60 * kMiB);
}

TEST_F(SoftGpuGraphsTest, WhatWasTakenForOneThatFailedIsAskedForAgain) {
  neighbour_comes(0);
  CUgraphExec large = allocating_graph(0, kIdle + 20 * kMiB);
  EXPECT_EQ(run(large), CUDA_ERROR_OUT_OF_MEMORY) << "the device is full";
  ASSERT_EQ(device_bytes(), kContext) << "the idle one was to be stripped";
  EXPECT_EQ(held(), device_bytes()) << "a launch that failed";
  is_asked_for_again(20 * kMiB);
}

// Instantiated and uploaded in one call, a graph takes its memory in that: it is asked for before.
TEST_F(SoftGpuGraphsTest, WhatIsUploadedAtItsInstantiationIsAskedFor) {
  const CUgraph graph = allocating_template(0, 60 * kMiB);
  CUdeviceptr rest = 0;
  ASSERT_EQ(cuMemAlloc(&rest, kRoom - device_bytes() - 60 * kMiB + 2 * kMiB), CUDA_SUCCESS);
  const std::uint64_t before = device_bytes();
  const CUgraphExec mark = reinterpret_cast<CUgraphExec>(0x77);
  for (const auto instantiate : {cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz}) {
    CUDA_GRAPH_INSTANTIATE_PARAMS params{};
    params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    params.result_out = CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED;  // not what it would be
    CUgraphExec exec = mark;
    EXPECT_EQ(instantiate(&exec, graph, &params), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(exec, mark);
    EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED);
    EXPECT_EQ(device_bytes(), before);
    agrees("without room");
  }
  ASSERT_EQ(cuMemFree(rest), CUDA_SUCCESS);
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithParams(&exec, graph, &params), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(device_bytes(), kContext + (40 + 60) * kMiB);
  agrees("uploaded");
  // It has its memory: with the rest of the quota gone it runs all the same.
  ASSERT_EQ(cuMemAlloc(&rest, kRoom - device_bytes()), CUDA_SUCCESS);
  EXPECT_EQ(run(exec), CUDA_SUCCESS);
  EXPECT_EQ(run(idle), CUDA_SUCCESS);
  agrees("launched");
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

// Threads that launch new graphs and old ones, all at the same time.
class SoftGpuGraphsAtOnceTest : public SoftGpuGraphsTest {
 protected:
  static constexpr int kThreads = 6, kRounds = 400;
  static constexpr size_t kStep = 2 * kMiB;
  // Each thread has two graphs of at most so many steps. How many launches were refused.
  int churn(size_t steps) {
    std::vector<std::thread> threads;
    refused = 0;
    for (unsigned number = 0; number < kThreads; ++number)
      threads.emplace_back([=, this] { rounds(number, steps); });
    std::thread watcher([this] {
      while (!over) EXPECT_LE(device_bytes(), kRoom);
    });
    for (std::thread& thread : threads) thread.join();
    over = true;
    watcher.join();
    return refused;
  }
  // A neighbour who takes what is there and gives it back, so that the driver trims again and
  // again.
  void neighbour_churns() {
    neighbour.start(true);
    ASSERT_EQ(neighbour.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
    neighbour_thread = std::thread([this] {
      while (!over) {
        const size_t bytes = (kDevice - device_total()) / kStep * kStep;
        const PartnerMessage made = neighbour.ask(PartnerOp::kAlloc, bytes);
        std::this_thread::yield();
        if (made.result == CUDA_SUCCESS) neighbour.ask(PartnerOp::kFree, made.value);
      }
    });
  }
  std::atomic<bool> over{false};
  std::atomic<int> refused{0};
  std::thread neighbour_thread;

 private:
  void rounds(unsigned number, size_t steps) {
    CUstream stream = nullptr;
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CUgraphExec graphs[2] = {};
    for (unsigned round = 0; round < kRounds; ++round) {
      CUgraphExec& graph = graphs[round % 3 == 0 ? 0 : 1];
      if (graph != nullptr) {
        EXPECT_EQ(cuGraphExecDestroy(graph), CUDA_SUCCESS);
      }
      graph = allocating_graph(0, kStep * (1 + (round * 7 + number) % steps));
      for (CUgraphExec each : graphs) {
        const CUresult result = each == nullptr ? CUDA_SUCCESS : cuGraphLaunch(each, stream);
        EXPECT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY) << result;
        refused += result == CUDA_SUCCESS ? 0 : 1;
      }
      EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    }
    for (CUgraphExec graph : graphs) EXPECT_EQ(cuGraphExecDestroy(graph), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  }
};

// The graph that lies idle, and the most of each thread.
static_assert(kContext + kIdle + 6 * 2 * 2 * 2 * kMiB <= kRoom);
TEST_F(SoftGpuGraphsAtOnceTest, WhatFitsIsNotRefused) {
  EXPECT_EQ(churn(2), 0);
  EXPECT_LE(device_peak(), kRoom);
  agrees("quiet again");
}

TEST_F(SoftGpuGraphsAtOnceTest, WhatDoesNotFitIsRefusedAndTheQuotaKept) {
  EXPECT_GT(churn(12), 0);
  EXPECT_LE(device_peak(), kRoom);
  agrees("quiet again");
}

// The driver may find no room on the device. What is kept for launches on their way is given back
// although others are asking all the time.
TEST_F(SoftGpuGraphsAtOnceTest, WhatFitsIsNotRefusedByTheQuotaWhileTheDriverTrims) {
  CUdeviceptr rest = 0;
  ASSERT_EQ(cuMemAlloc(&rest, kRoom - kContext - kIdle - kThreads * 2 * 2 * kStep), CUDA_SUCCESS);
  neighbour_churns();
  churn(2);
  neighbour_thread.join();
  neighbour_goes();
  EXPECT_EQ(broker->account().refused.load(), 0u);
  agrees("quiet again");
}

TEST_F(SoftGpuGraphsAtOnceTest, TheQuotaIsKeptWhileTheDriverTrims) {
  neighbour_churns();
  const int refusals = churn(12);
  EXPECT_GT(refusals, 0);
  // About a fifth; four of five where what is kept for launches on their way is never given back.
  EXPECT_LT(refusals, kThreads * kRounds) << "of about twice as many launches";
  neighbour_thread.join();
  neighbour_goes();
  agrees("quiet again");
}

}  // namespace

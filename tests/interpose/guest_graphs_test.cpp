// Graphs that allocate, launched while the driver keeps the launch of another: a driver whose queue
// is full does so for as long as a kernel takes, and that kernel may wait for the other launch.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "tests/interpose/guest.h"

namespace {

using namespace sluice::test;

thread_local bool launches_are_kept;
std::atomic<bool> kept, goes;

void enter(const char* function) {
  if (!launches_are_kept || function != std::string("cuGraphLaunch")) return;
  kept = true;
  while (!goes) sleep_ms(1);
}

class GuestGraphsTest : public GuestTest {
 protected:
  static constexpr unsigned long long kNode = 16 * kMiB;
  void SetUp() override {
    start(3 * kNode);
    broker->lease_store(sluice::protocol::kLeaseOpen);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    fake.graph_depth = 1;
    fake.on_enter = enter;
  }
  static CUgraphExec instantiated(uintptr_t handle, unsigned long long bytes) {
    fake.graph_node_bytes = bytes;
    auto exec = reinterpret_cast<CUgraphExec>(handle);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, reinterpret_cast<CUgraph>(1), 0), CUDA_SUCCESS);
    return exec;
  }
  void kept_begin(CUgraphExec exec) {
    program = std::thread([=] {
      launches_are_kept = true;
      EXPECT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
    });
    while (!kept) sleep_ms(1);
  }
  void kept_end() {
    goes = true;
    program.join();
  }
  std::uint64_t reserved() { return broker->account().reserved_bytes.load(); }

  CUcontext context = nullptr;
  CUstream stream = reinterpret_cast<CUstream>(0x40);
  std::thread program;
};

TEST_F(GuestGraphsTest, ALaunchThatTheDriverKeepsKeepsNoOther) {
  const CUgraphExec first = instantiated(0x700, kNode), second = instantiated(0x710, kNode);
  kept_begin(first);
  EXPECT_EQ(cuGraphLaunch(second, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphUpload(instantiated(0x720, kNode), stream), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(second, stream), CUDA_SUCCESS) << "again";
  EXPECT_EQ(reserved(), kNode) << "the first one's";
  kept_end();
  EXPECT_EQ(reserved(), 0u);
}

// What the driver will give the first one nobody else is given.
TEST_F(GuestGraphsTest, WhatALaunchOnItsWayWasGivenIsNobodyElses) {
  const CUgraphExec first = instantiated(0x700, 2 * kNode), second = instantiated(0x710, 2 * kNode);
  CUdeviceptr pointer = 0;
  kept_begin(first);
  EXPECT_EQ(cuGraphLaunch(second, stream), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuGraphUpload(second, stream), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 2 * kNode), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(reserved(), 2 * kNode);
  kept_end();
  EXPECT_EQ(cuGraphLaunch(second, stream), CUDA_SUCCESS);
  EXPECT_EQ(reserved(), 0u);
}

// Nor what is reserved already, and the first one will use.
TEST_F(GuestGraphsTest, RoomThatALaunchOnItsWayNeedsIsNobodyElses) {
  const CUgraphExec first = instantiated(0x700, 2 * kNode), second = instantiated(0x710, 2 * kNode);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, kNode), CUDA_SUCCESS);
  fake.graph_reserved_bytes = 2 * kNode;
  kept_begin(first);
  EXPECT_EQ(reserved(), 0u);
  EXPECT_EQ(cuGraphLaunch(second, stream), CUDA_ERROR_OUT_OF_MEMORY);
  kept_end();
  EXPECT_EQ(cuGraphLaunch(second, stream), CUDA_SUCCESS);
}

// It may be gone by then, for the driver trims when its device is full.
TEST_F(GuestGraphsTest, WhatTheDriverTrimsStaysForALaunchOnItsWay) {
  const CUgraphExec first = instantiated(0x700, kNode);
  CUdeviceptr pointer = 0;
  fake.graph_reserved_bytes = kNode;
  ASSERT_EQ(cuGraphLaunch(first, stream), CUDA_SUCCESS);
  kept_begin(first);
  fake.graph_reserved_bytes = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 3 * kNode), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 2 * kNode), CUDA_SUCCESS);
  kept_end();
  EXPECT_EQ(broker->account().held_bytes.load(), 2 * kNode);
}

// While one thread is in the driver's end of a graph, another is given its handle for the next one.
TEST_F(GuestGraphsTest, AHandleThatIsGivenAnewAtItsEndMeansTheNextGraph) {
  static constexpr uintptr_t kSameHandle = 0x700;
  static bool given;
  given = false;
  const CUgraphExec exec = instantiated(kSameHandle, kNode);
  fake.on_enter = [](const char* function) {
    if (given || function != std::string("cuGraphExecDestroy")) return;
    given = true;
    std::thread([] { (void)instantiated(kSameHandle, 4 * kNode); }).join();
  };
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_TRUE(given);
  EXPECT_EQ(cuGraphLaunch(exec, nullptr), CUDA_ERROR_OUT_OF_MEMORY) << "it takes four of three";
}

// Nor is one forgotten that the driver does not end.
TEST_F(GuestGraphsTest, AGraphWhoseEndIsRefusedIsAskedForAsBefore) {
  const CUgraphExec exec = instantiated(0x700, 4 * kNode);
  fake.graph_end_result = CUDA_ERROR_INVALID_VALUE;
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphLaunch(exec, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
}

// A driver that takes more than a graph's nodes ask for, as far as it is told here.
unsigned long long graph_takes;
unsigned graph_launches, graph_uploads;
void enter_taking(const char* function) {
  const std::string name = function;
  if (name == "cuGraphUpload" || name == "cuGraphInstantiateWithParams") {
    ++graph_uploads;
    fake.graph_reserved_bytes = fake.graph_used_bytes = graph_takes;
  } else if (name == "cuDeviceGraphMemTrim") {
    fake.graph_reserved_bytes = fake.graph_used_bytes = 0;
  } else if (name == "cuGraphLaunch") {
    ++graph_launches;
  }
}

class GuestGraphStepTest : public GuestGraphsTest {
 protected:
  void SetUp() override {
    GuestGraphsTest::SetUp();
    graph_takes = 4 * kNode;
    fake.on_enter = enter_taking;
  }
  void gone(const char* call) {
    EXPECT_EQ(fake.graph_reserved_bytes, 0u) << call;
    EXPECT_EQ(broker->account().held_bytes.load(), 0u) << call;
    EXPECT_EQ(reserved(), 0u) << call;
  }
};

TEST_F(GuestGraphStepTest, ALaunchThatWouldPassTheQuotaIsNotMade) {
  const CUgraphExec exec = instantiated(0x700, kNode);
  EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
  gone("a launch");
  EXPECT_EQ(graph_launches, 0u);
  EXPECT_EQ(broker->account().refused.load(), 1u);
  graph_takes = 2 * kNode;
  EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  EXPECT_EQ(graph_launches, 1u);
  EXPECT_EQ(broker->account().held_bytes.load(), 2 * kNode);
  const unsigned uploads = graph_uploads;
  EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  EXPECT_EQ(graph_uploads, uploads) << "it has its memory";
}

TEST_F(GuestGraphStepTest, AnUploadThatPassesTheQuotaIsTakenBack) {
  const CUgraphExec exec = instantiated(0x700, kNode);
  EXPECT_EQ(cuGraphUpload(exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
  gone("an upload");
  CUgraphExec made = reinterpret_cast<CUgraphExec>(0x77);
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  EXPECT_EQ(cuGraphInstantiateWithParams(&made, reinterpret_cast<CUgraph>(1), &params),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(made, reinterpret_cast<CUgraphExec>(0x77));
  gone("an instantiation");
}

}  // namespace

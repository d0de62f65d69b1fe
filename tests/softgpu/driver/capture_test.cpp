// Captures where the documents leave the choice: what a refused end leaves behind, streams and
// contexts that go away in the middle, many captures at once - and that the table of forbidden
// calls names entry points only.
#include "softgpu/driver/capture_table.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "tests/softgpu/driver/fixture.h"

namespace {

using Driver = softgpu_test::Driver;

CUstream stream_new() {
  CUstream stream = nullptr;
  EXPECT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

CUevent event_new() {
  CUevent event = nullptr;
  EXPECT_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

CUstreamCaptureStatus status_of(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  EXPECT_CU(cuStreamIsCapturing(stream, &status));
  return status;
}

CUresult unsafe_call() {
  CUdeviceptr p = 0;
  const CUresult result = cuMemAlloc(&p, 16);
  return result == CUDA_SUCCESS ? cuMemFree(p) : result;
}

/// A capture in `origin` from which `side` has forked off with a node of its own.
struct Fork {
  explicit Fork(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED) {
    EXPECT_CU(cuMemAlloc(&p, 16));
    EXPECT_CU(cuStreamBeginCapture(origin, mode));
    EXPECT_CU(cuEventRecord(event, origin));
    EXPECT_CU(cuStreamWaitEvent(side, event, 0));
    EXPECT_CU(cuMemsetD32Async(p, 1, 1, side));
  }
  void join() {
    EXPECT_CU(cuEventRecord(event, side));
    EXPECT_CU(cuStreamWaitEvent(origin, event, 0));
  }
  CUdeviceptr p = 0;
  CUstream origin = stream_new(), side = stream_new();
  CUevent event = event_new();
};

TEST(CaptureTable, NamesEntryPointsOnly) {
  std::set<std::string> bases;
  for (const auto& entry : nlohmann::json::parse(std::ifstream(SOFTGPU_ENTRYPOINTS)))
    bases.insert(entry["base"]);
  EXPECT_FALSE(softgpu::driver::capture_entries().empty());
  for (const auto& entry : softgpu::driver::capture_entries())
    EXPECT_TRUE(bases.contains(std::string(entry.name))) << entry.name;
}

TEST(CaptureTable, FormsOfOneNameShareItsRule) {
  using softgpu::driver::capture_entry;
  ASSERT_NE(capture_entry("cuMemAlloc"), nullptr);
  EXPECT_EQ(capture_entry("cuMemAlloc_v2"), capture_entry("cuMemAlloc"));
  EXPECT_EQ(capture_entry("cuMemAllocAsync"), nullptr);
  EXPECT_EQ(capture_entry("cuNoSuchFunction"), nullptr);
  EXPECT_NE(capture_entry("cuMemcpyHtoD"), capture_entry("cuMemcpyDtoH"));
}

TEST_F(Driver, ARefusedEndLeavesTheCaptureAsItWas) {
  WithContext([](CUcontext context) {
    Fork fork(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(fork.side, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    std::thread([&] {
      EXPECT_CU(cuCtxSetCurrent(context));
      EXPECT_EQ(cuStreamEndCapture(fork.origin, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }).join();
    EXPECT_EQ(cuStreamBeginCapture(fork.side, CU_STREAM_CAPTURE_MODE_RELAXED),
              CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_EQ(cuStreamEndCapture(fork.origin, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(status_of(fork.origin), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    fork.join();
    EXPECT_CU(cuStreamEndCapture(fork.origin, &graph));
  });
}

TEST_F(Driver, ACaptureEndsWithItsFirstStream) {
  WithContext([](CUcontext) {
    Fork fork(CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_CU(cuStreamDestroy(fork.origin));
    EXPECT_EQ(status_of(fork.side), CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_CU(unsafe_call());
    EXPECT_CU(cuMemsetD32Async(fork.p, 2, 1, fork.side));
    EXPECT_CU(cuStreamSynchronize(fork.side));
  });
}

TEST_F(Driver, WorkOfADestroyedStreamMustHaveJoined) {
  WithContext([](CUcontext) {
    CUgraph graph = nullptr;
    Fork lost;
    ASSERT_CU(cuStreamDestroy(lost.side));
    EXPECT_EQ(cuStreamEndCapture(lost.origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    Fork joined;
    joined.join();
    ASSERT_CU(cuStreamDestroy(joined.side));
    EXPECT_CU(cuStreamEndCapture(joined.origin, &graph));
  });
}

TEST_F(Driver, ACaptureEndsWithItsContext) {
  WithContext([](CUcontext) {
    CUcontext other = nullptr;
    ASSERT_CU(cuCtxCreate(&other, nullptr, 0, 0));
    const Fork fork(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(cuMemAlloc(nullptr, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ASSERT_CU(cuCtxDestroy(other));
    EXPECT_CU(unsafe_call());
  });
}

TEST_F(Driver, AnEventOfAnEndedCaptureIsNoUseForAWait) {
  WithContext([](CUcontext) {
    Fork fork;
    fork.join();
    CUgraph graph = nullptr;
    ASSERT_CU(cuStreamEndCapture(fork.origin, &graph));
    EXPECT_EQ(cuStreamWaitEvent(fork.side, fork.event, 0), CUDA_ERROR_CAPTURED_EVENT);
    ASSERT_CU(cuStreamBeginCapture(fork.origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(cuStreamWaitEvent(fork.origin, fork.event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  });
}

TEST_F(Driver, AGraphThatFailedToBeCapturedIsGone) {
  WithContext([](CUcontext) {
    Fork fork;
    CUgraph graph = nullptr;
    CUstreamCaptureStatus status{};
    ASSERT_CU(
        cuStreamGetCaptureInfo(fork.origin, &status, nullptr, &graph, nullptr, nullptr, nullptr));
    std::size_t count = 0;
    EXPECT_CU(cuGraphGetNodes(graph, nullptr, &count));
    CUgraph none = nullptr;
    EXPECT_EQ(cuStreamEndCapture(fork.origin, &none), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &count), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(Driver, ThreadsCaptureSideBySide) {
  WithContext([](CUcontext context) {
    constexpr std::size_t kThreads = 4, kRounds = 50;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        ASSERT_CU(cuCtxSetCurrent(context));
        const CUstream stream = stream_new(), side = stream_new();
        const CUevent event = event_new();
        CUdeviceptr p = 0;
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        ASSERT_CU(cuThreadExchangeStreamCaptureMode(&mode));
        ASSERT_CU(cuMemAlloc(&p, 16));
        for (std::size_t round = 0; round < kRounds; ++round) {
          ASSERT_CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
          for (std::size_t k = 0; k <= i; ++k) ASSERT_CU(cuMemsetD32Async(p, 1, 1, stream));
          ASSERT_CU(cuEventRecord(event, stream));
          ASSERT_CU(cuStreamWaitEvent(side, event, 0));
          ASSERT_CU(cuMemsetD32Async(p, 1, 1, side));
          ASSERT_CU(cuEventRecord(event, side));
          ASSERT_CU(cuStreamWaitEvent(stream, event, 0));
          CUgraph graph = nullptr;
          ASSERT_CU(cuStreamEndCapture(stream, &graph));
          std::size_t count = 0;
          ASSERT_CU(cuGraphGetNodes(graph, nullptr, &count));
          EXPECT_EQ(count, i + 2);
          ASSERT_CU(cuGraphDestroy(graph));
          ASSERT_CU(unsafe_call());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace

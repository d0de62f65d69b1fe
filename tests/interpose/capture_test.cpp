// Captures over the software GPU, which breaks them by the driver's rules: the shim meters, waits
// for windows and drains while the program captures, and no capture notices. Each case is a process
// of its own.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/interpose/softgpu_launch.h"
#include "tests/interpose/softgpu_modules.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;

constexpr unsigned kSpin = 300;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

class CaptureTest : public sluice::test::SoftGpuLaunchTest {
 protected:
  void SetUp() override {
    SoftGpuLaunchTest::SetUp();
    kernel_load();
    broker->lease_store(kLeaseOpen);
  }
  CUstream stream_make(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    EXPECT_EQ(cuStreamCreate(&stream, flags), CUDA_SUCCESS);
    return stream;
  }
  // A thread that waits may not do so in the mode GLOBAL while another captures so: the program's
  // own part of the rules.
  static void thread_relax() {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  }
  static size_t nodes_of(CUgraph graph) {
    size_t count = 0;
    EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &count), CUDA_SUCCESS);
    return count;
  }
  // Work before, a capture with a second stream in it, and its graph.
  void capture_once(CUstream stream, CUstream second, CUevent fork, CUevent join,
                    CUstreamCaptureMode mode) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
    EXPECT_EQ(launch(kSpin, second), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
    EXPECT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(fork, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(second, fork, 0), CUDA_SUCCESS);
    EXPECT_EQ(launch(kSpin, second), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(result, 1, 4, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(join, second), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(stream, join, 0), CUDA_SUCCESS);
    EXPECT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    EXPECT_EQ(nodes_of(graph), 4u);
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    captures.fetch_add(1);
  }
  void capturing_thread(CUstreamCaptureMode mode, bool per_thread) {
    threads.emplace_back([=, this] {
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      thread_relax();
      const CUstream stream = per_thread ? CU_STREAM_PER_THREAD : stream_make();
      const CUstream second = stream_make();
      CUevent fork = nullptr, join = nullptr;
      EXPECT_EQ(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
      EXPECT_EQ(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
      while (!stop && !HasFailure()) capture_once(stream, second, fork, join, mode);
    });
  }
  // Launches and asks for nothing itself: what is asked is the shim's doing, in a thread whose mode
  // is GLOBAL.
  void launching_thread(bool per_thread) {
    threads.emplace_back([=, this] {
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      const CUstream stream = per_thread ? CU_STREAM_PER_THREAD : stream_make();
      while (!stop && !HasFailure()) EXPECT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
    });
  }
  // With launches beside, a narrow window, and leases that come and go.
  void run() {
    broker->window_set(1'000'000);
    launching_thread(false);
    launching_thread(true);
    for (int round = 0; round < 60 && !HasFailure(); ++round) {
      sleep_ms(20);
      broker->lease_store(0);
      EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
      broker->lease_store(kLeaseOpen);
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
    printf("%d captures\n", captures.load());
    EXPECT_GT(captures, 20);
  }
  // Calls that the driver takes in a capture and the quota has no room for: they are refused or
  // taken back, and the capture goes on.
  void refused_in_a_capture() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemGenericAllocationHandle memory = 0;
    EXPECT_EQ(cuMemCreate(&memory, kQuota, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CUmodule module = nullptr;
    EXPECT_EQ(cuModuleLoadData(&module, sluice::test::module_text(kQuota).c_str()),
              CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuModuleLoadData(&module, sluice::test::unsized_image(kQuota).data()),
              CUDA_ERROR_OUT_OF_MEMORY);
    CUlibrary library = nullptr;
    EXPECT_EQ(cuLibraryLoadData(&library, sluice::test::module_text(kQuota).c_str(), nullptr,
                                nullptr, 0, nullptr, nullptr, 0),
              CUDA_SUCCESS);
    CUmodule of_library = nullptr;
    EXPECT_EQ(cuLibraryGetModule(&of_library, library), CUDA_ERROR_OUT_OF_MEMORY);
  }
  std::atomic<bool> stop{false};
  std::atomic<int> captures{0};
  std::vector<std::thread> threads;
};

TEST_F(CaptureTest, InTheModeGlobal) {
  capturing_thread(CU_STREAM_CAPTURE_MODE_GLOBAL, false);
  capturing_thread(CU_STREAM_CAPTURE_MODE_GLOBAL, true);
  run();
}

TEST_F(CaptureTest, InTheModeThreadLocal) {
  capturing_thread(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false);
  capturing_thread(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true);
  run();
}

TEST_F(CaptureTest, InTheModeRelaxed) {
  capturing_thread(CU_STREAM_CAPTURE_MODE_RELAXED, false);
  capturing_thread(CU_STREAM_CAPTURE_MODE_RELAXED, true);
  run();
}

TEST_F(CaptureTest, InAllModesAtOnce) {
  capturing_thread(CU_STREAM_CAPTURE_MODE_GLOBAL, false);
  capturing_thread(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false);
  capturing_thread(CU_STREAM_CAPTURE_MODE_RELAXED, false);
  capturing_thread(CU_STREAM_CAPTURE_MODE_GLOBAL, true);
  run();
}

// Work in the legacy stream without a fence behind it, which none can get while a blocking stream
// captures.
TEST_F(CaptureTest, TheTrailingFenceOfTheLegacyStreamComesBeforeTheCapture) {
  const CUstream stream = stream_make(CU_STREAM_DEFAULT);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(launch(kSpin), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(nodes_of(graph), 1u);
}

TEST_F(CaptureTest, CapturedLaunchesAreFreeAndPassAClosedLease) {
  const CUstream stream = stream_make();
  ASSERT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  const auto busy_ns = broker->account().busy_ns.load();
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(nodes_of(graph), 100u);
  EXPECT_EQ(broker->account().launches.load(), 1u);
  EXPECT_EQ(broker->account().busy_ns.load(), busy_ns);
}

// Which streams the legacy one waits for is asked of them, and a stream that captures must not be
// asked: not for what becomes a node, nor for work in the legacy stream meanwhile.
TEST_F(CaptureTest, WorkInTheLegacyStreamAsksNoCapturingStream) {
  constexpr size_t kLarge = sluice::test::kMiB;
  CUdeviceptr memory = 0;
  CUevent fork = nullptr, join = nullptr;
  ASSERT_EQ(cuMemAlloc(&memory, kLarge), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  for (const int before : {0, 1}) {
    const CUstream stream = stream_make(), second = stream_make();
    for (int i = 0; i < before; ++i) ASSERT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
    ASSERT_EQ(launch(kSpin), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    EXPECT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(memory, 1, kLarge, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(launch(kSpin), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(memory, 1, kLarge, stream), CUDA_SUCCESS) << before;
    EXPECT_EQ(cuEventRecord(fork, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(second, fork, 0), CUDA_SUCCESS);
    EXPECT_EQ(launch(kSpin, second), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(join, second), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(stream, join, 0), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    EXPECT_EQ(nodes_of(graph), 3u);
  }
}

// After exclusive leases a drain asks each context for all of its work: one that captures is left
// alone, and so is its capture by what the others are asked.
TEST_F(CaptureTest, ADrainOfOneContextLeavesTheCaptureOfAnotherAlone) {
  broker->lease_store(kLeaseOpen | sluice::protocol::kLeaseExclusive);
  ASSERT_EQ(launch(kSpin * 1000, stream_make()), CUDA_SUCCESS);
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  const CUstream stream = stream_make();
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  broker->lease_store(0);
  sleep_ms(100);  // the helper looks
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
}

// Before a refusal the shim trims pools and unloads what is taken back. A capture forbids both in
// any mode but RELAXED.
TEST_F(CaptureTest, RefusalsLeaveACaptureAsItWas) {
  CUmemoryPool pool = nullptr;
  cuuint64_t threshold = UINT64_MAX;
  ASSERT_EQ(cuDeviceGetMemPool(&pool, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
            CUDA_SUCCESS);
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    const CUstream stream = stream_make();
    CUdeviceptr kept = 0;
    ASSERT_EQ(cuMemAllocAsync(&kept, 10 * sluice::test::kMiB, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeAsync(kept, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
    ASSERT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
    refused_in_a_capture();
    ASSERT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    EXPECT_EQ(nodes_of(graph), 2u);
  }
  agrees("after the refusals");
}

// An end that the driver refuses because of the thread that asks for it ends nothing: what the
// stream captures from then on is as untouched as before.
TEST_F(CaptureTest, AnEndThatIsRefusedToAThreadEndsNothing) {
  broker->lease_store(kLeaseOpen);
  CUgraph graph = nullptr;
  const CUstream stream = stream_make();
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  std::thread([&] {
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  EXPECT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
  sleep_ms(20);  // the helper looks at what was launched
  EXPECT_EQ(launch(kSpin, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(nodes_of(graph), 2u);
}

// Whatever ends a capture ends it for the shim: a hold is acknowledged, which waits for all of
// them.
TEST_F(CaptureTest, EveryEndOfACaptureIsSeen) {
  const auto no_capture_is_left = [&](const char* how) {
    broker->lease_store(0);
    broker->hold_store(true);
    EXPECT_TRUE(broker->wait_held()) << how;
    broker->hold_store(false);
    broker->lease_store(kLeaseOpen);
  };
  CUgraph graph = nullptr;
  CUstream stream = stream_make();
  EXPECT_NE(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  no_capture_is_left("refused at its beginning");
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_NE(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_NE(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  no_capture_is_left("invalidated");
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  no_capture_is_left("its stream destroyed");
  stream = stream_make();
  const CUstream joined = stream_make();
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(joined, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(joined), CUDA_SUCCESS);
  broker->lease_store(0);
  broker->hold_store(true);
  EXPECT_FALSE(broker->wait_held(50)) << "a stream that joined ends nothing";
  broker->hold_store(false);
  (void)cuStreamEndCapture(stream, &graph);
  no_capture_is_left("ended after one of its streams");
  stream = stream_make();
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  no_capture_is_left("its context reset");
}

}  // namespace

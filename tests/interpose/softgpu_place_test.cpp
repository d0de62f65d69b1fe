// Streams of other contexts than the calling thread's: launches into them ask the lease of their
// own GPU, are charged there and are waited for by its drains; and captures of them are left alone.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/interpose/softgpu_launch.h"

namespace {

using sluice::protocol::kLeaseExclusive;
using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;
using namespace sluice::test;

constexpr unsigned kShort = 1'000, kLong = 500'000;

class PlaceTest : public SoftGpuLaunchTest {
 protected:
  PlaceTest() : SoftGpuLaunchTest(Options{.gpus = 2, .quota = 200 * kMiB}) {}
  void SetUp() override {
    SoftGpuLaunchTest::SetUp();
    broker->lease_store(kLeaseOpen);
    kernel_load();
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  void TearDown() override {
    broker->lease_store(kLeaseOpen);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    SoftGpuLaunchTest::TearDown();
  }
  // Makes another context current, on the first GPU or the second.
  void second_context(int device) {
    CUcontext second = nullptr;
    ASSERT_EQ(cuCtxCreate(&second, nullptr, 0, device), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
  }
  bool drained(std::uint32_t gpu = 0) {
    return broker->account(0, gpu).drained_epoch.load() == broker->epoch(gpu);
  }
  void close() {
    broker->lease_store(0, 0);
    broker->lease_store(0, 1);
  }
  double busy(std::uint32_t gpu = 0) {
    return static_cast<double>(broker->account(0, gpu).busy_ns.load());
  }
  // What is launched counts for the first GPU, and for no other.
  void launches_are_charged() {
    const auto before = static_cast<double>(device_account().busy_ns);
    const std::uint64_t launches = broker->account().launches.load();
    const double ours_before = busy(), other_before = busy(1);
    for (int i = 0; i < 40; ++i) {
      ASSERT_EQ(launch(kShort, stream), CUDA_SUCCESS);
      if (i % 4 == 0) {
        ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      }
    }
    close();
    ASSERT_TRUE(eventually([&] { return drained(0) && drained(1); }));
    const double device = static_cast<double>(device_account().busy_ns) - before;
    EXPECT_GE(busy() - ours_before, device * 0.99);
    EXPECT_EQ(broker->account().launches.load() - launches, 40u);
    EXPECT_EQ(busy(1), other_before);
  }
  void drain_waits() {
    ASSERT_EQ(launch(kLong, stream), CUDA_SUCCESS);
    close();
    ASSERT_TRUE(eventually([&] { return drained(); }));
    EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS) << "drained, and something still runs";
  }
  // All that the event is behind was over already; on a busy host it may itself come late.
  void expect_over(CUevent all) {
    const auto before = static_cast<double>(device_account().busy_ns);
    EXPECT_EQ(cuEventSynchronize(all), CUDA_SUCCESS);
    EXPECT_LE(static_cast<double>(device_account().busy_ns), before + 1)
        << "drained, and something still runs";
  }
  CUstream stream = nullptr;
};

TEST_F(PlaceTest, LaunchesUnderAnotherContextOfTheGpuAreCharged) {
  second_context(0);
  launches_are_charged();
}

TEST_F(PlaceTest, LaunchesUnderAContextOfAnotherGpuAreCharged) {
  second_context(1);
  launches_are_charged();
}

TEST_F(PlaceTest, ADrainWaitsForThemUnderAnotherContextOfTheGpu) {
  second_context(0);
  drain_waits();
}

TEST_F(PlaceTest, ADrainWaitsForThemUnderAContextOfAnotherGpu) {
  second_context(1);
  drain_waits();
}

TEST_F(PlaceTest, ADrainOfExclusiveLeasesWaitsForThemUnderAContextOfAnotherGpu) {
  broker->lease_store(kLeaseOpen | kLeaseExclusive);
  second_context(1);
  drain_waits();
}

// The stream's GPU has the lease that counts, not the thread's.
TEST_F(PlaceTest, TheLeaseOfItsOwnGpuIsAsked) {
  broker->lease_store(0, 0);
  ASSERT_TRUE(eventually([&] { return drained(); }));
  const std::uint64_t before = device_account().launches;
  std::atomic<int> launched{0};
  std::thread program([&] {
    second_context(1);
    for (int i = 0; i < 5; ++i, ++launched) EXPECT_EQ(launch(kShort, stream), CUDA_SUCCESS);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(launched, 0);
  EXPECT_EQ(device_account().launches, before);
  EXPECT_TRUE(
      eventually([&] { return broker->wait_for(MessageType::kGateWant, broker->epoch(0), 1); }));
  broker->lease_store(kLeaseOpen, 0);
  program.join();
  EXPECT_EQ(launched, 5);
}

// By the short way, too: known streams that the thread has launched into under their own context.
TEST_F(PlaceTest, NorDoesAKnownStreamGoByTheThreadsLease) {
  for (int i = 0; i < 100; ++i) ASSERT_EQ(launch(10, stream), CUDA_SUCCESS);
  second_context(1);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(launch(10, stream), CUDA_SUCCESS);
  broker->lease_store(0, 0);
  ASSERT_TRUE(eventually([&] { return drained(); }));
  const std::uint64_t before = device_account().launches;
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_EQ(device_account().launches, before);
    broker->lease_store(kLeaseOpen, 0);
  });
  EXPECT_EQ(launch(10, stream), CUDA_SUCCESS);
  opener.join();
}

// Under exclusive leases as well, where launches do not look at their stream: one that begins when
// the other GPU has drained waits, by the short way and by the others, and so does a graph.
class ExclusivePlaceTest : public PlaceTest {
 protected:
  void SetUp() override {
    PlaceTest::SetUp();
    broker->lease().tenant_class = sluice::protocol::TenantClass::kExclusive;
    broker->lease_store(kLeaseOpen | kLeaseExclusive);
    second_context(1);
    ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    ASSERT_EQ(launch(10, stream), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  }
  CUresult launch_ex() {
    unsigned n = 10;
    CUdeviceptr out = result;
    void* parameters[] = {&out, &n};
    const CUlaunchConfig config{1, 1, 1, 32, 1, 1, 0, stream, nullptr, 0};
    return cuLaunchKernelEx(&config, spin, parameters, nullptr);
  }
  CUgraphExec exec = nullptr;
};

TEST_F(ExclusivePlaceTest, NorDoesALaunchThatBeginsAfterTheDrain) {
  for (const auto& one : {std::function([&] { return launch(10, stream); }),
                          std::function([&] { return launch_ex(); }),
                          std::function([&] { return cuGraphLaunch(exec, stream); })}) {
    std::atomic<bool> stop{false};
    std::atomic<int> launched{0};
    std::thread program([&] {
      second_context(1);
      for (; !stop; ++launched) EXPECT_EQ(one(), CUDA_SUCCESS);
    });
    ASSERT_TRUE(eventually([&] { return launched > 100; }));
    broker->lease_store(0, 0);
    EXPECT_TRUE(eventually([&] { return drained(); })) << "the launches do not end";
    const std::uint64_t before = device_account().launches;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(device_account().launches, before);
    const int waiting = launched;
    broker->lease_store(kLeaseOpen | kLeaseExclusive);
    EXPECT_TRUE(eventually([&] { return launched > waiting + 100; }));
    stop = true;
    program.join();
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
}

// A stream is destroyed from wherever: what is in it goes on, and is waited for and charged. A
// driver that refuses to destroy it leaves it as it was.
class DestroyTest : public PlaceTest {
 protected:
  void destroyed_under(CUcontext current, CUresult expected = CUDA_SUCCESS) {
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CUevent all = nullptr;
    ASSERT_EQ(cuEventCreate(&all, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    const auto device_before = static_cast<double>(device_account().busy_ns);
    const double before = busy();
    // The last one is within the budget of the others, so that nothing is behind it.
    for (int i = 0; i < 2000; ++i) ASSERT_EQ(launch(10, stream), CUDA_SUCCESS);
    ASSERT_EQ(launch(kLong, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(all, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(current), CUDA_SUCCESS);
    if (expected != CUDA_SUCCESS)
      std::thread([&] { EXPECT_EQ(cuCtxDestroy(current), CUDA_SUCCESS); }).join();
    ASSERT_EQ(cuStreamDestroy(stream), expected);
    close();
    ASSERT_TRUE(eventually([&] { return drained(); }));
    expect_over(all);
    const double device = static_cast<double>(device_account().busy_ns) - device_before;
    EXPECT_NEAR(busy() - before, device, device * 0.02);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    broker->lease_store(kLeaseOpen);
    if (expected == CUDA_SUCCESS) {
      ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    }
    ASSERT_EQ(launch(kShort, stream), CUDA_SUCCESS);
  }
};

TEST_F(DestroyTest, UnderAContextOfAnotherGpu) {
  second_context(1);
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&second), CUDA_SUCCESS);
  destroyed_under(second);
}

TEST_F(DestroyTest, UnderAnotherContextOfTheGpu) {
  second_context(0);
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&second), CUDA_SUCCESS);
  destroyed_under(second);
}

TEST_F(DestroyTest, UnderAContextThatHasEndedItIsRefused) {
  second_context(0);
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&second), CUDA_SUCCESS);
  destroyed_under(second, CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_F(DestroyTest, WithoutAContext) { destroyed_under(nullptr); }

// The thread does not come back to say where its work ends.
TEST_F(PlaceTest, ADrainWaitsForWhatAThreadLeftInItsDefaultStream) {
  for (const bool ends : {false, true}) {
    SCOPED_TRACE(ends);
    broker->lease_store(kLeaseOpen);
    std::atomic<bool> launched{false}, over{false};
    std::thread thread([&] {
      ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      for (int i = 0; i < 2000; ++i) ASSERT_EQ(launch(10, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
      ASSERT_EQ(launch(kLong, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
      launched = true;
      while (!ends && !over) std::this_thread::yield();
    });
    while (!launched) std::this_thread::yield();
    if (ends) thread.join();
    // Behind everything in the context, whichever thread put it there.
    CUevent all = nullptr;
    ASSERT_EQ(cuEventCreate(&all, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxRecordEvent(context, all), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(all), CUDA_ERROR_NOT_READY);
    close();
    EXPECT_TRUE(eventually([&] { return drained(); }));
    expect_over(all);
    EXPECT_EQ(cuEventDestroy(all), CUDA_SUCCESS);
    over = true;
    if (thread.joinable()) thread.join();
  }
}

// A stream of one context is drawn into a capture that began under another: an event for the whole
// context, by which other threads' default streams are fenced, would break it.
TEST_F(PlaceTest, ACaptureThatSpreadsToAnotherContextIsLeftAlone) {
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxCreate(&second, nullptr, 0, 0), CUDA_SUCCESS);  // current
  CUstream theirs = nullptr;
  ASSERT_EQ(cuStreamCreate(&theirs, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
  CUfunction spin_second = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&spin_second, module, "spin"), CUDA_SUCCESS);
  CUdeviceptr out = 0;
  ASSERT_EQ(cuMemAlloc(&out, 4), CUDA_SUCCESS);
  std::atomic<bool> stop{false};
  std::thread launching([&] {
    ASSERT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
    for (int i = 0; !stop; ++i) {
      unsigned n = 10;
      void* parameters[] = {&out, &n};
      ASSERT_EQ(cuLaunchKernel(spin_second, 1, 1, 1, 32, 1, 1, 0, CU_STREAM_PER_THREAD, parameters,
                               nullptr),
                CUDA_SUCCESS);
      // So that the helper finds work that stays where it is.
      if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  });
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CUevent fork = nullptr, join = nullptr;
    ASSERT_EQ(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(fork, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
    ASSERT_EQ(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(theirs, fork, 0), CUDA_SUCCESS);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_EQ(cuEventRecord(join, theirs), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(stream, join, 0), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS) << "capture " << i;
    if (graph != nullptr) cuGraphDestroy(graph);
    cuEventDestroy(fork);
    cuEventDestroy(join);
  }
  stop = true;
  launching.join();
  EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

// The same where the other context has a capture of its own when the stream is drawn in, which ends
// first.
TEST_F(PlaceTest, ACaptureThatSpreadsBehindAnotherIsLeftAlone) {
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxCreate(&second, nullptr, 0, 0), CUDA_SUCCESS);  // current
  CUstream own = nullptr, drawn = nullptr;
  for (CUstream* one : {&own, &drawn})
    ASSERT_EQ(cuStreamCreate(one, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUevent fork = nullptr, join = nullptr;
  ASSERT_EQ(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(fork, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(drawn, fork, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(own, &graph), CUDA_SUCCESS);
  // The drain of an exclusive lease asks each context.
  broker->lease_store(kLeaseOpen | kLeaseExclusive);
  CUstream plain = nullptr;
  ASSERT_EQ(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(launch(kShort, plain), CUDA_SUCCESS);
  close();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(drained());
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuEventRecord(join, drawn), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(stream, join, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  close();
  EXPECT_TRUE(eventually([&] { return drained(); }));
}

// A drain asks the contexts of exclusive GPUs, and leaves one alone whose stream is captured,
// whoever began the capture. While it lasts nothing of it is drained.
TEST_F(PlaceTest, ACaptureOfAStreamOfAnotherContextIsLeftAlone) {
  for (const int device : {0, 1}) {
    SCOPED_TRACE(device);
    broker->lease_store(kLeaseOpen | kLeaseExclusive);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(launch(10, stream), CUDA_SUCCESS);
    second_context(device);
    ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    ASSERT_EQ(launch(10, stream), CUDA_SUCCESS);
    close();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(drained());
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    EXPECT_NE(graph, nullptr);
    EXPECT_TRUE(eventually([&] { return drained(); }));
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    broker->lease_store(kLeaseOpen);
    EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  }
}

}  // namespace

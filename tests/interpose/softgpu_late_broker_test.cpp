// A program whose first CUDA call comes while no broker answers. When the broker is back, the
// program is one of its tenant's processes with all that it took meanwhile. Its tenant has no
// memory quota here until then, so that it can have more than the broker's.
#include "tests/interpose/softgpu_launch.h"

namespace {

using sluice::protocol::kLeaseOpen;
using namespace sluice::test;

class LateBrokerTest : public SoftGpuLaunchTest {
 protected:
  LateBrokerTest() : SoftGpuLaunchTest(Options{.uses_cuda = false}) {}
  void SetUp() override {
    SoftGpuLaunchTest::SetUp();
    broker->limits_set(0, 100);
    broker->die();
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  void broker_come() {
    auto next = std::make_unique<TestBroker>(kQuota, kContext);
    next->gpu_uuid_set(devices[0]->settings().uuid);
    next->lease_store(kLeaseOpen);
    next->path_take(*broker);
    broker = std::move(next);
    ASSERT_TRUE(eventually([&] { return broker->registrations() > 0; }));
  }
};

TEST_F(LateBrokerTest, CountsWhatWasTakenBefore) {
  CUdeviceptr pointer = 0, pooled = 0;
  ASSERT_EQ(cuMemAlloc(&pointer, 30 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&pooled, kMiB, nullptr), CUDA_SUCCESS);
  kernel_load();
  ASSERT_EQ(launch(10), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  broker_come();
  EXPECT_TRUE(eventually([&] { return difference().empty() && held() != 0; })) << difference();
  // From here on the quota holds.
  CUdeviceptr much = 0;
  EXPECT_EQ(cuMemAlloc(&much, kQuota - kContext - 30 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(launch(10), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(pooled, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&much, 20 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

// A device's own pool was met before anybody knew whose the device is.
TEST_F(LateBrokerTest, APoolFromBeforeIsAskedForAndCounted) {
  CUdeviceptr pooled = 0, more = 0;
  ASSERT_EQ(cuMemAllocAsync(&pooled, kMiB, nullptr), CUDA_SUCCESS);
  broker_come();
  EXPECT_TRUE(eventually([&] { return difference().empty() && held() != 0; })) << difference();
  EXPECT_EQ(cuMemAllocAsync(&more, kQuota - kContext, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LE(device_peak(), kQuota);
  ASSERT_EQ(cuMemAllocAsync(&more, kMiB, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(pooled, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(more, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  agrees("freed");
}

// A broker that comes while the program captures meets a capture that it does not know to have
// begun: nothing may be recorded into its streams, no event be asked that it forbids, and no hold
// be acknowledged before its end.
TEST_F(LateBrokerTest, ACaptureThatHasBegunIsLeftAlone) {
  kernel_load();
  CUstream streams[2];
  for (CUstream& stream : streams)
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  for (CUstream stream : {streams[0], CU_STREAM_PER_THREAD}) {
    ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  }
  broker_come();
  for (int i = 0; i < 10; ++i) {
    for (CUstream stream : {streams[0], CU_STREAM_PER_THREAD})
      ASSERT_EQ(launch(10, stream), CUDA_SUCCESS);
    ASSERT_EQ(launch(10, streams[1]), CUDA_SUCCESS);
  }
  broker->lease_store(0);
  broker->hold_store(true);
  EXPECT_FALSE(broker->wait_held(200)) << "in the middle of the captures";
  for (CUstream stream : {streams[0], CU_STREAM_PER_THREAD}) {
    CUgraph graph = nullptr;
    size_t nodes = 0;
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    ASSERT_NE(graph, nullptr);
    EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &nodes), CUDA_SUCCESS);
    EXPECT_EQ(nodes, 10u) << "and nothing of ours among them";
  }
  EXPECT_TRUE(broker->wait_held());
  broker->hold_store(false);
  broker->lease_store(kLeaseOpen);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

// A stream of another context was drawn into the capture before.
TEST_F(LateBrokerTest, ACaptureThatHasSpreadIsLeftAlone) {
  kernel_load();
  CUstream own = nullptr, drawn = nullptr, origin = nullptr;
  CUevent fork = nullptr, join = nullptr;
  CUcontext other = nullptr;
  for (CUstream* stream : {&own, &drawn})
    ASSERT_EQ(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(fork, origin), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(drawn, fork, 0), CUDA_SUCCESS);
  broker_come();
  ASSERT_TRUE(eventually([&] { return held() != 0; }));
  ASSERT_EQ(launch(10, own), CUDA_SUCCESS);
  broker->lease_store(0);
  // The first drain of this broker's asks the contexts, and must wait with that.
  EXPECT_FALSE(broker->wait_for(MessageType::kDrained, broker->epoch(), 200));
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(launch(10, drawn), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(join, drawn), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(origin, join, 0), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(origin, &graph), CUDA_SUCCESS);
  EXPECT_NE(graph, nullptr);
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  broker->lease_store(kLeaseOpen);
}

// Neither a stream's end nor its context's is the capture's for ever.
TEST_F(LateBrokerTest, CapturesThatEndWithTheirStreamsAreOver) {
  CUcontext other = nullptr;
  CUstream stream = nullptr;
  for (const bool with_context : {false, true}) {
    ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    if (!with_context) {
      EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  broker_come();
  ASSERT_TRUE(eventually([&] { return held() != 0; }));
  broker->lease_store(0);
  broker->hold_store(true);
  EXPECT_TRUE(broker->wait_held());
  broker->hold_store(false);
}

TEST_F(LateBrokerTest, WhoHasMoreThanTheQuotaKeepsItAndGetsNoMore) {
  CUdeviceptr pointer = 0, more = 0;
  ASSERT_EQ(cuMemAlloc(&pointer, kQuota), CUDA_SUCCESS);
  broker_come();
  EXPECT_TRUE(eventually([&] { return held() == kQuota + kContext; })) << held();
  EXPECT_EQ(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  size_t free = 1, total = 0;
  EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 0u);
  EXPECT_EQ(total, kQuota);
  EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&more, kMiB), CUDA_SUCCESS);
}

}  // namespace

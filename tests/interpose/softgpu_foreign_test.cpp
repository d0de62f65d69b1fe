// A GPU that the program sees and its job has not got: it gets no memory there by any call that
// names a device. Judged by the device's own account.
#include <sys/wait.h>

#include "tests/interpose/softgpu_fixture.h"

namespace {

using sluice::protocol::kLeaseOpen;
using namespace sluice::test;

constexpr int kForeign = 1;

class SoftGpuForeignTest : public SoftGpuTest {
 protected:
  SoftGpuForeignTest() : SoftGpuTest({.gpus = 2, .gpus_of_tenant = 1}) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    testing::internal::CaptureStderr();
  }
  void TearDown() override {
    EXPECT_EQ(device_peak(kForeign), 0U);
    const std::string said = "sluice: device 1 is none of this job's GPUs, so the program gets no ";
    EXPECT_NE(testing::internal::GetCapturedStderr().find(said + what + " there"),
              std::string::npos);
    SoftGpuTest::TearDown();
  }
  std::string what = "memory";
};

constexpr CUmemLocation kThere{CU_MEM_LOCATION_TYPE_DEVICE, {kForeign}};

TEST_F(SoftGpuForeignTest, PhysicalMemory) {
  CUmemAllocationProp wish{};
  wish.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.location = kThere;
  CUmemGenericAllocationHandle piece = 7;
  EXPECT_EQ(cuMemCreate(&piece, 2 * kMiB, &wish, 0), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(piece, 7U);
}

TEST_F(SoftGpuForeignTest, APoolOfItsOwn) {
  CUmemPoolProps wish{};
  wish.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.location = kThere;
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cuMemPoolCreate(&pool, &wish), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(pool, nullptr);
}

TEST_F(SoftGpuForeignTest, TheDevicesPool) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, kForeign), CUDA_SUCCESS);
  CUdeviceptr pointer = 7;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&pointer, kMiB, pool, nullptr), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(pointer, 7U);
}

TEST_F(SoftGpuForeignTest, AContext) {
  CUcontext made = nullptr;
  EXPECT_EQ(cuCtxCreate(&made, nullptr, 0, kForeign), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&made, kForeign), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(made, nullptr);
  what = "context";
}

// Memory of a graph's node is taken when the graph is launched or uploaded.
class ForeignGraphTest : public SoftGpuForeignTest {
 protected:
  void SetUp() override {
    SoftGpuForeignTest::SetUp();
    broker->lease_store(kLeaseOpen);
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  void refused_everywhere() const {
    CUgraphExec exec = nullptr, uploaded = nullptr;
    ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(cuGraphUpload(exec, stream), CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    CUDA_GRAPH_INSTANTIATE_PARAMS with{};
    with.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    with.hUploadStream = stream;
    EXPECT_EQ(cuGraphInstantiateWithParams(&uploaded, graph, &with), CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(uploaded, nullptr);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
};

TEST_F(ForeignGraphTest, ANode) {
  ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS wish{};
  wish.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.poolProps.location = kThere;
  wish.bytesize = 2 * kMiB;
  CUgraphNode node = nullptr;
  ASSERT_EQ(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &wish), CUDA_SUCCESS);
  refused_everywhere();
}

TEST_F(ForeignGraphTest, ACapturedAllocation) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, kForeign), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&pointer, kMiB, pool, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  refused_everywhere();
}

// A fork child of a process that used CUDA cannot use it. Its driver names no devices, which does
// not make the job's GPU foreign: it gets the driver's error.
TEST_F(SoftGpuTest, AForkChildGetsTheDriversError) {
  testing::internal::CaptureStderr();
  const pid_t child = fork();
  if (child == 0) {
    CUcontext made = nullptr;
    CUmemoryPool pool = nullptr;
    CUmemPoolProps wish{};
    wish.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wish.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    const bool told = cuDevicePrimaryCtxRetain(&made, 0) == CUDA_ERROR_NOT_INITIALIZED &&
                      cuCtxCreate(&made, nullptr, 0, 0) == CUDA_ERROR_NOT_INITIALIZED &&
                      cuMemPoolCreate(&pool, &wish) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(told ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// A program may have a context on such a GPU from a broker that gave its job more.
class ForeignNowTest : public SoftGpuTest {
 protected:
  ForeignNowTest() : SoftGpuTest({.gpus = 2}) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, kForeign), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc_v2(&before, kMiB), CUDA_SUCCESS);
    auto next = std::make_unique<TestBroker>(kQuota, kContext);
    next->gpu_uuid_set(devices[0]->settings().uuid);
    next->lease_store(kLeaseOpen);
    broker->die();
    next->path_take(*broker);
    broker = std::move(next);
    ASSERT_TRUE(eventually([&] { return broker->registrations() > 0; }));
  }
  void TearDown() override {
    EXPECT_EQ(cuDevicePrimaryCtxRelease(kForeign), CUDA_SUCCESS);
    EXPECT_EQ(device_total(kForeign), 0U);
    SoftGpuTest::TearDown();
  }
  // The helper has put the new pages in place when the GPU is known to be none of the job's.
  static bool is_refused(const std::function<CUresult()>& call) {
    return eventually([&] { return call() == CUDA_ERROR_NOT_PERMITTED; });
  }
  CUdeviceptr before = 0;
};

TEST_F(ForeignNowTest, GetsNoMoreMemoryThere) {
  CUdeviceptr pointer = 7;
  const auto allocate = [&] {
    const CUresult result = cuMemAlloc_v2(&pointer, kMiB);
    if (result == CUDA_SUCCESS) (void)cuMemFree_v2(pointer);
    return result;
  };
  ASSERT_TRUE(is_refused(allocate));
  const uint64_t there = device_bytes(getpid(), kForeign);
  size_t pitch = 0;
  EXPECT_EQ(cuMemAllocPitch_v2(&pointer, &pitch, 512, 8, 4), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cuMemAllocManaged(&pointer, kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cuMemAllocAsync(&pointer, kMiB, nullptr), CUDA_ERROR_NOT_PERMITTED);
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR shape{64, 64, CU_AD_FORMAT_FLOAT, 1};
  EXPECT_EQ(cuArrayCreate_v2(&array, &shape), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(array, nullptr);
  EXPECT_EQ(device_bytes(getpid(), kForeign), there);
  EXPECT_EQ(cuMemFree_v2(before), CUDA_SUCCESS);
  EXPECT_LT(device_bytes(getpid(), kForeign), there);
}

}  // namespace

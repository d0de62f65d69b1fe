// The shim over the software GPU: its account against the device's own. The device knows nothing of
// the shim, so what both say must agree: bytes exactly, GPU time within a few percent. Each case is
// a process of its own.
#include <dlfcn.h>
#include <stdio.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/interpose/allocating_graph.h"
#include "tests/interpose/softgpu_launch.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;
using namespace sluice::test;

TEST_F(SoftGpuTest, AProberIsStoppedAtItsQuotaAndTheDeviceAgreesByteForByte) {
  size_t taken = 0, step = 7 * kMiB + 13;
  while (step > 0) {
    CUdeviceptr pointer;
    const CUresult answer = cuMemAlloc(&pointer, step);
    if (answer == CUDA_SUCCESS) {
      taken += step;
    } else {
      ASSERT_EQ(answer, CUDA_ERROR_OUT_OF_MEMORY);
      step /= 2;
    }
  }
  EXPECT_EQ(taken, kQuota - kContext);
  size_t free_bytes = 1, total_bytes = 0;
  ASSERT_EQ(cuMemGetInfo(&free_bytes, &total_bytes), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, 0u);
  EXPECT_EQ(total_bytes, kQuota);
  EXPECT_EQ(held(), device_bytes());
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), 0u);
  EXPECT_EQ(device_bytes(), 0u);
}

TEST_F(SoftGpuTest, PoolsAgreeWithTheDeviceWhenNothingIsInFlight) {
  CUdeviceptr a, b;
  ASSERT_EQ(cuMemAllocAsync(&a, 3 * kMiB, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&b, 9 * kMiB, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(held(), device_bytes());
  ASSERT_EQ(cuMemFreeAsync(b, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(held(), device_bytes());
}

TEST_F(SoftGpuTest, MemoryOfGraphsIsChargedWhenItIsTakenAndGivenBackWhenItIsTrimmed) {
  broker->lease_store(kLeaseOpen);
  const auto agrees = [&](size_t bytes, const char* when) {
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(broker->account().held_bytes.load(), kContext + bytes) << when;
    EXPECT_EQ(device_bytes(), kContext + bytes) << when;
  };
  CUdeviceptr other = 0;
  CUgraphExec exec = sluice::test::allocating_graph(0, 16 * kMiB);
  agrees(0, "instantiated");
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
    agrees(16 * kMiB, "launched");
  }
  CUgraphExec kept = sluice::test::allocating_graph(0, 8 * kMiB, &other);
  ASSERT_EQ(cuGraphUpload(kept, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(kept, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(held(), device_bytes());
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  agrees(8 * kMiB, "one is alive");
  ASSERT_EQ(cuMemFree(other), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphExecDestroy(kept), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  agrees(0, "trimmed");
}

TEST_F(SoftGpuTest, AGraphThatNeedsMoreThanTheQuotaIsNotLaunched) {
  broker->lease_store(kLeaseOpen);
  CUdeviceptr rest = 0;
  CUgraphExec large = sluice::test::allocating_graph(0, kQuota - kContext + 2 * kMiB);
  EXPECT_EQ(cuGraphLaunch(large, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuGraphUpload(large, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  for (const char* twin : {"cuGraphLaunch_ptsz", "cuGraphUpload_ptsz"}) {
    EXPECT_EQ(reinterpret_cast<decltype(&cuGraphLaunch)>(dlsym(RTLD_DEFAULT, twin))(large, nullptr),
              CUDA_ERROR_OUT_OF_MEMORY)
        << twin;
  }
  EXPECT_EQ(broker->account().held_bytes.load(), kContext);
  // One that fits exactly may be launched again and again, also when nothing is left beside it.
  CUgraphExec fits = sluice::test::allocating_graph(0, kQuota - kContext);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(cuGraphLaunch(fits, nullptr), CUDA_SUCCESS) << round;
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(broker->account().held_bytes.load(), kQuota);
  }
  EXPECT_EQ(cuMemAlloc(&rest, kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&rest, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(fits, nullptr), CUDA_ERROR_OUT_OF_MEMORY) << "what it had is taken";
  ASSERT_EQ(cuMemFree(rest), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(fits, nullptr), CUDA_SUCCESS);
}

TEST_F(SoftGpuTest, AllocationsCapturedIntoAGraphCountWhenItIsLaunched) {
  broker->lease_store(kLeaseOpen);
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
  CUdeviceptr inside = 0;
  ASSERT_EQ(cuMemAllocAsync(&inside, 4 * kMiB, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(inside, stream), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), kContext);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), kContext + 4 * kMiB);
  EXPECT_EQ(held(), device_bytes());
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), kContext);
  agrees("trimmed");
}

TEST_F(SoftGpuLaunchTest, AClosedLeaseKeepsTheDeviceIdleAndADrainMeansThatItIs) {
  kernel_load();
  // Without a window this program would queue seconds of work in one lease, and the drain would
  // last as long.
  broker->window_set(5'000'000);
  std::atomic<bool> stop{false};
  std::thread program([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    while (!stop) {
      EXPECT_EQ(launch(2000), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  });
  ASSERT_TRUE(broker->wait_for(MessageType::kGateWant, 1));
  EXPECT_EQ(device_account().launches, 0u);
  for (int round = 0; round < 5; ++round) {
    broker->lease_store(kLeaseOpen);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    broker->lease_store(0);
    ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
    const auto then = device_account();
    EXPECT_GT(then.launches, 0u);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(device_account().busy_ns, then.busy_ns);
    EXPECT_EQ(device_account().launches, then.launches);
    EXPECT_EQ(broker->account().launches.load(), then.launches);
  }
  stop = true;
  broker->lease_store(kLeaseOpen);
  program.join();
}

TEST_F(SoftGpuLaunchTest, BusyTimeAgreesWithTheDevicesAccount) {
  kernel_load();
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(launch(1000), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  // Single launches with waits, bursts, and pauses in which nothing runs.
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(launch(20000), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (int i = 0; i < 5; ++i) {
    for (int k = 0; k < 20; ++k) ASSERT_EQ(launch(5000), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  const double ours = static_cast<double>(broker->account().busy_ns.load()),
               device = device_account().busy_ns;
  printf("busy: shim %.3f ms, device %.3f ms, lag %.3f ms\n", ours / 1e6, device / 1e6,
         device_account().lag_ns / 1e6);
  EXPECT_NEAR(ours, device, device * 0.05);
}

}  // namespace

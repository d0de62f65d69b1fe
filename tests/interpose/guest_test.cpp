// The whole shim under a tenant, over the fake driver and a broker small enough for a test:
// registration, quota, views, gate and drain, meter. Each case is a process of its own.
#include <dlfcn.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/interpose/guest.h"

namespace {

using sluice::protocol::kLeaseContended;
using sluice::protocol::kLeaseExclusive;
using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;
using sluice::test::eventually;
using sluice::test::GuestTest;
using sluice::test::kGiB;
using sluice::test::kMiB;
using sluice::test::launch;
using sluice::test::launch_on;
using sluice::test::sleep_ms;
using sluice::test::TestBroker;

TEST_F(GuestTest, RegistersAtTheFirstCallAndNotBefore) {
  start(kGiB);
  sleep_ms(20);
  EXPECT_EQ(broker->registrations(), 0);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(broker->registrations(), 1);
}

TEST_F(GuestTest, TheQuotaIsExactAndSaysSoOnce) {
  start(100 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr a = 0, b = 7;
  ASSERT_EQ(cuMemAlloc_v2(&a, 100 * kMiB - 1), CUDA_SUCCESS);
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuMemAlloc_v2(&b, 2), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&b, 2), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: refused 2 B: you use 100.0 of your 100.0 MiB on GPU 0. The program sees CUDA "
            "out of memory.\n");
  EXPECT_EQ(b, 7u);
  EXPECT_EQ(cuMemAlloc_v2(&b, 1), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), 100 * kMiB);
  EXPECT_EQ(broker->account().held_bytes.load(), fake.used_bytes);
  EXPECT_EQ(broker->account().refused.load(), 2u);
  EXPECT_EQ(cuMemFree_v2(a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(b), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), 0u);
  EXPECT_EQ(broker->account().peak_bytes.load(), 100 * kMiB);
}

TEST_F(GuestTest, ADriverFailureGivesTheReservationBackAndErrnoIsTheDrivers) {
  start(kGiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr a = 0;
  fake.alloc_result = CUDA_ERROR_ILLEGAL_STATE;
  EXPECT_EQ(cuMemAlloc_v2(&a, kMiB), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(broker->account().held_bytes.load() + broker->account().reserved_bytes.load(), 0u);
  fake.alloc_result = CUDA_SUCCESS;
  errno = 5;
  EXPECT_EQ(cuMemAlloc_v2(&a, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(errno, 5);
  EXPECT_EQ(cuMemAlloc_v2(&a, 2 * kGiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(errno, 5);
  fake.errno_to_set = 33;
  EXPECT_EQ(cuMemAlloc_v2(&a, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(errno, 33);
}

TEST_F(GuestTest, AFreeOfAForeignPointerIsTheDriversAnswer) {
  start(kGiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(0x1234), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(fake.calls_free, 1u);
}

TEST_F(GuestTest, EveryKindOfAllocationCounts) {
  start(kGiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer;
  CUdeviceptr_v1 narrow;
  size_t pitch;
  auto held = [&] { return broker->account().held_bytes.load(); };
  ASSERT_EQ(cuMemAlloc(&narrow, 1000), CUDA_SUCCESS);
  EXPECT_EQ(held(), 1000u);
  ASSERT_EQ(cuMemAllocManaged(&pointer, 24, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(held(), 1024u);
  ASSERT_EQ(cuMemAllocPitch_v2(&pointer, &pitch, 100, 10, 4), CUDA_SUCCESS);
  EXPECT_EQ(held(), 1024u + 5120u);
  EXPECT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS);
  EXPECT_EQ(held(), 1024u);
}

TEST_F(GuestTest, CallsOfTheFirstAbiAreChargedAsAnyOther) {
  start(10000, 1000);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr_v1 plain = 7, rows = 7;
  unsigned int pitch = 7;
  auto held = [&] { return broker->account().held_bytes.load(); };
  EXPECT_EQ(cuMemAlloc(&plain, 10001), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&plain, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(plain, 7u);
  ASSERT_EQ(cuMemAlloc(&plain, 3000), CUDA_SUCCESS);
  // Seven rows of 1,000 bytes fit; with the driver's pitch of 1,024 they do not.
  EXPECT_EQ(cuMemAllocPitch(&rows, &pitch, 1000, 7, 4), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(rows, 7u);
  EXPECT_EQ(pitch, 7u);
  EXPECT_EQ(held(), 3000u);
  EXPECT_EQ(fake.used_bytes, 3000u);
  ASSERT_EQ(cuMemAllocPitch(&rows, &pitch, 1000, 6, 4), CUDA_SUCCESS);
  EXPECT_EQ(held(), 3000u + 6 * 1024);
  EXPECT_EQ(held(), fake.used_bytes);
  EXPECT_EQ(cuMemFree(plain), CUDA_SUCCESS);
  EXPECT_EQ(held(), 6 * 1024u);
  EXPECT_EQ(cuMemFree(plain), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(rows), CUDA_SUCCESS);
  EXPECT_EQ(held() + fake.used_bytes, 0u);
  CUcontext context = nullptr;
  ASSERT_EQ(cuCtxCreate(&context, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(held(), 1000u);
  EXPECT_EQ(cuMemAlloc(&plain, 9001), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuCtxDestroy(context), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST_F(GuestTest, APitchThatPushesOverTheQuotaIsUndone) {
  start(2000);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 9;
  size_t pitch = 8;
  EXPECT_EQ(cuMemAllocPitch_v2(&pointer, &pitch, 100, 10, 4),
            CUDA_ERROR_OUT_OF_MEMORY);  // 1000 asked, 5120 taken
  EXPECT_EQ(pointer, 9u);
  EXPECT_EQ(pitch, 8u);
  EXPECT_EQ(fake.used_bytes, 0u);
  EXPECT_EQ(broker->account().held_bytes.load() + broker->account().reserved_bytes.load(), 0u);
}

TEST_F(GuestTest, APitchThatWasSeenIsReservedWithItsPadding) {
  start(8000);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  size_t pitch = 0;
  ASSERT_EQ(cuMemAllocPitch_v2(&pointer, &pitch, 100, 10, 4), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), 5120u);
  // Whoever reaches the driver now gets its error.
  fake.alloc_result = CUDA_ERROR_ILLEGAL_STATE;
  EXPECT_EQ(cuMemAllocPitch_v2(&pointer, &pitch, 100, 5, 4), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(cuMemAllocPitch_v2(&pointer, &pitch, 100, 6, 4), CUDA_ERROR_OUT_OF_MEMORY)
      << "600 bytes would fit, and take 3,072";
  EXPECT_EQ(broker->account().held_bytes.load(), 5120u);
  EXPECT_EQ(broker->account().reserved_bytes.load(), 0u);
}

TEST_F(GuestTest, PhysicalMemoryIsChargedUntilItsLastHandleAndMapping) {
  start(10 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUmemAllocationProp device{}, host{};
  device.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  host.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  CUmemGenericAllocationHandle handle = 0, other = 0;
  auto held = [&] { return broker->account().held_bytes.load(); };
  ASSERT_EQ(cuMemCreate(&handle, 6 * kMiB, &device, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemCreate(&other, 6 * kMiB, &device, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemCreate(&other, 6 * kMiB, &host, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(0x100000, 2 * kMiB, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(0x100000 + 2 * kMiB, 4 * kMiB, 2 * kMiB, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(held(), 6 * kMiB);
  ASSERT_EQ(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(0x100000 + kMiB)),
            CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(0x100000, 6 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(held(), 6 * kMiB);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

// The driver gives a handle anew as soon as it has ended, before the release that ended it returns.
TEST_F(GuestTest, AHandleThatIsGivenAnewIsAnotherMemory) {
  start(10 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  fake.handles_again = 1;
  CUmemAllocationProp device{};
  device.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle handle = 0, again = 0;
  auto held = [&] { return broker->account().held_bytes.load(); };
  ASSERT_EQ(cuMemCreate(&handle, 6 * kMiB, &device, 0), CUDA_SUCCESS);
  static std::atomic<bool> ended{false}, go{false};
  fake.on_released = [] {
    if (ended.exchange(true)) return;
    while (!go) sleep_ms(1);
  };
  std::thread slow([&] { EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS); });
  while (!ended) sleep_ms(1);
  EXPECT_EQ(cuMemCreate(&again, 2 * kMiB, &device, 0), CUDA_SUCCESS);
  EXPECT_EQ(again, handle);
  EXPECT_EQ(cuMemMap(0x100000, 2 * kMiB, 0, again, 0), CUDA_SUCCESS);
  go = true;
  slow.join();
  EXPECT_EQ(held(), 2 * kMiB);
  ASSERT_EQ(cuMemRelease(again), CUDA_SUCCESS);
  EXPECT_EQ(held(), 2 * kMiB);
  ASSERT_EQ(cuMemUnmap(0x100000, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST_F(GuestTest, AHandleWhoseReleaseFailedIsStillCharged) {
  start(10 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUmemAllocationProp device{};
  device.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, 6 * kMiB, &device, 0), CUDA_SUCCESS);
  fake.fail_at = fake.calls_memory + 1;
  fake.fail_times = 1;
  EXPECT_NE(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), 6 * kMiB);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), 0u);
}

// One row of 1,000 bytes that takes 1,024 says of all such rows what they take, though not to which
// multiple rows are padded: the driver is not asked for what does not fit.
TEST_F(GuestTest, RowsAreReservedAsPaddedOnceTheirLikeWasSeen) {
  start(kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr row = 0, rows = 0;
  size_t pitch = 0;
  ASSERT_EQ(cuMemAllocPitch_v2(&row, &pitch, 1000, 1, 4), CUDA_SUCCESS);
  ASSERT_EQ(pitch, 1024u);
  fake.alloc_result = CUDA_ERROR_ILLEGAL_STATE;
  EXPECT_EQ(cuMemAllocPitch_v2(&rows, &pitch, 1000, 1024, 4), CUDA_ERROR_OUT_OF_MEMORY);
  fake.alloc_result = CUDA_SUCCESS;
  EXPECT_EQ(cuMemAllocPitch_v2(&rows, &pitch, 1000, 1023, 4), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), kMiB);
}

TEST_F(GuestTest, ContextsCountAndComeBack) {
  start(100 * kMiB, 30 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), 30 * kMiB);
  EXPECT_EQ(broker->account().context_bytes.load(), 30 * kMiB);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 71 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAlloc_v2(&pointer, 70 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), 100 * kMiB);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0),
            CUDA_SUCCESS);  // the last one: the context and what was in it
  EXPECT_EQ(broker->account().held_bytes.load(), 0u);
  EXPECT_EQ(broker->account().context_bytes.load(), 0u);
}

TEST_F(GuestTest, TheViewIsTheVgpus) {
  start(2 * kGiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, kGiB / 2), CUDA_SUCCESS);
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
  EXPECT_EQ(total_bytes, 2 * kGiB);
  EXPECT_EQ(free_bytes, 2 * kGiB - kGiB / 2);
  total_bytes = 0;
  EXPECT_EQ(cuMemGetInfo_v2(nullptr, &total_bytes), CUDA_SUCCESS);
  EXPECT_EQ(total_bytes, 2 * kGiB);
  EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, 2 * kGiB - kGiB / 2);
  ASSERT_EQ(cuDeviceTotalMem_v2(&total_bytes, 0), CUDA_SUCCESS);
  EXPECT_EQ(total_bytes, 2 * kGiB);
  fake.used_bytes = fake.capacity_bytes - kMiB;  // a neighbour fills the GPU
  ASSERT_EQ(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, kMiB);
}

TEST_F(GuestTest, NvmlShowsTheVgpuToAProgramWithoutCuda) {
  start(2 * kGiB);
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  const auto info = reinterpret_cast<decltype(&nvmlDeviceGetMemoryInfo)>(
      dlsym(library, "nvmlDeviceGetMemoryInfo"));
  const auto info2 = reinterpret_cast<decltype(&nvmlDeviceGetMemoryInfo_v2)>(
      dlsym(library, "nvmlDeviceGetMemoryInfo_v2"));
  nvmlMemory_t memory{};
  ASSERT_EQ(info(nullptr, &memory), 0u);
  EXPECT_EQ(memory.total, 2 * kGiB);
  EXPECT_EQ(memory.free, 2 * kGiB);
  EXPECT_EQ(memory.used, 0u);
  broker->account().held_bytes.store(kGiB);
  nvmlMemory_v2_t memory2{};
  ASSERT_EQ(info2(nullptr, &memory2), 0u);
  EXPECT_EQ(memory2.total, 2 * kGiB);
  EXPECT_EQ(memory2.used, kGiB);
  ASSERT_EQ(info(reinterpret_cast<nvmlDevice_t>(1), &memory), 0u);  // somebody else's GPU
  EXPECT_EQ(memory.total, 8 * kGiB);
}

TEST_F(GuestTest, AClosedLeaseHoldsLaunchesBackAndOpeningLetsThemGo) {
  start(kGiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  std::atomic<bool> done{false};
  std::thread program([&] {
    EXPECT_EQ(launch(), CUDA_SUCCESS);
    done = true;
  });
  ASSERT_TRUE(broker->wait_for(MessageType::kGateWant, 1));
  sleep_ms(120);
  EXPECT_FALSE(done);
  EXPECT_EQ(fake.calls_launch, 0u);
  broker->lease_store(kLeaseOpen);
  program.join();
  EXPECT_EQ(fake.calls_launch, 1u);
  int wants = 0;
  for (const auto& note : broker->notes()) wants += note.type == MessageType::kGateWant;
  EXPECT_EQ(wants, 1);
  EXPECT_EQ(broker->account().gate_waits.load(), 1u);
  const std::uint64_t waited_ns = broker->account().gate_wait_ns.load();
  EXPECT_GT(waited_ns, 100'000'000u);
  // One wait, among those of its length.
  const auto& bounds = sluice::protocol::kGateWaitBounds_ns;
  const auto kind = std::lower_bound(std::begin(bounds), std::end(bounds), waited_ns) - bounds;
  for (std::size_t i = 0; i < sluice::protocol::kGateWaitCounts; ++i) {
    EXPECT_EQ(broker->claims().slots[0].gate_wait_counts[i].load(),
              i == static_cast<std::size_t>(kind))
        << i;
  }
}

TEST_F(GuestTest, ADrainIsAcknowledgedOnlyWhenTheFencesHavePassed) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  fake.events_pending = 1;
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().in_flight.load(), 1u);
  ASSERT_EQ(launch_on(reinterpret_cast<CUstream>(0x77)), CUDA_SUCCESS);
  broker->lease_store(0);
  EXPECT_FALSE(broker->wait_for(MessageType::kDrained, broker->epoch(), 150));
  fake.events_pending = 0;
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  EXPECT_EQ(broker->account().drained_epoch.load(), broker->epoch());
  EXPECT_EQ(broker->account().in_flight.load(), 0u);
  EXPECT_EQ(broker->account().launches.load(), 2u);
}

TEST_F(GuestTest, AProcessThatNeverLaunchedDrainsAtOnce) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
}

TEST_F(GuestTest, NoLaunchSlipsPastAnAcknowledgedDrain) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      while (!stop) launch_on(reinterpret_cast<CUstream>(static_cast<uintptr_t>(0x100 * (i + 1))));
    });
  }
  for (int round = 0; round < 50; ++round) {
    sleep_ms(2);
    broker->lease_store(0);
    ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch())) << round;
    const auto before = __atomic_load_n(&fake.calls_launch, __ATOMIC_SEQ_CST);
    sleep_ms(2);
    EXPECT_EQ(__atomic_load_n(&fake.calls_launch, __ATOMIC_SEQ_CST), before);
    broker->lease_store(kLeaseOpen);
  }
  stop = true;
  broker->lease_store(kLeaseOpen);
  for (auto& thread : threads) thread.join();
}

TEST_F(GuestTest, AContendedIdleLeaseIsGivenBack) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  fake.events_pending = 1;
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  broker->lease_flag(kLeaseOpen | kLeaseContended);
  EXPECT_FALSE(broker->wait_for(MessageType::kGateIdle, broker->epoch(), 100));
  fake.events_pending = 0;
  EXPECT_TRUE(broker->wait_for(MessageType::kGateIdle, broker->epoch()));
}

TEST_F(GuestTest, AnExclusiveLeaseIsNeitherMeteredNorFencedButDrains) {
  start(kGiB);
  broker->lease_store(kLeaseOpen | kLeaseExclusive);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(fake.calls_event_record, 0u);
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  EXPECT_EQ(broker->account().launches.load(), 100u);
}

TEST_F(GuestTest, BusyTimeIsWhatTheFencesSay) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  fake.launch_ns = 10'000;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(launch(), CUDA_SUCCESS);
    if (i % 10 == 9) {
      ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
      fake.device_ns += 1e6;  // idle
    }
  }
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  EXPECT_NEAR(static_cast<double>(broker->account().busy_ns.load()), 1000 * 10'000.0,
              1000 * 10'000.0 * 0.01);
  EXPECT_EQ(broker->account().launches.load(), 1000u);
}

TEST_F(GuestTest, FencesAreSparseInABurst) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  fake.launch_ns = 1000;
  for (int i = 0; i < 100000; ++i) ASSERT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_LT(fake.calls_event_record, 5000u);
}

TEST_F(GuestTest, CapturedLaunchesPassFreeAndTheCaptureIsNeverTouched) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const auto stream = reinterpret_cast<CUstream>(0x99);
  ASSERT_EQ(launch_on(stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  broker->lease_store(0);  // closed: a captured launch runs nothing and is not held back
  for (int i = 0; i < 50; ++i) ASSERT_EQ(launch_on(stream), CUDA_SUCCESS);
  sleep_ms(20);
  EXPECT_EQ(fake.calls_on_capturing, 0u);
  CUgraph graph;
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  EXPECT_EQ(broker->account().launches.load(), 1u);
}

}  // namespace

// The whole shim under a tenant, over the fake driver and a broker small enough for a test:
// registration, quota, views, gate and drain, meter, fork, lost brokers, closed descriptors. Each
// case is a process of its own.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
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
  ASSERT_TRUE(broker->wait_for(MessageType::kGateWant, 1, 5000));
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
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), 5000));
  EXPECT_EQ(broker->account().drained_epoch.load(), broker->epoch());
  EXPECT_EQ(broker->account().in_flight.load(), 0u);
  EXPECT_EQ(broker->account().launches.load(), 2u);
}

TEST_F(GuestTest, AProcessThatNeverLaunchedDrainsAtOnce) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), 5000));
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
    ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), 10000)) << round;
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
  EXPECT_TRUE(broker->wait_for(MessageType::kGateIdle, broker->epoch(), 5000));
}

TEST_F(GuestTest, AnExclusiveLeaseIsNeitherMeteredNorFencedButDrains) {
  start(kGiB);
  broker->lease_store(kLeaseOpen | kLeaseExclusive);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(fake.calls_event_record, 0u);
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), 5000));
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
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), 5000));
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
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), 5000));
  EXPECT_EQ(broker->account().launches.load(), 1u);
}

TEST_F(GuestTest, ARefusedProcessIsToldWhyAndDoesNotRunUnlimited) {
  start(kGiB);
  broker->refuse_with("too many processes of this tenant use the GPU; end one of them first");
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NOT_PERMITTED);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(launch(), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: this process may not use the GPU: too many processes of this tenant use the "
            "GPU; end one of them "
            "first\n");
}

TEST_F(GuestTest, AStrangersSocketIsNotAsked) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  ASSERT_EQ(seteuid(61234), 0);
  start(kGiB);
  ASSERT_EQ(seteuid(0), 0);
  testing::internal::CaptureStderr();
  ASSERT_EQ(cuInit(0), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(launch(), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: this process may not use the GPU: the broker's socket belongs to a user who "
            "is neither root nor you; check SLUICE_SOCKET\n");
  EXPECT_EQ(broker->registrations(), 0);
}

TEST_F(GuestTest, WithoutItsBrokerATenantRunsOpenWithOneLineAndJoinsLater) {
  std::string path;
  {
    TestBroker gone(kGiB);
    gone.environment_set();
    path = gone.path();
  }
  testing::internal::CaptureStderr();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 3 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said, "sluice: no broker answers at " + path +
                      "; the program runs without limits until one does (start sluiced, or unset "
                      "SLUICE_TENANT)\n");
}

TEST_F(GuestTest, ABrokerThatComesBackGetsTheWholeAccountAgain) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, 5 * kMiB), CUDA_SUCCESS);
  broker->die();
  TestBroker next(kGiB);
  next.path_take(*broker);
  ASSERT_TRUE(eventually([&] { return next.account().held_bytes.load() == 5 * kMiB; }, 10000));
  ASSERT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS);
  EXPECT_EQ(next.account().held_bytes.load(), 0u);
  next.lease_store(kLeaseOpen);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
}

TEST_F(GuestTest, WithoutABrokerTheGatesOpenAfterTheGraceAndTheQuotaStays) {
  start(10 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  broker->die();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1500));
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 11 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(GuestTest, ABrokerThatComesBackAndKnowsNothingOfTheTenantIsSaidOnce) {
  start(10 * kMiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, 5 * kMiB), CUDA_SUCCESS);
  broker->lease_store(0);
  broker->die();
  TestBroker next(kGiB);
  next.refuse_with("no job of yours has this id");
  next.path_take(*broker);
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(), CUDA_SUCCESS);  // after the grace
  // Later refusals of the reconnecting helper add nothing.
  sleep_ms(4000);
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 4 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: the broker went away and the one now at " + next.path() +
                " does not take this program: no job of yours has this id. It goes on with the "
                "memory limit it had, and its launches wait for nobody.\n");
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 2 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(next.registrations(), 0);
}

TEST_F(GuestTest, IdlenessCountsFromTheOpeningOfTheLease) {
  constexpr uint64_t kGraceNs = 400'000'000;
  start(kGiB);
  broker->lease().gpus[0].idle_grace_ns.store(kGraceNs);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  sleep_ms(600);  // idle for longer than the grace, uncontended
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), 5000));
  // The scheduler may keep a thread that waited for this lease from running for a while: nothing
  // launches yet.
  const auto opened = std::chrono::steady_clock::now();
  broker->lease_store(kLeaseOpen | kLeaseContended);
  ASSERT_TRUE(broker->wait_for(MessageType::kGateIdle, broker->epoch(), 20000));
  EXPECT_GE(std::chrono::steady_clock::now() - opened, std::chrono::nanoseconds(kGraceNs));
  // And with a thread that waited and goes on to launch.
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), 5000));
  std::thread program([] { EXPECT_EQ(launch(), CUDA_SUCCESS); });
  ASSERT_TRUE(broker->wait_for(MessageType::kGateWant, broker->epoch(), 5000));
  sleep_ms(600);
  const auto again = std::chrono::steady_clock::now();
  broker->lease_store(kLeaseOpen | kLeaseContended);
  program.join();
  ASSERT_TRUE(broker->wait_for(MessageType::kGateIdle, broker->epoch(), 20000));
  EXPECT_GE(std::chrono::steady_clock::now() - again, std::chrono::nanoseconds(kGraceNs));
}

TEST_F(GuestTest, AForkChildRegistersForItself) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, 5 * kMiB), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(launch(), CUDA_SUCCESS);
  ASSERT_TRUE(eventually([&] { return broker->account(0).launches.load() == 3; }));
  const pid_t pid = fork();
  if (pid == 0) {
    CUdeviceptr own = 0;
    // What the parent launched is the parent's.
    const bool good = cuInit(0) == CUDA_SUCCESS && cuMemAlloc_v2(&own, 3 * kMiB) == CUDA_SUCCESS &&
                      launch() == CUDA_SUCCESS &&
                      broker->account(1).held_bytes.load() == 3 * kMiB &&
                      eventually([&] { return broker->account(1).launches.load() != 0; }) &&
                      broker->account(1).launches.load() == 1;
    _exit(good ? 0 : 1);
  }
  int status = 1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(broker->registrations(), 2);
  EXPECT_EQ(broker->account(0).held_bytes.load(), 5 * kMiB);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
}

int socket_descriptor() {
  for (int fd = 1000; fd < 1100; ++fd) {
    if (fcntl(fd, F_GETFD) == FD_CLOEXEC) return fd;
  }
  return -1;
}

TEST_F(GuestTest, TheSocketIsHighClosesOnExecAndAReusedNumberIsLeftAlone) {
  start(kGiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const int fd = socket_descriptor();
  ASSERT_GE(fd, 1000);
  // A rude program closes everything and gets the number back for a file of its own.
  close(fd);
  char name[] = "/tmp/sluice-test-file-XXXXXX";
  const int own = mkstemp(name);
  ASSERT_EQ(dup2(own, fd), fd);
  broker->lease_store(kLeaseOpen);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_TRUE(eventually([&] { return broker->registrations() == 2; }));
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), 5000));
  EXPECT_EQ(fcntl(fd, F_GETFD), 0);
  EXPECT_EQ(lseek(fd, 0, SEEK_END), 0);
  close(fd);
  close(own);
  unlink(name);
}

// A fork while another thread makes a context, which takes a driver long: the child, where that
// thread is not, makes its own.
TEST_F(GuestTest, AForkInTheMiddleOfAnotherThreadsContextLeavesTheChildFree) {
  start(kGiB, 30 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  static std::atomic<bool> inside{false}, go{false};
  static const pid_t parent = getpid();
  fake.on_enter = [](const char* function) {
    if (getpid() != parent || strcmp(function, "cuDevicePrimaryCtxRetain") != 0) return;
    inside = true;
    while (!go) sleep_ms(1);
  };
  std::thread slow([] {
    CUcontext context = nullptr;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  });
  while (!inside) sleep_ms(1);
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    CUcontext context = nullptr;
    CUdeviceptr pointer = 0;
    const bool good = cuInit(0) == CUDA_SUCCESS &&
                      cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                      cuMemAlloc_v2(&pointer, kMiB) == CUDA_SUCCESS;
    size_t free_bytes = 0, total_bytes = 0;
    if (!good || cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS) _exit(1);
    // Its own context is charged, beside its parent's.
    _exit(free_bytes == kGiB - 61 * kMiB ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  go = true;
  slow.join();
}

}  // namespace

// Movable memory over the software GPU: it is memory of cuMemAlloc to the program, its account is
// the device's, and it survives being moved out and in. Each case is a process of its own.
#include <atomic>
#include <thread>

#include "tests/interpose/softgpu_partner.h"
#include "tests/interpose/softgpu_swap.h"

namespace {

using namespace sluice::test;
using sluice::protocol::kHoldIn;
using sluice::protocol::kHoldOut;
using sluice::protocol::kLeaseOpen;
using sluice::protocol::Moved;

constexpr size_t kGranule = 2 * kMiB;

class SwapTest : public SoftGpuTest {
 protected:
  explicit SwapTest(int gpus = 1, bool uses_cuda = true, size_t quota = 128 * kMiB)
      : SoftGpuTest([=] {
          Options o;
          o.gpus = gpus;
          o.uses_cuda = uses_cuda;
          o.swap = true;
          o.quota = quota;
          o.device_bytes = 2 * quota;
          return o;
        }()) {}
  CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc(&p, bytes), CUDA_SUCCESS) << bytes;
    return p;
  }
  uint64_t movable() { return broker->account().movable_bytes.load(); }
  uint64_t swapped() { return broker->account().swapped_bytes.load(); }

  void hold() {
    broker->lease_store(0);
    broker->hold_store(true);
    ASSERT_TRUE(broker->wait_held());
  }
  Moved order(uint32_t flag) {
    std::vector<Moved> moved;
    const uint32_t word = broker->order_store(flag);
    EXPECT_TRUE(broker->wait_moved(word, 20000, &moved));
    return moved.empty() ? Moved{} : moved.back();
  }
  void go_on() {
    broker->hold_store(false);
    broker->lease_store(kLeaseOpen);
  }
};

TEST_F(SwapTest, ContentsSurviveTheWayOutAndInAtTheSameAddresses) {
  const CUdeviceptr large = allocate(20 * kMiB + 4), small = allocate(4096), other = allocate(12);
  fill(large, 20 * kMiB, 1);
  fill(small, 4096, 2);
  fill(other, 12, 3);
  EXPECT_EQ(movable(), 22 * kMiB + kGranule);
  agrees("allocated");
  for (int round = 0; round < 3; ++round) {
    hold();
    const Moved out = order(kHoldOut);
    EXPECT_EQ(out.result, 0);
    EXPECT_EQ(out.bytes, 24 * kMiB);
    EXPECT_EQ(swapped(), 24 * kMiB);
    EXPECT_EQ(device_bytes(), kContext);
    EXPECT_EQ(broker->account().moved_word.load(), out.word);
    agrees("out");
    const Moved in = order(kHoldIn);
    EXPECT_EQ(in.result, 0);
    EXPECT_EQ(in.bytes, 24 * kMiB);
    EXPECT_EQ(swapped(), 0u);
    go_on();
    EXPECT_TRUE(has(large, 20 * kMiB, 1));
    EXPECT_TRUE(has(small, 4096, 2));
    EXPECT_TRUE(has(other, 12, 3));
    agrees("in");
  }
  ASSERT_EQ(cuMemFree(large), CUDA_SUCCESS);
  EXPECT_EQ(movable(), kGranule);
  ASSERT_EQ(cuMemFree(small), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(other), CUDA_SUCCESS);
  EXPECT_EQ(movable(), 0u);
  EXPECT_EQ(device_bytes(), kContext);
}

TEST_F(SwapTest, SmallAllocationsShareGranulesThatGoBackWithTheLast) {
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 3 * 4096; ++i) all.push_back(allocate(512));
  EXPECT_EQ(device_bytes(), kContext + 3 * kGranule);
  for (const CUdeviceptr p : all) EXPECT_EQ(p % 512, 0u);
  // Every other one leaves holes of 512 bytes, its neighbours make them holes of 1024.
  for (size_t i = 0; i < all.size(); i += 2) ASSERT_EQ(cuMemFree(all[i]), CUDA_SUCCESS);
  const CUdeviceptr wide = allocate(1024);
  EXPECT_EQ(device_bytes(), kContext + 4 * kGranule);
  ASSERT_EQ(cuMemFree(all[1]), CUDA_SUCCESS);
  const CUdeviceptr fits = allocate(1024);
  EXPECT_EQ(device_bytes(), kContext + 4 * kGranule);
  agrees("with holes");
  for (size_t i = 3; i < all.size(); i += 2) ASSERT_EQ(cuMemFree(all[i]), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(wide), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(fits), CUDA_SUCCESS);
  EXPECT_EQ(device_bytes(), kContext);
}

TEST_F(SwapTest, GranulesAreWhatIsChargedShownAndRefused) {
  const size_t left = options.quota - kContext;
  const CUdeviceptr large = allocate(left - kGranule);
  allocate(kGranule - 4096);
  size_t free_bytes = 1;
  ASSERT_EQ(cuMemGetInfo(&free_bytes, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, 0u);
  agrees("full");
  // The rest of a granule that is charged already is free to use.
  allocate(4096);
  CUdeviceptr more = 0x77;
  EXPECT_EQ(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(more, 0x77u);
  EXPECT_EQ(broker->account().refused.load(), 1u);
  ASSERT_EQ(cuMemFree(large), CUDA_SUCCESS);
  allocate(1);
  agrees("one granule more");
}

TEST_F(SwapTest, WhatIsNotMovableStaysAndIsCounted) {
  CUdeviceptr managed = 0, pooled = 0;
  CUmemGenericAllocationHandle own = 0;
  CUarray array = nullptr;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = shape.Height = 512;
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  ASSERT_EQ(cuMemAllocManaged(&managed, 4 * kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&pooled, 4 * kMiB, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemCreate(&own, 4 * kMiB, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuArrayCreate(&array, &shape), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(movable(), 0u);
  const CUdeviceptr some = allocate(6 * kMiB);
  fill(some, 6 * kMiB, 9);
  const uint64_t all = device_bytes();
  hold();
  EXPECT_EQ(order(kHoldOut).bytes, 6 * kMiB);
  EXPECT_EQ(device_bytes(), all - 6 * kMiB);
  agrees("out");
  EXPECT_EQ(order(kHoldIn).bytes, 6 * kMiB);
  go_on();
  EXPECT_TRUE(has(some, 6 * kMiB, 9));
}

TEST_F(SwapTest, MemoryThatOthersMayReachIsNotMovedAnyMore) {
  const CUdeviceptr free_to_go = allocate(4 * kMiB), stays = allocate(4 * kMiB);
  fill(stays, 4 * kMiB, 5);
  fill(free_to_go, 4 * kMiB, 6);
  const unsigned on = 1;
  ASSERT_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, stays + 8), CUDA_SUCCESS);
  EXPECT_EQ(movable(), 4 * kMiB);
  hold();
  EXPECT_EQ(order(kHoldOut).bytes, 4 * kMiB);
  EXPECT_EQ(device_bytes(), kContext + 4 * kMiB);
  EXPECT_EQ(order(kHoldIn).bytes, 4 * kMiB);
  go_on();
  EXPECT_TRUE(has(stays, 4 * kMiB, 5));
  EXPECT_TRUE(has(free_to_go, 4 * kMiB, 6));
  ASSERT_EQ(cuMemFree(stays), CUDA_SUCCESS);
  EXPECT_EQ(movable(), 4 * kMiB);
}

TEST_F(SwapTest, HandlesForOtherProcessesAreRefusedInOneLine) {
  const CUdeviceptr p = allocate(4096);
  CUipcMemHandle handle{};
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuIpcGetMemHandle(&handle, p), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuIpcGetMemHandle(&handle, p), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: memory of this job may be moved to the host (swap), so cuIpcGetMemHandle has "
            "no handle for it; run the job without swap to share memory between its processes\n");
}

TEST_F(SwapTest, TheMappingsAreNotTheProgramsToChange) {
  const CUdeviceptr p = allocate(4 * kMiB);
  CUmemGenericAllocationHandle handle = 0;
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  EXPECT_EQ(cuMemUnmap(p, 4 * kMiB), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(p, 4 * kMiB), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemSetAccess(p, 4 * kMiB, &access, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(p)),
            CUDA_ERROR_INVALID_VALUE);
  broker->lease_store(kLeaseOpen);
  EXPECT_EQ(cuMemsetD8(p, 1, 4 * kMiB), CUDA_SUCCESS);
}

TEST_F(SwapTest, AContextTakesItsMemoryAlong) {
  const CUdeviceptr mine = allocate(4096);
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  allocate(4096);
  allocate(7 * kMiB);
  EXPECT_EQ(movable(), kGranule + kGranule + 8 * kMiB) << "contexts share no granule";
  ASSERT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
  EXPECT_EQ(movable(), kGranule);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  agrees("destroyed");
  broker->lease_store(kLeaseOpen);
  EXPECT_EQ(cuMemsetD8(mine, 1, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  EXPECT_EQ(movable(), 0u);
  EXPECT_EQ(device_bytes(), 0u);
  EXPECT_EQ(held(), 0u);
}

TEST_F(SwapTest, FreedInStreamOrderItGoesBackBehindTheStream) {
  broker->lease_store(kLeaseOpen);
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const CUdeviceptr p = allocate(4 * kMiB);
  ASSERT_EQ(cuMemsetD32Async(p, 3, kMiB, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(p + 512, stream), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(p, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(device_bytes(), kContext);
}

TEST_F(SwapTest, UnderACaptureTheDriversRulesHold) {
  const CUdeviceptr before = allocate(4 * kMiB);
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  // Forbidden is forbidden, and breaks the capture as it does elsewhere.
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(before), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // What is allowed works, and does not break it: memory is not movable, and goes back later.
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  CUdeviceptr meanwhile = 0;
  EXPECT_EQ(cuMemAlloc(&meanwhile, 4 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(movable(), 4 * kMiB);
  EXPECT_EQ(cuMemFree(before), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(before), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(movable(), 4 * kMiB);
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  allocate(4096);
  EXPECT_EQ(movable(), kGranule);
  EXPECT_EQ(device_bytes(), kContext + 4 * kMiB + kGranule);
  EXPECT_EQ(cuMemFree(meanwhile), CUDA_SUCCESS);
}

class SwapPeersTest : public SwapTest {
 protected:
  SwapPeersTest() : SwapTest(2) {}
  // What the driver lets a device do at an address.
  unsigned long long may(CUdeviceptr p, int device) {
    unsigned long long flags = 99;
    const CUmemLocation where{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    EXPECT_EQ(cuMemGetAccess(&flags, &where, p), CUDA_SUCCESS);
    return flags;
  }
};

TEST_F(SwapPeersTest, PeersReachWhatIsThereAndWhatComesAlsoAfterAMove) {
  const unsigned long long all = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const unsigned long long none = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  const CUdeviceptr before = allocate(4 * kMiB);
  EXPECT_EQ(may(before, 0), all);
  EXPECT_EQ(may(before, 1), none);
  CUcontext peer = nullptr, second = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&peer, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxCreate(&second, nullptr, 0, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxEnablePeerAccess(context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(peer), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxEnablePeerAccess(context, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxEnablePeerAccess(context, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(may(before, 1), all);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  const CUdeviceptr later = allocate(4096);
  EXPECT_EQ(may(later, 1), all);
  hold();
  EXPECT_EQ(order(kHoldOut).result, 0);
  EXPECT_EQ(order(kHoldIn).result, 0);
  go_on();
  EXPECT_EQ(may(before, 1), all);
  EXPECT_EQ(may(later, 1), all);
  // While any context of the device may, the device may.
  ASSERT_EQ(cuCtxSetCurrent(peer), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxDisablePeerAccess(context), CUDA_SUCCESS);
  EXPECT_EQ(may(before, 1), all);
  ASSERT_EQ(cuCtxDestroy(second), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  const CUdeviceptr last = allocate(4 * kMiB);
  EXPECT_EQ(may(last, 1), none);
}

// Another process of the tenant, which the broker can see end.
class SwapPartnerTest : public SwapTest {
 protected:
  SwapPartnerTest() : SwapTest(1, false) { setenv("SOFTGPU_COPY_RATE", "20e6", 1); }
  void SetUp() override {
    SwapTest::SetUp();
    partner.start();
    ASSERT_EQ(partner.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
    ASSERT_EQ(partner.ask(PartnerOp::kAlloc, 40 * kMiB).result, CUDA_SUCCESS);
  }
  Partner partner;
};

TEST_F(SwapPartnerTest, AKillInTheMiddleOfAMoveLeaksNothing) {
  hold();
  // Two seconds by the device's rate: it is killed on the way.
  broker->order_store(kHoldOut);
  ASSERT_TRUE(eventually([&] { return device_account(partner.pid()).copy_ns > 0; }));
  const int pid = partner.pid();
  partner.end(SIGKILL);
  EXPECT_EQ(broker->account().moved_word.load(), 0u);
  ASSERT_TRUE(broker->wait_for_end(pid));
  EXPECT_EQ(device_total(), 0u);
  EXPECT_EQ(held_total(), 0u);
}

TEST_F(SwapPartnerTest, AProgramThatEndsWhileItsMemoryIsOutEnds) {
  hold();
  EXPECT_EQ(order(kHoldOut).bytes, 40 * kMiB);
  EXPECT_EQ(device_total(), kContext);
  const int pid = partner.pid();
  partner.send({.op = PartnerOp::kEnd});
  partner.end(0);
  ASSERT_TRUE(broker->wait_for_end(pid));
  EXPECT_EQ(device_total(), 0u);
}

TEST_F(SwapPartnerTest, AProgramThatEndsInTheMiddleOfAMoveEnds) {
  hold();
  broker->order_store(kHoldOut);
  ASSERT_TRUE(eventually([&] { return device_account(partner.pid()).copy_ns > 0; }));
  const int pid = partner.pid();
  partner.send({.op = PartnerOp::kEnd});
  partner.end(0);
  ASSERT_TRUE(broker->wait_for_end(pid));
  EXPECT_EQ(device_total(), 0u);
}

// What SLUICE_SWAP_RATE_MIB says is moved, 96 MiB without it: more takes long where the host is
// slow.
class SwapRateTest : public SwapTest {
 protected:
  SwapRateTest() : SwapTest(1, true, kContext + mib() * kMiB) {}
  static size_t mib() {
    const char* text = getenv("SLUICE_SWAP_RATE_MIB");
    return text == nullptr ? 96 : strtoul(text, nullptr, 10);
  }
};

// No assertion on time: a figure for who reads it. The device's rate is that of its copy engine.
TEST_F(SwapRateTest, TheRateOfAMoveIsPrinted) {
  const size_t bytes = options.quota - kContext;
  // Memory that nobody wrote would have to be found by the host while it is copied.
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuMemsetD32(allocate(bytes), 7, bytes / 4), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  hold();
  for (const uint32_t flag : {kHoldOut, kHoldIn}) {
    const double copied_before = device_account().copy_ns;
    const Moved moved = order(flag);
    EXPECT_EQ(moved.bytes, bytes);
    const double copied_ns = device_account().copy_ns - copied_before;
    printf("%s: %.0f MiB in %.1f ms, of which the copy engine worked %.1f %%\n",
           flag == kHoldOut ? "out" : "in", static_cast<double>(bytes) / kMiB,
           static_cast<double>(moved.taken_ns) / 1e6,
           100 * copied_ns / static_cast<double>(moved.taken_ns));
    EXPECT_GT(copied_ns, 0);
  }
  go_on();
}

}  // namespace

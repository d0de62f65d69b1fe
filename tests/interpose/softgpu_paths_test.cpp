// Every way to take device memory, one by one: what the ledger holds is what the device says, at
// once and not only in the end, on the device that the memory is on, and it all comes back.
#include <string.h>

#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "tests/interpose/allocating_graph.h"
#include "tests/interpose/softgpu_ways.h"

namespace {

using namespace sluice::test;

class SoftGpuPathsTest : public SoftGpuTest {
 protected:
  SoftGpuPathsTest() : SoftGpuTest({.gpus = 2}) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  }
  // The first GPU holds this much beside the context, and so says the device.
  void holds(size_t bytes, const char* when) {
    EXPECT_EQ(held(), kContext + bytes) << when;
    EXPECT_EQ(held(getpid(), 1), kContext) << when;
    agrees(when);
  }
  void second_holds(size_t bytes, const char* when) {
    EXPECT_EQ(held(), kContext) << when;
    EXPECT_EQ(held(getpid(), 1), kContext + bytes) << when;
    agrees(when);
  }
  CUcontext second = nullptr;
};

TEST_F(SoftGpuPathsTest, PlainMemory) {
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc(&pointer, 12345), CUDA_SUCCESS);
  holds(12345, "allocated");
  ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  holds(0, "freed");
  // Free in stream order, which gives it back when the stream gets there.
  ASSERT_EQ(cuMemAlloc(&pointer, 777), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(pointer, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  holds(0, "freed in stream order");
}

TEST_F(SoftGpuPathsTest, MemoryThatIsFreedBehindWorkCountsUntilTheDeviceHasIt) {
  broker->lease_store(sluice::protocol::kLeaseOpen);
  static std::atomic<bool> go;
  go = false;
  CUstream stream = nullptr;
  CUdeviceptr pointer = 0, more = 0;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&pointer, 40 * kMiB), CUDA_SUCCESS);
  const auto wait = [](void*) {
    while (!go) std::this_thread::yield();
  };
  ASSERT_EQ(cuLaunchHostFunc(stream, wait, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
  holds(40 * kMiB, "behind work");
  EXPECT_EQ(cuMemAlloc(&more, 40 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  holds(40 * kMiB, "it is still there");
  go = true;
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  holds(0, "waited for");
}

// A program may ask its streams as often as it likes while the memory is still behind work.
TEST_F(SoftGpuPathsTest, MemoryBehindWorkIsLookedForAfterManyQueries) {
  broker->lease_store(sluice::protocol::kLeaseOpen);
  static std::atomic<bool> go;
  CUstream stream = nullptr, idle = nullptr;
  CUevent event = nullptr;
  CUdeviceptr pointer = 0, more = 0;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  const auto wait = [](void*) {
    while (!go) std::this_thread::yield();
  };
  enum class Then { kAllocate, kNothing };
  for (const Then then : {Then::kAllocate, Then::kNothing}) {
    go = false;
    ASSERT_EQ(cuMemAlloc(&pointer, 60 * kMiB), CUDA_SUCCESS);
    ASSERT_EQ(cuLaunchHostFunc(stream, wait, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    for (int i = 0; i < 1000; ++i) {
      ASSERT_EQ(cuStreamQuery(idle), CUDA_SUCCESS);
      ASSERT_EQ(cuEventQuery(event), CUDA_SUCCESS);
    }
    // So that the helper has looked in vain.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(held(), kContext + 60 * kMiB);
    go = true;
    ASSERT_TRUE(eventually([&] { return device_bytes() == kContext; }));
    if (then == Then::kAllocate) {
      EXPECT_EQ(cuMemAlloc(&more, 60 * kMiB), CUDA_SUCCESS);
      EXPECT_EQ(cuMemFree(more), CUDA_SUCCESS);
    } else {
      EXPECT_TRUE(eventually([&] { return held() == kContext; }));
    }
  }
  EXPECT_EQ(broker->account().refused.load(), 0u);
}

TEST_F(SoftGpuPathsTest, WhatHasComeBackIsFoundBeforeARefusal) {
  CUdeviceptr pointer = 0;
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(cuMemAlloc(&pointer, 60 * kMiB), CUDA_SUCCESS) << i;
    ASSERT_EQ(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    // The program knows that it is done without a wait that the shim sees.
    ASSERT_TRUE(eventually([&] { return device_bytes() == kContext; }));
  }
}

CUmemoryPool pool_here() {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  return pool;
}

// The same by a call on another pool than the one that the memory has come back from.
TEST_F(SoftGpuPathsTest, WhatAnotherPoolHasGivenBackIsFoundBeforeARefusal) {
  CUmemoryPool pools[] = {pool_here(), pool_here()};
  CUstream stream = nullptr;
  CUevent done = nullptr;
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(cuMemAllocFromPoolAsync(&pointer, 60 * kMiB, pools[i % 2], stream), CUDA_SUCCESS)
        << i;
    ASSERT_EQ(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(done, stream), CUDA_SUCCESS);
    // It comes back with the wait of a thread that is on no GPU.
    std::thread([&] { EXPECT_EQ(cuEventSynchronize(done), CUDA_SUCCESS); }).join();
    ASSERT_EQ(device_bytes(), kContext);
  }
  // And what was no pool's.
  ASSERT_EQ(cuMemAlloc(&pointer, 60 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
  ASSERT_TRUE(eventually([&] { return device_bytes() == kContext; }));
  ASSERT_EQ(cuMemAllocFromPoolAsync(&pointer, 60 * kMiB, pools[0], stream), CUDA_SUCCESS);
  agrees("allocated");
  EXPECT_EQ(broker->account().refused.load(), 0u);
}

TEST_F(SoftGpuPathsTest, PitchedMemoryByTheDriversPitch) {
  CUdeviceptr pointer = 0;
  size_t pitch = 0;
  ASSERT_EQ(cuMemAllocPitch(&pointer, &pitch, 1000, 33, 4), CUDA_SUCCESS);
  EXPECT_GE(pitch, 1000u);
  holds(pitch * 33, "allocated");
  ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  holds(0, "freed");
}

TEST_F(SoftGpuPathsTest, ManagedMemory) {
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAllocManaged(&pointer, 3 * kMiB + 1, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  holds(3 * kMiB + 1, "allocated");
  ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  holds(0, "freed");
}

TEST_F(SoftGpuPathsTest, ADevicesPoolWithThresholdAndTrim) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  cuuint64_t threshold = 64 * kMiB, reserved = 0;
  ASSERT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
            CUDA_SUCCESS);
  CUdeviceptr pointer = 0, other = 0;
  ASSERT_EQ(cuMemAllocAsync(&pointer, 5 * kMiB, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved),
            CUDA_SUCCESS);
  holds(reserved, "allocated");
  ASSERT_EQ(cuMemFreeAsync(pointer, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  holds(reserved, "freed, and kept by the pool");
  ASSERT_EQ(cuMemAllocAsync(&other, kMiB, nullptr), CUDA_SUCCESS);
  holds(reserved, "out of the pool's reserve");
  ASSERT_EQ(cuMemFree(other), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  holds(0, "trimmed");
}

TEST_F(SoftGpuPathsTest, AStreamIsEnoughWithoutACurrentContext) {
  CUstream stream = nullptr;
  CUdeviceptr pointer = 0, more = 0x77;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  std::thread([&] {
    EXPECT_EQ(cuMemAllocAsync(&pointer, 2 * kMiB, stream), CUDA_SUCCESS);
    holds(2 * kMiB, "allocated");
    EXPECT_EQ(cuMemAllocAsync(&more, 70 * kMiB, stream), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(more, 0x77u);
    EXPECT_EQ(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
  }).join();
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  holds(0, "freed");
}

// While something captures, what a thread without a context allocates is the graph's in the
// capturing stream, and the pool's in another.
TEST_F(SoftGpuPathsTest, ACaptureTakesNothingAndOtherStreamsStillDo) {
  CUstream capturing = nullptr, other = nullptr;
  CUdeviceptr captured = 0, pointer = 0;
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  std::thread([&] {
    EXPECT_EQ(cuMemAllocAsync(&captured, kMiB, capturing), CUDA_SUCCESS);
    holds(0, "captured");
    EXPECT_EQ(cuMemAllocAsync(&pointer, 2 * kMiB, other), CUDA_SUCCESS);
    holds(2 * kMiB, "not captured");
    EXPECT_EQ(cuMemFreeAsync(captured, capturing), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeAsync(pointer, other), CUDA_SUCCESS);
  }).join();
  ASSERT_EQ(cuStreamEndCapture(capturing, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  holds(0, "freed");
}

TEST_F(SoftGpuPathsTest, AnUploadIntoACapturingStreamIsRefusedAndTakesNothing) {
  broker->lease_store(sluice::protocol::kLeaseOpen);
  const CUgraphExec exec = allocating_graph(0, 4 * kMiB);
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphUpload(exec, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  holds(0, "not uploaded");
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  holds(0, "trimmed");
}

TEST_F(SoftGpuPathsTest, APoolOfItsOwnAndWhatOutlivesIt) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  CUdeviceptr a = 0, b = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&a, 3 * kMiB, pool, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&b, kMiB / 2, pool, nullptr), CUDA_SUCCESS);
  agrees("allocated");
  ASSERT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  agrees("destroyed with allocations alive");
  EXPECT_GE(held(), kContext + 3 * kMiB + kMiB / 2);
  ASSERT_EQ(cuMemFree(a), CUDA_SUCCESS);
  EXPECT_TRUE(eventually([&] { return difference().empty(); })) << difference();
  ASSERT_EQ(cuMemFree(b), CUDA_SUCCESS);
  EXPECT_TRUE(eventually([&] { return held() == kContext; })) << held();
  holds(0, "the last one freed");
}

// The device has it back long after the calls, and without one that would tell.
TEST_F(SoftGpuPathsTest, WhatIsFreedBehindWorkOfADestroyedPoolComesBack) {
  broker->lease_store(sluice::protocol::kLeaseOpen);
  static std::atomic<bool> go;
  go = false;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&pointer, 2 * kMiB, pool, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  // Until nobody looks for what came of the destruction any more.
  for (int i = 0; i < 10; ++i) ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  const auto wait = [](void*) {
    while (!go) std::this_thread::yield();
  };
  ASSERT_EQ(cuLaunchHostFunc(stream, wait, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  go = true;
  EXPECT_TRUE(eventually([&] { return device_bytes() == kContext && difference().empty(); }))
      << difference();
}

TEST_F(SoftGpuPathsTest, PhysicalMemoryUntilItsLastHandleAndMapping) {
  const CUmemAllocationProp properties = on_device(0);
  CUmemGenericAllocationHandle handle = 0, again = 0;
  ASSERT_EQ(cuMemCreate(&handle, 4 * kMiB, &properties, 0), CUDA_SUCCESS);
  holds(4 * kMiB, "created");
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAddressReserve(&at, 8 * kMiB, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(at, 4 * kMiB, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(at + 4 * kMiB, 4 * kMiB, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  holds(4 * kMiB, "mapped without a handle");
  ASSERT_EQ(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at)), CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(at, 8 * kMiB), CUDA_SUCCESS);
  holds(4 * kMiB, "retained without a mapping");
  ASSERT_EQ(cuMemRelease(again), CUDA_SUCCESS);
  holds(0, "released");
  ASSERT_EQ(cuMemAddressFree(at, 8 * kMiB), CUDA_SUCCESS);
}

TEST_F(SoftGpuPathsTest, ArraysOfEveryKind) {
  CUarray flat = nullptr, deep = nullptr;
  CUmipmappedArray levels = nullptr;
  CUDA_ARRAY_DESCRIPTOR plane{};
  plane.Width = 101;
  plane.Height = 37;
  plane.Format = CU_AD_FORMAT_FLOAT;
  plane.NumChannels = 2;
  ASSERT_EQ(cuArrayCreate(&flat, &plane), CUDA_SUCCESS);
  EXPECT_GE(held(), kContext + 101 * 37 * 8);
  agrees("an array");
  CUDA_ARRAY3D_DESCRIPTOR box{};
  box.Width = 17;
  box.Height = 19;
  box.Depth = 5;
  box.Format = CU_AD_FORMAT_UNSIGNED_INT16;
  box.NumChannels = 4;
  const uint64_t before_box = held();
  ASSERT_EQ(cuArray3DCreate(&deep, &box), CUDA_SUCCESS);
  EXPECT_GE(held(), before_box + 17 * 19 * 5 * 8);
  agrees("an array with depth");
  const uint64_t before_levels = held();
  ASSERT_EQ(cuMipmappedArrayCreate(&levels, &box, 3), CUDA_SUCCESS);
  EXPECT_GT(held(), before_levels);
  agrees("levels");
  ASSERT_EQ(cuArrayDestroy(flat), CUDA_SUCCESS);
  ASSERT_EQ(cuArrayDestroy(deep), CUDA_SUCCESS);
  ASSERT_EQ(cuMipmappedArrayDestroy(levels), CUDA_SUCCESS);
  holds(0, "destroyed");
}

struct Box {
  const char* name;
  size_t width, height, depth;
  unsigned flags;
  unsigned levels;  // 0 = no mipmapped array
};
// Sides that no block, plane or level divides, and those that planar formats need.
const Box kBoxes[] = {
    {"1-D", 133, 0, 0, 0, 0},
    {"2-D", 101, 37, 0, 0, 0},
    {"2-D, for video", 64, 48, 0, CUDA_ARRAY3D_VIDEO_ENCODE_DECODE, 0},
    {"2-D, gathered", 31, 17, 0, CUDA_ARRAY3D_TEXTURE_GATHER, 0},
    {"2-D, for surfaces", 31, 17, 0, CUDA_ARRAY3D_SURFACE_LDST, 0},
    {"3-D", 17, 19, 5, 0, 0},
    {"layers of 1-D", 133, 0, 7, CUDA_ARRAY3D_LAYERED, 0},
    {"layers of 2-D", 21, 13, 7, CUDA_ARRAY3D_LAYERED, 0},
    {"cubemap", 15, 15, 6, CUDA_ARRAY3D_CUBEMAP, 0},
    {"layers of cubemaps", 15, 15, 12, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED, 0},
    {"levels of 1-D", 133, 0, 0, 0, 8},
    {"one level of 2-D", 101, 37, 0, 0, 1},
    {"levels of 2-D", 101, 37, 0, 0, 7},
    {"levels of 3-D", 17, 19, 5, 0, 4},
    {"levels of layers", 21, 13, 7, CUDA_ARRAY3D_LAYERED, 5},
    {"levels of a cubemap", 15, 15, 6, CUDA_ARRAY3D_CUBEMAP, 3},
};
constexpr int kFormatValuesMax = 0x100;  // of the enumeration; what is none is refused
constexpr size_t kFormats = 51;          // those of cuda.h

TEST_F(SoftGpuPathsTest, ArraysOfEveryFormatChannelCountAndShape) {
  std::set<int> formats;
  std::set<std::string> boxes;
  for (int format = 0; format < kFormatValuesMax; ++format) {
    for (unsigned channels = 1; channels <= 4; ++channels) {
      for (const Box& box : kBoxes) {
        CUDA_ARRAY3D_DESCRIPTOR shape{};
        shape.Width = box.width;
        shape.Height = box.height;
        shape.Depth = box.depth;
        memcpy(&shape.Format, &format, sizeof format);
        shape.NumChannels = channels;
        shape.Flags = box.flags;
        CUarray array = nullptr;
        CUmipmappedArray levels = nullptr;
        const CUresult result = box.levels == 0
                                    ? cuArray3DCreate(&array, &shape)
                                    : cuMipmappedArrayCreate(&levels, &shape, box.levels);
        ASSERT_EQ(held(), device_bytes())
            << box.name << ", format " << format << ", channels " << channels;
        if (result != CUDA_SUCCESS) continue;
        ASSERT_GT(held(), kContext);
        formats.insert(format);
        boxes.insert(box.name);
        ASSERT_EQ(box.levels == 0 ? cuArrayDestroy(array) : cuMipmappedArrayDestroy(levels),
                  CUDA_SUCCESS);
        ASSERT_EQ(held(), kContext) << box.name;
      }
    }
  }
  EXPECT_EQ(formats.size(), kFormats) << "not all of cuda.h";
  EXPECT_EQ(boxes.size(), std::size(kBoxes));
  holds(0, "destroyed");
}

TEST_F(SoftGpuPathsTest, TheOwningDeviceIsChargedWhateverTheCurrentOneIs) {
  // The first GPU's context is current all the time.
  CUdeviceptr pointer = 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp properties = on_device(1);
  ASSERT_EQ(cuMemCreate(&handle, 2 * kMiB, &properties, 0), CUDA_SUCCESS);
  second_holds(2 * kMiB, "physical memory");
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);

  CUmemoryPool pool = nullptr;
  CUstream stream = nullptr;
  ASSERT_EQ(cuCtxPushCurrent(second), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&pointer, kMiB, stream), CUDA_SUCCESS);
  second_holds(2 * kMiB, "by a stream of the other device");
  ASSERT_EQ(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  second_holds(0, "given back");
  ASSERT_EQ(cuMemAllocFromPoolAsync(&pointer, kMiB, pool, stream), CUDA_SUCCESS);
  second_holds(2 * kMiB, "from the other device's pool");
  ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  second_holds(0, "trimmed");

  // Freed while the other device is current.
  ASSERT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&pointer, 4321), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  second_holds(4321, "allocated there");
  ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  second_holds(0, "freed from here");
}

TEST_F(SoftGpuPathsTest, TheQuotaIsOfEachDevice) {
  const CUmemAllocationProp there = on_device(1);
  CUmemGenericAllocationHandle all = 0, more = 0;
  ASSERT_EQ(cuMemCreate(&all, 68 * kMiB, &there, 0), CUDA_SUCCESS);  // 100 less the context
  EXPECT_EQ(cuMemCreate(&more, 2 * kMiB, &there, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr here = 0;
  EXPECT_EQ(cuMemAlloc(&here, 68 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(held_total(0), kQuota);
  EXPECT_EQ(held_total(1), kQuota);
}

TEST_F(SoftGpuPathsTest, AGraphsMemoryIsOnTheDeviceThatItsNodeNames) {
  broker->lease_store(sluice::protocol::kLeaseOpen);
  CUgraphExec exec = sluice::test::allocating_graph(1, 6 * kMiB);
  ASSERT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  second_holds(6 * kMiB, "launched");
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGraphMemTrim(1), CUDA_SUCCESS);
  second_holds(0, "trimmed");
}

TEST_F(SoftGpuPathsTest, AContextTakesAllItsMemoryAlong) {
  CUcontext own = nullptr;
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
  holds(kContext, "a second context");
  CUdeviceptr pointer = 0;
  CUarray array = nullptr;
  CUDA_ARRAY_DESCRIPTOR line{};
  line.Width = 1000;
  line.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  line.NumChannels = 1;
  ASSERT_EQ(cuMemAlloc(&pointer, 1001), CUDA_SUCCESS);
  ASSERT_EQ(cuArrayCreate(&array, &line), CUDA_SUCCESS);
  EXPECT_GT(held(), 2 * kContext + 2000);
  ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  holds(0, "destroyed");
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
TEST_F(SoftGpuPathsTest, AContextEndsWithItsLastAttachment) {
  CUcontext own = nullptr, attached = nullptr;
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&pointer, 999), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxAttach(&attached, 0), CUDA_SUCCESS);
  ASSERT_EQ(attached, own);
  ASSERT_EQ(cuCtxDetach(own), CUDA_SUCCESS);
  holds(kContext + 999, "attached once more");
  ASSERT_EQ(cuCtxDetach(own), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  holds(0, "detached");
}
#pragma GCC diagnostic pop

}  // namespace

// Two GPUs: whatever is taken on one is charged there and given back there, whichever context is
// current when it is made and whichever when it ends, on whichever thread; and what one GPU holds
// says nothing of the other's quota.
#include <string>
#include <thread>
#include <vector>

#include "tests/interpose/allocating_graph.h"
#include "tests/interpose/softgpu_devices.h"

namespace {

using namespace sluice::test;

// How a context of the second GPU becomes the current one for a moment, and how it ends again.
struct Entrance {
  const char* name;
  void (*enter)(CUcontext second);
  void (*leave)(CUcontext first);
};
const Entrance kEntrances[] = {
    {"pushed", [](CUcontext second) { EXPECT_EQ(cuCtxPushCurrent(second), CUDA_SUCCESS); },
     [](CUcontext) { EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS); }},
    {"set", [](CUcontext second) { EXPECT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS); },
     [](CUcontext first) { EXPECT_EQ(cuCtxSetCurrent(first), CUDA_SUCCESS); }},
};

// Where it ends.
struct Exit {
  const char* name;
  void (*run)(CUcontext first, CUcontext second, const std::function<void()>& give);
};
void exit_on_thread(CUcontext current, const std::function<void()>& give) {
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(current), CUDA_SUCCESS);
    give();
  }).join();
}
const Exit kExits[] = {
    {"with the first GPU current",
     [](CUcontext, CUcontext, const std::function<void()>& give) { give(); }},
    {"with the second current",
     [](CUcontext, CUcontext second, const std::function<void()>& give) {
       EXPECT_EQ(cuCtxPushCurrent(second), CUDA_SUCCESS);
       give();
       EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
     }},
    {"on a thread of the first",
     [](CUcontext first, CUcontext, const std::function<void()>& give) {
       exit_on_thread(first, give);
     }},
    {"on a thread of the second",
     [](CUcontext, CUcontext second, const std::function<void()>& give) {
       exit_on_thread(second, give);
     }},
};

TEST_F(SoftGpuDevicesTest, EveryWayIsChargedWhereItsContextIsAndGivenBackThere) {
  for (const Way& way : kWays) {
    for (const Entrance& entrance : kEntrances) {
      for (const Exit& exit : kExits) {
        const std::string what = std::string(way.name) + ", " + entrance.name + ", " + exit.name;
        uint64_t out = 0;
        entrance.enter(second);
        EXPECT_EQ(way.call(1, &out), CUDA_SUCCESS) << what;
        // What makes a context makes it current.
        const bool makes_context = way.give == context_give;
        if (makes_context) {
          EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS) << what;
        }
        entrance.leave(context);
        const size_t taken = held(getpid(), 1) - kContext;
        EXPECT_GE(taken, kMiB) << what;
        holds(0, taken, what);
        exit.run(context, second, [&] { EXPECT_EQ(way.give(out), CUDA_SUCCESS) << what; });
        holds(0, 0, what + ", ended");
      }
    }
  }
}

TEST_F(SoftGpuDevicesTest, AThreadsOwnCurrentContextSaysWhere) {
  for (const Way& way : kWays) {
    uint64_t out = 0;
    on_thread(second, [&] { EXPECT_EQ(way.call(1, &out), CUDA_SUCCESS) << way.name; });
    const size_t taken = held(getpid(), 1) - kContext;
    EXPECT_GE(taken, kMiB) << way.name;
    holds(0, taken, way.name);
    EXPECT_EQ(way.give(out), CUDA_SUCCESS) << way.name;
    holds(0, 0, way.name);
  }
}

TEST_F(SoftGpuDevicesTest, AFullGpuRefusesNothingOnTheOther) {
  CUdeviceptr all = 0;
  ASSERT_EQ(cuMemAlloc(&all, kQuota - kContext), CUDA_SUCCESS);
  for (const Way& way : kWays) {
    uint64_t out = 0x77;
    EXPECT_EQ(way.call(way.give == context_give ? 1 : 70, &out), CUDA_ERROR_OUT_OF_MEMORY)
        << way.name;
    EXPECT_EQ(out, 0x77u) << way.name;
    with_second([&] { EXPECT_EQ(way.call(1, &out), CUDA_SUCCESS) << way.name; });
    EXPECT_EQ(held(), kQuota) << way.name;
    EXPECT_GE(held(getpid(), 1), kContext + kMiB) << way.name;
    agrees(way.name);
    EXPECT_EQ(way.give(out), CUDA_SUCCESS) << way.name;
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    holds(kQuota - kContext, 0, way.name);
  }
}

TEST_F(SoftGpuDevicesTest, AFullGpuRefusesWhicheverIsCurrentBeforeAndAfter) {
  for (const Way& way : kWays) {
    uint64_t out = 0x77;
    const uint64_t refused = broker->account(0, 1).refused.load();
    with_second([&] { EXPECT_EQ(way.call(70, &out), CUDA_ERROR_OUT_OF_MEMORY) << way.name; });
    EXPECT_EQ(out, 0x77u) << way.name;
    EXPECT_EQ(broker->account(0, 1).refused.load(), refused + 1) << way.name;
    EXPECT_EQ(broker->account(0, 0).refused.load(), 0u) << way.name;
    holds(0, 0, way.name);
  }
}

TEST_F(SoftGpuDevicesTest, AContextsEndGivesBackWhatItHasOnItsOwnGpu) {
  CUcontext own = nullptr;
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 1), CUDA_SUCCESS);
  for (const Way& way : kWays) {
    // Others outlive the context; a context is one itself.
    if (way.give != pointer_give && way.give != array_give && way.give != levels_give &&
        way.give != module_give)
      continue;
    uint64_t out = 0;
    EXPECT_EQ(way.call(1, &out), CUDA_SUCCESS) << way.name;
  }
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  const size_t taken = held(getpid(), 1) - kContext;
  EXPECT_GE(taken, kContext + 9 * kMiB);
  holds(0, taken, "made");
  ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
  holds(0, 0, "destroyed with the first GPU current");
}

// ---- by name: the first GPU's context is current all the time

/// A graph that allocates on a device, launched once.
CUgraphExec graph_launched_on(int device) {
  CUgraphExec exec = sluice::test::allocating_graph(device, 2 * kMiB);
  EXPECT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  return exec;
}

CUresult own_pool_make(CUmemoryPool* pool) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {1}};
  return cuMemPoolCreate(pool, &properties);
}

struct Named {
  const char* name;
  void (*take)(CUstream there, uint64_t* out);
  CUresult (*give)(uint64_t out);
};
const Named kNamed[] = {
    {"cuMemCreate",
     [](CUstream, uint64_t* out) {
       const CUmemAllocationProp properties = on_device(1);
       EXPECT_EQ(cuMemCreate(reinterpret_cast<CUmemGenericAllocationHandle*>(out), 2 * kMiB,
                             &properties, 0),
                 CUDA_SUCCESS);
     },
     physical_give},
    {"cuMemAllocAsync, by the stream",
     [](CUstream there, uint64_t* out) {
       EXPECT_EQ(cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(out), 2 * kMiB, there),
                 CUDA_SUCCESS);
     },
     pooled_give},
    {"cuMemAllocFromPoolAsync, by the device's pool",
     [](CUstream there, uint64_t* out) {
       CUmemoryPool pool = nullptr;
       EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, 1), CUDA_SUCCESS);
       EXPECT_EQ(
           cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(out), 2 * kMiB, pool, there),
           CUDA_SUCCESS);
     },
     pooled_give},
    {"cuMemAllocFromPoolAsync, by a pool of its own that ends first",
     [](CUstream there, uint64_t* out) {
       CUmemoryPool pool = nullptr;
       EXPECT_EQ(own_pool_make(&pool), CUDA_SUCCESS);
       EXPECT_EQ(
           cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(out), 2 * kMiB, pool, there),
           CUDA_SUCCESS);
       EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
     },
     pointer_give},
    {"cuGraphLaunch, by the node",
     [](CUstream, uint64_t* out) { *out = reinterpret_cast<uint64_t>(graph_launched_on(1)); },
     [](uint64_t out) {
       EXPECT_EQ(cuGraphExecDestroy(reinterpret_cast<CUgraphExec>(out)), CUDA_SUCCESS);
       return cuDeviceGraphMemTrim(1);
     }},
    {"cuCtxCreate",
     [](CUstream, uint64_t* out) {
       EXPECT_EQ(cuCtxCreate(reinterpret_cast<CUcontext*>(out), nullptr, 0, 1), CUDA_SUCCESS);
       EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
     },
     context_give},
};

TEST_F(SoftGpuDevicesTest, WhatNamesAGpuIsChargedThere) {
  for (const Named& named : kNamed) {
    for (const Exit& exit : kExits) {
      const std::string what = std::string(named.name) + ", " + exit.name;
      uint64_t out = 0;
      named.take(stream_there, &out);
      const size_t taken = held(getpid(), 1) - kContext;
      EXPECT_GE(taken, 2 * kMiB) << what;
      holds(0, taken, what);
      exit.run(context, second, [&] { EXPECT_EQ(named.give(out), CUDA_SUCCESS) << what; });
      come_to(0, 0, what.c_str());
    }
  }
}

TEST_F(SoftGpuDevicesTest, APrimaryContextIsChargedWhereItIs) {
  ASSERT_EQ(cuStreamDestroy(stream_there), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  EXPECT_EQ(held(getpid(), 1), 0u);
  EXPECT_EQ(held(), kContext);
  agrees("released with the first GPU current");
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  holds(0, 0, "retained with the first GPU current");
}

// How a program learns that a stream of the other GPU is done, with its own current.
const std::pair<const char*, CUresult (*)(CUstream, CUevent)> kWaits[] = {
    {"cuStreamSynchronize", [](CUstream there, CUevent) { return cuStreamSynchronize(there); }},
    {"cuEventSynchronize", [](CUstream, CUevent end) { return cuEventSynchronize(end); }},
    {"cuStreamQuery",
     [](CUstream there, CUevent) {
       while (cuStreamQuery(there) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
       return cuStreamQuery(there);
     }},
};

TEST_F(SoftGpuDevicesTest, WhatIsFreedInStreamOrderComesBackWithAWaitForTheOthersStream) {
  CUevent end = nullptr;
  with_second([&] { ASSERT_EQ(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS); });
  for (const auto& [name, wait] : kWaits) {
    CUdeviceptr plain = 0, pooled = 0;
    with_second([&] {
      ASSERT_EQ(cuMemAlloc(&plain, 3 * kMiB), CUDA_SUCCESS);
      ASSERT_EQ(cuMemAllocAsync(&pooled, 2 * kMiB, stream_there), CUDA_SUCCESS);
    });
    holds(0, 5 * kMiB, name);
    ASSERT_EQ(cuMemFreeAsync(plain, stream_there), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeAsync(pooled, stream_there), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(end, stream_there), CUDA_SUCCESS);
    ASSERT_EQ(wait(stream_there, end), CUDA_SUCCESS) << name;
    // A pool gives back what it has when the driver likes.
    EXPECT_TRUE(eventually([&] {
      return held(getpid(), 1) <= kContext + 2 * kMiB && difference().empty();
    })) << name
        << "\n"
        << difference();
  }
}

// ---- what no call tells the size of

TEST_F(SoftGpuDevicesTest, ALibraryIsChargedOnTheGpuItsCodeIsLoadedOn) {
  const std::string text = code_with_room(3 * kMiB);
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  holds(0, 0, "nothing of it is in a context");
  CUdeviceptr variable = 0;
  with_second(
      [&] { ASSERT_EQ(cuLibraryGetGlobal(&variable, nullptr, library, "room"), CUDA_SUCCESS); });
  holds(0, 3 * kMiB, "on the second");
  ASSERT_EQ(cuLibraryGetGlobal(&variable, nullptr, library, "room"), CUDA_SUCCESS);
  holds(3 * kMiB, 3 * kMiB, "on both");
  on_thread(second, [&] { ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS); });
  holds(0, 0, "unloaded");
}

TEST_F(SoftGpuDevicesTest, ALibraryThatDoesNotFitOnOneGpuIsWithheldThereAlone) {
  CUdeviceptr rest = 0, variable = 0x77;
  with_second([&] { ASSERT_EQ(cuMemAlloc(&rest, kQuota - kContext - kMiB), CUDA_SUCCESS); });
  const std::string text = code_with_room(3 * kMiB);
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetGlobal(&variable, nullptr, library, "room"), CUDA_SUCCESS);
  CUdeviceptr there = 0x77;
  with_second([&] {
    EXPECT_EQ(cuLibraryGetGlobal(&there, nullptr, library, "room"), CUDA_ERROR_OUT_OF_MEMORY);
  });
  EXPECT_EQ(there, 0x77u);
  agrees("charged, and withheld");
  EXPECT_EQ(broker->account(0, 0).refused.load(), 0u);
  ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  holds(0, kQuota - kContext - kMiB, "unloaded");
}

TEST_F(SoftGpuDevicesTest, ALimitIsChargedOnTheGpuOfItsContext) {
  size_t before = 0;
  with_second([&] {
    ASSERT_EQ(cuCtxGetLimit(&before, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2 * before), CUDA_SUCCESS);
  });
  const size_t taken = held(getpid(), 1) - kContext;
  EXPECT_GT(taken, 0u);
  holds(0, taken, "raised");
  with_second([&] { ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before), CUDA_SUCCESS); });
  holds(0, 0, "lowered again");
}

TEST_F(SoftGpuDevicesTest, ManagedMemoryStaysChargedWhereItWasAllocated) {
  // Its pages go where they are used, and back; the size is charged once, whatever is advised.
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAllocManaged(&pointer, 6 * kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  holds(6 * kMiB, 0, "allocated");
  const CUmemLocation places[] = {{CU_MEM_LOCATION_TYPE_DEVICE, {1}},
                                  {CU_MEM_LOCATION_TYPE_HOST, {CU_DEVICE_CPU}},
                                  {CU_MEM_LOCATION_TYPE_DEVICE, {0}},
                                  {CU_MEM_LOCATION_TYPE_DEVICE, {1}}};
  for (const CUmemLocation& place : places) {
    ASSERT_EQ(cuMemAdvise(pointer, 6 * kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place),
              CUDA_SUCCESS);
    ASSERT_EQ(cuMemPrefetchAsync(pointer, 6 * kMiB, place, 0, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    holds(6 * kMiB, 0, "prefetched to " + std::to_string(place.id));
  }
  // The second GPU's quota is free for others of the size, the first one's is not.
  CUdeviceptr here = 0x77, there = 0;
  EXPECT_EQ(cuMemAlloc(&here, kQuota - kContext - 6 * kMiB + 1), CUDA_ERROR_OUT_OF_MEMORY);
  with_second([&] { EXPECT_EQ(cuMemAlloc(&there, kQuota - kContext), CUDA_SUCCESS); });
  holds(6 * kMiB, kQuota - kContext, "both");
  on_thread(second, [&] { ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS); });
  holds(0, kQuota - kContext, "freed from the other GPU");
}

}  // namespace

// Handles and addresses that mean nothing: never given out, given back already, of another kind, or
// the inside of what they are to end. The driver is asked and its answer told, and the ledger stays
// as it is. What the driver answers without us is asked of its own functions, past every hook.
#include <string.h>

#include <string>
#include <vector>

#include "tests/interpose/softgpu_ways.h"

namespace {

using namespace sluice::test;

template <class H>
H handle_of(uint64_t value) {
  return reinterpret_cast<H>(value);
}
template <class F>
F typed(void* function) {
  return reinterpret_cast<F>(function);
}

// A call that ends or uses what `value` stands for.
struct Use {
  const char* symbol;
  CUresult (*call)(void* function, uint64_t value);
};
constexpr size_t kLength = 2 * kMiB;
const Use kUses[] = {
    {"cuMemFree_v2", [](void* f, uint64_t v) { return typed<decltype(&cuMemFree)>(f)(v); }},
    {"cuMemFreeAsync",
     [](void* f, uint64_t v) { return typed<decltype(&cuMemFreeAsync)>(f)(v, nullptr); }},
    {"cuMemFreeAsync_ptsz",
     [](void* f, uint64_t v) { return typed<decltype(&cuMemFreeAsync)>(f)(v, nullptr); }},
    {"cuArrayDestroy",
     [](void* f, uint64_t v) {
       return typed<decltype(&cuArrayDestroy)>(f)(handle_of<CUarray>(v));
     }},
    {"cuMipmappedArrayDestroy",
     [](void* f, uint64_t v) {
       return typed<decltype(&cuMipmappedArrayDestroy)>(f)(handle_of<CUmipmappedArray>(v));
     }},
    {"cuMemRelease", [](void* f, uint64_t v) { return typed<decltype(&cuMemRelease)>(f)(v); }},
    {"cuMemUnmap", [](void* f, uint64_t v) { return typed<decltype(&cuMemUnmap)>(f)(v, kLength); }},
    {"cuMemMap",
     [](void* f, uint64_t v) {
       CUdeviceptr at = 0;
       EXPECT_EQ(cuMemAddressReserve(&at, kLength, 0, 0, 0), CUDA_SUCCESS);
       const CUresult result = typed<decltype(&cuMemMap)>(f)(at, kLength, 0, v, 0);
       EXPECT_EQ(cuMemAddressFree(at, kLength), CUDA_SUCCESS);
       return result;
     }},
    {"cuMemRetainAllocationHandle",
     [](void* f, uint64_t v) {
       CUmemGenericAllocationHandle out = 0;
       return typed<decltype(&cuMemRetainAllocationHandle)>(f)(&out, handle_of<void*>(v));
     }},
    {"cuMemExportToShareableHandle",
     [](void* f, uint64_t v) {
       int out = -1;
       return typed<decltype(&cuMemExportToShareableHandle)>(f)(
           &out, v, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
     }},
    {"cuMemPoolDestroy",
     [](void* f, uint64_t v) {
       return typed<decltype(&cuMemPoolDestroy)>(f)(handle_of<CUmemoryPool>(v));
     }},
    {"cuMemPoolTrimTo",
     [](void* f, uint64_t v) {
       return typed<decltype(&cuMemPoolTrimTo)>(f)(handle_of<CUmemoryPool>(v), 0);
     }},
    {"cuMemPoolSetAttribute",
     [](void* f, uint64_t v) {
       cuuint64_t threshold = 0;
       return typed<decltype(&cuMemPoolSetAttribute)>(f)(
           handle_of<CUmemoryPool>(v), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
     }},
    {"cuMemAllocFromPoolAsync",
     [](void* f, uint64_t v) {
       CUdeviceptr out = 0x77;
       const CUresult result = typed<decltype(&cuMemAllocFromPoolAsync)>(f)(
           &out, kLength, handle_of<CUmemoryPool>(v), nullptr);
       EXPECT_EQ(out, 0x77u);
       return result;
     }},
    {"cuMemAllocAsync",
     [](void* f, uint64_t v) {
       CUdeviceptr out = 0x77;
       const CUresult result =
           typed<decltype(&cuMemAllocAsync)>(f)(&out, kLength, handle_of<CUstream>(v));
       EXPECT_EQ(out, 0x77u);
       return result;
     }},
    {"cuIpcCloseMemHandle",
     [](void* f, uint64_t v) { return typed<decltype(&cuIpcCloseMemHandle)>(f)(v); }},
    {"cuDestroyExternalMemory",
     [](void* f, uint64_t v) {
       return typed<decltype(&cuDestroyExternalMemory)>(f)(handle_of<CUexternalMemory>(v));
     }},
    {"cuModuleUnload",
     [](void* f, uint64_t v) {
       return typed<decltype(&cuModuleUnload)>(f)(handle_of<CUmodule>(v));
     }},
    {"cuLibraryUnload",
     [](void* f, uint64_t v) {
       return typed<decltype(&cuLibraryUnload)>(f)(handle_of<CUlibrary>(v));
     }},
    {"cuGraphExecDestroy",
     [](void* f, uint64_t v) {
       return typed<decltype(&cuGraphExecDestroy)>(f)(handle_of<CUgraphExec>(v));
     }},
    {"cuCtxDestroy_v2",
     [](void* f, uint64_t v) {
       return typed<decltype(&cuCtxDestroy)>(f)(handle_of<CUcontext>(v));
     }},
};

class SoftGpuUnknownTest : public SoftGpuTest {
 protected:
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
  }
  // The driver's answer, whoever asks; the account as it was before.
  void is_the_drivers_business(const Use& use, uint64_t value, const char* what) {
    void* const driver = unhooked(use.symbol);
    void* const hook = dlsym(RTLD_DEFAULT, use.symbol);
    ASSERT_NE(driver, nullptr) << use.symbol;
    ASSERT_NE(hook, driver) << use.symbol;
    const uint64_t before = held();
    const CUresult answer = use.call(driver, value);
    EXPECT_NE(answer, CUDA_SUCCESS) << use.symbol << ", " << what;
    EXPECT_EQ(use.call(hook, value), answer) << use.symbol << ", " << what;
    EXPECT_EQ(held(), before) << use.symbol << ", " << what;
    EXPECT_EQ(broker->account().refused.load(), 0u) << use.symbol << ", " << what;
    agrees(use.symbol);
  }
};

TEST_F(SoftGpuUnknownTest, WhatNobodyGave) {
  CUdeviceptr other = 0;  // whose charge is not to be touched
  ASSERT_EQ(cuMemAlloc(&other, 4096), CUDA_SUCCESS);
  for (const Use& use : kUses) is_the_drivers_business(use, 0x1234567000, "never given out");
}

// What each of kWays gives out, in the hands of every call that does not take it.
TEST_F(SoftGpuUnknownTest, WhatIsOfAnotherKind) {
  for (const Way& way : kWays) {
    uint64_t out = 0;
    ASSERT_EQ(way.call(1, &out), CUDA_SUCCESS) << way.name;
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    for (const Use& use : kUses) {
      const std::string symbol = use.symbol;
      const bool takes_pointers = symbol.rfind("cuMemFree", 0) == 0;
      const bool is_pointer = way.give == pointer_give || way.give == pooled_give;
      const bool takes =
          (takes_pointers && is_pointer) ||
          (way.give == array_give && symbol == "cuArrayDestroy") ||
          (way.give == levels_give && symbol == "cuMipmappedArrayDestroy") ||
          (way.give == physical_give && (symbol == "cuMemRelease" || symbol == "cuMemMap")) ||
          (way.give == module_give && symbol == "cuModuleUnload") ||
          (way.give == context_give && symbol == "cuCtxDestroy_v2");
      if (!takes) is_the_drivers_business(use, out, way.name);
    }
    EXPECT_EQ(way.give(out), CUDA_SUCCESS) << way.name;
    EXPECT_EQ(held(), kContext) << way.name;
    agrees(way.name);
  }
}

TEST_F(SoftGpuUnknownTest, WhatIsGivenBackTwice) {
  for (const Way& way : kWays) {
    uint64_t out = 0;
    ASSERT_EQ(way.call(1, &out), CUDA_SUCCESS) << way.name;
    ASSERT_EQ(way.give(out), CUDA_SUCCESS) << way.name;
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    for (const Use& use : kUses) is_the_drivers_business(use, out, way.name);
    EXPECT_EQ(held(), kContext) << way.name;
    // What has the same handle or address afterwards is charged as anything else.
    uint64_t again = 0;
    ASSERT_EQ(way.call(1, &again), CUDA_SUCCESS) << way.name;
    EXPECT_GE(held(), kContext + kMiB) << way.name;
    agrees(way.name);
    ASSERT_EQ(way.give(again), CUDA_SUCCESS) << way.name;
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(held(), kContext) << way.name;
  }
}

TEST_F(SoftGpuUnknownTest, APoolWithTheHandleOfOneThatEndedIsCharged) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer keeps the addresses of what was freed";
#endif
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool ended = nullptr;
  ASSERT_EQ(cuMemPoolCreate(&ended, &properties), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(ended), CUDA_SUCCESS);
  for (const Use& use : kUses)
    is_the_drivers_business(use, reinterpret_cast<uint64_t>(ended), "a pool that ended");
  // Handles are addresses in the driver, which come back.
  std::vector<CUmemoryPool> pools;
  for (int i = 0; i < 200 && (pools.empty() || pools.back() != ended); ++i) {
    pools.emplace_back();
    ASSERT_EQ(cuMemPoolCreate(&pools.back(), &properties), CUDA_SUCCESS);
  }
  ASSERT_EQ(pools.back(), ended) << "the driver gave no handle a second time";
  CUdeviceptr pointer = 0, more = 0x77;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&pointer, 6 * kMiB, ended, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(held(), kContext + 6 * kMiB);
  agrees("the same handle");
  EXPECT_EQ(cuMemAllocFromPoolAsync(&more, kQuota - kContext, ended, nullptr),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(more, 0x77u);
  ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  for (CUmemoryPool pool : pools) ASSERT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(held(), kContext);
}

TEST_F(SoftGpuUnknownTest, ADevicesOwnPoolDoesNotEnd) {
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAllocAsync(&pointer, 2 * kMiB, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(default_pool()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(held(), kContext + 2 * kMiB);
  CUdeviceptr more = 0;
  ASSERT_EQ(cuMemAllocAsync(&more, 4 * kMiB, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(held(), kContext + 6 * kMiB);
  agrees("charged as before");
}

TEST_F(SoftGpuUnknownTest, AFreeIntoAStreamThatIsNoneFreesNothing) {
  auto* const none = reinterpret_cast<CUstream>(0x1234567000);
  CUdeviceptr plain = 0, pooled = 0;
  ASSERT_EQ(cuMemAlloc(&plain, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&pooled, 2 * kMiB, nullptr), CUDA_SUCCESS);
  for (const CUdeviceptr pointer : {plain, pooled}) {
    const auto driver = typed<decltype(&cuMemFreeAsync)>(unhooked("cuMemFreeAsync"));
    const CUresult answer = driver(pointer, none);
    EXPECT_NE(answer, CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeAsync(pointer, none), answer);
    EXPECT_EQ(held(), kContext + 4096 + 2 * kMiB);
    agrees("not freed");
  }
  ASSERT_EQ(cuMemFree(plain), CUDA_SUCCESS);
  EXPECT_EQ(held(), kContext + 2 * kMiB);
  ASSERT_EQ(pooled_give(pooled), CUDA_SUCCESS);
  EXPECT_EQ(held(), kContext);
}

TEST_F(SoftGpuUnknownTest, MappingsEndAsTheyWereMadeOrNotAtAll) {
  const CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemCreate(&handle, 2 * kLength, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressReserve(&at, 4 * kLength, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(at, 2 * kLength, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  const Use unmap{"cuMemUnmap",
                  [](void* f, uint64_t v) { return typed<decltype(&cuMemUnmap)>(f)(v, kLength); }};
  is_the_drivers_business(unmap, at, "its first half");
  is_the_drivers_business(unmap, at + kLength, "its second half");
  is_the_drivers_business(unmap, at + 2 * kLength, "behind it");
  is_the_drivers_business(unmap, at + 4096, "its inside");
  EXPECT_EQ(held(), kContext + 2 * kLength);
  ASSERT_EQ(cuMemUnmap(at, 2 * kLength), CUDA_SUCCESS);
  EXPECT_EQ(held(), kContext);
  is_the_drivers_business(unmap, at, "unmapped already");
  ASSERT_EQ(cuMemAddressFree(at, 4 * kLength), CUDA_SUCCESS);
}

}  // namespace

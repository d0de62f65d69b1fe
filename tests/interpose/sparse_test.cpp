// Memory of cuMemCreate that sparse arrays and multicast objects hold, under the preloaded shim
// over the fake driver: it stays charged until it was released and nothing holds it any more.
#include <gtest/gtest.h>

#include "tests/interpose/guest.h"

namespace {

using namespace sluice::protocol;
using namespace sluice::test;

using Handle = CUmemGenericAllocationHandle;
constexpr unsigned long long kPool = 4 * kMiB;
const auto kArray = reinterpret_cast<CUarray>(0x8100);
const auto kOtherArray = reinterpret_cast<CUarray>(0x8200);
constexpr Handle kMulticast = 0x8800;

CUarrayMapInfo tiles(CUarray array, unsigned x, unsigned width) {
  CUarrayMapInfo info{};
  info.resourceType = CU_RESOURCE_TYPE_ARRAY;
  info.resource.array = array;
  info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
  info.subresource.sparseLevel.offsetX = x;
  info.subresource.sparseLevel.extentWidth = width;
  info.subresource.sparseLevel.extentHeight = info.subresource.sparseLevel.extentDepth = 1;
  info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  info.deviceBitMask = 1;
  return info;
}

CUresult map(Handle handle, CUarrayMapInfo info) {
  info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  info.memHandle.memHandle = handle;
  return cuMemMapArrayAsync(&info, 1, nullptr);
}

CUresult unmap(CUarrayMapInfo info) {
  info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
  return cuMemMapArrayAsync(&info, 1, nullptr);
}

class SparseTest : public GuestTest {
 protected:
  void SetUp() override {
    start(16 * kMiB);
    broker->lease_store(kLeaseOpen);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  }
  Handle created(unsigned long long bytes = kPool) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    Handle handle = 0;
    EXPECT_EQ(cuMemCreate(&handle, bytes, &properties, 0), CUDA_SUCCESS);
    return handle;
  }
  // The fake driver leaves the handle as it is.
  static void object_made(Handle object = kMulticast) {
    const CUmulticastObjectProp properties{};
    ASSERT_EQ(cuMulticastCreate(&object, &properties), CUDA_SUCCESS);
  }
  unsigned long long held() { return broker->account().held_bytes.load(); }
  bool let_go() {
    return eventually([&] { return held() == 0; });
  }
};

TEST_F(SparseTest, WhatASparseArrayHoldsIsChargedUntilItIsUnmapped) {
  const Handle handle = created();
  ASSERT_EQ(map(handle, tiles(kArray, 0, 64)), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(held(), kPool);
  // The quota cannot be passed by.
  Handle more = 0x77;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  EXPECT_EQ(cuMemCreate(&more, 14 * kMiB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(unmap(tiles(kArray, 0, 64)), CUDA_SUCCESS);
  EXPECT_TRUE(let_go());
}

TEST_F(SparseTest, AndNotBeforeTheStreamHasComeToIt) {
  const Handle handle = created();
  ASSERT_EQ(map(handle, tiles(kArray, 0, 64)), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  fake.events_pending = 1;
  ASSERT_EQ(unmap(tiles(kArray, 0, 64)), CUDA_SUCCESS);
  sleep_ms(700);  // the helper has looked
  EXPECT_EQ(held(), kPool);
  fake.events_pending = 0;
  EXPECT_TRUE(let_go());
}

TEST_F(SparseTest, ARefusalLooksAtOnce) {
  const Handle handle = created(10 * kMiB);
  ASSERT_EQ(map(handle, tiles(kArray, 0, 64)), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(unmap(tiles(kArray, 0, 64)), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 12 * kMiB), CUDA_SUCCESS);
}

TEST_F(SparseTest, AHandleThatIsStillThereKeepsItCharged) {
  const Handle handle = created();
  ASSERT_EQ(map(handle, tiles(kArray, 0, 64)), CUDA_SUCCESS);
  ASSERT_EQ(unmap(tiles(kArray, 0, 64)), CUDA_SUCCESS);
  sleep_ms(700);
  EXPECT_EQ(held(), kPool);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST_F(SparseTest, OtherMemoryInItsPlaceAndLargerUnmappingsEndIt) {
  const Handle first = created(), second = created();
  ASSERT_EQ(map(first, tiles(kArray, 0, 64)), CUDA_SUCCESS);
  ASSERT_EQ(map(second, tiles(kArray, 0, 64)), CUDA_SUCCESS);
  ASSERT_EQ(map(second, tiles(kArray, 64, 64)), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(first), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(second), CUDA_SUCCESS);
  EXPECT_TRUE(eventually([&] { return held() == kPool; }));
  ASSERT_EQ(unmap(tiles(kArray, 0, 128)), CUDA_SUCCESS);
  EXPECT_TRUE(let_go());
}

// What is unmapped in pieces is not followed: rather too long than too short.
TEST_F(SparseTest, PiecesKeepItUntilTheArrayEnds) {
  const Handle handle = created();
  ASSERT_EQ(map(handle, tiles(kArray, 0, 128)), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(unmap(tiles(kArray, 0, 64)), CUDA_SUCCESS);
  ASSERT_EQ(cuArrayDestroy(kOtherArray), CUDA_SUCCESS);
  sleep_ms(700);
  EXPECT_EQ(held(), kPool);
  ASSERT_EQ(unmap(tiles(kArray, 64, 64)), CUDA_SUCCESS);
  sleep_ms(700);
  EXPECT_EQ(held(), kPool);
  ASSERT_EQ(cuArrayDestroy(kArray), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST_F(SparseTest, AContextTakesItsArraysAlong) {
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  const Handle handle = created();
  ASSERT_EQ(map(handle, tiles(kArray, 0, 128)), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST_F(SparseTest, WhatIsBoundIsChargedUntilItIsUnbound) {
  object_made();
  const Handle handle = created();
  ASSERT_EQ(cuMulticastBindMem(kMulticast, 0, handle, 0, kPool, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(held(), kPool);
  ASSERT_EQ(cuMulticastUnbind(kMulticast, 0, kPool, kPool), CUDA_SUCCESS);  // another part
  EXPECT_EQ(held(), kPool);
  ASSERT_EQ(cuMulticastUnbind(kMulticast, 0, 0, kPool), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST_F(SparseTest, WhatIsBoundByItsAddressToo) {
  object_made();
  const Handle handle = created();
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAddressReserve(&address, kPool, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(address, kPool, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMulticastBindAddr(kMulticast, 0, address, kPool, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(address, kPool), CUDA_SUCCESS);
  EXPECT_EQ(held(), kPool);
  ASSERT_EQ(cuMulticastUnbind(kMulticast, 0, 0, kPool), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST_F(SparseTest, AnObjectThatEndsLetsGoUnlessOthersMayHaveIt) {
  for (const bool exported : {false, true}) {
    object_made();
    const Handle handle = created();
    ASSERT_EQ(cuMulticastBindMem(kMulticast, 0, handle, 0, kPool, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    int fd = 0;
    if (exported) {
      ASSERT_EQ(cuMemExportToShareableHandle(&fd, kMulticast,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                CUDA_SUCCESS);
    }
    ASSERT_EQ(cuMemRelease(kMulticast), CUDA_SUCCESS);
    sleep_ms(1200);  // the helper has looked
    EXPECT_EQ(held(), exported ? kPool : 0);
  }
}

// Then the handle may be the next memory's.
TEST_F(SparseTest, NorDoesMemoryThatHasItsHandleKeepTheEndOfAnObjectFromSight) {
  for (const bool exported : {false, true}) {
    fake.handles_again = 1;
    const Handle handle = created(), bound = created();
    ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    object_made(handle);
    ASSERT_EQ(cuMulticastBindMem(handle, 0, bound, 0, kPool, 0), CUDA_SUCCESS);
    int fd = 0;
    if (exported) {
      ASSERT_EQ(
          cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          CUDA_SUCCESS);
    }
    ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    ASSERT_EQ(created(), handle);
    ASSERT_EQ(cuMemRelease(bound), CUDA_SUCCESS);
    EXPECT_EQ(held(), exported ? 2 * kPool : kPool);
    ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    sleep_ms(1200);  // the helper has looked
    EXPECT_EQ(held(), exported ? kPool : 0);
  }
}

}  // namespace

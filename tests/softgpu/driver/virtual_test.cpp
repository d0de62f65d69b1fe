// Virtual memory management: ranges, pieces, mappings, and the last reference.
#include <unistd.h>

#include "tests/softgpu/driver/fixture.h"

namespace {

using Driver = softgpu_test::Driver;

constexpr std::size_t kPiece = 2 << 20;

std::size_t used_beyond_context() {
  std::size_t free = 0, total = 0;
  EXPECT_CU(cuMemGetInfo(&free, &total));
  return total - free - (32 << 20);
}

CUmemAllocationProp prop() {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}

TEST_F(Driver, VirtualMemoryLivesUntilItsLastReference) {
  WithContext([](CUcontext) {
    const CUmemAllocationProp p = prop();
    CUmemGenericAllocationHandle handle = 0, again = 0;
    CUdeviceptr at = 0;
    ASSERT_CU(cuMemCreate(&handle, kPiece, &p, 0));
    EXPECT_EQ(used_beyond_context(), kPiece);
    ASSERT_CU(cuMemAddressReserve(&at, 2 * kPiece, 0, 0, 0));
    EXPECT_EQ(used_beyond_context(), kPiece) << "addresses cost nothing";
    ASSERT_CU(cuMemMap(at, kPiece, 0, handle, 0));
    EXPECT_EQ(cuMemMap(at, kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "already mapped";
    ASSERT_CU(cuMemMap(at + kPiece, kPiece, 0, handle, 0));
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ASSERT_CU(cuMemSetAccess(at, 2 * kPiece, &access, 1));
    unsigned value = 77;
    ASSERT_CU(cuMemcpyHtoD(at, &value, 4));
    value = 0;
    ASSERT_CU(cuMemcpyDtoH(&value, at + kPiece, 4));
    EXPECT_EQ(value, 77U) << "both ranges show the same memory";
    ASSERT_CU(cuMemRelease(handle));
    EXPECT_EQ(used_beyond_context(), kPiece) << "mappings hold it";
    ASSERT_CU(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at + 5)));
    EXPECT_EQ(cuMemAddressFree(at, 2 * kPiece), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuMemUnmap(at, 2 * kPiece));
    EXPECT_EQ(used_beyond_context(), kPiece) << "the retained handle holds it";
    ASSERT_CU(cuMemRelease(again));
    EXPECT_EQ(used_beyond_context(), 0U);
    EXPECT_EQ(cuMemRelease(again), CUDA_ERROR_INVALID_VALUE);
    EXPECT_CU(cuMemAddressFree(at, 2 * kPiece));
  });
}

TEST_F(Driver, SizesMustBeMultiplesOfTheGranularity) {
  WithContext([](CUcontext) {
    const CUmemAllocationProp p = prop();
    std::size_t granularity = 0;
    ASSERT_CU(cuMemGetAllocationGranularity(&granularity, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT_EQ(granularity, kPiece);
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuMemCreate(&handle, 4096, &p, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemCreate(&handle, 256 * kPiece, &p, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(used_beyond_context(), 0U);
  });
}

TEST_F(Driver, AnImportIsChargedOnce) {
  WithContext([](CUcontext) {
    const CUmemAllocationProp p = prop();
    CUmemGenericAllocationHandle handle = 0, import = 0;
    int file = -1;
    ASSERT_CU(cuMemCreate(&handle, kPiece, &p, 0));
    ASSERT_CU(
        cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    ASSERT_CU(cuMemImportFromShareableHandle(
        &import, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    EXPECT_EQ(used_beyond_context(), kPiece);
    ASSERT_CU(cuMemRelease(handle));
    EXPECT_EQ(used_beyond_context(), kPiece);
    ASSERT_CU(cuMemRelease(import));
    EXPECT_EQ(used_beyond_context(), 0U);
  });
}

}  // namespace

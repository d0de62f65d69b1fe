// Virtual memory management: ranges, pieces, mappings, and the last reference.
#include <fcntl.h>
#include <unistd.h>

#include "tests/softgpu/driver/fixture.h"

namespace {

using Driver = softgpu_test::Driver;
using softgpu_test::piece_prop;

constexpr std::size_t kPiece = 2 << 20;

std::size_t used_beyond_context() { return softgpu_test::used() - (32 << 20); }

TEST_F(Driver, VirtualMemoryLivesUntilItsLastReference) {
  WithContext([](CUcontext) {
    const CUmemAllocationProp p = piece_prop();
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
    const CUmemAllocationProp p = piece_prop();
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
    const CUmemAllocationProp p = piece_prop();
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

/// Memory of 2 pieces, exported: a descriptor for each call.
struct Exported {
  CUmemGenericAllocationHandle handle = 0;
  static constexpr std::size_t kBytes = 2 * kPiece;
  Exported() {
    const CUmemAllocationProp p = piece_prop();
    EXPECT_CU(cuMemCreate(&handle, kBytes, &p, 0));
  }
  int file() const {
    int file = -1;
    EXPECT_CU(
        cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return file;
  }
};

CUDA_EXTERNAL_MEMORY_HANDLE_DESC external(int file, std::size_t bytes = Exported::kBytes) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
  what.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  what.handle.fd = file;
  what.size = bytes;
  return what;
}

CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer(std::size_t offset, std::size_t bytes) {
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC what{};
  what.offset = offset;
  what.size = bytes;
  return what;
}

TEST_F(Driver, ExternalMemoryShowsWhatItWasMadeFromAndIsChargedOnce) {
  WithContext([](CUcontext) {
    const Exported exported;
    const int file = exported.file();
    const auto what = external(file);
    CUexternalMemory memory = nullptr;
    ASSERT_CU(cuImportExternalMemory(&memory, &what));
    EXPECT_EQ(fcntl(file, F_GETFD), -1) << "the driver keeps the descriptor";
    EXPECT_EQ(used_beyond_context(), Exported::kBytes);
    CUdeviceptr whole = 0, half = 0;
    const auto all = buffer(0, Exported::kBytes), second = buffer(kPiece, kPiece);
    ASSERT_CU(cuExternalMemoryGetMappedBuffer(&whole, memory, &all));
    ASSERT_CU(cuExternalMemoryGetMappedBuffer(&half, memory, &second));
    ASSERT_CU(cuMemsetD32(whole + kPiece, 77, 4));
    unsigned value = 0;
    ASSERT_CU(cuMemcpyDtoH(&value, half, 4));
    EXPECT_EQ(value, 77U);
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    ASSERT_CU(cuMemGetAddressRange(&base, &bytes, half + 5));
    EXPECT_EQ(base, half);
    EXPECT_EQ(bytes, kPiece);
    ASSERT_CU(cuMemRelease(exported.handle));
    ASSERT_CU(cuDestroyExternalMemory(memory));
    EXPECT_EQ(used_beyond_context(), Exported::kBytes) << "the buffers hold it";
    ASSERT_CU(cuMemFree(whole));
    ASSERT_CU(cuMemcpyDtoH(&value, half, 4));
    EXPECT_EQ(value, 77U) << "what one buffer lets go, the other still shows";
    EXPECT_EQ(used_beyond_context(), Exported::kBytes);
    ASSERT_CU(cuMemFree(half));
    EXPECT_EQ(used_beyond_context(), 0U);
    EXPECT_EQ(cuMemFree(half), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(Driver, ExternalMemoryGoesWithTheContextOfItsBuffers) {
  WithContext([](CUcontext context) {
    const Exported exported;
    const auto what = external(exported.file());
    CUexternalMemory memory = nullptr;
    ASSERT_CU(cuImportExternalMemory(&memory, &what));
    CUcontext other = nullptr;
    ASSERT_CU(cuCtxCreate(&other, nullptr, 0, 0));
    CUdeviceptr at = 0;
    const auto all = buffer(0, Exported::kBytes);
    ASSERT_CU(cuExternalMemoryGetMappedBuffer(&at, memory, &all));
    ASSERT_CU(cuDestroyExternalMemory(memory));
    ASSERT_CU(cuMemRelease(exported.handle));
    ASSERT_CU(cuCtxDestroy(other));
    ASSERT_CU(cuCtxSetCurrent(context));
    EXPECT_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(used_beyond_context(), 0U);
  });
}

TEST_F(Driver, ExternalMemoryThatIsNoneIsRefusedAndItsDescriptorStays) {
  WithContext([](CUcontext) {
    const Exported exported;
    const int file = exported.file();
    CUexternalMemory memory = nullptr;
    auto what = external(file);
    EXPECT_EQ(cuImportExternalMemory(nullptr, &what), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuImportExternalMemory(&memory, nullptr), CUDA_ERROR_INVALID_VALUE);
    what = external(file, 0);
    EXPECT_EQ(cuImportExternalMemory(&memory, &what), CUDA_ERROR_INVALID_VALUE);
    what = external(file, Exported::kBytes + 1);
    EXPECT_EQ(cuImportExternalMemory(&memory, &what), CUDA_ERROR_INVALID_VALUE);
    what = external(file);
    what.flags = 2;
    EXPECT_EQ(cuImportExternalMemory(&memory, &what), CUDA_ERROR_INVALID_VALUE);
    what = external(file);
    what.reserved[15] = 1;
    EXPECT_EQ(cuImportExternalMemory(&memory, &what), CUDA_ERROR_INVALID_VALUE);
    what = external(file);
    what.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_NVSCIBUF;
    EXPECT_EQ(cuImportExternalMemory(&memory, &what), CUDA_ERROR_NOT_SUPPORTED);
    for (const int other : {-1, 0}) {
      what = external(other);
      EXPECT_EQ(cuImportExternalMemory(&memory, &what), CUDA_ERROR_INVALID_HANDLE) << other;
    }
    EXPECT_EQ(memory, nullptr);
    EXPECT_EQ(used_beyond_context(), Exported::kBytes);
    what = external(file);
    ASSERT_CU(cuImportExternalMemory(&memory, &what));
    CUdeviceptr at = 7;
    for (const auto& bad :
         {buffer(0, 0), buffer(0, Exported::kBytes + 1), buffer(kPiece, kPiece + 1),
          buffer(~std::size_t{0}, kPiece), buffer(100, kPiece)}) {
      EXPECT_EQ(cuExternalMemoryGetMappedBuffer(&at, memory, &bad), CUDA_ERROR_INVALID_VALUE)
          << bad.offset << " " << bad.size;
    }
    auto flagged = buffer(0, kPiece);
    flagged.flags = 1;
    EXPECT_EQ(cuExternalMemoryGetMappedBuffer(&at, memory, &flagged), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuExternalMemoryGetMappedBuffer(&at, memory, nullptr), CUDA_ERROR_INVALID_VALUE);
    const auto good = buffer(0, kPiece);
    EXPECT_EQ(cuExternalMemoryGetMappedBuffer(nullptr, memory, &good), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(at, 7U);
    ASSERT_CU(cuDestroyExternalMemory(memory));
    EXPECT_EQ(cuDestroyExternalMemory(memory), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuExternalMemoryGetMappedBuffer(&at, memory, &good), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuMemRelease(exported.handle));
    EXPECT_EQ(used_beyond_context(), 0U);
  });
}

}  // namespace

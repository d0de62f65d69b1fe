// Memory: charges, capacity, copies, pools, what an address is.
#include <vector>

#include "tests/softgpu/driver/fixture.h"

namespace {

using Driver = softgpu_test::Driver;
using softgpu_test::kMiB;
using softgpu_test::used;

TEST_F(Driver, MemoryIsChargedToTheByteAndGivenBack) {
  WithContext([](CUcontext context) {
    EXPECT_EQ(used(), 32 * kMiB) << "the context";
    CUdeviceptr a = 0, b = 0;
    std::size_t pitch = 0;
    ASSERT_CU(cuMemAlloc(&a, 1000));
    EXPECT_EQ(used(), 32 * kMiB + 1000);
    ASSERT_CU(cuMemAllocPitch(&b, &pitch, 100, 10, 4));
    EXPECT_EQ(pitch, 512U);
    EXPECT_EQ(used(), 32 * kMiB + 1000 + 5120);
    ASSERT_CU(cuMemFree(a));
    EXPECT_EQ(cuMemFree(a), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree(b + 4), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuMemAllocManaged(&a, kMiB, CU_MEM_ATTACH_GLOBAL));
    EXPECT_EQ(used(), 33 * kMiB + 5120);
    CUcontext second = nullptr;
    ASSERT_CU(cuCtxCreate(&second, nullptr, 0, 0));
    EXPECT_EQ(used(), 65 * kMiB + 5120);
    ASSERT_CU(cuCtxDestroy(second));
    ASSERT_CU(cuCtxSetCurrent(context));
    EXPECT_EQ(used(), 33 * kMiB + 5120);
    ASSERT_CU(cuCtxDestroy(context));
    ASSERT_CU(cuCtxCreate(&context, nullptr, 0, 0));
    EXPECT_EQ(used(), 32 * kMiB) << "what the first context held is gone with it";
  });
}

// The stream's context ends before the stream comes to the frees.
TEST_F(Driver, MemoryThatIsFreedInStreamOrderComesBackWithTheStreamsContext) {
  WithContext([](CUcontext context) {
    CUdeviceptr block = 0, word = 0;
    ASSERT_CU(cuMemAlloc(&word, 4));
    ASSERT_CU(cuMemsetD32(word, 0, 1));
    const std::size_t before = used();
    ASSERT_CU(cuMemAlloc(&block, kMiB));
    CUcontext other = nullptr;
    CUstream stream = nullptr;
    ASSERT_CU(cuCtxCreate(&other, nullptr, 0, 0));
    ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuStreamWaitValue32(stream, word, 1, CU_STREAM_WAIT_VALUE_EQ));
    ASSERT_CU(cuMemFreeAsync(block, stream));
    ASSERT_CU(cuCtxDestroy(other));
    ASSERT_CU(cuCtxSetCurrent(context));
    EXPECT_EQ(used(), before);
  });
}

// A free that a capture forbids frees nothing.
TEST_F(Driver, MemoryWhoseFreeIsRefusedStays) {
  WithContext([](CUcontext) {
    CUdeviceptr block = 0;
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    ASSERT_CU(cuMemAlloc(&block, kMiB));
    const std::size_t before = used();
    ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    ASSERT_CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(cuMemFreeAsync(block, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(used(), before);
    EXPECT_CU(cuMemFree(block));
  });
}

TEST_F(Driver, TheDeviceIsFullAtItsCapacity) {
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc(&p, 224 * kMiB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuMemAlloc(&p, 224 * kMiB));
    CUdeviceptr more = 0;
    EXPECT_EQ(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuMemFree(p));
    EXPECT_CU(cuMemAlloc(&more, 1));
  });
}

TEST_F(Driver, BadSizesAreRefused) {
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc(&p, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAlloc(nullptr, 4), CUDA_ERROR_INVALID_VALUE);
    char host[64] = {};
    ASSERT_CU(cuMemAlloc(&p, 32));
    EXPECT_EQ(cuMemcpyHtoD(p, host, 33), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemcpyDtoH(host, p + 1, 32), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemcpyHtoD(0x1000, host, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemsetD32(p + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(Driver, CopiesMoveWhatTheySay) {
  WithContext([](CUcontext) {
    std::vector<unsigned> in(1000), out(1000);
    for (unsigned i = 0; i < 1000; ++i) in[i] = i * 7;
    CUdeviceptr a = 0, b = 0;
    ASSERT_CU(cuMemAlloc(&a, 4000));
    ASSERT_CU(cuMemAlloc(&b, 4000));
    ASSERT_CU(cuMemcpyHtoD(a, in.data(), 4000));
    ASSERT_CU(cuMemcpyDtoD(b, a, 4000));
    ASSERT_CU(cuMemsetD32(b, 5, 10));
    ASSERT_CU(cuMemcpyDtoH(out.data(), b, 4000));
    EXPECT_EQ(out[9], 5U);
    EXPECT_EQ(out[10], 70U);
    CUDA_MEMCPY2D box{};
    box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = a;
    box.srcPitch = 400;
    box.srcXInBytes = 8;
    box.srcY = 2;
    box.dstMemoryType = CU_MEMORYTYPE_HOST;
    box.dstHost = out.data();
    box.dstPitch = 40;
    box.WidthInBytes = 40;
    box.Height = 3;
    ASSERT_CU(cuMemcpy2D(&box));
    EXPECT_EQ(out[0], 202U * 7);
    EXPECT_EQ(out[29], (400U + 11) * 7);
  });
}

TEST_F(Driver, AnAddressKnowsWhatItIs) {
  WithContext([](CUcontext context) {
    CUdeviceptr p = 0, base = 0;
    ASSERT_CU(cuMemAlloc(&p, 4096));
    unsigned type = 0;
    CUcontext owner = nullptr;
    std::size_t size = 0;
    EXPECT_CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 100));
    EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    EXPECT_CU(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    EXPECT_EQ(owner, context);
    EXPECT_CU(cuMemGetAddressRange(&base, &size, p + 4095));
    EXPECT_EQ(base, p);
    EXPECT_EQ(size, 4096U);
    EXPECT_EQ(cuMemGetAddressRange(&base, &size, p + 4096), CUDA_ERROR_NOT_FOUND);
    int local = 0;
    EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    reinterpret_cast<CUdeviceptr>(&local)),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_CU(cuMemHostRegister(&local, sizeof local, 0));
    EXPECT_EQ(cuMemHostRegister(&local, sizeof local, 0),
              CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT_CU(cuMemHostUnregister(&local));
    EXPECT_EQ(cuMemHostUnregister(&local), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  });
}

TEST_F(Driver, PoolsReserveReuseAndTrim) {
  WithContext([](CUcontext) {
    CUmemoryPool pool = nullptr;
    CUstream stream = nullptr;
    ASSERT_CU(cuDeviceGetDefaultMemPool(&pool, 0));
    ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const auto reserved = [&] {
      cuuint64_t value = 0;
      EXPECT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
      return value;
    };
    CUdeviceptr first = 0, second = 0;
    ASSERT_CU(cuMemAllocAsync(&first, 3 * kMiB, stream));
    EXPECT_EQ(reserved(), 4 * kMiB);
    EXPECT_EQ(used(), 36 * kMiB);
    ASSERT_CU(cuMemFreeAsync(first, stream));
    ASSERT_CU(cuMemAllocAsync(&second, 3 * kMiB, stream));
    EXPECT_EQ(second, first) << "the stream's own order makes reuse safe at once";
    EXPECT_EQ(reserved(), 4 * kMiB);
    cuuint64_t keep = ~0ULL;
    ASSERT_CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    ASSERT_CU(cuMemFreeAsync(second, stream));
    ASSERT_CU(cuStreamSynchronize(stream));
    EXPECT_EQ(reserved(), 4 * kMiB) << "below the threshold nothing is given back";
    ASSERT_CU(cuMemPoolTrimTo(pool, 0));
    EXPECT_EQ(used(), 32 * kMiB);
  });
}

}  // namespace

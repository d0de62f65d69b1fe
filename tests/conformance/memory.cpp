// Rows of family `memory`: allocating and freeing device memory, and asking how much there is. Host
// memory is in memory_host.cpp, managed memory in memory_managed.cpp, what pointers tell of
// themselves in memory_pointers.cpp.
#include <vector>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

constexpr std::size_t kMiB = 1 << 20;

CUdeviceptr allocate(std::size_t bytes) {
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc(&p, bytes), CUDA_SUCCESS);
  return p;
}

ROW(memory, alloc_zero_refused) {
  const Context context;
  CUdeviceptr p = 0x5a5a;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
}

ROW(memory, alloc_needs_a_place) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(nullptr, 4));
}

ROW(memory, calls_need_initialisation) {
  CUdeviceptr p = 0;
  std::size_t free = 0, total = 0;
  ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&p, 4));
  ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemGetInfo(&free, &total));
}

ROW(memory, calls_need_a_context) {
  MUST(cuInit(0));
  CUdeviceptr p = 0;
  void* host = nullptr;
  std::size_t free = 0, total = 0;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 4));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemAllocManaged(&p, 4, CU_MEM_ATTACH_GLOBAL));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemHostAlloc(&host, 4, 0));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemGetInfo(&free, &total));
}

ROW(memory, freed_without_a_context) {
  const Context context;
  const std::size_t before = memory_free();
  const CUdeviceptr plain = allocate(8 * kMiB);
  CUdeviceptr managed = 0;
  MUST(cuMemAllocManaged(&managed, 8 * kMiB, CU_MEM_ATTACH_GLOBAL));
  MUST(cuCtxSetCurrent(nullptr));
  ANSWERS(CUDA_SUCCESS, cuMemFree(plain));
  ANSWERS(CUDA_SUCCESS, cuMemFree(managed));
  MUST(cuCtxSetCurrent(context));
  EXPECT_EQ(memory_free_from(before), before);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree(plain));
}

ROW(memory, alloc_aligned) {
  const Context context;
  for (const std::size_t bytes : {1, 3, 100, 257, 4097})
    EXPECT_EQ(allocate(bytes) % 256, 0U) << bytes;
}

ROW(memory, alloc_apart) {
  const Context context;
  constexpr unsigned kCount = 32;
  std::vector<CUdeviceptr> words(kCount);
  for (unsigned i = 0; i < kCount; ++i)
    MUST(cuMemsetD8(words[i] = allocate(1000 + i), static_cast<unsigned char>(i), 1000 + i));
  for (unsigned i = 0; i < kCount; ++i) {
    std::vector<unsigned char> back(1000 + i, 0xff);
    MUST(cuMemcpyDtoH(back.data(), words[i], back.size()));
    EXPECT_EQ(back, std::vector<unsigned char>(1000 + i, static_cast<unsigned char>(i)));
  }
}

ROW(memory, alloc_by_version) {
  const Context context;
  void *first = nullptr, *wide = nullptr, *now = nullptr;
  CUdriverProcAddressQueryResult found{};
  MUST(cuGetProcAddress("cuMemAlloc", &wide, 3020, CU_GET_PROC_ADDRESS_DEFAULT, &found));
  MUST(cuGetProcAddress("cuMemAlloc", &now, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, &found));
  MUST(cuGetProcAddress("cuMemAlloc", &first, 2000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
  EXPECT_EQ(wide, now);
  EXPECT_NE(first, now);
  CUdeviceptr p = 0;
  MUST(reinterpret_cast<decltype(&cuMemAlloc)>(wide)(&p, 4));
  ANSWERS(CUDA_SUCCESS, cuMemFree(p));
}

ROW(memory, alloc_too_much_is_out_of_memory) {
  const Context context;
  std::size_t total = 0;
  MUST(cuMemGetInfo(nullptr, &total));
  CUdeviceptr p = 0;
  ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, 2 * total));
  ANSWERS(CUDA_SUCCESS, cuMemAlloc(&p, 4));  // it was this request that was too large
}

ROW(memory, out_of_memory_ends_with_a_free) {
  const Context context;
  const std::size_t third = memory_free() / 3 + 4 * kMiB;
  const CUdeviceptr first = allocate(third);
  allocate(third);
  CUdeviceptr p = 0;
  ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, third));
  MUST(cuMemFree(first));
  ANSWERS(CUDA_SUCCESS, cuMemAlloc(&p, third));
}

ROW(memory, info_free_within_total) {
  const Context context;
  std::size_t free = 0, total = 0, device = 0;
  MUST(cuMemGetInfo(&free, &total));
  MUST(cuDeviceTotalMem(&device, context.device()));
  EXPECT_GT(free, 0U);
  EXPECT_LE(free, total);
  EXPECT_LE(total, device);
}

ROW(memory, info_follows_allocations) {
  const Context context;
  const std::size_t before = memory_free();
  const CUdeviceptr p = allocate(64 * kMiB);
  EXPECT_LE(memory_free(), before - 64 * kMiB);
  MUST(cuMemFree(p));
  EXPECT_GE(memory_free() + 8 * kMiB, before) << "but for what the driver keeps of its pages";
}

ROW(memory, info_counts_all_contexts) {
  const Context context;
  const Context other;
  const std::size_t before = memory_free();
  allocate(64 * kMiB);
  MUST(cuCtxSetCurrent(context));
  EXPECT_LE(memory_free(), before - 64 * kMiB);
}

ROW(memory, free_null_is_nothing) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, cuMemFree(0));
}

ROW(memory, free_inside_refused) {
  const Context context;
  const CUdeviceptr p = allocate(4096);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree(p + 256));
  ANSWERS(CUDA_SUCCESS, cuMemsetD8(p, 1, 4096));  // it is still there
  ANSWERS(CUDA_SUCCESS, cuMemFree(p));
}

ROW(memory, free_twice_refused) {
  const Context context;
  const CUdeviceptr p = allocate(4096);
  ANSWERS(CUDA_SUCCESS, cuMemFree(p));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
}

ROW(memory, free_of_the_wrong_kind_refused) {
  const Context context;
  int local = 0;
  void* host = nullptr;
  MUST(cuMemHostAlloc(&host, 4096, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree(reinterpret_cast<CUdeviceptr>(&local)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree(reinterpret_cast<CUdeviceptr>(host)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(reinterpret_cast<void*>(allocate(4096))));
  ANSWERS(CUDA_SUCCESS, cuMemFreeHost(host));
}

ROW(memory, free_waits_for_the_work) {
  const Context context;
  const CUfunction spin = kernel("spin");
  const CUstream stream = stream_new();
  const CUevent after = event_new();
  const CUdeviceptr p = allocate(4096);
  unsigned rounds = 200000;
  CUdeviceptr word = p;
  MUST(cuMemsetD32(p, 0, 1024));
  MUST(launch(spin, 1, 1, {&word, &rounds}, stream));
  MUST(cuEventRecord(after, stream));
  ANSWERS(CUDA_SUCCESS, cuMemFree(p));
  ANSWERS(CUDA_SUCCESS, cuEventQuery(after));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
}

ROW(memory, context_takes_its_memory_along) {
  const Context context;
  const std::size_t before = memory_free();
  CUcontext other = nullptr;
  MUST(cuCtxCreate(&other, nullptr, 0, context.device()));
  const CUdeviceptr p = allocate(64 * kMiB);
  MUST(cuCtxDestroy(other));
  MUST(cuCtxSetCurrent(context));
  EXPECT_GT(memory_free(), before - 64 * kMiB);
  unsigned type = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
}

ROW(memory, pitch_fits_rows_and_textures) {
  const Context context;
  int align = 0;
  MUST(cuDeviceGetAttribute(&align, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, context.device()));
  for (const std::size_t width : {1U, 100U, 512U, 513U, 4000U}) {
    CUdeviceptr p = 0;
    std::size_t pitch = 0, size = 0;
    MUST(cuMemAllocPitch(&p, &pitch, width, 7, 4));
    EXPECT_GE(pitch, width);
    EXPECT_EQ(pitch % static_cast<std::size_t>(align), 0U);
    MUST(cuMemGetAddressRange(nullptr, &size, p));
    EXPECT_GE(size, 6 * pitch + width);
    if (width == 1) observe("pitch", static_cast<long long>(pitch));
  }
}

ROW(memory, pitch_element_sizes) {
  const Context context;
  CUdeviceptr p = 0;
  std::size_t pitch = 0;
  for (const unsigned element : {4U, 8U, 16U})
    ANSWERS(CUDA_SUCCESS, cuMemAllocPitch(&p, &pitch, 100, 2, element));
  for (const unsigned element : {0U, 3U, 32U})
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&p, &pitch, 100, 2, element));
}

ROW(memory, range_of_an_inner_pointer) {
  const Context context;
  const CUdeviceptr p = allocate(10000);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  MUST(cuMemGetAddressRange(&base, &size, p + 9999));
  EXPECT_EQ(base, p);
  EXPECT_GE(size, 10000U);
  base = 0;
  ANSWERS(CUDA_SUCCESS, cuMemGetAddressRange(&base, nullptr, p + 1));
  EXPECT_EQ(base, p);
  ANSWERS(CUDA_SUCCESS, cuMemGetAddressRange(nullptr, &size, p));
}

ROW(memory, range_of_unknown_is_not_found) {
  const Context context;
  int local = 0;
  CUdeviceptr base = 0;
  std::size_t size = 0;
  ANSWERS(CUDA_ERROR_NOT_FOUND,
          cuMemGetAddressRange(&base, &size, reinterpret_cast<CUdeviceptr>(&local)));
  const CUdeviceptr p = allocate(16 * kMiB);
  MUST(cuMemFree(p));
  ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, p));
}

}  // namespace
}  // namespace conformance

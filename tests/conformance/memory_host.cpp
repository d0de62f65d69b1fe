// Rows of family `memory`: page-locked host memory, allocated and registered.
#include <sys/mman.h>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

constexpr std::size_t kHostBytes = 16384;

CUdeviceptr address(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

/// Page-aligned memory of the program's own.
class Pages {
 public:
  Pages()
      : p_(mmap(nullptr, kHostBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() { munmap(p_, kHostBytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  unsigned char* get() const { return static_cast<unsigned char*>(p_); }

 private:
  void* p_;
};

void* host_new(unsigned flags) {
  void* p = nullptr;
  EXPECT_EQ(cuMemHostAlloc(&p, kHostBytes, flags), CUDA_SUCCESS);
  return p;
}

ROW(memory, host_seen_by_both_sides) {
  const Context context;
  const CUfunction add = kernel("add_one");
  auto* words = static_cast<unsigned*>(host_new(CU_MEMHOSTALLOC_DEVICEMAP));
  for (unsigned i = 0; i < 64; ++i) words[i] = i;
  CUdeviceptr device = 0;
  MUST(cuMemHostGetDevicePointer(&device, words, 0));
  unsigned count = 64;
  MUST(launch(add, 1, 64, {&device, &count}));
  MUST(cuCtxSynchronize());
  for (unsigned i = 0; i < 64; ++i) EXPECT_EQ(words[i], i + 1);
}

ROW(memory, host_flags_checked) {
  const Context context;
  void* p = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(&p, kHostBytes, 0x80));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(nullptr, kHostBytes, 0));
}

ROW(memory, host_flags_told) {
  const Context context;
  for (const unsigned flags :
       {CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP,
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED}) {
    unsigned told = 0;
    MUST(cuMemHostGetFlags(&told, host_new(flags)));
    EXPECT_EQ(told & flags, flags);
  }
  void* p = nullptr;
  unsigned told = CU_MEMHOSTALLOC_WRITECOMBINED;
  MUST(cuMemAllocHost(&p, kHostBytes));
  MUST(cuMemHostGetFlags(&told, p));
  EXPECT_EQ(told & CU_MEMHOSTALLOC_WRITECOMBINED, 0U);
}

ROW(memory, host_flags_of_other_memory_refused) {
  const Context context;
  unsigned told = 0;
  CUdeviceptr device = 0;
  MUST(cuMemAlloc(&device, kHostBytes));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetFlags(&told, &told));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetFlags(&told, reinterpret_cast<void*>(device)));
}

ROW(memory, host_pointer_is_the_device_pointer) {
  const Context context;
  void* p = host_new(CU_MEMHOSTALLOC_DEVICEMAP);
  CUdeviceptr device = 0;
  MUST(cuMemHostGetDevicePointer(&device, p, 0));
  EXPECT_EQ(device, address(p));
  MUST(cuMemAllocHost(&p, kHostBytes));
  MUST(cuMemHostGetDevicePointer(&device, static_cast<char*>(p) + 100, 0));
  EXPECT_EQ(device, address(p) + 100);
}

ROW(memory, host_device_pointer_refused) {
  const Context context;
  void* p = host_new(CU_MEMHOSTALLOC_DEVICEMAP);
  CUdeviceptr device = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&device, p, 1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(nullptr, p, 0));
  MUST(cuMemFreeHost(p));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&device, p, 0));
}

ROW(memory, host_free_checked) {
  const Context context;
  void* p = host_new(0);
  int local = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(&local));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(static_cast<char*>(p) + 4096));
  ANSWERS(CUDA_SUCCESS, cuMemFreeHost(p));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(p));
}

ROW(memory, host_is_no_device_memory) {
  const Context context;
  std::size_t before = 0, after = 0;
  MUST(cuMemGetInfo(&before, nullptr));
  void* p = nullptr;
  MUST(cuMemHostAlloc(&p, 64 << 20, 0));
  MUST(cuMemGetInfo(&after, nullptr));
  EXPECT_GT(after, before - (32 << 20));
}

ROW(memory, portable_seen_by_all_contexts) {
  const Context context;
  auto* words = static_cast<unsigned*>(host_new(CU_MEMHOSTALLOC_PORTABLE));
  words[0] = 41;
  const Context other;
  const CUfunction add = kernel("add_one");
  CUdeviceptr device = 0;
  MUST(cuMemHostGetDevicePointer(&device, words, 0));
  unsigned count = 1;
  MUST(launch(add, 1, 1, {&device, &count}));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(words[0], 42U);
}

ROW(memory, register_gives_the_device_access) {
  const Context context;
  const Pages pages;
  const CUfunction add = kernel("add_one");
  MUST(cuMemHostRegister(pages.get(), kHostBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  auto* words = reinterpret_cast<unsigned*>(pages.get());
  words[7] = 7;
  CUdeviceptr device = 0;
  MUST(cuMemHostGetDevicePointer(&device, words, 0));
  unsigned count = 8;
  MUST(launch(add, 1, 8, {&device, &count}));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(words[7], 8U);
  ANSWERS(CUDA_SUCCESS, cuMemHostUnregister(pages.get()));
  EXPECT_EQ(words[7], 8U);  // the program's own memory stays
}

ROW(memory, register_twice_refused) {
  const Context context;
  const Pages pages;
  MUST(cuMemHostRegister(pages.get(), kHostBytes, 0));
  ANSWERS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(pages.get(), kHostBytes, 0));
  MUST(cuMemHostUnregister(pages.get()));
  ANSWERS(CUDA_SUCCESS, cuMemHostRegister(pages.get(), kHostBytes, 0));
  MUST(cuMemHostUnregister(pages.get()));
}

ROW(memory, host_let_go_without_a_context) {
  const Context context;
  const Pages pages;
  void* p = host_new(0);
  MUST(cuMemHostRegister(pages.get(), kHostBytes, 0));
  MUST(cuCtxSetCurrent(nullptr));
  ANSWERS(CUDA_SUCCESS, cuMemHostUnregister(pages.get()));
  ANSWERS(CUDA_SUCCESS, cuMemFreeHost(p));
  MUST(cuCtxSetCurrent(context));
  ANSWERS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(pages.get()));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(p));
}

ROW(memory, register_overlap_refused) {
  const Context context;
  const Pages pages;
  MUST(cuMemHostRegister(pages.get() + 4096, 4096, 0));
  ANSWERS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(pages.get(), kHostBytes, 0));
  ANSWERS(CUDA_SUCCESS, cuMemHostRegister(pages.get() + 8192, 4096, 0));
  MUST(cuMemHostUnregister(pages.get() + 4096));
  MUST(cuMemHostUnregister(pages.get() + 8192));
}

ROW(memory, unregister_unknown_refused) {
  const Context context;
  const Pages pages;
  ANSWERS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(pages.get()));
  MUST(cuMemHostRegister(pages.get(), kHostBytes, 0));
  MUST(cuMemHostUnregister(pages.get()));
  ANSWERS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(pages.get()));
}

ROW(memory, register_arguments_checked) {
  const Context context;
  const Pages pages;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(pages.get(), 0, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(nullptr, kHostBytes, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(pages.get(), kHostBytes, 0x100));
}

ROW(memory, register_read_only_where_supported) {
  const Context context;
  const Pages pages;
  int supported = 0;
  MUST(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
                            context.device()));
  const CUresult expected = supported != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  ANSWERS(expected, cuMemHostRegister(pages.get(), kHostBytes, CU_MEMHOSTREGISTER_READ_ONLY));
  if (supported != 0) {
    MUST(cuMemHostUnregister(pages.get()));
  }
  observe("supported", supported);
}

}  // namespace
}  // namespace conformance

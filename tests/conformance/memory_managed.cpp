// Rows of family `memory`: managed memory, advice, prefetches, and what a range tells of them.
#include <array>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

constexpr std::size_t kHalf = 2 << 20;
constexpr std::size_t kManagedBytes = 2 * kHalf;
constexpr CUmemLocation kHost{CU_MEM_LOCATION_TYPE_HOST, 0};

CUmemLocation on_device(CUdevice device) { return {CU_MEM_LOCATION_TYPE_DEVICE, device}; }

CUdeviceptr managed_new(unsigned flags = CU_MEM_ATTACH_GLOBAL) {
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAllocManaged(&p, kManagedBytes, flags), CUDA_SUCCESS);
  return p;
}

bool concurrent(const Context& context) {
  int has = 0;
  EXPECT_EQ(
      cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, context.device()),
      CUDA_SUCCESS);
  return has != 0;
}

#define NEEDS_CONCURRENT(context) \
  if (!concurrent(context)) GTEST_SKIP() << "needs concurrent access to managed memory"

int told(CUmem_range_attribute attribute, CUdeviceptr p, std::size_t bytes = kManagedBytes) {
  int value = 1000;
  EXPECT_EQ(cuMemRangeGetAttribute(&value, sizeof value, attribute, p, bytes), CUDA_SUCCESS);
  return value;
}

ROW(memory, managed_arguments_checked) {
  const Context context;
  CUdeviceptr p = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&p, kManagedBytes, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&p, kManagedBytes, CU_MEM_ATTACH_SINGLE));
  ANSWERS(CUDA_SUCCESS, cuMemAllocManaged(&p, kManagedBytes, CU_MEM_ATTACH_HOST));
  ANSWERS(CUDA_SUCCESS, cuMemFree(p));
}

ROW(memory, managed_seen_by_both_sides) {
  const Context context;
  const CUfunction add = kernel("add_one");
  CUdeviceptr p = managed_new();
  auto* words = reinterpret_cast<unsigned*>(p);
  for (unsigned i = 0; i < 64; ++i) words[i] = i;
  unsigned count = 64;
  MUST(launch(add, 1, 64, {&p, &count}));
  MUST(cuCtxSynchronize());
  for (unsigned i = 0; i < 64; ++i) EXPECT_EQ(words[i], i + 1);
}

ROW(memory, managed_variable_seen_by_both_sides) {
  const Context context;
  CUmodule module = nullptr;
  CUdeviceptr p = 0;
  std::size_t size = 0;
  MUST(cuModuleLoadData(&module, kernels_image().data()));
  MUST(cuModuleGetGlobal(&p, &size, module, "managed_word"));
  EXPECT_EQ(size, sizeof(unsigned));
  EXPECT_EQ(*reinterpret_cast<unsigned*>(p), 11U);
  unsigned is_managed = 0;
  MUST(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
  EXPECT_EQ(is_managed & 0xff, 1U);
}

ROW(memory, advice_read_mostly) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUdeviceptr p = managed_new();
  EXPECT_EQ(told(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p), 0);
  MUST(cuMemAdvise(p, kHalf, CU_MEM_ADVISE_SET_READ_MOSTLY, kHost));
  EXPECT_EQ(told(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, kHalf), 1);
  EXPECT_EQ(told(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p), 0);  // not all of its pages
  MUST(cuMemAdvise(p, kManagedBytes, CU_MEM_ADVISE_UNSET_READ_MOSTLY, kHost));
  EXPECT_EQ(told(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, kHalf), 0);
}

ROW(memory, advice_preferred_location) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUdeviceptr p = managed_new();
  const auto location = CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION;
  EXPECT_EQ(told(location, p), CU_DEVICE_INVALID);
  MUST(cuMemAdvise(p, kManagedBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                   on_device(context.device())));
  EXPECT_EQ(told(location, p), context.device());
  MUST(cuMemAdvise(p, kHalf, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kHost));
  EXPECT_EQ(told(location, p, kHalf), CU_DEVICE_CPU);
  EXPECT_EQ(told(location, p), CU_DEVICE_INVALID);  // two places
  MUST(cuMemAdvise(p, kManagedBytes, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, kHost));
  EXPECT_EQ(told(location, p + kHalf, kHalf), CU_DEVICE_INVALID);
}

ROW(memory, advice_preferred_location_type) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUdeviceptr p = managed_new();
  const auto type = CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE;
  EXPECT_EQ(told(type, p), int{CU_MEM_LOCATION_TYPE_INVALID});
  MUST(cuMemAdvise(p, kManagedBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                   on_device(context.device())));
  EXPECT_EQ(told(type, p), int{CU_MEM_LOCATION_TYPE_DEVICE});
  EXPECT_EQ(told(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, p), context.device());
  MUST(cuMemAdvise(p, kManagedBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kHost));
  EXPECT_EQ(told(type, p), int{CU_MEM_LOCATION_TYPE_HOST});
}

ROW(memory, advice_accessed_by) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUdeviceptr p = managed_new();
  std::array<int, 3> devices{7, 7, 7};
  const auto ask = [&](std::size_t bytes) {
    EXPECT_EQ(cuMemRangeGetAttribute(devices.data(), sizeof devices,
                                     CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, bytes),
              CUDA_SUCCESS);
  };
  MUST(cuMemAdvise(p, kHalf, CU_MEM_ADVISE_SET_ACCESSED_BY, on_device(context.device())));
  ask(kHalf);
  EXPECT_EQ(devices, (std::array{context.device(), CU_DEVICE_INVALID, CU_DEVICE_INVALID}));
  ask(kManagedBytes);  // only part of it
  EXPECT_EQ(devices[0], CU_DEVICE_INVALID);
  MUST(cuMemAdvise(p, kHalf, CU_MEM_ADVISE_UNSET_ACCESSED_BY, on_device(context.device())));
  ask(kHalf);
  EXPECT_EQ(devices[0], CU_DEVICE_INVALID);
}

ROW(memory, advice_checked) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUdeviceptr p = managed_new();
  CUdeviceptr device = 0;
  MUST(cuMemAlloc(&device, kManagedBytes));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemAdvise(device, kManagedBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, kHost));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemAdvise(p, kManagedBytes, no_such<CUmem_advise>(77), kHost));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAdvise(p, kManagedBytes, CU_MEM_ADVISE_SET_ACCESSED_BY,
                                                {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemAdvise(p, kManagedBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_device(99)));
}

ROW(memory, prefetch_location_told) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUdeviceptr p = managed_new();
  const auto last = CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
  EXPECT_EQ(told(last, p), CU_DEVICE_INVALID);
  MUST(cuMemPrefetchAsync(p, kHalf, on_device(context.device()), 0, nullptr));
  EXPECT_EQ(told(last, p, kHalf), context.device());
  EXPECT_EQ(told(last, p), CU_DEVICE_INVALID);
  MUST(cuMemPrefetchAsync(p, kManagedBytes, kHost, 0, nullptr));
  EXPECT_EQ(told(last, p), CU_DEVICE_CPU);
  EXPECT_EQ(told(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, p),
            int{CU_MEM_LOCATION_TYPE_HOST});
  MUST(cuCtxSynchronize());
}

ROW(memory, prefetch_keeps_contents_and_order) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUdeviceptr p = managed_new();
  auto* words = reinterpret_cast<unsigned*>(p);
  words[0] = 5;
  words[kManagedBytes / 4 - 1] = 6;
  Gate gate;
  const CUstream stream = stream_new();
  MUST(gate.hold(stream));
  MUST(cuMemPrefetchAsync(p, kManagedBytes, on_device(context.device()), 0, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(words[0], 5U);
  EXPECT_EQ(words[kManagedBytes / 4 - 1], 6U);
}

ROW(memory, prefetch_checked) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUdeviceptr p = managed_new();
  CUdeviceptr device = 0;
  MUST(cuMemAlloc(&device, kManagedBytes));
  const CUmemLocation here = on_device(context.device());
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync(device, kManagedBytes, here, 0, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync(p, kManagedBytes, here, 1, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_DEVICE,
          cuMemPrefetchAsync(p, kManagedBytes, on_device(99), 0, nullptr));
}

ROW(memory, range_sizes_checked) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUdeviceptr p = managed_new();
  std::array<int, 2> out{};
  ANSWERS(
      CUDA_ERROR_INVALID_VALUE,
      cuMemRangeGetAttribute(out.data(), 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, kManagedBytes));
  ANSWERS(
      CUDA_ERROR_INVALID_VALUE,
      cuMemRangeGetAttribute(out.data(), 6, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, kManagedBytes));
  ANSWERS(
      CUDA_ERROR_INVALID_VALUE,
      cuMemRangeGetAttribute(out.data(), 0, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, kManagedBytes));
}

ROW(memory, range_asked_together) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUdeviceptr p = managed_new();
  MUST(cuMemAdvise(p, kManagedBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, kHost));
  MUST(cuMemAdvise(p, kManagedBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kHost));
  int read_mostly = 7, preferred = 7, prefetched = 7;
  std::array<void*, 3> places{&read_mostly, &preferred, &prefetched};
  std::array<std::size_t, 3> sizes{4, 4, 4};
  std::array attributes{CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
                        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION};
  MUST(
      cuMemRangeGetAttributes(places.data(), sizes.data(), attributes.data(), 3, p, kManagedBytes));
  EXPECT_EQ(read_mostly, 1);
  EXPECT_EQ(preferred, CU_DEVICE_CPU);
  EXPECT_EQ(prefetched, CU_DEVICE_INVALID);
}

ROW(memory, prefetch_batch) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUstream stream = stream_new();
  std::array<CUdeviceptr, 3> ranges{managed_new(), managed_new(), managed_new()};
  std::array<std::size_t, 3> sizes{kManagedBytes, kManagedBytes, kManagedBytes};
  std::array locations{on_device(context.device()), kHost};
  std::array<std::size_t, 2> first{0, 2};
  MUST(cuMemPrefetchBatchAsync(ranges.data(), sizes.data(), 3, locations.data(), first.data(), 2, 0,
                               stream));
  const auto last = CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
  EXPECT_EQ(told(last, ranges[0]), context.device());
  EXPECT_EQ(told(last, ranges[1]), context.device());
  EXPECT_EQ(told(last, ranges[2]), CU_DEVICE_CPU);
  first = {1, 2};
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemPrefetchBatchAsync(ranges.data(), sizes.data(), 3, locations.data(), first.data(), 2,
                                  0, stream));
  first = {0, 3};
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemPrefetchBatchAsync(ranges.data(), sizes.data(), 3, locations.data(), first.data(), 2,
                                  0, stream));
  MUST(cuStreamSynchronize(stream));
}

ROW(memory, discard_batch) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUstream stream = stream_new();
  CUdeviceptr p = managed_new();
  std::size_t size = kManagedBytes;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemDiscardBatchAsync(&p, &size, 1, 1, stream));
  MUST(cuMemDiscardBatchAsync(&p, &size, 1, 0, stream));
  MUST(cuMemsetD32Async(p, 9, kManagedBytes / 4, stream));  // a write ends it
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(*reinterpret_cast<unsigned*>(p + kManagedBytes - 4), 9U);
}

ROW(memory, discard_and_prefetch_batch) {
  const Context context;
  NEEDS_CONCURRENT(context);
  const CUstream stream = stream_new();
  CUdeviceptr p = managed_new();
  std::size_t size = kManagedBytes, first = 0;
  CUmemLocation there{CU_MEM_LOCATION_TYPE_DEVICE, {context.device()}};
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemDiscardAndPrefetchBatchAsync(&p, &size, 1, &there, &first, 1, 1, stream));
  MUST(cuMemDiscardAndPrefetchBatchAsync(&p, &size, 1, &there, &first, 1, 0, stream));
  MUST(cuMemsetD32Async(p, 11, kManagedBytes / 4, stream));  // a write ends the discard
  MUST(cuStreamSynchronize(stream));
  int last = -7;
  MUST(cuMemRangeGetAttribute(&last, sizeof last, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p,
                              kManagedBytes));
  EXPECT_EQ(last, context.device());
  EXPECT_EQ(*reinterpret_cast<unsigned*>(p + kManagedBytes - 4), 11U);
}

}  // namespace
}  // namespace conformance

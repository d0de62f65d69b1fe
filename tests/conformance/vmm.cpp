// Rows of family `vmm`: ranges of addresses, physical memory, and the mapping of one into the
// other. Who may touch it is in vmm_access.cpp, other processes in vmm_share.cpp.
#include "tests/conformance/vmm.h"

namespace conformance {
namespace {

constexpr std::size_t kPage = 4096;

ROW(vmm, granularities) {
  const Context context;
  const CUmemAllocationProp prop = vmm_prop();
  std::size_t minimum = 0, recommended = 0;
  MUST(cuMemGetAllocationGranularity(&minimum, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  MUST(cuMemGetAllocationGranularity(&recommended, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  observe("minimum", static_cast<long long>(minimum));
  observe("recommended", static_cast<long long>(recommended));
  ASSERT_GT(minimum, 0U);
  EXPECT_EQ(minimum % kPage, 0U);
  EXPECT_EQ(recommended % minimum, 0U);
  EXPECT_GE(recommended, minimum);
}

ROW(vmm, granularity_checks_its_arguments) {
  const Context context;
  CUmemAllocationProp prop = vmm_prop();
  std::size_t bytes = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemGetAllocationGranularity(nullptr, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemGetAllocationGranularity(&bytes, nullptr, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

ROW(vmm, reserve_aligns) {
  const Context context;
  const std::size_t unit = vmm_unit(), align = 64 * unit;
  const Range plain(unit), aligned(unit, align);
  EXPECT_NE(plain.at(), 0U);
  EXPECT_EQ(aligned.at() % align, 0U);
}

ROW(vmm, reserve_checks_its_arguments) {
  const Context context;
  const std::size_t unit = vmm_unit();
  CUdeviceptr at = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(nullptr, unit, 0, 0, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&at, 0, 0, 0, 0));
  for (const std::size_t odd : {unit + 1, unit / 2})
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&at, odd, 0, 0, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&at, unit, 3 * unit, 0, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&at, unit, 0, 0, 1));
}

ROW(vmm, reserve_takes_an_address_as_a_hint) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Range first(4 * unit);
  const Range second(4 * unit, 0, first.at());  // it is taken
  EXPECT_TRUE(second.at() >= first.at() + 4 * unit || second.at() + 4 * unit <= first.at());
}

ROW(vmm, reserve_costs_no_memory) {
  const Context context;
  const std::size_t before = memory_free();
  std::size_t total = 0;
  MUST(cuDeviceTotalMem(&total, context.device()));
  const std::size_t unit = vmm_unit();
  const Range range(total * 2 / unit * unit);  // more than there is
  EXPECT_EQ(memory_free(), before);
}

ROW(vmm, address_free_takes_what_reserve_gave) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Range range(4 * unit);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(range.at(), 2 * unit));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(range.at() + unit, 3 * unit));
}

ROW(vmm, create_sizes_are_whole_granules) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const CUmemAllocationProp prop = vmm_prop();
  CUmemGenericAllocationHandle handle = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, unit + unit / 2, &prop, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 0, &prop, 0));
}

ROW(vmm, create_checks_its_arguments) {
  const Context context;
  const std::size_t unit = vmm_unit();
  CUmemAllocationProp prop = vmm_prop();
  CUmemGenericAllocationHandle handle = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(nullptr, unit, &prop, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, unit, nullptr, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, unit, &prop, 1));
  prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, unit, &prop, 0));
}

ROW(vmm, create_needs_a_device_that_is_there) {
  const int count = devices_count();
  CUmemAllocationProp prop = vmm_prop();
  const std::size_t unit = vmm_unit();
  prop.location.id = count;
  CUmemGenericAllocationHandle handle = 0;
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&handle, unit, &prop, 0));
}

ROW(vmm, create_refuses_what_the_manual_forbids_of_host_memory) {
  const Context context;
  const std::size_t unit = vmm_unit();
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = vmm_prop(kDescriptorHandle);
  prop.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, unit, &prop, 0));
  prop = vmm_prop();
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, unit, &prop, 0));
}

ROW(vmm, create_on_a_host_node) {
  const Context context;
  int supported = 0;
  MUST(cuDeviceGetAttribute(&supported,
                            CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                            context.device()));
  if (supported != 0) GTEST_SKIP() << "the device maps memory of host nodes";
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = vmm_prop();
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuMemCreate(&handle, vmm_unit(), &prop, 0));
}

ROW(vmm, create_takes_the_memory) {
  const Context context;
  const std::size_t bytes = 16 * vmm_unit();
  const std::size_t before = memory_free();
  Physical memory(bytes);
  EXPECT_LE(memory_free() + bytes, before);
  memory.release();
  EXPECT_GE(memory_free() + bytes / 2, before);
}

ROW(vmm, create_beyond_the_device_refused) {
  const Context context;
  std::size_t total = 0;
  MUST(cuDeviceTotalMem(&total, context.device()));
  const std::size_t unit = vmm_unit();
  const CUmemAllocationProp prop = vmm_prop();
  CUmemGenericAllocationHandle handle = 0;
  ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, total * 2 / unit * unit, &prop, 0));
}

ROW(vmm, handles_tell_their_properties) {
  const Context context;
  const Physical memory(vmm_unit(), vmm_prop(kDescriptorHandle));
  CUmemAllocationProp prop{};
  MUST(cuMemGetAllocationPropertiesFromHandle(&prop, memory));
  EXPECT_EQ(prop.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(prop.location.id, 0);
  EXPECT_EQ(prop.requestedHandleTypes, kDescriptorHandle);
}

ROW(vmm, map_needs_a_reserved_range) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(2 * unit);
  const Range range(unit);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemMap(range.at(), 2 * unit, 0, memory, 0));
  CUdeviceptr allocated = 0;
  MUST(cuMemAlloc(&allocated, 4 * unit));
  const CUdeviceptr inside = (allocated + unit - 1) / unit * unit;
  EXPECT_NE(cuMemMap(inside, 2 * unit, 0, memory, 0), CUDA_SUCCESS);
  MUST(cuMemFree(allocated));
}

ROW(vmm, map_checks_its_arguments) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(2 * unit);
  const Range range(4 * unit);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemMap(range.at(), 2 * unit, 0, memory, 1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemMap(range.at() + unit / 2, 2 * unit, 0, memory, 0));
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuMemMap(range.at(), unit / 2, 0, memory, 0));
}

ROW(vmm, map_offsets_are_zero) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(2 * unit);
  const Range range(4 * unit);
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuMemMap(range.at(), unit, unit, memory, 0));
}

ROW(vmm, map_is_of_all_the_memory) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(2 * unit);
  const Range range(4 * unit);
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuMemMap(range.at(), unit, 0, memory, 0));
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuMemMap(range.at(), 3 * unit, 0, memory, 0));
}

ROW(vmm, map_only_where_nothing_is_mapped) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(2 * unit), other(2 * unit);
  const Range range(4 * unit);
  const Mapped mapped(range.at() + unit, 2 * unit, memory);
  EXPECT_NE(cuMemMap(range.at() + unit, 2 * unit, 0, other, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMemMap(range.at(), 2 * unit, 0, other, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMemMap(range.at() + 2 * unit, 2 * unit, 0, other, 0), CUDA_SUCCESS);
}

ROW(vmm, one_memory_at_two_addresses) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(unit);
  const Range range(2 * unit);
  const Mapped first(range.at(), unit, memory), second(range.at() + unit, unit, memory);
  MUST(cuMemsetD32(range.at() + 64, 0xabcd, 1));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word_read(range.at() + unit + 64), 0xabcdU);
}

ROW(vmm, neighbours_are_one_range) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical one(unit), two(unit);
  const Range range(2 * unit);
  const Mapped first(range.at(), unit, one), second(range.at() + unit, unit, two);
  std::vector<unsigned> in(unit / 2), out(unit / 2);  // twice a granule
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<unsigned>(i);
  MUST(cuMemcpyHtoD(range.at(), in.data(), 2 * unit));
  MUST(cuMemcpyDtoH(out.data(), range.at(), 2 * unit));
  EXPECT_EQ(out, in);
}

ROW(vmm, contents_stay_with_the_memory) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(unit);
  const Range range(2 * unit);
  {
    const Mapped mapped(range.at(), unit, memory);
    MUST(cuMemsetD32(range.at(), 77, 1));
    MUST(cuCtxSynchronize());
  }
  const Mapped mapped(range.at() + unit, unit, memory);
  EXPECT_EQ(word_read(range.at() + unit), 77U);
}

ROW(vmm, unmap_takes_whole_mappings) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(2 * unit);
  const Range range(4 * unit);
  const Mapped mapped(range.at(), 2 * unit, memory);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(range.at(), unit));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(range.at() + unit, unit));
  MUST(cuMemsetD32(range.at() + unit, 1, 1));
  EXPECT_EQ(word_read(range.at() + unit), 1U);
}

ROW(vmm, memory_lives_as_long_as_its_mapping) {
  const Context context;
  const std::size_t bytes = 16 * vmm_unit();
  const std::size_t before = memory_free();
  const Range range(bytes);
  Physical memory(bytes);
  Mapped mapped(range.at(), bytes, memory);
  MUST(cuMemsetD32(range.at(), 5, 1));
  MUST(cuCtxSynchronize());
  memory.release();
  EXPECT_LE(memory_free() + bytes, before);
  EXPECT_EQ(word_read(range.at()), 5U);
  mapped.unmap();
  EXPECT_GE(memory_free() + bytes / 2, before);
}

ROW(vmm, memory_lives_as_long_as_its_handle) {
  const Context context;
  const std::size_t bytes = 16 * vmm_unit();
  const std::size_t before = memory_free();
  const Range range(bytes);
  Physical memory(bytes);
  Mapped mapped(range.at(), bytes, memory);
  mapped.unmap();
  EXPECT_LE(memory_free() + bytes, before);
  memory.release();
  EXPECT_GE(memory_free() + bytes / 2, before);
}

ROW(vmm, retain_gives_the_same_handle) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Range range(unit);
  const Physical memory(unit);
  const Mapped mapped(range.at(), unit, memory);
  CUmemGenericAllocationHandle again = 0;
  MUST(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range.at() + unit / 2)));
  EXPECT_EQ(again, static_cast<CUmemGenericAllocationHandle>(memory));
  MUST(cuMemRelease(again));
}

ROW(vmm, retain_counts) {
  const Context context;
  const std::size_t bytes = 16 * vmm_unit();
  const std::size_t before = memory_free();
  const Range range(bytes);
  Physical memory(bytes);
  Mapped mapped(range.at(), bytes, memory);
  CUmemGenericAllocationHandle again = 0;
  MUST(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range.at())));
  memory.release();
  mapped.unmap();
  EXPECT_LE(memory_free() + bytes, before);
  MUST(cuMemRelease(again));
  EXPECT_GE(memory_free() + bytes / 2, before);
}

ROW(vmm, retain_needs_a_mapping) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Range range(unit);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_NE(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(range.at())),
            CUDA_SUCCESS);
}

ROW(vmm, address_range_is_the_mapping) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Range range(4 * unit);
  const Physical memory(2 * unit);
  const Mapped mapped(range.at() + unit, 2 * unit, memory);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  MUST(cuMemGetAddressRange(&base, &bytes, range.at() + 2 * unit));
  EXPECT_EQ(base, range.at() + unit);
  EXPECT_EQ(bytes, 2 * unit);
}

ROW(vmm, pointers_tell_how_they_can_be_exported) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Range range(2 * unit);
  const Physical plain(unit), shareable(unit, vmm_prop(kDescriptorHandle));
  const Mapped first(range.at(), unit, plain), second(range.at() + unit, unit, shareable);
  std::uint64_t types = ~0ULL;
  MUST(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, range.at()));
  EXPECT_EQ(types, 0U);
  MUST(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, range.at() + unit));
  EXPECT_EQ(types, 0ULL + kDescriptorHandle);
}

ROW(vmm, mem_free_refuses_mapped_memory) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Range range(unit);
  const Physical memory(unit);
  const Mapped mapped(range.at(), unit, memory);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree(range.at()));
}

ROW(vmm, multicast) {
  const Context context;
  int supported = 0;
  MUST(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, context.device()));
  if (supported != 0) GTEST_SKIP() << "the device has multicast";
  CUmulticastObjectProp prop{};
  prop.numDevices = 2;
  prop.size = vmm_unit();
  CUmemGenericAllocationHandle handle = 0;
  std::size_t bytes = 0;
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuMulticastCreate(&handle, &prop));
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
          cuMulticastGetGranularity(&bytes, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
}

ROW(vmm, dma_buffers) {
  const Context context;
  int supported = 0;
  MUST(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, context.device()));
  if (supported != 0) GTEST_SKIP() << "the device gives dma-buf descriptors";
  CUdeviceptr p = 0;
  MUST(cuMemAlloc(&p, vmm_unit()));
  int file = -1;
  ANSWERS(
      CUDA_ERROR_NOT_SUPPORTED,
      cuMemGetHandleForAddressRange(&file, p, vmm_unit(), CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
  MUST(cuMemFree(p));
}

ROW(vmm, fabric_handles) {
  const Context context;
  int supported = 0;
  MUST(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
                            context.device()));
  if (supported != 0) GTEST_SKIP() << "the device has fabric handles";
  const CUmemAllocationProp prop = vmm_prop(CU_MEM_HANDLE_TYPE_FABRIC);
  CUmemGenericAllocationHandle handle = 0;
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuMemCreate(&handle, vmm_unit(), &prop, 0));
}

}  // namespace
}  // namespace conformance

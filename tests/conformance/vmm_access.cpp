// Rows of family `vmm`: what may be done at an address, and by whom.
#include "tests/conformance/vmm.h"

namespace conformance {
namespace {

/// One granule, mapped with these rights, and what a kernel and copies may do there.
class Guarded {
 public:
  explicit Guarded(CUmemAccess_flags flags)
      : unit_(vmm_unit()), memory_(unit_), range_(unit_), mapped_(range_.at(), unit_, memory_) {
    EXPECT_EQ(cuMemsetD32(at(), 3, 64), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(access_set(at(), unit_, flags), CUDA_SUCCESS);
  }
  CUdeviceptr at() const { return range_.at(); }

 private:
  std::size_t unit_;
  Physical memory_;
  Range range_;
  Mapped mapped_;
};

ROW(vmm, mappings_start_without_access) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(unit);
  const Range range(unit);
  const Mapped mapped(range.at(), unit, memory, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(access_of(range.at()), 0ULL + CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

ROW(vmm, access_is_what_was_set) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(unit);
  const Range range(unit);
  const Mapped mapped(range.at(), unit, memory, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  for (const auto flags : {CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READ,
                           CU_MEM_ACCESS_FLAGS_PROT_NONE}) {
    MUST(access_set(range.at(), unit, flags));
    EXPECT_EQ(access_of(range.at() + unit / 2), 0ULL + flags);
  }
}

ROW(vmm, access_ends_with_the_mapping) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(unit);
  const Range range(unit);
  { const Mapped mapped(range.at(), unit, memory); }
  const Mapped mapped(range.at(), unit, memory, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(access_of(range.at()), 0ULL + CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

ROW(vmm, access_is_set_for_whole_mappings) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(2 * unit);
  const Range range(4 * unit);
  const Mapped mapped(range.at(), 2 * unit, memory);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, access_set(range.at(), 4 * unit));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, access_set(range.at() + 2 * unit, unit));
}

ROW(vmm, access_spans_neighbours) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical one(unit), two(unit);
  const Range range(2 * unit);
  const Mapped first(range.at(), unit, one, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  const Mapped second(range.at() + unit, unit, two, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  MUST(access_set(range.at(), 2 * unit));
  EXPECT_EQ(access_of(range.at()), 0ULL + CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(access_of(range.at() + unit), 0ULL + CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

ROW(vmm, access_checks_its_arguments) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(unit);
  const Range range(unit);
  const Mapped mapped(range.at(), unit, memory);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(range.at(), unit, nullptr, 1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, access_set(range.at(), unit, no_such<CUmemAccess_flags>(9)));
  const CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemGetAccess(nullptr, &here, range.at()));
}

ROW(vmm, access_for_a_host_node_refused) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(unit);
  const Range range(unit);
  const Mapped mapped(range.at(), unit, memory);
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_NE(cuMemSetAccess(range.at(), unit, &access, 1), CUDA_SUCCESS);
}

ROW(vmm, access_is_of_each_device) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  int peer = 0;
  MUST(cuDeviceCanAccessPeer(&peer, 1, 0));
  if (peer == 0) GTEST_SKIP() << "needs GPUs that are peers";
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(unit);
  const Range range(unit);
  const Mapped mapped(range.at(), unit, memory);
  const CUmemLocation other = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  unsigned long long flags = ~0ULL;
  MUST(cuMemGetAccess(&flags, &other, range.at()));
  EXPECT_EQ(flags, 0ULL + CU_MEM_ACCESS_FLAGS_PROT_NONE);
  const CUmemAccessDesc access = {other, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  MUST(cuMemSetAccess(range.at(), unit, &access, 1));
  MUST(cuMemGetAccess(&flags, &other, range.at()));
  EXPECT_EQ(flags, 0ULL + CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(access_of(range.at()), 0ULL + CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

ROW(vmm, kernels_use_mapped_memory) {
  const Context context;
  const Guarded guarded(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUdeviceptr p = guarded.at();
  unsigned count = 64;
  MUST(launch(kernel("add_one"), 1, 64, {&p, &count}));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word_read(p + 252), 4U);
}

// What follows ends with a context that has failed, so nothing in it can be given back.

ROW(vmm, kernels_without_access_fail) {
  const Context context;
  const CUfunction function = kernel("write_address");
  const std::size_t unit = vmm_unit();
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle memory = 0;
  const CUmemAllocationProp prop = vmm_prop();
  MUST(cuMemCreate(&memory, unit, &prop, 0));
  MUST(cuMemAddressReserve(&at, unit, 0, 0, 0));
  MUST(cuMemMap(at, unit, 0, memory, 0));
  MUST(launch(function, 1, 1, {&at}));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

ROW(vmm, kernels_outside_a_mapping_fail) {
  const Context context;
  const CUfunction function = kernel("write_address");
  CUdeviceptr at = 0;
  MUST(cuMemAddressReserve(&at, vmm_unit(), 0, 0, 0));
  MUST(launch(function, 1, 1, {&at}));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

ROW(vmm, kernels_cannot_use_what_is_unmapped) {
  const Context context;
  const CUfunction function = kernel("write_address");
  const std::size_t unit = vmm_unit();
  CUdeviceptr at = 0;
  MUST(cuMemAddressReserve(&at, unit, 0, 0, 0));
  {
    const Physical memory(unit);
    const Mapped mapped(at, unit, memory);
    MUST(launch(function, 1, 1, {&at}));
    MUST(cuCtxSynchronize());
  }
  MUST(launch(function, 1, 1, {&at}));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

ROW(vmm, kernels_cannot_write_what_is_read_only) {
  const Context context;
  const CUfunction function = kernel("write_address");
  const std::size_t unit = vmm_unit();
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle memory = 0;
  const CUmemAllocationProp prop = vmm_prop();
  MUST(cuMemCreate(&memory, unit, &prop, 0));
  MUST(cuMemAddressReserve(&at, unit, 0, 0, 0));
  MUST(cuMemMap(at, unit, 0, memory, 0));
  MUST(access_set(at, unit, CU_MEM_ACCESS_FLAGS_PROT_READ));
  (void)word_read(at);
  MUST(launch(function, 1, 1, {&at}));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

ROW(vmm, copies_without_access_fail) {
  const Context context;
  const Guarded guarded(CU_MEM_ACCESS_FLAGS_PROT_NONE);
  unsigned value = 1;
  EXPECT_NE(cuMemcpyHtoD(guarded.at(), &value, sizeof value), CUDA_SUCCESS);
}

ROW(vmm, copies_read_what_is_read_only) {
  const Context context;
  const Guarded guarded(CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_EQ(word_read(guarded.at() + 252), 3U);
}

}  // namespace
}  // namespace conformance

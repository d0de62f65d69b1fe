// What the rows about virtual memory share: physical memory, a reserved range and a mapping of one
// into the other, each given back when the row ends.
#pragma once

#include <algorithm>

#include "tests/conformance/gate.h"
#include "tests/conformance/harness.h"

namespace conformance {

inline CUmemAllocationProp vmm_prop(CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_NONE) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.requestedHandleTypes = types;
  return prop;
}

/// The unit of physical memory and of mappings.
inline std::size_t vmm_unit() {
  const CUmemAllocationProp prop = vmm_prop();
  std::size_t bytes = 0;
  EXPECT_EQ(cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  return std::max<std::size_t>(bytes, 1);
}

class Physical {
 public:
  explicit Physical(std::size_t bytes, const CUmemAllocationProp& prop = vmm_prop()) {
    EXPECT_EQ(cuMemCreate(&handle_, bytes, &prop, 0), CUDA_SUCCESS);
  }
  ~Physical() { release(); }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  operator CUmemGenericAllocationHandle() const { return handle_; }  // NOLINT: stands for it
  void release() {
    if (handle_ == 0) return;
    EXPECT_EQ(cuMemRelease(handle_), CUDA_SUCCESS);
    handle_ = 0;
  }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
};

class Range {
 public:
  explicit Range(std::size_t bytes, std::size_t align = 0, CUdeviceptr hint = 0) : bytes_(bytes) {
    EXPECT_EQ(cuMemAddressReserve(&at_, bytes, align, hint, 0), CUDA_SUCCESS);
  }
  ~Range() { EXPECT_EQ(cuMemAddressFree(at_, bytes_), CUDA_SUCCESS); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  CUdeviceptr at() const { return at_; }
  std::size_t bytes() const { return bytes_; }

 private:
  CUdeviceptr at_ = 0;
  std::size_t bytes_;
};

inline CUresult access_set(CUdeviceptr at, std::size_t bytes,
                           CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
  return cuMemSetAccess(at, bytes, &access, 1);
}

inline unsigned long long access_of(CUdeviceptr at) {
  const CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  unsigned long long flags = ~0ULL;
  EXPECT_EQ(cuMemGetAccess(&flags, &here, at), CUDA_SUCCESS);
  return flags;
}

class Mapped {
 public:
  Mapped(CUdeviceptr at, std::size_t bytes, CUmemGenericAllocationHandle handle,
         CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      : at_(at), bytes_(bytes) {
    EXPECT_EQ(cuMemMap(at, bytes, 0, handle, 0), CUDA_SUCCESS);
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
      EXPECT_EQ(access_set(at, bytes, flags), CUDA_SUCCESS);
    }
  }
  ~Mapped() { unmap(); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  void unmap() {
    if (bytes_ == 0) return;
    EXPECT_EQ(cuMemUnmap(at_, bytes_), CUDA_SUCCESS);
    bytes_ = 0;
  }

 private:
  CUdeviceptr at_;
  std::size_t bytes_;
};

inline unsigned word_read(CUdeviceptr p) {
  unsigned value = 0;
  EXPECT_EQ(cuMemcpyDtoH(&value, p, sizeof value), CUDA_SUCCESS);
  return value;
}

}  // namespace conformance

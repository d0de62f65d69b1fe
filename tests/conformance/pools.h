// What the rows about pools share: a pool that goes with the row, and its numbers.
#pragma once

#include "tests/conformance/gate.h"
#include "tests/conformance/harness.h"

namespace conformance {

inline constexpr std::size_t kMiB = 1u << 20;

inline CUmemPoolProps pool_props(int ordinal = 0) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
  return props;
}

class MemPool {
 public:
  explicit MemPool(const CUmemPoolProps& props = pool_props()) {
    EXPECT_EQ(cuMemPoolCreate(&pool_, &props), CUDA_SUCCESS);
  }
  ~MemPool() {
    if (pool_ == nullptr) return;
    EXPECT_EQ(cuMemPoolDestroy(pool_), CUDA_SUCCESS);
  }
  MemPool(const MemPool&) = delete;
  MemPool& operator=(const MemPool&) = delete;
  operator CUmemoryPool() const { return pool_; }  // NOLINT: it stands for the handle
  CUmemoryPool release() { return std::exchange(pool_, nullptr); }

  cuuint64_t number(CUmemPool_attribute attribute) const {
    cuuint64_t value = 0;
    EXPECT_EQ(cuMemPoolGetAttribute(pool_, attribute, &value), CUDA_SUCCESS);
    return value;
  }
  cuuint64_t reserved() const { return number(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); }
  cuuint64_t used() const { return number(CU_MEMPOOL_ATTR_USED_MEM_CURRENT); }
  void set(CUmemPool_attribute attribute, cuuint64_t value) const {
    EXPECT_EQ(cuMemPoolSetAttribute(pool_, attribute, &value), CUDA_SUCCESS);
  }
  /// One of the REUSE attributes.
  void allow(CUmemPool_attribute attribute, bool on) const {
    int value = on ? 1 : 0;
    EXPECT_EQ(cuMemPoolSetAttribute(pool_, attribute, &value), CUDA_SUCCESS);
  }
  /// No synchronisation gives memory back, so that what is reserved tells what was reused.
  void keep_all() const { set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, ~cuuint64_t{0}); }
  CUdeviceptr allocate(std::size_t bytes, CUstream stream) const {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAllocFromPoolAsync(&p, bytes, pool_, stream), CUDA_SUCCESS);
    return p;
  }

 private:
  CUmemoryPool pool_ = nullptr;
};

inline CUmemoryPool pool_of(CUdeviceptr p) {
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p), CUDA_SUCCESS);
  return pool;
}

}  // namespace conformance

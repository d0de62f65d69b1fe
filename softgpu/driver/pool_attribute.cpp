// What a pool tells of itself, what can be set, and who may reach its memory. See pool.h.
#include "softgpu/driver/pool.h"

namespace softgpu::driver {

CUresult Pool::attribute_get(CUmemPool_attribute attribute, void* value) {
  const std::lock_guard lock(mutex_);
  const auto number = [value](std::uint64_t v) {
    *static_cast<cuuint64_t*>(value) = v;
    return CUDA_SUCCESS;
  };
  const auto choice = [value](bool v) {
    *static_cast<int*>(value) = v ? 1 : 0;
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return choice(reuse_events_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return choice(reuse_executed_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return choice(reuse_by_waiting_);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return number(threshold_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return number(reserved_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return number(reserved_high_);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return number(used_);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return number(used_high_);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult Pool::attribute_set(CUmemPool_attribute attribute, const void* value) {
  const std::lock_guard lock(mutex_);
  const auto choice = [value] { return *static_cast<const int*>(value) != 0; };
  const auto number = [value] { return *static_cast<const cuuint64_t*>(value); };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      reuse_events_ = choice();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      reuse_executed_ = choice();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      reuse_by_waiting_ = choice();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      threshold_ = number();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (number() != 0) return CUDA_ERROR_INVALID_VALUE;
      reserved_high_ = reserved_;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (number() != 0) return CUDA_ERROR_INVALID_VALUE;
      used_high_ = used_;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;  // the current amounts among them
  }
}

void Pool::access_set(int ordinal, CUmemAccess_flags flags) {
  const std::lock_guard lock(mutex_);
  access_[ordinal] = flags;
}

CUmemAccess_flags Pool::access_get(int ordinal) {
  if (ordinal == gpu_.ordinal) return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const std::lock_guard lock(mutex_);
  const auto found = access_.find(ordinal);
  return found == access_.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : found->second;
}

}  // namespace softgpu::driver

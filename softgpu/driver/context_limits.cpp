// The limits of a context and what they cost: local memory for every thread the device can hold at
// a time, the heap of device malloc, the FIFO of device printf. The default stack is part of what a
// context takes anyway; heap and FIFO are taken when the first kernel that uses them is loaded
// (CUDA programming guide, "Heap memory allocation"), and their limits are fixed from then on
// (cuda.h, cuCtxSetLimit).
#include <algorithm>

#include "softgpu/driver/profile.h"
#include "softgpu/driver/state.h"

namespace softgpu::driver {
namespace {

constexpr std::size_t kStackDefault = 1024;
constexpr std::size_t kStackMax = 512 * 1024;  // of compute capability 8.0, per thread
constexpr std::size_t kStackUnit = 16;
constexpr std::size_t kSyncDepthMax = 24;
constexpr std::size_t kFetchMax = 128;
constexpr std::size_t kFifoMin = 1024;

}  // namespace

/// Changes the charge `reserved` to `bytes`. The caller holds limits_mutex_.
CUresult Context::reserve_locked(std::uint64_t& reserved, std::uint64_t bytes) {
  if (bytes > reserved && !gpu.model.memory_take(gpu.client, bytes - reserved))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (bytes < reserved) gpu.model.memory_give(gpu.client, reserved - bytes);
  reserved = bytes;
  return CUDA_SUCCESS;
}

CUresult Context::local_need(std::size_t bytes_per_thread) {
  if (bytes_per_thread <= limits[CU_LIMIT_STACK_SIZE]) return CUDA_SUCCESS;
  return limit_set(CU_LIMIT_STACK_SIZE, bytes_per_thread);
}

CUresult Context::heap_need() {
  const std::lock_guard lock(limits_mutex_);
  if (heap_bytes_ != 0) return CUDA_SUCCESS;
  const std::size_t bytes = limits[CU_LIMIT_MALLOC_HEAP_SIZE];
  void* const base = gpu.memory_map(bytes, heap_offset_);
  if (base == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!heap.open(base, bytes)) {
    gpu.memory_unmap(base, bytes, heap_offset_);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  heap_bytes_ = bytes;
  return CUDA_SUCCESS;
}

CUresult Context::fifo_need() {
  const std::lock_guard lock(limits_mutex_);
  if (fifo_bytes_ != 0) return CUDA_SUCCESS;
  return reserve_locked(fifo_bytes_, limits[CU_LIMIT_PRINTF_FIFO_SIZE]);
}

CUresult Context::limit_set(CUlimit limit, std::size_t value) {
  const std::lock_guard lock(limits_mutex_);
  switch (limit) {
    case CU_LIMIT_STACK_SIZE: {
      value = round_up(value, kStackUnit);
      if (value > kStackMax) return CUDA_ERROR_INVALID_VALUE;
      const std::uint64_t threads = std::uint64_t{kThreadsPerSm} * gpu.model.settings().sm_count;
      const std::size_t beyond = value > kStackDefault ? value - kStackDefault : 0;
      const CUresult result = reserve_locked(local_bytes_, beyond * threads);
      if (result != CUDA_SUCCESS) return result;
      break;
    }
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      if (fifo_bytes_ != 0) return CUDA_ERROR_INVALID_VALUE;
      value = std::max(value, kFifoMin);
      break;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      if (heap_bytes_ != 0) return CUDA_ERROR_INVALID_VALUE;
      value = std::max<std::size_t>(value, 1);
      break;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      if (value > kSyncDepthMax) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
      value = std::min(value, kFetchMax);
      break;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
      break;
    case CU_LIMIT_SHMEM_SIZE:
    case CU_LIMIT_CIG_ENABLED:
    case CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED:
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  limits[limit] = value;
  return CUDA_SUCCESS;
}

void Context::limits_release() {
  const std::lock_guard lock(limits_mutex_);
  if (void* const base = heap.close(); base != nullptr)
    gpu.memory_unmap(base, heap_bytes_, heap_offset_);
  gpu.model.memory_give(gpu.client, local_bytes_ + fifo_bytes_);
}

}  // namespace softgpu::driver

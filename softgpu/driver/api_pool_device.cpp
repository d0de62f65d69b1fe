// Entry points: the default and the current pool of a device, by device and by location.
#include "softgpu/driver/pool.h"

using namespace softgpu::driver;

namespace {

bool location_known(const CUmemLocation& location) {
  return location.type >= CU_MEM_LOCATION_TYPE_NONE &&
         location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

/// Only device memory has pools; the other combinations that hardware knows are not supported. Nor
/// is, there too, a location that has none, whatever the allocation type.
CUresult location_find(const CUmemLocation* location, CUmemAllocationType type, Gpu*& gpu,
                       const char* name = __builtin_FUNCTION()) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!location_known(*location)) return CUDA_ERROR_NOT_SUPPORTED;
  const bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (!managed && type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      gpu = Process::get().gpu(location->id);
      if (gpu == nullptr) return CUDA_ERROR_INVALID_VALUE;
      return managed ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return managed ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult default_get(CUmemoryPool* out, Gpu& gpu) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = gpu.default_pool->handle();
  return CUDA_SUCCESS;
}

CUresult current_get(CUmemoryPool* out, Gpu& gpu) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(gpu.mutex);
  *out = gpu.pool->handle();
  return CUDA_SUCCESS;
}

CUresult current_set(Gpu& gpu, CUmemoryPool handle) {
  const PoolRef pool = pool_find(handle);
  if (pool == nullptr || pool->imported() || &pool->gpu() != &gpu) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(gpu.mutex);
  gpu.pool = pool;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  Gpu* gpu = nullptr;
  const CUresult result = enter_gpu(device, gpu);
  return result == CUDA_SUCCESS ? default_get(out, *gpu) : result;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  Gpu* gpu = nullptr;
  const CUresult result = enter_gpu(device, gpu);
  return result == CUDA_SUCCESS ? current_get(out, *gpu) : result;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  Gpu* gpu = nullptr;
  const CUresult result = enter_gpu(device, gpu);
  return result == CUDA_SUCCESS ? current_set(*gpu, handle) : result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location,
                                CUmemAllocationType type) {
  Gpu* gpu = nullptr;
  const CUresult result = location_find(location, type, gpu);
  return result == CUDA_SUCCESS ? default_get(out, *gpu) : result;
}

CUresult cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  Gpu* gpu = nullptr;
  const CUresult result = location_find(location, type, gpu);
  return result == CUDA_SUCCESS ? current_get(out, *gpu) : result;
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (location != nullptr && !location_known(*location)) return CUDA_ERROR_NOT_SUPPORTED;
  // It must be the pool's own: every pool is one of a device's pinned memory.
  const bool possible = location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
                        type == CU_MEM_ALLOCATION_TYPE_PINNED;
  Gpu* gpu = possible ? Process::get().gpu(location->id) : nullptr;
  return gpu == nullptr ? CUDA_ERROR_INVALID_VALUE : current_set(*gpu, pool);
}

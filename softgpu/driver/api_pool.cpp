// Entry points: stream-ordered allocation and memory pools.
#include "softgpu/driver/command.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/pool.h"

using namespace softgpu::driver;

namespace {

std::shared_ptr<Pool> pool_find(CUmemoryPool handle) { return Registry<Pool>::all().find(handle); }

CUresult allocate(CUdeviceptr* out, std::size_t bytes, const std::shared_ptr<Pool>* chosen,
                  CUstream handle, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  StreamRef stream;
  if (result == CUDA_SUCCESS) result = stream_find(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Pool> pool;
  if (chosen != nullptr) {
    pool = *chosen;
  } else {
    Gpu& gpu = stream->owner().gpu;
    const std::lock_guard lock(gpu.mutex);
    pool = gpu.pool;
  }
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // A captured allocation would be the graph's own memory.
  if (stream->capture != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return pool->allocate(stream, bytes, *out);
}

CUresult gpu_find(CUdevice device, Gpu*& gpu, const char* name = __builtin_FUNCTION()) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  gpu = Process::get().gpu(device);
  return gpu == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult pool_enter(CUmemoryPool handle, std::shared_ptr<Pool>& pool,
                    const char* name = __builtin_FUNCTION()) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  pool = pool_find(handle);
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* out, std::size_t bytes, CUstream stream) {
  return allocate(out, bytes, nullptr, stream, __func__);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, std::size_t bytes, CUmemoryPool pool_handle,
                                 CUstream stream) {
  const auto pool = pool_find(pool_handle);
  return allocate(out, bytes, &pool, stream, __func__);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  ContextRef context;
  CUresult result = enter(context);
  StreamRef stream;
  if (result == CUDA_SUCCESS) result = stream_find(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = MemoryMap::get().find(address);
  if (!allocation || allocation->base != address) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (allocation->kind != MemoryKind::kPool) {
    // Memory of cuMemAlloc may be freed in stream order too.
    if (allocation->kind != MemoryKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
    MemoryMap::get().take(address);
    return command_submit(stream, HostCommand{[kept = *allocation] { memory_release(kept); }});
  }
  const auto pool = pool_find(allocation->pool);
  if (pool == nullptr || !MemoryMap::get().take(address) ||
      !pool->free_begin(address, stream.get()))
    return CUDA_ERROR_INVALID_VALUE;
  return command_submit(stream, FreeCommand{pool, address});
}

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* props) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || props == nullptr || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      props->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return CUDA_ERROR_NOT_SUPPORTED;
  Gpu* gpu = Process::get().gpu(props->location.id);
  if (gpu == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const auto pool = std::make_shared<Pool>(*gpu);
  Registry<Pool>::all().add(pool);
  *out = pool->handle();
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  std::shared_ptr<Pool> pool;
  const CUresult result = pool_enter(handle, pool);
  if (result != CUDA_SUCCESS) return result;
  Gpu& gpu = pool->gpu();
  const std::lock_guard lock(gpu.mutex);
  if (pool == gpu.default_pool) return CUDA_ERROR_INVALID_VALUE;
  if (pool == gpu.pool) gpu.pool = gpu.default_pool;
  // Frees that are still in a stream hold the pool until they have executed.
  Registry<Pool>::all().take(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, std::size_t keep) {
  std::shared_ptr<Pool> pool;
  const CUresult result = pool_enter(handle, pool);
  if (result == CUDA_SUCCESS) pool->trim(keep);
  return result;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  std::shared_ptr<Pool> pool;
  const CUresult result = pool_enter(handle, pool);
  if (result != CUDA_SUCCESS) return result;
  return value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool->attribute_get(attribute, value);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  std::shared_ptr<Pool> pool;
  const CUresult result = pool_enter(handle, pool);
  if (result != CUDA_SUCCESS) return result;
  return value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool->attribute_set(attribute, value);
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, std::size_t count) {
  std::shared_ptr<Pool> pool;
  const CUresult result = pool_enter(handle, pool);
  if (result != CUDA_SUCCESS) return result;
  // Every device of this process reaches all memory already; only taking it from the owner is an
  // error.
  for (std::size_t i = 0; i < count; ++i)
    if (map[i].location.id == pool->gpu().ordinal && map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
      return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation*) {
  std::shared_ptr<Pool> pool;
  const CUresult result = pool_enter(handle, pool);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  Gpu* gpu = nullptr;
  const CUresult result = gpu_find(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = gpu->default_pool->handle();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  Gpu* gpu = nullptr;
  const CUresult result = gpu_find(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(gpu->mutex);
  *out = gpu->pool->handle();
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  Gpu* gpu = nullptr;
  const CUresult result = gpu_find(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  const auto pool = pool_find(handle);
  if (pool == nullptr || &pool->gpu() != gpu) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(gpu->mutex);
  gpu->pool = pool;
  return CUDA_SUCCESS;
}

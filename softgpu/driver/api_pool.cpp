// Entry points: stream-ordered allocation and memory pools. Which pool is a device's own is in
// api_pool_device.cpp, pools between processes in api_pool_share.cpp.
#include <algorithm>
#include <iterator>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/command.h"
#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/pool.h"

using namespace softgpu::driver;

namespace {

/// A stream-ordered call needs a current context only when the stream is the default one.
CUresult stream_only(CUstream handle, StreamRef& stream, const char* name) {
  ContextRef context;
  const bool own =
      handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
  const CUresult result = own ? enter(context, name) : enter_any(name);
  return result == CUDA_SUCCESS ? stream_find(handle, context, stream) : result;
}

CUresult allocate(CUdeviceptr* out, std::size_t bytes, const PoolRef* chosen, CUstream handle,
                  const char* name) {
  StreamRef stream;
  const CUresult result = stream_only(handle, stream, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  PoolRef pool;
  if (chosen != nullptr) {
    pool = *chosen;
  } else {
    Gpu& gpu = stream->owner().gpu;
    const std::lock_guard lock(gpu.mutex);
    pool = gpu.pool;
  }
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // A captured allocation is the graph's own memory, with the pool's properties.
  if (capture_has(*stream)) return graph_memory_capture(stream, pool->gpu(), bytes, *out);
  const CUresult ordered = capture_order_check(*stream);
  if (ordered == CUDA_SUCCESS) return pool->allocate(stream, bytes, *out);
  *out = 0;
  return ordered;
}

CUresult pool_enter(CUmemoryPool handle, PoolRef& pool, const char* name = __builtin_FUNCTION()) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  pool = pool_find(handle);
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/// Host and managed pools are refused as not supported, what the manual forbids as invalid.
CUresult props_check(const CUmemPoolProps& props, Gpu*& gpu) {
  const bool reserved = props.win32SecurityAttributes != nullptr ||
                        std::any_of(std::begin(props.reserved), std::end(props.reserved),
                                    [](auto b) { return b != 0; });
  if (reserved) return CUDA_ERROR_INVALID_VALUE;
  if (props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED) return CUDA_ERROR_NOT_SUPPORTED;
  if (props.allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  switch (props.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
      return props.handleTypes != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if ((props.handleTypes & ~kDescriptor) != 0 || props.usage != 0) return CUDA_ERROR_NOT_SUPPORTED;
  gpu = Process::get().gpu(props.location.id);
  return gpu == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/// Who may be given access: the devices of this process; the pool's own cannot lose it.
CUresult access_check(Pool& pool, const CUmemAccessDesc& access) {
  if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      Process::get().gpu(access.location.id) == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  const bool known = access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                     access.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                     access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const bool own = access.location.id == pool.gpu().ordinal;
  return !known || (own && access.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
             ? CUDA_ERROR_INVALID_VALUE
             : CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* out, std::size_t bytes, CUstream stream) {
  return allocate(out, bytes, nullptr, stream, __func__);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, std::size_t bytes, CUmemoryPool pool_handle,
                                 CUstream stream) {
  const PoolRef pool = pool_find(pool_handle);
  return allocate(out, bytes, &pool, stream, __func__);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  StreamRef stream;
  const CUresult result = stream_only(handle, stream, __func__);
  if (result != CUDA_SUCCESS) return result;
  if (capture_has(*stream)) return graph_memory_capture_free(stream, address);
  const auto allocation = MemoryMap::get().find(address);
  if (!allocation || allocation->base != address) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->kind == MemoryKind::kGraph) return graph_memory_free(address, stream);
  if (allocation->kind == MemoryKind::kDevice) {
    // Memory of cuMemAlloc may be freed in stream order too.
    const auto taken = MemoryMap::get().take(address);
    if (!taken) return CUDA_ERROR_INVALID_VALUE;
    const CUresult freed = command_submit_return(stream, [kept = *taken] { memory_release(kept); });
    if (freed != CUDA_SUCCESS) MemoryMap::get().add(*taken);
    return freed;
  }
  // Also of a pool whose handle has been destroyed.
  const PoolRef pool = Registry<Pool>::all().find(allocation->pool);
  if (pool == nullptr || !MemoryMap::get().take(address)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult freed = pool->free(address, stream);
  if (freed != CUDA_SUCCESS) MemoryMap::get().add(*allocation);
  return freed;
}

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* props) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || props == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Gpu* gpu = nullptr;
  const CUresult checked = props_check(*props, gpu);
  if (checked != CUDA_SUCCESS) return checked;
  PoolOptions options;
  options.bytes_max = props->maxSize;
  options.shareable = props->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  const auto pool = std::make_shared<Pool>(*gpu, options);
  Registry<Pool>::all().add(pool);
  *out = pool->handle();
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  PoolRef pool;
  const CUresult result = pool_enter(handle, pool);
  if (result != CUDA_SUCCESS) return result;
  {
    Gpu& gpu = pool->gpu();
    const std::lock_guard lock(gpu.mutex);
    if (pool == gpu.default_pool) return CUDA_ERROR_INVALID_VALUE;
    if (pool == gpu.pool) gpu.pool = gpu.default_pool;
  }
  pool->close();
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, std::size_t keep) {
  PoolRef pool;
  const CUresult result = pool_enter(handle, pool);
  if (result == CUDA_SUCCESS) pool->trim(keep);
  return result;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  PoolRef pool;
  const CUresult result = pool_enter(handle, pool);
  if (result != CUDA_SUCCESS) return result;
  return value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool->attribute_get(attribute, value);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  PoolRef pool;
  const CUresult result = pool_enter(handle, pool);
  if (result != CUDA_SUCCESS) return result;
  return value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool->attribute_set(attribute, value);
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, std::size_t count) {
  PoolRef pool;
  CUresult result = pool_enter(handle, pool);
  if (result != CUDA_SUCCESS) return result;
  if (map == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count && result == CUDA_SUCCESS; ++i)
    result = access_check(*pool, map[i]);
  for (std::size_t i = 0; i < count && result == CUDA_SUCCESS; ++i)
    pool->access_set(map[i].location.id, map[i].flags);
  return result;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                            CUmemLocation* location) {
  PoolRef pool;
  const CUresult result = pool_enter(handle, pool);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
      Process::get().gpu(location->id) == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = pool->access_get(location->id);
  return CUDA_SUCCESS;
}

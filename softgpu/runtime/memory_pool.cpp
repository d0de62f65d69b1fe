// Stream-ordered allocation and the pools behind it. Both headers lay the pool structures out
// alike.
#include "softgpu/runtime/call.h"

using namespace softgpu::runtime;

static_assert(sizeof(cudaMemPoolProps) == sizeof(CUmemPoolProps) &&
                  sizeof(cudaMemLocation) == sizeof(CUmemLocation) &&
                  sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc) &&
                  sizeof(cudaMemPoolPtrExportData) == sizeof(CUmemPoolPtrExportData),
              "one layout in both headers");

namespace {

/// Runs an allocation that yields a device address and hands it out as a pointer.
template <class Allocate>
cudaError_t allocate(void** pointer, Allocate&& allocate_address) {
  return in_context([&](const Driver& api) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    CUdeviceptr address = 0;
    const CUresult result = allocate_address(api, &address);
    if (result == CUDA_SUCCESS) *pointer = to_pointer(address);
    return to_error(result);
  });
}

}  // namespace

cudaError_t CUDARTAPI cudaMallocAsync(void** pointer, size_t size_bytes, cudaStream_t stream) {
  return allocate(pointer, [&](const Driver& api, CUdeviceptr* address) {
    return size_bytes == 0 ? CUDA_SUCCESS : api.MemAllocAsync(address, size_bytes, stream);
  });
}

cudaError_t CUDARTAPI cudaMallocFromPoolAsync(void** pointer, size_t size_bytes, cudaMemPool_t pool,
                                              cudaStream_t stream) {
  return allocate(pointer, [&](const Driver& api, CUdeviceptr* address) {
    return size_bytes == 0 ? CUDA_SUCCESS
                           : api.MemAllocFromPoolAsync(address, size_bytes, pool, stream);
  });
}

cudaError_t CUDARTAPI cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    return pointer == nullptr ? CUDA_SUCCESS : api.MemFreeAsync(to_address(pointer), stream);
  });
}

cudaError_t CUDARTAPI cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return with_driver([&](const Driver& api) { return api.DeviceGetDefaultMemPool(pool, device); });
}

cudaError_t CUDARTAPI cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return with_driver([&](const Driver& api) { return api.DeviceGetMemPool(pool, device); });
}

cudaError_t CUDARTAPI cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return with_driver([&](const Driver& api) { return api.DeviceSetMemPool(device, pool); });
}

cudaError_t CUDARTAPI cudaMemPoolCreate(cudaMemPool_t* pool,
                                        const struct cudaMemPoolProps* properties) {
  return with_driver([&](const Driver& api) {
    return api.MemPoolCreate(pool, reinterpret_cast<const CUmemPoolProps*>(properties));
  });
}

cudaError_t CUDARTAPI cudaMemPoolDestroy(cudaMemPool_t pool) {
  return with_driver([&](const Driver& api) { return api.MemPoolDestroy(pool); });
}

cudaError_t CUDARTAPI cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes_min) {
  return with_driver([&](const Driver& api) { return api.MemPoolTrimTo(pool, keep_bytes_min); });
}

cudaError_t CUDARTAPI cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                              void* value) {
  return with_driver([&](const Driver& api) {
    return api.MemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value);
  });
}

cudaError_t CUDARTAPI cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                              void* value) {
  return with_driver([&](const Driver& api) {
    return api.MemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value);
  });
}

cudaError_t CUDARTAPI cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc* list,
                                           size_t count) {
  return with_driver([&](const Driver& api) {
    return api.MemPoolSetAccess(pool, reinterpret_cast<const CUmemAccessDesc*>(list), count);
  });
}

cudaError_t CUDARTAPI cudaMemPoolGetAccess(enum cudaMemAccessFlags* flags, cudaMemPool_t pool,
                                           struct cudaMemLocation* location) {
  return with_driver([&](const Driver& api) {
    return api.MemPoolGetAccess(reinterpret_cast<CUmemAccess_flags*>(flags), pool,
                                reinterpret_cast<CUmemLocation*>(location));
  });
}

cudaError_t CUDARTAPI cudaMemPoolExportToShareableHandle(void* handle, cudaMemPool_t pool,
                                                         enum cudaMemAllocationHandleType type,
                                                         unsigned int flags) {
  return with_driver([&](const Driver& api) {
    return api.MemPoolExportToShareableHandle(handle, pool,
                                              static_cast<CUmemAllocationHandleType>(type), flags);
  });
}

cudaError_t CUDARTAPI cudaMemPoolImportFromShareableHandle(cudaMemPool_t* pool, void* handle,
                                                           enum cudaMemAllocationHandleType type,
                                                           unsigned int flags) {
  return with_driver([&](const Driver& api) {
    return api.MemPoolImportFromShareableHandle(
        pool, handle, static_cast<CUmemAllocationHandleType>(type), flags);
  });
}

cudaError_t CUDARTAPI cudaMemPoolExportPointer(struct cudaMemPoolPtrExportData* data,
                                               void* pointer) {
  return with_driver([&](const Driver& api) {
    return api.MemPoolExportPointer(reinterpret_cast<CUmemPoolPtrExportData*>(data),
                                    to_address(pointer));
  });
}

cudaError_t CUDARTAPI cudaMemPoolImportPointer(void** pointer, cudaMemPool_t pool,
                                               struct cudaMemPoolPtrExportData* data) {
  return allocate(pointer, [&](const Driver& api, CUdeviceptr* address) {
    return api.MemPoolImportPointer(address, pool, reinterpret_cast<CUmemPoolPtrExportData*>(data));
  });
}

cudaError_t CUDARTAPI cudaMemGetDefaultMemPool(cudaMemPool_t* pool,
                                               struct cudaMemLocation* location,
                                               enum cudaMemAllocationType type) {
  return with_driver([&](const Driver& api) {
    return api.MemGetDefaultMemPool(pool, reinterpret_cast<CUmemLocation*>(location),
                                    static_cast<CUmemAllocationType>(type));
  });
}

cudaError_t CUDARTAPI cudaMemGetMemPool(cudaMemPool_t* pool, struct cudaMemLocation* location,
                                        enum cudaMemAllocationType type) {
  return with_driver([&](const Driver& api) {
    return api.MemGetMemPool(pool, reinterpret_cast<CUmemLocation*>(location),
                             static_cast<CUmemAllocationType>(type));
  });
}

cudaError_t CUDARTAPI cudaMemSetMemPool(struct cudaMemLocation* location,
                                        enum cudaMemAllocationType type, cudaMemPool_t pool) {
  return with_driver([&](const Driver& api) {
    return api.MemSetMemPool(reinterpret_cast<CUmemLocation*>(location),
                             static_cast<CUmemAllocationType>(type), pool);
  });
}

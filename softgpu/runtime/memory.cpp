// Allocation: device, pitched, managed, pinned and registered memory, and what a pointer is.
// Stream-ordered allocation and pools are in memory_pool.cpp.
#include "softgpu/runtime/call.h"
#include "softgpu/runtime/registry.h"

using namespace softgpu::runtime;

namespace {

/// Widest element the rows of a pitched allocation must suit.
constexpr unsigned kPitchElementBytes = 16;

CUmemLocation to_driver(cudaMemLocation location) {
  CUmemLocation out = {};
  out.type = static_cast<CUmemLocationType>(location.type);
  out.id = location.id;
  return out;
}

}  // namespace

cudaError_t CUDARTAPI cudaMalloc(void** pointer, size_t size_bytes) {
  return in_context([&](const Driver& api) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    CUdeviceptr address = 0;
    const CUresult result = size_bytes == 0 ? CUDA_SUCCESS : api.MemAlloc(&address, size_bytes);
    if (result == CUDA_SUCCESS) *pointer = to_pointer(address);
    return to_error(result);
  });
}

cudaError_t CUDARTAPI cudaFree(void* pointer) {
  return in_context([&](const Driver& api) {
    return pointer == nullptr ? CUDA_SUCCESS : api.MemFree(to_address(pointer));
  });
}

cudaError_t CUDARTAPI cudaMallocManaged(void** pointer, size_t size_bytes, unsigned int flags) {
  return in_context([&](const Driver& api) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    CUdeviceptr address = 0;
    const CUresult result = api.MemAllocManaged(&address, size_bytes, flags);
    if (result == CUDA_SUCCESS) *pointer = to_pointer(address);
    return to_error(result);
  });
}

cudaError_t CUDARTAPI cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  return in_context([&](const Driver& api) {
    if (pointer == nullptr || pitch == nullptr) return cudaErrorInvalidValue;
    CUdeviceptr address = 0;
    CUresult result = CUDA_SUCCESS;
    if (width == 0 || height == 0) {
      *pitch = 0;
    } else {
      result = api.MemAllocPitch(&address, pitch, width, height, kPitchElementBytes);
    }
    if (result == CUDA_SUCCESS) *pointer = to_pointer(address);
    return to_error(result);
  });
}

cudaError_t CUDARTAPI cudaMalloc3D(struct cudaPitchedPtr* pitched, struct cudaExtent extent) {
  if (pitched == nullptr) return record_error(cudaErrorInvalidValue);
  cudaPitchedPtr out = {nullptr, 0, extent.width, extent.height};
  size_t rows = 0;
  if (__builtin_mul_overflow(extent.height, extent.depth, &rows))
    return record_error(cudaErrorMemoryAllocation);
  const cudaError_t error = cudaMallocPitch(&out.ptr, &out.pitch, extent.width, rows);
  if (error == cudaSuccess) *pitched = out;
  return error;
}

cudaError_t CUDARTAPI cudaMallocHost(void** pointer, size_t size_bytes) {
  return cudaHostAlloc(pointer, size_bytes, cudaHostAllocDefault);
}

cudaError_t CUDARTAPI cudaHostAlloc(void** pointer, size_t size_bytes, unsigned int flags) {
  return in_context([&](const Driver& api) {
    if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (size_bytes == 0) {
      *pointer = nullptr;
      return CUDA_SUCCESS;
    }
    return api.MemHostAlloc(pointer, size_bytes, flags);
  });
}

cudaError_t CUDARTAPI cudaFreeHost(void* pointer) {
  return in_context([&](const Driver& api) {
    return pointer == nullptr ? CUDA_SUCCESS : api.MemFreeHost(pointer);
  });
}

cudaError_t CUDARTAPI cudaHostRegister(void* pointer, size_t size_bytes, unsigned int flags) {
  return in_context(
      [&](const Driver& api) { return api.MemHostRegister(pointer, size_bytes, flags); });
}

cudaError_t CUDARTAPI cudaHostUnregister(void* pointer) {
  return in_context([&](const Driver& api) { return api.MemHostUnregister(pointer); });
}

cudaError_t CUDARTAPI cudaHostGetDevicePointer(void** device_pointer, void* host_pointer,
                                               unsigned int flags) {
  return in_context([&](const Driver& api) {
    if (device_pointer == nullptr) return cudaErrorInvalidValue;
    CUdeviceptr address = 0;
    const CUresult result = api.MemHostGetDevicePointer(&address, host_pointer, flags);
    if (result == CUDA_SUCCESS) *device_pointer = to_pointer(address);
    return to_error(result);
  });
}

cudaError_t CUDARTAPI cudaHostGetFlags(unsigned int* flags, void* host_pointer) {
  return in_context([&](const Driver& api) { return api.MemHostGetFlags(flags, host_pointer); });
}

cudaError_t CUDARTAPI cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return in_context([&](const Driver& api) { return api.MemGetInfo(free_bytes, total_bytes); });
}

cudaError_t CUDARTAPI cudaPointerGetAttributes(struct cudaPointerAttributes* attributes,
                                               const void* pointer) {
  return in_context([&](const Driver& api) {
    if (attributes == nullptr || pointer == nullptr) return cudaErrorInvalidValue;
    unsigned memory_type = 0;
    unsigned managed = 0;
    int device = -2;  // what the driver leaves for a pointer it does not know
    CUdeviceptr device_pointer = 0;
    void* host_pointer = nullptr;
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void* values[] = {&memory_type, &managed, &device, &device_pointer, &host_pointer};
    const CUresult result = api.PointerGetAttributes(5, names, values, to_address(pointer));
    if (result != CUDA_SUCCESS) return to_error(result);
    *attributes = {};
    attributes->type =
        managed != 0 ? cudaMemoryTypeManaged : static_cast<cudaMemoryType>(memory_type);
    attributes->device = device;
    attributes->devicePointer = to_pointer(device_pointer);
    attributes->hostPointer = host_pointer;
    if (memory_type == 0) {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = -1;
      attributes->hostPointer = const_cast<void*>(pointer);
    }
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return in_context([&](const Driver&) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    CUdeviceptr address = 0;
    size_t size_bytes = 0;
    const cudaError_t error = Registry::get().find_variable(symbol, &address, &size_bytes);
    if (error == cudaSuccess) *pointer = to_pointer(address);
    return error;
  });
}

cudaError_t CUDARTAPI cudaGetSymbolSize(size_t* size_bytes, const void* symbol) {
  return in_context([&](const Driver&) {
    if (size_bytes == nullptr) return cudaErrorInvalidValue;
    CUdeviceptr address = 0;
    return Registry::get().find_variable(symbol, &address, size_bytes);
  });
}

cudaError_t CUDARTAPI cudaMemPrefetchAsync(const void* pointer, size_t size_bytes,
                                           struct cudaMemLocation location, unsigned int flags,
                                           cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    return api.MemPrefetchAsync(to_address(pointer), size_bytes, to_driver(location), flags,
                                stream);
  });
}

cudaError_t CUDARTAPI cudaMemAdvise(const void* pointer, size_t size_bytes,
                                    enum cudaMemoryAdvise advice, struct cudaMemLocation location) {
  return in_context([&](const Driver& api) {
    return api.MemAdvise(to_address(pointer), size_bytes, static_cast<CUmem_advise>(advice),
                         to_driver(location));
  });
}

cudaError_t CUDARTAPI cudaMemRangeGetAttribute(void* data, size_t data_bytes,
                                               enum cudaMemRangeAttribute attribute,
                                               const void* pointer, size_t size_bytes) {
  return in_context([&](const Driver& api) {
    return api.MemRangeGetAttribute(data, data_bytes, static_cast<CUmem_range_attribute>(attribute),
                                    to_address(pointer), size_bytes);
  });
}

cudaError_t CUDARTAPI cudaMemRangeGetAttributes(void** data, size_t* data_bytes,
                                                enum cudaMemRangeAttribute* attributes,
                                                size_t attribute_count, const void* pointer,
                                                size_t size_bytes) {
  return in_context([&](const Driver& api) {
    return api.MemRangeGetAttributes(data, data_bytes,
                                     reinterpret_cast<CUmem_range_attribute*>(attributes),
                                     attribute_count, to_address(pointer), size_bytes);
  });
}

cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle));
  return in_context([&](const Driver& api) {
    return api.IpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle), to_address(pointer));
  });
}

cudaError_t CUDARTAPI cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle,
                                           unsigned int flags) {
  return in_context([&](const Driver& api) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    CUdeviceptr address = 0;
    const CUresult result =
        api.IpcOpenMemHandle(&address, reinterpret_cast<const CUipcMemHandle&>(handle), flags);
    if (result == CUDA_SUCCESS) *pointer = to_pointer(address);
    return to_error(result);
  });
}

cudaError_t CUDARTAPI cudaIpcCloseMemHandle(void* pointer) {
  return in_context([&](const Driver& api) { return api.IpcCloseMemHandle(to_address(pointer)); });
}

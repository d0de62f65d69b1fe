// Entry points: virtual memory management, and memory shared with other processes by file
// descriptor.
#include <algorithm>

#include "softgpu/driver/memory.h"
#include "softgpu/driver/profile.h"
#include "softgpu/driver/virtual.h"

using namespace softgpu::driver;

namespace {

/// Only device memory is there: host memory is refused as not supported, what the manual forbids as
/// invalid.
CUresult prop_check(const CUmemAllocationProp* prop, Gpu*& gpu) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->win32HandleMetaData != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
      return prop->requestedHandleTypes != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if ((prop->requestedHandleTypes & ~kDescriptor) != 0 || prop->allocFlags.usage != 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  gpu = Process::get().gpu(prop->location.id);
  return gpu == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult location_check(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_HOST) return CUDA_ERROR_NOT_SUPPORTED;
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  return Process::get().gpu(location.id) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult access_check(const CUmemAccessDesc& access) {
  const bool known = access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                     access.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                     access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return known ? location_check(access.location) : CUDA_ERROR_INVALID_VALUE;
}

/// What takes memory or a right away waits for the work that may still use it.
void contexts_idle() {
  for (const ContextRef& context : Registry<Context>::all().list()) context->wait_all();
}

}  // namespace

CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  CUresult result = enter_any();
  Gpu* gpu = nullptr;
  if (result == CUDA_SUCCESS) result = prop_check(prop, gpu);
  if (result != CUDA_SUCCESS) return result;
  const bool known =
      option == CU_MEM_ALLOC_GRANULARITY_MINIMUM || option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
  if (bytes == nullptr || !known) return CUDA_ERROR_INVALID_VALUE;
  *bytes = kVmmGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* out, std::size_t bytes, std::size_t align,
                             CUdeviceptr wish, unsigned long long flags) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::uintptr_t at = 0;
  const CUresult reserved = VirtualMemory::get().reserve(bytes, align, wish, at);
  if (reserved == CUDA_SUCCESS) *out = at;
  return reserved;
}

CUresult cuMemAddressFree(CUdeviceptr at, std::size_t bytes) {
  const CUresult result = enter_any();
  return result == CUDA_SUCCESS ? VirtualMemory::get().unreserve(at, bytes) : result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* out, std::size_t bytes,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  CUresult result = enter_any();
  Gpu* gpu = nullptr;
  if (result == CUDA_SUCCESS) result = prop_check(prop, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || flags != 0 || bytes == 0 || bytes % kVmmGranularity != 0)
    return CUDA_ERROR_INVALID_VALUE;
  CUmemAllocationProp got = *prop;
  got.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_NONE;  // a wish that is not met
  PieceRef piece;
  result = Piece::create(*gpu, got, bytes, piece);
  if (result == CUDA_SUCCESS) *out = VirtualMemory::get().handle_add(std::move(piece));
  return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const CUresult result = enter_any();
  return result == CUDA_SUCCESS ? VirtualMemory::get().handle_release(handle) : result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return VirtualMemory::get().handle_retain(address_of(address), *out);
}

CUresult cuMemMap(CUdeviceptr at, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return VirtualMemory::get().map(at, bytes, offset, handle);
}

CUresult cuMemUnmap(CUdeviceptr at, std::size_t bytes) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  contexts_idle();
  return VirtualMemory::get().unmap(at, bytes);
}

CUresult cuMemSetAccess(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc* access,
                        std::size_t count) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (access == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count && result == CUDA_SUCCESS; ++i)
    result = access_check(access[i]);
  if (result != CUDA_SUCCESS) return result;
  VirtualMemory& memory = VirtualMemory::get();
  if (memory.access_narrows(at, bytes, access, count)) contexts_idle();
  return memory.access_set(at, bytes, access, count);
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr at) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  result = location_check(*location);
  CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (result == CUDA_SUCCESS) result = VirtualMemory::get().access_get(at, location->id, access);
  if (result == CUDA_SUCCESS) *flags = access;
  return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const PieceRef piece = VirtualMemory::get().handle_find(handle);
  if (prop == nullptr || piece == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = piece->prop;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const PieceRef piece = VirtualMemory::get().handle_find(handle);
  if (out == nullptr || flags != 0 || piece == nullptr || type == CU_MEM_HANDLE_TYPE_NONE)
    return CUDA_ERROR_INVALID_VALUE;
  if (type != kDescriptor) return CUDA_ERROR_NOT_SUPPORTED;
  if ((piece->prop.requestedHandleTypes & kDescriptor) == 0) return CUDA_ERROR_INVALID_VALUE;
  const int file = piece->give();
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = file;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* os_handle,
                                        CUmemAllocationHandleType type) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || type == CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
  if (type != kDescriptor) return CUDA_ERROR_NOT_SUPPORTED;
  PieceRef piece;
  result = Piece::import(static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle)), piece);
  if (result == CUDA_SUCCESS) *out = VirtualMemory::get().handle_add(std::move(piece));
  return result;
}

// Entry points: virtual memory management, and memory shared with other processes by file
// descriptor.
#include <fcntl.h>

#include "softgpu/driver/command.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/profile.h"
#include "softgpu/driver/virtual.h"

using namespace softgpu::driver;

namespace {

CUresult prop_check(const CUmemAllocationProp* prop, Gpu*& gpu) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if ((prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  gpu = Process::get().gpu(prop->location.id);
  return gpu == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

/// A change of mappings waits for the work that may still use the old ones.
void contexts_idle() {
  for (const ContextRef& context : Registry<Context>::all().list()) {
    std::vector<StreamRef> streams;
    {
      const std::lock_guard lock(context->order);
      streams = context->streams;
      streams.push_back(context->legacy);
    }
    for (const StreamRef& stream : streams)
      if (stream != nullptr) (void)Stream::wait(stream->last());
  }
}

}  // namespace

CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags) {
  CUresult result = enter_any();
  Gpu* gpu = nullptr;
  if (result == CUDA_SUCCESS) result = prop_check(prop, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
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
  PieceRef piece;
  result = Piece::create(*gpu, bytes, piece);
  if (result == CUDA_SUCCESS) *out = VirtualMemory::get().handle_add(std::move(piece), *prop);
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
  if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return VirtualMemory::get().map(at, bytes, handle);
}

CUresult cuMemUnmap(CUdeviceptr at, std::size_t bytes) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  contexts_idle();
  return VirtualMemory::get().unmap(at, bytes);
}

CUresult cuMemSetAccess(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc* access,
                        std::size_t count) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (access == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  // All devices of a process share its page tables: the widest right that any of them gets.
  CUmemAccess_flags widest = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  for (std::size_t i = 0; i < count; ++i) {
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        Process::get().gpu(access[i].location.id) == nullptr)
      return CUDA_ERROR_INVALID_VALUE;
    widest = std::max(widest, access[i].flags);
  }
  return VirtualMemory::get().access_set(at, bytes, widest);
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation*, CUdeviceptr at) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  return flags == nullptr ? CUDA_ERROR_INVALID_VALUE : VirtualMemory::get().access_get(at, *flags);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  PieceHandle found;
  if (prop == nullptr || !VirtualMemory::get().handle_find(handle, found))
    return CUDA_ERROR_INVALID_VALUE;
  *prop = found.prop;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  PieceHandle found;
  if (out == nullptr || flags != 0 || !VirtualMemory::get().handle_find(handle, found))
    return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if ((found.prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  const int file = fcntl(found.piece->file(), F_DUPFD_CLOEXEC, 0);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = file;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* os_handle,
                                        CUmemAllocationHandleType type) {
  ContextRef context;
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle));
  // The piece names its device: the one that has it in its account.
  for (const auto& gpu : Process::get().gpus()) {
    PieceRef piece;
    result = Piece::import(*gpu, file, piece);
    if (result != CUDA_SUCCESS) continue;
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu->ordinal};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    *out = VirtualMemory::get().handle_add(std::move(piece), prop);
    return CUDA_SUCCESS;
  }
  return result;
}

// Entry points: pools that several processes use. A pool's descriptor is a small file that says
// where the owner's memory is; a pointer is 64 bytes that say which part of it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "softgpu/device/descriptor.h"
#include "softgpu/driver/pool_import.h"

using namespace softgpu::driver;

namespace {

CUresult token_write(const IpcHandle& token, int& file) {
  file = memfd_create("softgpu-pool", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (softgpu::device::file_size_set(file, sizeof token) &&
      pwrite(file, &token, sizeof token, 0) == sizeof token)
    return CUDA_SUCCESS;
  close(file);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult type_check(CUmemAllocationHandleType type, unsigned long long flags) {
  if (flags != 0 || type == CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
  return type == kDescriptor ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult cuMemPoolExportToShareableHandle(void* out, CUmemoryPool handle,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const PoolRef pool = pool_find(handle);
  if (out == nullptr || pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  result = type_check(type, flags);
  IpcHandle token;
  if (result == CUDA_SUCCESS) result = pool->describe(token);
  int file = -1;
  if (result == CUDA_SUCCESS) result = token_write(token, file);
  if (result == CUDA_SUCCESS) std::memcpy(out, &file, sizeof file);
  return result;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* out, void* os_handle,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  result = type_check(type, flags);
  if (result != CUDA_SUCCESS) return result;
  const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle));
  IpcHandle bytes, token;
  Gpu* gpu = nullptr;
  if (!ipc_file_ours(file)) return CUDA_ERROR_INVALID_VALUE;
  if (pread(file, &bytes, sizeof bytes, 0) != sizeof bytes) return CUDA_ERROR_INVALID_VALUE;
  result = ipc_handle_read(&bytes, IpcKind::kPool, token, gpu);
  if (result != CUDA_SUCCESS) return result;
  const auto pool = PoolImport::open(*gpu, token);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Registry<Pool>::all().add(pool);
  *out = pool->handle();
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* out, CUdeviceptr address) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = MemoryMap::get().find(address);
  if (out == nullptr || !allocation) return CUDA_ERROR_INVALID_VALUE;
  const PoolRef pool = pool_find(allocation->pool);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  PoolPointer pointer;
  result = pool->describe(allocation->base, pointer);
  if (result != CUDA_SUCCESS) return result;
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &pointer, sizeof pointer);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* out, CUmemoryPool handle,
                                CUmemPoolPtrExportData* data) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const auto pool = std::dynamic_pointer_cast<PoolImport>(pool_find(handle));
  if (out == nullptr || data == nullptr || pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  PoolPointer pointer;
  std::memcpy(&pointer, static_cast<const void*>(data), sizeof pointer);
  return pool->show(pointer, *out);
}

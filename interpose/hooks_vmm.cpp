// Physical memory under the program's own address management (cuMemCreate and its mappings): what
// PyTorch's expandable segments and NCCL use. Only memory located on a device counts; the device is
// the one the properties name, not the current one. Imported handles are charged where they were
// exported.
#include "interpose/account.h"
#include "interpose/gate.h"

using namespace sluice::interpose;

SLUICE_HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                 const CUmemAllocationProp* properties, unsigned long long flags) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  if (!account.active() || properties == nullptr ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return driver.cuMemCreate(handle, bytes, properties, flags);
  }
  const int device = properties->location.id;
  if (!charge_reserve(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = driver.cuMemCreate(handle, bytes, properties, flags);
  if (result != CUDA_SUCCESS) {
    charge_abort(device, bytes);
    return result;
  }
  charge_commit(device, bytes);
  vmm_created(*handle, device, bytes);
  return result;
}

SLUICE_HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const AccountScope account;
  const CUresult result = driver.cuMemRelease(handle);
  if (account.active() && result == CUDA_SUCCESS) vmm_released(handle);
  return result;
}

SLUICE_HOOK CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const AccountScope account;
  const CUresult result = driver.cuMemMap(address, bytes, offset, handle, flags);
  if (account.active() && result == CUDA_SUCCESS) vmm_mapped(handle, address, bytes);
  return result;
}

SLUICE_HOOK CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  const AccountScope account;
  const CUresult result = driver.cuMemUnmap(address, bytes);
  if (account.active() && result == CUDA_SUCCESS) vmm_unmapped(address, bytes);
  return result;
}

SLUICE_HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                 void* address) {
  const AccountScope account;
  const CUresult result = driver.cuMemRetainAllocationHandle(handle, address);
  if (account.active() && result == CUDA_SUCCESS) {
    vmm_retained(*handle, reinterpret_cast<CUdeviceptr>(address));
  }
  return result;
}

// Physical memory under the program's own address management (cuMemCreate and its mappings): what
// PyTorch's expandable segments and NCCL use. Only memory located on a device counts; the device is
// the one the properties name, not the current one. Imported handles are in hooks_share.cpp.
#include "interpose/account.h"
#include "interpose/account_uses.h"
#include "interpose/captures.h"
#include "interpose/gate.h"
#include "interpose/memory/kept.h"
#include "interpose/residual.h"
#include "interpose/room.h"
#include "interpose/swap.h"

using namespace sluice::interpose;

namespace {

// What the driver refuses is known without asking for memory.
bool is_wrong(size_t bytes, const CUmemAllocationProp* properties, unsigned long long flags) {
  size_t grain = 0;
  return flags != 0 ||
         driver.cuMemGetAllocationGranularity(&grain, properties,
                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
         (grain != 0 && bytes % grain != 0);
}

CUresult create_once(RoomWait& wait, CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  if (!account.active() || handle == nullptr || properties == nullptr ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return driver.cuMemCreate(handle, bytes, properties, flags);
  }
  const int device = properties->location.id;
  const CUmemGenericAllocationHandle before = *handle;
  const auto call = [&] { return driver.cuMemCreate(handle, bytes, properties, flags); };
  const auto undo = [&] {
    (void)relaxed_call([&] { return driver.cuMemRelease(*handle); });
    *handle = before;
  };
  if (!charge_room(device, bytes))
    return charge_refuse(device, bytes, is_wrong(bytes, properties, flags), call, undo);
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    charge_abort(device, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) wait.refused(device_gpu(device), bytes);
    return result;
  }
  charge_commit(device, bytes);
  uses_settle();
  if (SLUICE_LIKELY(vmm_created(*handle, device, bytes))) return result;
  undo();
  charge_release(device, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Ends a handle or a mapping; `call` is told whether it is on record. Memory from elsewhere, and
// what other holders may keep, is the residual's.
template <class Call, class End>
CUresult end(Call call, End end_known) {
  bool known = true;
  SharedEnd shared(residual_is_shared());
  {
    const AccountScope account;
    if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
    const CUresult result = call(account.active());
    if (!account.active() || result != CUDA_SUCCESS) return result;
    known = end_known();
  }
  shared.ended();
  if (!known) {
    residual_settle_all();
  } else if (residual_is_shared()) {
    residual_want();
  }
  return CUDA_SUCCESS;
}

}  // namespace

SLUICE_HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                 const CUmemAllocationProp* properties, unsigned long long flags) {
  return with_room(
      [&](RoomWait& wait) { return create_once(wait, handle, bytes, properties, flags); });
}

SLUICE_HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  bool known = false;
  return end(
      [&](bool recorded) {
        known = recorded && vmm_release_begin(handle);
        const CUresult result = driver.cuMemRelease(handle);
        if (known) known = vmm_release_end(handle, result == CUDA_SUCCESS);
        return result;
      },
      [&] { return known; });
}

// Movable memory is mapped too, but not by the program.
SLUICE_HOOK CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  if (swap_owns(address)) return CUDA_ERROR_INVALID_VALUE;
  return end([&](bool) { return driver.cuMemUnmap(address, bytes); },
             [&] { return vmm_unmapped(address, bytes); });
}

SLUICE_HOOK CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (swap_owns(address)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = driver.cuMemMap(address, bytes, offset, handle, flags);
  if (!account.active() || result != CUDA_SUCCESS) return result;
  if (SLUICE_LIKELY(vmm_mapped(handle, address, bytes))) return result;
  (void)relaxed_call([&] { return driver.cuMemUnmap(address, bytes); });
  return CUDA_ERROR_OUT_OF_MEMORY;
}

SLUICE_HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                 void* address) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (swap_owns(reinterpret_cast<CUdeviceptr>(address))) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = driver.cuMemRetainAllocationHandle(handle, address);
  if (account.active() && result == CUDA_SUCCESS) {
    vmm_retained(*handle, reinterpret_cast<CUdeviceptr>(address));
  }
  return result;
}

// Work on the GPU that is no launch: memsets, and copies whose both ends are on a device. It keeps
// the GPU as busy as kernels do, so it passes the gate of launches and is counted and measured with
// them. Copies from and to the host are the bus's: they go on beside another tenant's kernels. A
// batch may hold both kinds and counts as work.
#pragma once

#include "interpose/gate.h"
#include "interpose/touch.h"

namespace sluice::interpose {

/// Passes the gate of launches if `is_work`. The call itself waits for the end of a hold. `waits`:
/// its form is the synchronous one, which waits for some memory.
template <class Call>
CUresult work_gated(bool is_work, bool waits, CUstream stream, Call call) {
  if (!is_work || process_mode() == Mode::kInert) return call();
  LaunchPass pass;
  pass.handle = stream;
  pass.exec = nullptr;
  pass.kind = LaunchKind::kKernel;
  pass.is_work = true;
  pass.waits = waits;
  return pass_through(pass, call);
}

/// True if the driver says that the address is a device's memory.
SLUICE_NOINLINE bool address_is_of_device(CUdeviceptr address);
/// True if both ends are a device's memory, and the copy is long enough to ask the driver for that.
bool copy_stays(CUdeviceptr to, CUdeviceptr from, uint64_t bytes);

inline bool end_is_of_device(CUmemorytype type, CUdeviceptr address) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY ||
         (type == CU_MEMORYTYPE_UNIFIED && address_is_of_device(address));
}

/// True if both ends are a device's memory or arrays.
template <class Copy>
bool copy_stays(const Copy* copy) {
  if (process_mode() == Mode::kInert || copy == nullptr) return false;
  return end_is_of_device(copy->dstMemoryType, copy->dstDevice) &&
         end_is_of_device(copy->srcMemoryType, copy->srcDevice);
}

}  // namespace sluice::interpose

// See work.h.
#include "interpose/work.h"

namespace sluice::interpose {

bool address_is_of_device(CUdeviceptr address) {
  if (address == 0 || process_enter() == Mode::kInert) return false;
  const ErrnoGuard guard;
  const DepthScope depth(this_thread);
  unsigned type = 0;
  return driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
             CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE;
}

bool copy_stays(CUdeviceptr to, CUdeviceptr from, uint64_t bytes) {
  return bytes >= kWorkBytesMin && address_is_of_device(to) && address_is_of_device(from);
}

}  // namespace sluice::interpose

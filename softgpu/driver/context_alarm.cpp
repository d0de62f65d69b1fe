// What an event of the device does to a context: Xid events and the loss of the device are errors
// that stay, as on hardware. See state.h.
#include "softgpu/driver/state.h"

namespace softgpu::driver {
namespace {

/// The error that programs see after an event of this number (NVIDIA GPU Debug Guidelines, "Xid
/// errors"). CUDA_SUCCESS: the event only informs.
CUresult xid_error(std::uint32_t xid) {
  switch (xid) {
    case 63:  // rows remapped, remapping pending, corrected errors
    case 64:
    case 92:
      return CUDA_SUCCESS;
    case 31:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case 48:  // uncorrectable memory errors: found, contained, uncontained
    case 94:
    case 95:
      return CUDA_ERROR_ECC_UNCORRECTABLE;
    case 74:
      return CUDA_ERROR_NVLINK_UNCORRECTABLE;
    default:
      return CUDA_ERROR_LAUNCH_FAILED;
  }
}

}  // namespace

void Context::alarm_watch() {
  alarm_opened_ = gpu.model.alarm();
  alarm_seen_ = alarm_opened_;
}

void Context::alarm_look() {
  const std::uint32_t now = gpu.model.alarm();
  const device::Alarm alarm = gpu.model.alarm_since(gpu.client, alarm_opened_);
  if (alarm.evicted && !closed)
    Process::get().complain(
        "another process has found this one dead and taken its memory and its turns: the lock that "
        "shows its life is gone, as when a program closes all descriptors while SOFTGPU_DIR is on "
        "overlayfs; its contexts answer CUDA_ERROR_UNKNOWN; use a directory of tmpfs");
  if (alarm.lost || alarm.evicted)
    fail(CUDA_ERROR_UNKNOWN);
  else if (alarm.xid != 0 && xid_error(alarm.xid) != CUDA_SUCCESS)
    fail(xid_error(alarm.xid));
  alarm_seen_ = now;  // last: who sees it sees the error, too
}

}  // namespace softgpu::driver

// What a call takes of device memory at least, if no call says how much it takes: asked of the
// quota before the driver is asked. Without it the driver takes the memory from other tenants for
// as long as the load lasts, until the reading behind it finds that it is too much.
//
// Only what is surely taken is asked for: a figure that is too large would refuse what fits. The
// reading behind the call (residual.h, estimate.h) finds the rest, and corrects the charge.
#pragma once

#include "interpose/cuda_api.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// Returns the bytes that the process's contexts on `device`, which is one of the tenant's, take at
/// least.
uint64_t contexts_bytes_least(int device);
/// Returns the bytes that raising the stack of the current context, on `device`, from `before` to
/// `after` bytes takes at least: each thread that the device can hold at a time has one. 0 = not
/// known.
uint64_t stack_bytes_least(int device, uint64_t before, uint64_t after);
/// Returns true if libraries are loaded with the call. Under lazy loading the first use of one in a
/// context loads it.
bool libraries_load_at_once();

/// Around a call that takes `bytes` on `device` at least. Not within an AccountScope. Where the
/// driver has a figure for the process, the bytes are charged from before the call on, as memory
/// that no call tells; elsewhere the quota is only asked, because the estimate behind the call
/// would count the charge as memory that has come back.
class LeastCharge {
 public:
  LeastCharge(int device, uint64_t bytes);
  ~LeastCharge();
  LeastCharge(const LeastCharge&) = delete;
  LeastCharge& operator=(const LeastCharge&) = delete;
  /// False: the quota has no room. The refusal is counted and said; the driver is not to be asked.
  bool fits() const { return fits_; }
  /// The driver has taken it. The reading that follows corrects the charge.
  void taken() { device_ = -1; }

 private:
  int device_ = -1;  // -1 = nothing is charged that the driver may not have taken
  bool fits_ = true;
};

}  // namespace sluice::interpose

// Green contexts: parts of a device, each of which holds the primary context. One may be made a
// context like others (cuCtxFromGreenCtx), in which a program launches and allocates; that ends
// with the green context, and what was allocated there is the primary context's. Knows which is
// which.
#pragma once

#include "interpose/account.h"
#include "interpose/meter.h"

namespace sluice::interpose {

/// After the driver's call. False: there is no memory for the record; the sentence was said.
[[nodiscard]] bool green_made(CUgreenCtx green, int device);
[[nodiscard]] bool green_converted(CUgreenCtx green, CUcontext context);

/// The end of a green context: from the first moment of the driver's call on nobody names the
/// context that was made of it.
class GreenEnd {
 public:
  explicit GreenEnd(CUgreenCtx green);
  /// The driver's call, and nothing else, in which `green` ends.
  template <class Call>
  CUresult call(Call end) {
    ContextRecord* own = context_ != nullptr ? context_ending(context_) : nullptr;
    // It may be the last that holds the primary context.
    const CUcontext primary = primary_known(device_);
    ContextRecord* held = primary != nullptr ? context_ending(primary) : nullptr;
    const CUresult result = end();
    const bool ended = result == CUDA_SUCCESS;
    if (context_ != nullptr) context_ended(context_, own, ended);
    if (primary != nullptr) context_ended(primary, held, ended && !primary_is_active(device_));
    return result;
  }
  /// After a call that succeeded.
  void settle() const;

 private:
  CUgreenCtx green_;
  CUcontext context_ = nullptr;
  int device_ = -1;
};

}  // namespace sluice::interpose

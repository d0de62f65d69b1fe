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
    begin();
    const CUresult result = end();
    finish(result == CUDA_SUCCESS);
    return result;
  }
  /// After a call that succeeded.
  void settle() const;

 private:
  void begin();
  void finish(bool ended);

  CUgreenCtx green_;
  CUcontext context_ = nullptr;
  int device_ = -1;
  ContextRecord* own_ = nullptr;
  CUcontext primary_ = nullptr;
  uint32_t primary_ends_ = 0;
  ContextRecord* held_ = nullptr;
};

/// Keeps green contexts from ending; false = one ends, and has not within that time.
[[nodiscard]] bool green_ends_stop_for(uint64_t patience_ns);
void green_ends_go();
void green_reset_after_fork();

}  // namespace sluice::interpose

// Allocations that the quota allows and the driver refuses. The thread tells the broker, which may
// move other tenants' memory away, and waits for its answer (the room word of
// broker/protocol/pages.h). If the broker has no room to give, or there is no broker, the thread
// asks the driver again for a bounded time, as far as the tenant's guaranteed memory reaches: what
// fills the device then is often taken back within moments, such as a load above its own quota.
//
// The whole attempt is made again, from its scope on. A waiting thread is in no scope and holds no
// lock and no bytes of the quota, so a hold of this tenant can be acknowledged meanwhile, and two
// waiting threads keep nothing from each other.
#pragma once

#include "interpose/process.h"

namespace sluice::interpose {

class RoomWait {
 public:
  /// By the attempt: the driver had no room for `bytes` that the quota allows.
  void refused(int gpu, uint64_t bytes) {
    gpu_ = gpu;
    bytes_ = bytes;
  }
  /// After an attempt that ended with OUT_OF_MEMORY: whether to make another one. Waits.
  SLUICE_NOINLINE bool again();

 private:
  bool room_comes(int gpu);
  bool promise_waits(int gpu);

  int gpu_ = -1;  // -1 = it was not the driver that refused
  int rounds_ = 0;
  int retries_ = 0;        // since the broker had no room to give
  uint64_t until_ns_ = 0;  // when they end; 0 = they have not begun
  uint32_t word_;          // of the first round on
  uint64_t bytes_;         // of the last refusal
};

/// `attempt(wait)` allocates; it says to `wait` what the driver refused.
template <class Attempt>
SLUICE_ALWAYS_INLINE CUresult with_room(Attempt attempt) {
  RoomWait wait;
  for (;;) {
    const CUresult result = attempt(wait);
    if (SLUICE_LIKELY(result != CUDA_ERROR_OUT_OF_MEMORY) || !wait.again()) return result;
  }
}

// Said to the broker; the helper implements it.
void memory_want_say(int gpu, uint32_t room, uint64_t bytes);

}  // namespace sluice::interpose

// A process that is stopped, by a signal or a debugger, while it has the lock of a device. A
// stopped process never has a lock of the kernel; this one is of plain memory. So a waiter lets the
// process go on, and it stops again when it has left the lock (lock.cpp).
#pragma once

#include <cstdint>

#include "softgpu/device/life.h"
#include "softgpu/device/segment.h"

namespace softgpu::device {

/// What one waiter has seen of the process that has the lock.
class HolderWatch {
 public:
  HolderWatch(Segment& segment, Lives& lives) : segment_(segment), lives_(lives) {}
  /// Call after each nap in which the process of `life` did not give the lock. Looks now and then.
  void nap(std::uint32_t life);

 private:
  void look();
  void act(int pid, int process, bool traced);

  Segment& segment_;
  Lives& lives_;
  std::uint32_t life_ = 0;
  std::uint32_t naps_ = 0;
  std::uint32_t stopped_ = 0;  // looks in a row that found it stopped
};

/// Stops this process if a waiter had to wake it up within the lock. Call without the lock.
void stop_again(Segment& segment, std::uint32_t own);

}  // namespace softgpu::device

// Strict mode (SOFTGPU_STRICT=1): host code that follows a device pointer dies as it does on
// hardware. The pages of device memory carry a protection key of the processor (pkeys(7)) to which
// the program's threads have no right; the driver's own threads, and the driver where it works on a
// thread of the program, have it while they are "the device". Managed and host memory carry no key.
// Without strict mode the strict_ functions here do nothing.
//
// Exact bounds (SOFTGPU_BOUNDS=1, and in strict mode): a kernel that leaves an allocation faults at
// the next page, where hardware often has neighbours mapped. They need no key.
#pragma once

#include <cstddef>
#include <string>

namespace softgpu::driver {

/// Once, before there is device memory. False with a sentence in `error`: this machine has no
/// protection keys, or none is left.
[[nodiscard]] bool strict_enable(std::string& error);

/// Reads SOFTGPU_BOUNDS: with 1, or in strict mode, kernels fault where they leave an allocation.
/// Once, before there is device memory. False with a sentence in `error`: it is neither 0 nor 1.
[[nodiscard]] bool bounds_read(bool strict, std::string& error);
/// Takes all access from these pages, which lie before or behind device memory, if kernels are to
/// fault there. False: the system refuses; they are as they were.
[[nodiscard]] bool bounds_close(void* pages, std::size_t bytes);

/// Keeps host code away from these pages. False: the system refuses; they are as they were.
[[nodiscard]] bool strict_close(void* pages, std::size_t bytes, int protection);
/// The pages of memory that the host shares after all (managed variables).
[[nodiscard]] bool strict_open(void* pages, std::size_t bytes, int protection);

/// What this thread may touch, until the end of the scope.
class StrictScope {
 public:
  ~StrictScope();
  StrictScope(const StrictScope&) = delete;
  StrictScope& operator=(const StrictScope&) = delete;

 protected:
  explicit StrictScope(bool device);

 private:
  int before_;
};
/// The thread does the device's work.
class DeviceSide : public StrictScope {
 public:
  DeviceSide() : StrictScope(true) {}
};
/// A thread of the driver runs code of the program.
class HostSide : public StrictScope {
 public:
  HostSide() : StrictScope(false) {}
};

/// For threads that only ever do the device's work: a signal handler that was left by a jump has
/// taken their right.
void strict_thread_enter();

}  // namespace softgpu::driver

// Which device and context a thread works on. The runtime owns one reference to the primary context
// of every device it has used; a context that the program made current itself by the driver API is
// respected.
#pragma once

#include "softgpu/runtime/driver.h"

namespace softgpu::runtime {

/// Makes sure that the calling thread has a current context. Loads the driver if need be.
[[nodiscard]] cudaError_t context_ready();

/// The device of the current context, or else the thread's chosen device (0 until it chooses).
[[nodiscard]] cudaError_t current_device(int* device);

/// Chooses `device` for this thread and makes its primary context current (and exist).
[[nodiscard]] cudaError_t select_device(int device);

/// Chooses `device` without creating its context; what cudaInitDevice and the valid-devices list
/// need.
[[nodiscard]] cudaError_t primary_context(int device, CUcontext* context);

/// Destroys everything the process holds on the current device.
[[nodiscard]] cudaError_t reset_current_device();

[[nodiscard]] cudaError_t check_device(int device);

}  // namespace softgpu::runtime

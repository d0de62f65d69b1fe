// Threads of the driver's own.
#pragma once

#include <functional>

namespace softgpu::driver {

/// Runs `body` on a detached thread that takes none of the program's signals and passes the gate.
void thread_start(const char* name, std::function<void()> body);

}  // namespace softgpu::driver

// Threads of the driver's own.
#pragma once

#include <cstddef>
#include <functional>

namespace softgpu::driver {

/// Bytes of stack that the calling thread has left; 0 where its stack is not the thread's own.
std::size_t stack_left();

/// Runs `body` on a detached thread that takes none of the program's signals and passes the gate.
/// Returns 0, or the error for which the system makes no thread; `body` is not run then.
[[nodiscard]] int thread_start(const char* name, std::function<void()> body);

}  // namespace softgpu::driver

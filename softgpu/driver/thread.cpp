// See thread.h.
#include "softgpu/driver/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cstdint>
#include <system_error>
#include <thread>

#include "softgpu/driver/gate.h"

namespace softgpu::driver {
namespace {

struct Stack {
  std::uintptr_t begin = 0, end = 0;
  Stack() {
    pthread_attr_t attributes;
    void* lowest = nullptr;
    std::size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
    if (pthread_attr_getstack(&attributes, &lowest, &bytes) == 0) {
      begin = reinterpret_cast<std::uintptr_t>(lowest);
      end = begin + bytes;
    }
    pthread_attr_destroy(&attributes);
  }
};

}  // namespace

std::size_t stack_left() {
  thread_local const Stack stack;
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  return here > stack.begin && here < stack.end ? here - stack.begin : 0;
}

int thread_start(const char* name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  sigdelset(&all, SIGFPE);
  sigdelset(&all, SIGILL);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  try {
    std::thread([name, run = std::move(body)] {
      prctl(PR_SET_NAME, name);
      gate_exempt();
      run();
    }).detach();
  } catch (const std::system_error& refused) {
    error = refused.code().value();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

}  // namespace softgpu::driver

// See thread.h.
#include "softgpu/driver/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <thread>

#include "softgpu/driver/gate.h"

namespace softgpu::driver {

void thread_start(const char* name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  sigdelset(&all, SIGFPE);
  sigdelset(&all, SIGILL);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([name, run = std::move(body)] {
    prctl(PR_SET_NAME, name);
    gate_exempt();
    run();
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace softgpu::driver

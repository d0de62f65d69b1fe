// Faults of a kernel: a bad address found by the processor or by a check, a trap, an abort.
// Whichever way it is found, the worker's stack is cut back to where the CTA was started, and the
// launch gets an Outcome.
#pragma once

#include <csetjmp>
#include <string>

#include "softgpu/ptx/machine.h"

namespace softgpu::ptx {

/// One per worker that runs a CTA; the current one is found through a thread-local pointer.
struct FaultScope {
  FaultScope();
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;

  sigjmp_buf back;
  Fault fault = Fault::kNone;
  std::uint64_t address = 0;
  bool by_processor = false;  // address comes from a signal
  std::string text;

 private:
  FaultScope* outer_;
};

/// Makes sure that our SIGSEGV/SIGBUS handler is the process's; what was there before is called for
/// other faults.
void fault_handler_install();

}  // namespace softgpu::ptx

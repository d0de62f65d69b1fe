// Contexts that a thread is just ending. A driver may give the handle of one that is gone to
// another thread for the next context before the first one has taken off the account what went with
// it: who makes a context is given it when that is done. Knows handles, nothing of the account.
#pragma once

#include "interpose/cuda_api.h"

namespace sluice::interpose {

/// From before the driver is asked to end the context until nothing of it is on the account.
class ContextEnding {
 public:
  explicit ContextEnding(CUcontext context);
  ~ContextEnding();
  ContextEnding(const ContextEnding&) = delete;
  ContextEnding& operator=(const ContextEnding&) = delete;

 private:
  int place_ = -1;
};

/// Waits until no thread is ending a context of this handle: some microseconds, two seconds at
/// most.
void context_endings_wait(CUcontext context);
void context_endings_reset_after_fork();

}  // namespace sluice::interpose

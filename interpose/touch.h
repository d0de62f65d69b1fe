// Scopes for the hooks of one pattern (generated and hand-written): whatever touches device memory
// or handles waits for the end of a hold; whatever blocks its caller lets the meter put a fence
// behind the caller's work first.
#pragma once

#include "interpose/gate.h"

namespace sluice::interpose {

class TouchScope {
 public:
  TouchScope();
};

class BlockingScope {
 public:
  BlockingScope();
};

/// Fences the work of the calling thread's context that has none: all of it, or one stream's.
void wait_prepare(CUstream only, bool all);
/// After a wait that succeeded: counts what has finished.
void wait_done();

}  // namespace sluice::interpose

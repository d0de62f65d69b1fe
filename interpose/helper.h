// The one thread the shim adds to a process, started when it registers: it acknowledges drains,
// records the trailing fences, gives idle leases back, publishes counters and reconnects. All
// signals are blocked in it.
#pragma once

#include "interpose/types.h"

namespace sluice::interpose {

/// Starts the helper (once). `connected` = the process has registered; otherwise it begins by
/// trying to.
void helper_start(bool connected);
/// Ends the helper's use of the driver and waits a moment for it; called at exit, before the driver
/// is torn down.
void helper_stop();
void helper_reset_after_fork();

}  // namespace sluice::interpose

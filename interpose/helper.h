// The one thread the shim adds to a process, started when it registers: it acknowledges drains,
// records the trailing fences, gives idle leases back, publishes counters and reconnects. All
// signals are blocked in it.
#pragma once

#include "interpose/types.h"

namespace sluice::interpose {

/// Starts the helper (once). `connected` = the process has registered; otherwise, with `asks`, it
/// begins by trying to. Where the process has a family it takes a slot of it first
/// (process_slot_take), and this waits for that. False when there is no thread, or no slot and no
/// broker.
[[nodiscard]] bool helper_start(bool connected, bool asks);
/// Ends the helper's use of the driver and waits a moment for it; called at exit, before the driver
/// is torn down.
void helper_stop();
void helper_reset_after_fork();

}  // namespace sluice::interpose

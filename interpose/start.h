// The moments of a process's start that only single hooks take part in.
#pragma once

#include "interpose/process.h"

namespace sluice::interpose {

/// Registers with the broker if that has not happened; does not need the driver (for NVML-only
/// programs).
Mode registration_mode();
/// After a successful cuInit: from now on the process's exit has to stop the helper first. False:
/// it turned out that the process may not use the GPUs after all.
bool process_init_done();

}  // namespace sluice::interpose

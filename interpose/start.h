// The moments of a process's start that only single hooks take part in.
#pragma once

#include "interpose/process.h"

namespace sluice::interpose {

/// Registers with the broker if that has not happened; does not need the driver (for NVML-only
/// programs). Where there is no room on the GPUs it waits in line, unless it may not: then the
/// process is none of Sluice's until its turn has come.
Mode registration_mode(bool may_wait);
/// After a successful cuInit: from now on the process's exit has to stop the helper first. False:
/// it turned out that the process may not use the GPUs after all.
bool process_init_done();

}  // namespace sluice::interpose

// What the management library says that this process uses of a GPU: NVML's figure for the pid that
// the broker knows it by. The one place where the shim asks NVML for itself; knows nothing of the
// account.
#pragma once

#include "interpose/types.h"

namespace sluice::interpose {

/// False when there is no figure: no NVML, no pid from the broker, a GPU that NVML does not know. 0
/// bytes also where NVML does not list the process. From a process that uses CUDA only: loads the
/// library on first use.
bool usage_read(int gpu, uint64_t* bytes);
/// After new pages: GPUs may have other numbers.
void usage_forget();
void usage_reset_after_fork();

}  // namespace sluice::interpose

// Processes by number and by pidfd: the number and the start time name one for good, the pidfd
// tells when it has ended.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "broker/devices/fd.h"

namespace sluice::devices {

/// When the process of this number started, in clock ticks since boot: with the number it names a
/// process for good. 0 = there is none, or it cannot be seen.
std::uint64_t process_start_ticks(pid_t pid);
/// Holds on to the process of this number if it is the one that started then. False when that one
/// has ended.
[[nodiscard]] bool process_open(pid_t pid, std::uint64_t start_ticks, Fd* out);

/// True once the process of this pidfd has ended.
bool pidfd_ended(int pidfd);

}  // namespace sluice::devices

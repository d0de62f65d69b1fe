// Processes by number and by pidfd: the number and the start time name one for good, the pidfd
// tells when it has ended.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

#include "broker/devices/fd.h"

namespace sluice::devices {

/// When the process of this number started, in clock ticks since boot: with the number it names a
/// process for good. 0 = there is none, or it cannot be seen.
std::uint64_t process_start_ticks(pid_t pid);
/// The same from what /proc/PID/stat has; 0 = it is not there.
std::uint64_t start_ticks_parse(std::string_view stat);
enum class ProcessFound : std::uint8_t {
  kLives,
  kEnded,
  kUnknown,  // the kernel has no descriptor or memory to tell: it may live
};
/// Holds on to the process of this number if it is the one that started then.
[[nodiscard]] ProcessFound process_find(pid_t pid, std::uint64_t start_ticks, Fd* out);
/// Whether it lives, for whom it may be taken for dead where that cannot be told.
[[nodiscard]] inline bool process_open(pid_t pid, std::uint64_t start_ticks, Fd* out) {
  return process_find(pid, start_ticks, out) == ProcessFound::kLives;
}

/// True once the process of this pidfd has ended.
bool pidfd_ended(int pidfd);

}  // namespace sluice::devices

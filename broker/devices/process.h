// Processes by number and by pidfd: the number and the start time name one for good, the pidfd
// tells when it has ended.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

#include "broker/devices/fd.h"

namespace sluice::devices {

/// Stands for a program that is known to run no longer; no process ever has it.
inline constexpr std::uint64_t kProgramGone = 1;

/// One look at a process, of constant cost: a process can make its memory map and its number of
/// threads large, and this depends on neither.
struct ProcessLook {
  /// When it started, in clock ticks since boot: with the number it names a process for good.
  /// 0 = there is none, or it cannot be seen.
  std::uint64_t start_ticks = 0;
  /// Names the program that it runs: every exec gives another value, because the kernel puts code
  /// and stack elsewhere. 0 = the kernel does not show it (it asks for the right to trace the
  /// process). Without address space randomisation an exec of the same program with the same
  /// arguments can give the same value.
  std::uint64_t program = 0;
};
ProcessLook process_look(pid_t pid);
/// What /proc/PID/task/PID/stat says; zeros for what is not there.
ProcessLook process_look_parse(std::string_view stat);
inline std::uint64_t process_start_ticks(pid_t pid) { return process_look(pid).start_ticks; }
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

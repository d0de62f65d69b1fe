// One look into /proc, and pidfds.
#include "broker/devices/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>

namespace sluice::devices {

namespace {

// Fields of proc_pid_stat(5), counted from 1. Without the right to trace the process the kernel
// shows 1 for the code's addresses and 0 for the others.
constexpr int kStartTime = 22;
constexpr int kStartCode = 26;
constexpr int kEndCode = 27;
constexpr int kStartStack = 28;
constexpr int kFieldsMax = 52;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  constexpr std::uint64_t kPrime = 0x100000001b3;  // FNV-1a's
  for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (value >> (8 * byte) & 0xff)) * kPrime;
  return hash;
}

}  // namespace

// The file of the task and not of the whole process, for which the kernel walks over all threads.
// Read without streams: for a process that ends meanwhile the kernel's answer is an error, which a
// stream's iterator throws.
ProcessLook process_look(pid_t pid) {
  const std::string number = std::to_string(pid);
  const std::string path = "/proc/" + number + "/task/" + number + "/stat";
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char bytes[1024];  // the longest has some 500
  const ssize_t got = file ? read(file.get(), bytes, sizeof bytes) : -1;
  return process_look_parse({bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0))});
}

ProcessLook process_look_parse(std::string_view stat) {
  std::uint64_t values[kFieldsMax + 1] = {};
  std::size_t at = stat.rfind(')');  // ends the second field, a name that may contain anything
  for (int field = 3; field <= kFieldsMax && at != std::string_view::npos; ++field) {
    at = stat.find(' ', at + 1);
    if (at != std::string_view::npos)
      std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), values[field]);
  }
  ProcessLook look;
  look.start_ticks = values[kStartTime];
  if (values[kStartCode] <= 1 || values[kStartStack] == 0) return look;
  constexpr std::uint64_t kBasis = 0xcbf29ce484222325;
  look.program = kBasis;
  for (const int field : {kStartCode, kEndCode, kStartStack})
    look.program = mixed(look.program, values[field]);
  if (look.program <= kProgramGone) look.program += 2;  // those values mean something else
  return look;
}

ProcessFound process_find(pid_t pid, std::uint64_t start_ticks, Fd* out) {
  constexpr int kTries = 3;
  if (pid <= 0 || start_ticks == 0) return ProcessFound::kEnded;
  for (int i = 0; i < kTries; ++i) {
    Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!fd && (errno == ESRCH || errno == EINVAL)) return ProcessFound::kEnded;  // or a thread
    if (!fd) continue;
    // The number may have passed to another process before the pidfd was opened, not after.
    const std::uint64_t ticks = process_start_ticks(pid);
    if (pidfd_ended(fd.get()) || (ticks != 0 && ticks != start_ticks)) return ProcessFound::kEnded;
    if (ticks == 0) continue;
    *out = std::move(fd);
    return ProcessFound::kLives;
  }
  return ProcessFound::kUnknown;
}

bool pidfd_ended(int pidfd) {
  pollfd p{pidfd, POLLIN, 0};
  return poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;
}

}  // namespace sluice::devices

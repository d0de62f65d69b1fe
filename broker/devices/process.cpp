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

// Field 22 of /proc/PID/stat. Read without streams: of a process that ends meanwhile the kernel's
// answer is an error, which a stream's iterator throws.
std::uint64_t process_start_ticks(pid_t pid) {
  const Fd file(open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  char bytes[1024];  // the longest has some 400
  const ssize_t got = file ? read(file.get(), bytes, sizeof bytes) : -1;
  return start_ticks_parse({bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0))});
}

std::uint64_t start_ticks_parse(std::string_view stat) {
  constexpr int kFieldsBetween = 20;  // from the name, which is the second and may contain anything
  std::size_t at = stat.rfind(')');
  for (int field = 0; field < kFieldsBetween && at != std::string_view::npos; ++field)
    at = stat.find(' ', at + 1);
  std::uint64_t ticks = 0;
  if (at != std::string_view::npos)
    std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), ticks);
  return ticks;
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

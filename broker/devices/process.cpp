// One look into /proc, and pidfds.
#include "broker/devices/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace sluice::devices {

// Field 22 of /proc/PID/stat. Read without streams: of a process that ends meanwhile the kernel's
// answer is an error, which a stream's iterator throws.
std::uint64_t process_start_ticks(pid_t pid) {
  const Fd file(open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  char bytes[1024];  // the longest has some 400
  const ssize_t got = file ? read(file.get(), bytes, sizeof bytes - 1) : -1;
  const std::string text(bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  const std::size_t name_end = text.rfind(')');  // the name may contain anything
  if (name_end == std::string::npos) return 0;
  unsigned long long ticks = 0;
  std::sscanf(text.c_str() + name_end + 1,
              " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
              &ticks);
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

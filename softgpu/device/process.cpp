// What the kernel says about a process: whether it lives, since when, and its name. See device.h.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "softgpu/device/device.h"

namespace softgpu::device {
namespace {

/// Reads a small file of /proc; empty when it is not there.
std::string small_file(int pid, const char* name) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  char text[1024];
  const ssize_t length = read(file, text, sizeof text);
  close(file);
  return length > 0 ? std::string(text, static_cast<std::size_t>(length)) : "";
}

}  // namespace

double clock_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

std::uint64_t process_start_ticks(int pid) {
  const std::string stat = small_file(pid, "stat");
  const auto name_end = stat.rfind(')');  // the name may contain anything, also ')'
  if (name_end == std::string::npos) return 0;
  char state = 0;
  long threads = 0;
  unsigned long long start = 0;
  const int fields = std::sscanf(
      stat.c_str() + name_end + 1,
      " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu", &state,
      &threads, &start);
  if (fields != 3) return 0;
  // A zombie has ended, unless only its first thread has and others still run.
  if ((state == 'Z' || state == 'X') && threads <= 1) return 0;
  return start == 0 ? 1 : start;
}

std::string process_name(int pid) {
  std::string name = small_file(pid, "comm");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

}  // namespace softgpu::device

// What the kernel says about a process: whether it lives, since when, and its name. See device.h.
#include <fcntl.h>
#include <sys/auxv.h>
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

/// What the time namespace that this process was started in adds to CLOCK_MONOTONIC.
double namespace_ns() {
  long long seconds = 0, nanoseconds = 0;
  const std::string offsets = small_file(getpid(), "timens_offsets");
  if (std::sscanf(offsets.c_str(), "monotonic %lld %lld", &seconds, &nanoseconds) != 2) return 0;
  return static_cast<double>(seconds) * 1e9 + static_cast<double>(nanoseconds);
}

}  // namespace

double clock_ns() {
  static const double added_ns = namespace_ns();
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec) - added_ns;
}

Life process_life(int pid) {
  const std::string stat = small_file(pid, "stat");
  const auto name_end = stat.rfind(')');  // the name may contain anything, also ')'
  if (name_end == std::string::npos) return {};
  char state = 0;
  long threads = 0;
  unsigned long long start = 0, stack = 0;
  const int fields = std::sscanf(
      stat.c_str() + name_end + 1,
      " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu %*u %*d "
      "%*u %*u %*u %llu",
      &state, &threads, &start, &stack);
  if (fields < 3) return {};
  // A zombie has ended, unless only its first thread has and others still run.
  if ((state == 'Z' || state == 'X') && threads <= 1) return {};
  return {start == 0 ? 1 : start, fields == 4 ? stack : 0};
}

std::uint64_t process_start_ticks(int pid) { return process_life(pid).start_ticks; }

std::uint64_t image_own() {
  // The sixteen bytes that the kernel gives each program at its start are secret: their hash.
  const auto* random = reinterpret_cast<const unsigned char*>(getauxval(AT_RANDOM));
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (int i = 0; random != nullptr && i < 16; ++i) hash = (hash ^ random[i]) * 0x100000001b3ULL;
  return hash;
}

bool process_same(int pid, const Life& noted, std::uint64_t image) {
  const Life now = process_life(pid);
  if (now.start_ticks != noted.start_ticks) return false;
  if (pid == getpid()) return image == image_own();
  return now.stack == 0 || noted.stack == 0 || now.stack == noted.stack;
}

std::string process_name(int pid) {
  std::string name = small_file(pid, "comm");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

}  // namespace softgpu::device

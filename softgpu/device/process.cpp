// What the kernel tells about processes by pid, for people: names, start times, and what a process
// of another pid namespace is called here. Whether one lives is not asked here; see life.h.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <vector>

#include "softgpu/device/device.h"

namespace softgpu::device {
namespace {

/// Reads a small file of /proc; empty when it is not there. A program's first call may come from a
/// thread with the smallest stack that there is, so the buffer lies elsewhere.
std::string small_file(const std::string& process, const char* name) {
  const int file = open(("/proc/" + process + "/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  std::string text(4096, '\0');
  const ssize_t length = read(file, text.data(), text.size());
  close(file);
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return text;
}

/// The entry of /proc for `pid`. This process's own is found also in a procfs of another namespace.
std::string entry_of(int pid) { return pid == getpid() ? "self" : std::to_string(pid); }

/// The pids of a process, as the mounted procfs and then each namespace below it count.
std::vector<int> pids_of(const std::string& process) {
  constexpr char kKey[] = "\nNSpid:";
  const std::string status = small_file(process, "status");
  const auto at = status.find(kKey);
  std::vector<int> pids;
  if (at == std::string::npos) return pids;
  const char* text = status.c_str() + at + sizeof kKey - 1;
  for (char* end = nullptr; *text != '\n' && *text != '\0'; text = end) {
    const long pid = std::strtol(text, &end, 10);
    if (end == text) break;
    pids.push_back(static_cast<int>(pid));
  }
  return pids;
}

/// The pid namespace of a process; 0 where this process may not know it.
std::uint64_t space_of(const std::string& process) {
  struct stat status {};
  return stat(("/proc/" + process + "/ns/pid").c_str(), &status) == 0 ? status.st_ino : 0;
}

/// What the time namespace that this process was started in adds to CLOCK_MONOTONIC.
double namespace_ns() {
  long long seconds = 0, nanoseconds = 0;
  const std::string offsets = small_file("self", "timens_offsets");
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

std::uint64_t process_start_ticks(int pid) {
  const std::string stat = small_file(entry_of(pid), "stat");
  const auto name_end = stat.rfind(')');  // the name may contain anything, also ')'
  if (name_end == std::string::npos) return 0;
  char state = 0;
  long threads = 0;
  unsigned long long start = 0;
  const int fields = std::sscanf(stat.c_str() + name_end + 1,
                                 " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                                 "%*d %ld %*d %llu",
                                 &state, &threads, &start);
  if (fields < 3) return 0;
  // A zombie has ended, unless only its first thread has and others still run.
  if ((state == 'Z' || state == 'X') && threads <= 1) return 0;
  return start == 0 ? 1 : start;
}

ProcessStop process_stop(int pid) {
  ProcessStop stop = ProcessStop::kRuns;
  const std::string tasks = entry_of(pid) + "/task";
  std::error_code error;
  std::filesystem::directory_iterator task("/proc/" + tasks, error), end;
  for (; !error && task != end; task.increment(error)) {
    const std::string stat = small_file(tasks + "/" + task->path().filename().string(), "stat");
    const auto name_end = stat.rfind(')');
    if (name_end == std::string::npos || stat.size() < name_end + 3) continue;  // it has ended
    const char state = stat[name_end + 2];
    if (state == 'Z' || state == 'X') continue;
    if (state != 'T' && state != 't') return ProcessStop::kRuns;
    if (stop != ProcessStop::kTraced)
      stop = state == 't' ? ProcessStop::kTraced : ProcessStop::kStopped;
  }
  return stop;
}

ProcessName process_named(int pid) {
  if (pid == getpid()) return {pid, space_of("self")};
  const std::vector<int> pids = pids_of(std::to_string(pid));
  // A procfs of another namespace than this process's own tells nothing about `pid`.
  if (pids.size() <= 1 || pids_of("self").size() > 1) return {pid, space_of("self")};
  return {pids.back(), space_of(std::to_string(pid))};
}

int process_pid(const ProcessName& name, std::uint64_t ticks) {
  const std::uint64_t here = space_of("self");
  if (name.space == here) return name.pid;
  if (pids_of("self").size() != 1) return 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string process = entry.path().filename();
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::vector<int> pids = pids_of(process);
    if (pids.size() < 2 || pids.back() != name.pid) continue;
    const std::uint64_t space = space_of(process);
    const int pid = std::atoi(process.c_str());
    if (space != 0 && name.space != 0 ? space == name.space
                                      : ticks != 0 && process_start_ticks(pid) == ticks)
      return pid;
  }
  return 0;
}

std::string process_name(int pid) {
  std::string name = small_file(entry_of(pid), "comm");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

}  // namespace softgpu::device

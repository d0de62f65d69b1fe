#include "exporter/idle/proc.h"
#include "exporter/clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

namespace sluice::exporter {
namespace {

/// What follows the name in a line of stat: the name is in parentheses and may contain anything.
const char* after_name(const std::string& stat) {
  const auto end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? nullptr : stat.c_str() + end + 2;
}

}  // namespace

std::string proc_file(const std::string& path, std::size_t max) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string text(max, '\0');
  std::size_t size = 0;
  for (ssize_t got = 1; got > 0 && size < max; size += static_cast<std::size_t>(got)) {
    got = read(fd, text.data() + size, max - size);
    if (got < 0) got = 0;
  }
  close(fd);
  text.resize(size);
  return text;
}

std::vector<std::uint32_t> proc_numbers(const std::string& folder) {
  std::vector<std::uint32_t> numbers;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (dir == nullptr) return numbers;
  while (const dirent* entry = readdir(dir.get())) {
    char* end = nullptr;
    const unsigned long number = strtoul(entry->d_name, &end, 10);
    if (end != entry->d_name && *end == '\0') numbers.push_back(static_cast<std::uint32_t>(number));
  }
  return numbers;
}

std::string proc_thread_path(std::uint32_t process, std::uint32_t thread) {
  return "/proc/" + std::to_string(process) + "/task/" + std::to_string(thread);
}

bool thread_look(std::uint32_t process, std::uint32_t thread, ThreadLook& look) {
  const std::string path = proc_thread_path(process, thread);
  look.at_ns = monotonic_ns();
  const std::string times = proc_file(path + "/schedstat", 128);
  const std::string stat = proc_file(path + "/stat", 512);
  const char* rest = after_name(stat);
  if (rest == nullptr || strchr("ZXx", *rest) != nullptr) return false;
  look.letter = *rest;
  char* at = const_cast<char*>(times.c_str());
  look.run_ns = strtoull(at, &at, 10);
  look.wait_ns = strtoull(at, &at, 10);
  look.turns = strtoull(at, &at, 10);
  return true;
}

std::uint64_t thread_sleeps(std::uint32_t process, std::uint32_t thread) {
  constexpr char kField[] = "\nvoluntary_ctxt_switches:";
  const std::string status = proc_file(proc_thread_path(process, thread) + "/status");
  const auto at = status.find(kField);
  return at == std::string::npos ? 0
                                 : strtoull(status.c_str() + at + sizeof kField - 1, nullptr, 10);
}

char thread_letter(std::uint32_t process, std::uint32_t thread) {
  const std::string stat = proc_file(proc_thread_path(process, thread) + "/stat", 512);
  const char* rest = after_name(stat);
  return rest != nullptr ? *rest : '\0';
}

std::uint64_t start_ticks_read(const std::string& stat) {
  constexpr int kFieldsBefore = 18;  // from the parent, which is field 4, to the one before
  const char* rest = after_name(stat);
  if (rest == nullptr) return 0;
  char* at = const_cast<char*>(rest + 1);
  for (int i = 0; i < kFieldsBefore; ++i) (void)strtoll(at, &at, 10);
  return strtoull(at, nullptr, 10);
}

std::uint64_t start_ticks_of(std::uint32_t pid) {
  return start_ticks_read(proc_file("/proc/" + std::to_string(pid) + "/stat"));
}

std::uint64_t start_ticks_of_ns(std::uint64_t started_ns) {
  constexpr std::uint64_t kSecondNs = 1'000'000'000;
  static const auto ticks_each_second = static_cast<std::uint64_t>(sysconf(_SC_CLK_TCK));
  return started_ns / (kSecondNs / ticks_each_second);
}

std::uint32_t process_parent(std::uint32_t process) {
  const std::string stat = proc_file("/proc/" + std::to_string(process) + "/stat", 512);
  const char* rest = after_name(stat);
  return rest != nullptr ? static_cast<std::uint32_t>(strtoul(rest + 1, nullptr, 10)) : 0;
}

std::map<std::uint32_t, std::uint32_t> processes_parents() {
  std::map<std::uint32_t, std::uint32_t> parents;
  for (const std::uint32_t process : proc_numbers("/proc")) {
    if (const std::uint32_t parent = process_parent(process); parent != 0)
      parents[process] = parent;
  }
  return parents;
}

std::map<std::uint32_t, std::uint32_t> processes_descended(
    const std::vector<std::uint32_t>& roots) {
  constexpr int kGenerationsMax = 1000;  // what is read while it changes may have loops
  const auto parents = processes_parents();
  std::map<std::uint32_t, std::uint32_t> descended;
  const auto is_root = [&](std::uint32_t process) {
    return std::find(roots.begin(), roots.end(), process) != roots.end();
  };
  for (const auto& [process, parent] : parents) {
    if (is_root(process)) continue;
    std::uint32_t ancestor = parent;
    for (int i = 0; i < kGenerationsMax && ancestor != 0 && !is_root(ancestor); ++i) {
      const auto next = parents.find(ancestor);
      ancestor = next == parents.end() ? 0 : next->second;
    }
    if (ancestor != 0 && is_root(ancestor)) descended[process] = ancestor;
  }
  return descended;
}

}  // namespace sluice::exporter

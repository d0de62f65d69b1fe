#include "exporter/why/cgroup.h"

#include <cstdlib>
#include <sstream>
#include <vector>

#include "exporter/idle/proc.h"

namespace sluice::exporter {
namespace {

using Nanos = std::optional<std::uint64_t>;
constexpr std::uint64_t kMicro = 1000;

/// The number that follows `word` somewhere in the file.
Nanos number_after(const std::string& path, const std::string& word, std::uint64_t unit) {
  const std::string text = "\n" + proc_file(path);
  const auto at = text.find(word);
  if (at == text.npos) return std::nullopt;
  return std::strtoull(text.c_str() + at + word.size(), nullptr, 10) * unit;
}

/// The path of the process in the hierarchy of the controller, or of version 2 ("").
std::optional<std::string> group_of(const std::string& groups, const std::string& controller) {
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (names == "," + controller + "," ||
        (!controller.empty() && names.find("," + controller + ",") != names.npos))
      return line.substr(second + 1);
  }
  return std::nullopt;
}

/// The limits of all groups from this one up: each holds it back.
Nanos throttled(const std::string& mount, std::string group, const std::string& word,
                std::uint64_t unit) {
  Nanos out;
  for (;;) {
    if (const Nanos one = number_after(mount + group + "/cpu.stat", word, unit))
      out = out.value_or(0) + *one;
    const auto slash = group.rfind('/');
    if (slash == group.npos || group.empty()) return out;
    group.resize(slash);
  }
}

Nanos difference(const Nanos& before, const Nanos& now) {
  if (!before || !now || *now < *before) return std::nullopt;
  return *now - *before;
}

}  // namespace

CgroupLook cgroup_look(std::uint32_t process, const std::string& root) {
  const std::string groups = proc_file(root + "/proc/" + std::to_string(process) + "/cgroup");
  const std::string base = root + "/sys/fs/cgroup";
  CgroupLook out;
  if (const auto group = group_of(groups, "")) {
    // Alone, or beside version 1, where systemd and others mount it a level below.
    for (const std::string& mount : {base, base + "/unified"}) {
      const std::string folder = mount + *group;
      if (!out.throttled_ns)
        out.throttled_ns = throttled(mount, *group, "\nthrottled_usec ", kMicro);
      if (!out.cpu_wait_ns)
        out.cpu_wait_ns = number_after(folder + "/cpu.pressure", " total=", kMicro);
      if (!out.memory_wait_ns)
        out.memory_wait_ns = number_after(folder + "/memory.pressure", " total=", kMicro);
    }
  }
  const auto group = group_of(groups, "cpu");
  for (const char* mount : {"/cpu", "/cpu,cpuacct"})
    if (group && !out.throttled_ns)
      out.throttled_ns = throttled(base + mount, *group, "\nthrottled_time ", 1);
  return out;
}

CgroupLook cgroup_since(const CgroupLook& before, const CgroupLook& now) {
  return {difference(before.throttled_ns, now.throttled_ns),
          difference(before.cpu_wait_ns, now.cpu_wait_ns),
          difference(before.memory_wait_ns, now.memory_wait_ns)};
}

}  // namespace sluice::exporter

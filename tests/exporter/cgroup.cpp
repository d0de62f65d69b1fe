#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "planted.h"

namespace sluice::exporter {
namespace {

/// Where the controller can be used: a mount of version 1 with it, or of version 2 that hands it to
/// groups below the root already.
std::string controller_mount(const std::string& controller, bool* second) {
  std::ifstream mounts("/proc/mounts");
  for (std::string device, where, type, options, rest;
       mounts >> device >> where >> type >> options && std::getline(mounts, rest);) {
    *second = type == "cgroup2";
    std::string words;
    if (*second) {
      std::ifstream file(where + "/cgroup.subtree_control");
      std::getline(file, words);
    } else if (type == "cgroup") {
      words = options;
      for (char& c : words) c = c == ',' ? ' ' : c;
    }
    std::istringstream each(words);
    const std::string name = !*second && controller == "io" ? "blkio" : controller;
    for (std::string word; each >> word;) {
      if (word == name) return where;
    }
  }
  return {};
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// major:minor of the whole disk on which `path` lies; empty where there is none.
std::string disk_of(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return {};
  const std::string number =
      std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev));
  const std::string folder = "/sys/dev/block/" + number;
  if (access(folder.c_str(), F_OK) != 0) return {};
  const bool part = access((folder + "/partition").c_str(), F_OK) == 0;
  return part ? first_line(folder + "/../dev") : number;
}

}  // namespace

std::unique_ptr<Cgroup> Cgroup::made(const std::string& controller, bool* second,
                                     std::string* reason) {
  const std::string mount = controller_mount(controller, second);
  if (mount.empty()) {
    *reason = "no cgroup controller '" + controller + "' that can be used is mounted";
    return nullptr;
  }
  const std::string folder = mount + "/sluice_test_" + std::to_string(getpid());
  if (mkdir(folder.c_str(), 0755) != 0) {
    *reason = "cannot make " + folder + ": " + strerror(errno);
    return nullptr;
  }
  return std::unique_ptr<Cgroup>(new Cgroup(folder));
}

std::unique_ptr<Cgroup> Cgroup::with_slow_disk(const std::string& path, std::uint64_t bytes_per_s,
                                               std::string* reason) {
  const std::string disk = disk_of(path);
  if (disk.empty()) {
    *reason = path + " is not on a disk of its own that could be slowed";
    return nullptr;
  }
  bool second = false;
  auto group = made("io", &second, reason);
  if (group == nullptr) return nullptr;
  const std::string rate = std::to_string(bytes_per_s);
  const bool set = second ? group->put("io.max", disk + " rbps=" + rate)
                          : group->put("blkio.throttle.read_bps_device", disk + " " + rate);
  if (set) return group;
  *reason = "this kernel does not slow disk " + disk + " for a cgroup";
  return nullptr;
}

std::unique_ptr<Cgroup> Cgroup::with_cpu(unsigned percent, std::string* reason) {
  bool second = false;
  auto group = made("cpu", &second, reason);
  if (group == nullptr) return nullptr;
  const std::string quota = std::to_string(percent * 1000);
  const bool set =
      second ? group->put("cpu.max", quota + " 100000")
             : group->put("cpu.cfs_period_us", "100000") && group->put("cpu.cfs_quota_us", quota);
  if (set) return group;
  *reason = "this kernel does not limit the CPU of a cgroup";
  return nullptr;
}

Cgroup::~Cgroup() {
  soon([&] { return rmdir(folder_.c_str()) == 0 || errno == ENOENT; });
}

bool Cgroup::add(std::uint32_t process) const {
  return put("cgroup.procs", std::to_string(process));
}

bool Cgroup::put(const std::string& file, const std::string& text) const {
  const int fd = open((folder_ + "/" + file).c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return written;
}

}  // namespace sluice::exporter

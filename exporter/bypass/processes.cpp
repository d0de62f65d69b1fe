#include "exporter/bypass/processes.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>

#include "exporter/idle/proc.h"

namespace sluice::exporter {
namespace {

constexpr int kLoadingMs = 5000;

/// Asks for what the kernel has at hand: a program on a server that hangs holds nothing up.
bool file_look(const std::string& path, bool follows, struct statx& file) {
  const int flags = AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT | (follows ? 0 : AT_SYMLINK_NOFOLLOW);
  return statx(AT_FDCWD, path.c_str(), flags, STATX_BASIC_STATS, &file) == 0;
}

FileName file_name(const struct statx& file) {
  return {std::uint64_t{file.stx_dev_major} << 32 | file.stx_dev_minor, file.stx_ino};
}

/// Is it that program, or one in that folder?
bool path_within(const std::string& path, const std::string& above) {
  const std::string folder = above.ends_with('/') ? above : above + "/";
  return path == above || path.starts_with(folder);
}

/// Whether only root and this process's user decide what is at this path, which has no links in it.
/// In a folder with the sticky bit others can write, but not replace what is not theirs.
bool path_is_guarded(std::string path) {
  for (;;) {
    struct statx file {};
    if (!file_look(path, false, file) || S_ISLNK(file.stx_mode)) return false;
    const bool own = file.stx_uid == 0 || file.stx_uid == geteuid();
    const bool sticky = S_ISDIR(file.stx_mode) && (file.stx_mode & S_ISVTX) != 0;
    if (!own || ((file.stx_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky)) return false;
    if (path == "/") return true;
    path.resize(std::max<std::size_t>(path.rfind('/'), 1));
  }
}

bool is_in_own_user_namespace(std::uint32_t pid) {
  struct statx own {};
  struct statx other {};
  return file_look("/proc/self/ns/user", true, own) &&
         file_look("/proc/" + std::to_string(pid) + "/ns/user", true, other) &&
         file_name(own) == file_name(other);
}

[[noreturn]] void driver_tell(int out) {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  link_map* map = nullptr;
  if (library != nullptr && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0)
    (void)!write(out, map->l_name, std::strlen(map->l_name));
  _exit(0);
}

}  // namespace

std::optional<Seen> process_describe(const ProcessName& process) {
  const std::string folder = "/proc/" + std::to_string(process.pid);
  Seen out;
  out.process = process;
  struct stat status {};
  if (start_ticks_of(process.pid) != process.start_ticks || stat(folder.c_str(), &status) != 0)
    return std::nullopt;
  out.uid = status.st_uid;
  char path[PATH_MAX];
  const ssize_t length = readlink((folder + "/exe").c_str(), path, sizeof path);
  if (length > 0) out.program.assign(path, static_cast<std::size_t>(length));
  struct statx file {};
  if (file_look(folder + "/exe", true, file)) out.file = file_name(file);
  return out;
}

bool program_is_exempt(const Seen& seen, const std::vector<std::string>& paths) {
  const auto is_above = [&](const std::string& path) {
    const std::unique_ptr<char, void (*)(void*)> above(realpath(path.c_str(), nullptr), free);
    return above != nullptr && path_within(seen.program, above.get());
  };
  // The path is the process's own word: where to look, and no proof of what is there. It is looked
  // at only below the administrator's paths.
  struct statx there {};
  return std::any_of(paths.begin(), paths.end(), is_above) &&
         file_look(seen.program, false, there) && file_name(there) == seen.file &&
         is_in_own_user_namespace(seen.process.pid) && path_is_guarded(seen.program);
}

int process_signal(const ProcessName& process, int signal) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  if (fd < 0) return errno;
  // Looked at while the descriptor holds on to it: that is then whom the signal reaches.
  const bool same = start_ticks_of(process.pid) == process.start_ticks;
  const int error = !same                                                         ? ESRCH
                    : syscall(SYS_pidfd_send_signal, fd, signal, nullptr, 0) == 0 ? 0
                                                                                  : errno;
  close(fd);
  return error;
}

bool process_descends(std::uint32_t pid, const std::set<std::uint32_t>& above) {
  constexpr int kGenerationsMax = 64;
  for (int i = 0; i < kGenerationsMax && pid != 0; ++i) {
    pid = process_parent(pid);
    if (above.contains(pid)) return true;
  }
  return false;
}

std::vector<std::uint32_t> driver_majors(const std::string& devices) {
  std::vector<std::uint32_t> out;
  std::istringstream lines(devices);
  for (std::string line; std::getline(lines, line) && line != "Block devices:";) {
    std::istringstream words(line);
    std::uint32_t number = 0;
    std::string name;
    if (words >> number >> name && name == "nvidia-uvm") out.push_back(number);
  }
  return out;
}

std::string driver_find() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const pid_t child = fork();
  if (child == 0) driver_tell(ends[1]);
  close(ends[1]);
  char path[PATH_MAX];
  pollfd ready{ends[0], POLLIN, 0};
  const ssize_t length =
      child > 0 && poll(&ready, 1, kLoadingMs) == 1 ? read(ends[0], path, sizeof path) : 0;
  close(ends[0]);
  if (child > 0) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : std::string();
}

}  // namespace sluice::exporter

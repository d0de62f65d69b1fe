#include "exporter/idle/proc_wait.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "exporter/bpf/threads_shared.h"
#include "exporter/idle/proc.h"

namespace sluice::exporter {
namespace {

/// A system call as /proc/PID/task/TID/syscall tells it.
struct Call {
  long number = -1;  // -1: none, it sleeps in a page fault
  std::array<std::uint64_t, 3> arguments{};
};

std::optional<Call> call_read(std::uint32_t process, std::uint32_t thread) {
  const std::string text = proc_file(proc_thread_path(process, thread) + "/syscall", 256);
  if (text.empty() || text.starts_with("running")) return std::nullopt;
  Call call;
  char* at = const_cast<char*>(text.c_str());
  call.number = strtol(at, &at, 10);
  for (auto& argument : call.arguments) argument = strtoull(at, &at, 16);
  return call;
}

thread_call call_class(long number) {
  switch (number) {
#define SLUICE_CALL(value, name, class_) \
  case value:                            \
    return THREAD_CALL_##class_;
    THREAD_CALLS(SLUICE_CALL)
#undef SLUICE_CALL
    default:
      return THREAD_CALL_UNKNOWN;
  }
}

template <typename T>
bool memory_read(std::uint32_t process, std::uint64_t address, T* out, std::size_t count) {
  const iovec local{out, count * sizeof(T)};
  const iovec remote{reinterpret_cast<void*>(address), count * sizeof(T)};
  return process_vm_readv(static_cast<pid_t>(process), &local, 1, &remote, 1, 0) ==
         static_cast<ssize_t>(count * sizeof(T));
}

/// What a set of descriptors waits for; an internet socket among others counts most, since here
/// nobody tells who woke the thread.
WaitKind wait_of_set(std::uint32_t process, const std::vector<std::uint32_t>& fds) {
  WaitKind best = WaitKind::kOther;
  const auto rank = [](WaitKind kind) {
    constexpr std::array kOrder{WaitKind::kTimer, WaitKind::kLocal, WaitKind::kDevice,
                                WaitKind::kNetwork};
    return std::find(kOrder.begin(), kOrder.end(), kind) == kOrder.end()
               ? -1
               : std::find(kOrder.begin(), kOrder.end(), kind) - kOrder.begin();
  };
  for (const std::uint32_t fd : fds) {
    const WaitKind kind = wait_of_descriptor(process, fd);
    if (rank(kind) > rank(best)) best = kind;
  }
  return best;
}

WaitKind wait_of_poll(std::uint32_t process, const Call& call) {
  std::array<pollfd, THREADS_POLL_MAX> set{};
  const std::size_t count = std::min<std::uint64_t>(call.arguments[1], set.size());
  if (count != 0 && !memory_read(process, call.arguments[0], set.data(), count))
    return WaitKind::kOther;
  std::vector<std::uint32_t> fds;
  for (std::size_t i = 0; i < count; ++i) {
    if (set[i].fd >= 0) fds.push_back(static_cast<std::uint32_t>(set[i].fd));
  }
  const bool all = call.arguments[1] <= set.size();
  return fds.empty() && all ? WaitKind::kTimer : wait_of_set(process, fds);
}

WaitKind wait_of_select(std::uint32_t process, const Call& call) {
  const std::uint64_t count = std::min<std::uint64_t>(call.arguments[0], 64);
  std::uint64_t bits = 0;
  for (std::size_t i = 1; i <= 2; ++i) {
    std::uint64_t word = 0;
    if (call.arguments[i] == 0) continue;
    if (!memory_read(process, call.arguments[i], &word, 1)) return WaitKind::kOther;
    bits |= word;
  }
  std::vector<std::uint32_t> fds;
  for (std::uint32_t fd = 0; fd < count && fds.size() < THREADS_POLL_MAX; ++fd) {
    if ((bits >> fd & 1) != 0) fds.push_back(fd);
  }
  const bool all = call.arguments[0] <= 64;
  return fds.empty() && all ? WaitKind::kTimer : wait_of_set(process, fds);
}

WaitKind wait_of_epoll(std::uint32_t process, std::uint64_t fd) {
  constexpr char kField[] = "tfd:";
  const std::string text =
      proc_file("/proc/" + std::to_string(process) + "/fdinfo/" + std::to_string(fd));
  std::vector<std::uint32_t> fds;
  for (auto at = text.find(kField); at != std::string::npos && fds.size() < THREADS_POLL_MAX;
       at = text.find(kField, at + 1)) {
    fds.push_back(
        static_cast<std::uint32_t>(strtoul(text.c_str() + at + sizeof kField - 1, nullptr, 10)));
  }
  return fds.empty() ? WaitKind::kLocal : wait_of_set(process, fds);
}

WaitKind wait_of_call(std::uint32_t process, const Call& call, char letter) {
  const auto fd = [&](std::size_t i) {
    return wait_of_descriptor(process, static_cast<std::uint32_t>(call.arguments[i]));
  };
  const auto deep = letter == 'D' ? WaitKind::kDisk : WaitKind::kOther;
  switch (call_class(call.number)) {
    case THREAD_CALL_FD:
      return fd(0);
    case THREAD_CALL_FD2:
      return fd(0) == WaitKind::kDisk || fd(0) == WaitKind::kOther ? fd(1) : fd(0);
    case THREAD_CALL_IOCTL:
      return fd(0) == WaitKind::kDisk || fd(0) == WaitKind::kNetwork ? fd(0) : WaitKind::kDevice;
    case THREAD_CALL_PATH:
      return deep;
    case THREAD_CALL_DISK:
      return WaitKind::kDisk;
    case THREAD_CALL_LOCK:
      return WaitKind::kLock;
    case THREAD_CALL_FCNTL:
      return call.arguments[1] == F_SETLKW || call.arguments[1] == F_OFD_SETLKW ? WaitKind::kLock
                                                                                : WaitKind::kOther;
    case THREAD_CALL_TIMER:
      return WaitKind::kTimer;
    case THREAD_CALL_LOCAL:
      return WaitKind::kLocal;
    case THREAD_CALL_POLL:
      return wait_of_poll(process, call);
    case THREAD_CALL_SELECT:
      return wait_of_select(process, call);
    case THREAD_CALL_EPOLL:
      return wait_of_epoll(process, call.arguments[0]);
    case THREAD_CALL_URING:
    case THREAD_CALL_RESTART:
    case THREAD_CALL_UNKNOWN:
      break;
  }
  return call.number < 0 ? deep : WaitKind::kOther;
}

}  // namespace

bool wait_can_be_read(std::uint32_t process) {
  return !proc_file("/proc/" + std::to_string(process) + "/syscall").empty();
}

WaitKind wait_of_descriptor(std::uint32_t process, std::uint32_t fd) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(fd);
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return WaitKind::kOther;
  if (S_ISFIFO(status.st_mode)) return WaitKind::kLocal;
  if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) || S_ISBLK(status.st_mode))
    return WaitKind::kDisk;
  if (S_ISCHR(status.st_mode)) {
    const unsigned kind = major(status.st_rdev);
    const bool terminal = kind == 4 || kind == 5 || (kind >= 136 && kind <= 143);
    return terminal ? WaitKind::kLocal : WaitKind::kDevice;
  }
  std::array<char, 64> text{};
  if (S_ISSOCK(status.st_mode)) {
    // The protocol's name, which the file system of sockets tells: TCP, UDPv6, UNIX-STREAM, ...
    if (getxattr(path.c_str(), "system.sockprotoname", text.data(), text.size() - 1) <= 0)
      return WaitKind::kOther;
    if (strncmp(text.data(), "UNIX", 4) == 0) return WaitKind::kLocal;
    for (const char* internet : {"TCP", "UDP", "MPTCP", "SCTP", "RAW", "PING", "SMC"}) {
      if (strncmp(text.data(), internet, strlen(internet)) == 0) return WaitKind::kNetwork;
    }
    return WaitKind::kOther;
  }
  if (readlink(path.c_str(), text.data(), text.size() - 1) <= 0) return WaitKind::kOther;
  return strstr(text.data(), "[timerfd]") != nullptr ? WaitKind::kTimer : WaitKind::kLocal;
}

WaitKind wait_of_function(const std::string& name, char letter) {
  struct Row {
    const char* part;
    WaitKind kind;
  };
  // Names of Linux 5.10 to 6.18; the first that occurs in the name counts.
  static constexpr Row kRows[] = {
      {"futex", WaitKind::kLock},          {"nanosleep", WaitKind::kTimer},
      {"pipe_", WaitKind::kLocal},         {"unix_", WaitKind::kLocal},
      {"eventfd", WaitKind::kLocal},       {"ep_poll", WaitKind::kLocal},
      {"poll_schedule", WaitKind::kLocal}, {"do_poll", WaitKind::kLocal},
      {"do_sys_poll", WaitKind::kLocal},   {"do_select", WaitKind::kLocal},
      {"n_tty", WaitKind::kLocal},         {"sk_", WaitKind::kNetwork},
      {"inet", WaitKind::kNetwork},        {"tcp_", WaitKind::kNetwork},
      {"udp", WaitKind::kNetwork},         {"skb_", WaitKind::kNetwork},
      {"folio_", WaitKind::kDisk},         {"_page", WaitKind::kDisk},
      {"io_schedule", WaitKind::kDisk},    {"blk", WaitKind::kDisk},
      {"iomap", WaitKind::kDisk},          {"jbd2", WaitKind::kDisk},
      {"ext4", WaitKind::kDisk},           {"xfs", WaitKind::kDisk},
      {"btrfs", WaitKind::kDisk},          {"nvidia", WaitKind::kDevice},
      {"rwsem", WaitKind::kOther},         {"do_wait", WaitKind::kOther},
  };
  for (const Row& row : kRows) {
    if (name.find(row.part) != std::string::npos) return row.kind;
  }
  return letter == 'D' ? WaitKind::kDisk : WaitKind::kOther;
}

WaitKind wait_read(std::uint32_t process, std::uint32_t thread, char letter) {
  if (letter != 'S' && letter != 'D') return WaitKind::kOther;
  const auto call = call_read(process, thread);
  const bool tells = call && (call->number < 0 || call_class(call->number) != THREAD_CALL_UNKNOWN);
  if (tells) {
    // Deep sleep in a page fault is the disk, or a lock on the address space.
    const WaitKind kind = wait_of_call(process, *call, letter);
    if (call->number >= 0 || kind != WaitKind::kDisk) return kind;
  }
  return wait_of_function(proc_file(proc_thread_path(process, thread) + "/wchan", 128), letter);
}

}  // namespace sluice::exporter

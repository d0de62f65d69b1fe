// Peer credentials and what they name.
#include "broker/daemon/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include <cstdio>
#include <fstream>
#include <string_view>
#include <unordered_map>

namespace sluice::daemon {
namespace {

constexpr int kSoPeerGroups = 59;  // linux 4.13; missing in older C library headers
constexpr int kSoPeerPidfd = 77;   // linux 6.5; missing in the headers of Debian 12
constexpr std::size_t kGroupsMax = 1024;
constexpr std::size_t kUsersRemembered = 4096;

std::vector<gid_t> peer_groups(int socket, gid_t primary) {
  gid_t found[kGroupsMax];  // kept by every connection, so no larger than they are
  socklen_t length = sizeof found;
  if (getsockopt(socket, SOL_SOCKET, kSoPeerGroups, found, &length) < 0) length = 0;
  const std::size_t count = length / sizeof(gid_t);
  std::vector<gid_t> groups;
  groups.reserve(1 + count);
  groups.push_back(primary);
  groups.insert(groups.end(), found, found + count);
  return groups;
}

/// Whether this kernel has SO_PEERPIDFD, asked of this process, which lives: what does not know it
/// need not say so by the error that it should.
bool peer_pidfd_known() {
  int pair[2], pidfd = -1;
  socklen_t length = sizeof pidfd;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return true;
  const devices::Fd here(pair[0]), there(pair[1]);
  const bool known = getsockopt(pair[0], SOL_SOCKET, kSoPeerPidfd, &pidfd, &length) == 0;
  const devices::Fd taken(pidfd);
  return known || errno == EMFILE || errno == ENFILE;
}

bool hung_up(int socket) {
  pollfd p{socket, 0, 0};
  return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR)) != 0;
}

/// The effective uid of the process, or -1.
long effective_uid(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  long uid = -1;
  while (std::getline(status, line))
    if (std::sscanf(line.c_str(), "Uid: %*d %ld", &uid) == 1) return uid;
  return -1;
}

// Before 6.5: opens by number, then makes sure that the number still means the process that
// connected. Its socket is closed when it dies, so a socket that has not hung up after the pidfd
// was opened vouches for it; the start time catches an exchange between the two looks. Who hands
// his socket to another before he dies may have his number pass to a third, whose user would then
// be killed or charged for it: it must be the user who connected.
int pidfd_by_number(int socket, const ucred& credentials, devices::Fd* out) {
  const pid_t pid = credentials.pid;
  const std::uint64_t before = process_start_ticks(pid);
  devices::Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return -errno;
  if (before == 0 || process_start_ticks(pid) != before || hung_up(socket)) return -ESRCH;
  // While it lives its number is its own, so what was read by number was read of it.
  const long uid = effective_uid(pid);
  if (pidfd_ended(fd.get()) || uid != static_cast<long>(credentials.uid)) return -ESRCH;
  *out = std::move(fd);
  return 0;
}

std::vector<gid_t> user_groups_read(uid_t uid) {
  char buffer[4096];
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, buffer, sizeof buffer, &found) != 0 || found == nullptr) return {};
  std::vector<gid_t> groups(kGroupsMax);
  int count = static_cast<int>(groups.size());
  if (getgrouplist(found->pw_name, found->pw_gid, groups.data(), &count) < 0)
    count = static_cast<int>(groups.size());  // so many are told
  groups.resize(static_cast<std::size_t>(count));
  return groups;
}

std::unordered_map<uid_t, std::vector<gid_t>>& groups_known() {
  static std::unordered_map<uid_t, std::vector<gid_t>> known;
  return known;
}

std::string user_name_read(uid_t uid) {
  char buffer[4096];
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr)
    return found->pw_name;
  return std::to_string(uid);
}

}  // namespace

int peer_identify(int socket, Peer* out) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0) return -errno;
  out->pid = credentials.pid;
  out->uid = credentials.uid;
  out->groups = peer_groups(socket, credentials.gid);
  int pidfd = -1;
  length = sizeof pidfd;
  if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &pidfd, &length) == 0) {
    out->pidfd = devices::Fd(pidfd);
    fcntl(pidfd, F_SETFD, FD_CLOEXEC);
    return 0;
  }
  const int error = errno;
  if (peer_pidfd_known()) return error == EINVAL ? -ESRCH : -error;  // EINVAL: reaped already
  return pidfd_by_number(socket, credentials, &out->pidfd);
}

int pidfd_kill(int pidfd) {
  return syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) < 0 ? -errno : 0;
}

bool process_maps_file(pid_t pid, dev_t device, ino_t inode) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  if (!maps) return true;
  std::string line;
  bool any = false;
  while (std::getline(maps, line)) {
    any = true;
    unsigned major_number = 0;
    unsigned minor_number = 0;
    unsigned long long number = 0;
    if (std::sscanf(line.c_str(), "%*s %*s %*s %x:%x %llu", &major_number, &minor_number,
                    &number) == 3 &&
        makedev(major_number, minor_number) == device && number == inode) {
      return true;
    }
  }
  return !any && maps.bad();
}

std::string user_name(uid_t uid) {
  // Asked for every row of every snapshot, and a directory service may take seconds to answer once.
  static std::unordered_map<uid_t, std::string> known;
  if (known.size() >= kUsersRemembered) known.clear();
  const auto [at, fresh] = known.try_emplace(uid);
  if (fresh) at->second = user_name_read(uid);
  return at->second;
}

const std::vector<gid_t>& user_groups(uid_t uid) {
  auto& known = groups_known();
  if (known.size() >= kUsersRemembered) known.clear();
  const auto [at, fresh] = known.try_emplace(uid);
  if (fresh) at->second = user_groups_read(uid);
  return at->second;
}

void user_groups_forget() { groups_known().clear(); }

std::string cgroup_parse(std::istream& lines) {
  constexpr std::string_view kOld = ":name=systemd:";
  std::string line;
  std::string old;
  while (std::getline(lines, line)) {
    if (line.compare(0, 3, "0::") == 0 && line != "0::/") return line.substr(3);
    const std::size_t at = line.find(kOld);
    if (at == line.find(':') && at != std::string::npos) old = line.substr(at + kOld.size());
    if (old.empty() && line == "0::/") old = "/";
  }
  return old;
}

std::string process_cgroup(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cgroup");
  return cgroup_parse(file);
}

}  // namespace sluice::daemon

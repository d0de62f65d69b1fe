// Peer credentials and what they name.
#include "broker/daemon/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <fstream>
#include <string_view>
#include <utility>

namespace sluice::daemon {
namespace {

constexpr int kSoPeerGroups = 59;  // linux 4.13; missing in older C library headers
constexpr int kSoPeerPidfd = 77;   // linux 6.5; missing in the headers of Debian 12
// An entry of a user is a few hundred bytes; one of a megabyte is a broken database.
constexpr std::size_t kEntryBytes = 4096;
constexpr std::size_t kEntryBytesMax = std::size_t{1} << 20;
constexpr int kGroupsUsual = 1024;
constexpr int kGroupsOfUserMax = 65536 + 1;  // NGROUPS_MAX of Linux, and the primary one
constexpr std::size_t kUsersRemembered = 4096;

void peer_groups(int socket, gid_t primary, Peer* out) {
  gid_t found[kPeerGroupsMax];  // kept by every connection, so no larger than they are
  socklen_t length = sizeof found;
  out->groups_known = getsockopt(socket, SOL_SOCKET, kSoPeerGroups, found, &length) == 0;
  const std::size_t count = out->groups_known ? length / sizeof(gid_t) : 0;
  out->groups.clear();
  out->groups.reserve(1 + count);
  out->groups.push_back(primary);
  out->groups.insert(out->groups.end(), found, found + count);
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

/// The effective uid of the process, or -1: the owner of its directory. The file that also names it
/// lists the groups of the process, of which there can be 65,536.
long effective_uid(pid_t pid) {
  struct stat status {};
  if (stat(("/proc/" + std::to_string(pid)).c_str(), &status) < 0) return -1;
  return static_cast<long>(status.st_uid);
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

int pidfd_take(int socket, const ucred& credentials, devices::Fd* out) {
  int pidfd = -1;
  socklen_t length = sizeof pidfd;
  if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &pidfd, &length) == 0) {
    *out = devices::Fd(pidfd);
    fcntl(pidfd, F_SETFD, FD_CLOEXEC);
    return 0;
  }
  const int error = errno;
  if (peer_pidfd_known()) return error == EINVAL ? -ESRCH : -error;  // EINVAL: reaped already
  return pidfd_by_number(socket, credentials, out);
}

}  // namespace

int peer_identify(int socket, Peer* out) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0) return -errno;
  out->pid = credentials.pid;
  out->uid = credentials.uid;
  peer_groups(socket, credentials.gid, out);
  if (const int rc = pidfd_take(socket, credentials, &out->pidfd); rc != 0) return rc;
  // Looked at before the socket: while that stands, the program is the one that connected, because
  // exec closes it.
  out->program = process_look(out->pid).program;
  if (hung_up(socket)) out->program = kProgramGone;
  return 0;
}

int pidfd_kill(int pidfd, int signal) {
  return syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) < 0 ? -errno : 0;
}

std::optional<Account> account_read(uid_t uid, const AccountCalls& calls) {
  Account account{std::to_string(uid), {}};
  std::vector<char> buffer(kEntryBytes);
  passwd entry{};
  passwd* found = nullptr;
  int error = 0;
  while ((error = calls.user(uid, &entry, buffer.data(), buffer.size(), &found)) == ERANGE &&
         buffer.size() < kEntryBytesMax) {
    buffer.resize(4 * buffer.size());
  }
  if (error != 0) return std::nullopt;
  if (found == nullptr) return account;
  account.name = found->pw_name;
  for (int size = kGroupsUsual, count = size;; size = count) {
    account.groups.resize(static_cast<std::size_t>(size));
    const int rc = calls.groups(found->pw_name, found->pw_gid, account.groups.data(), &count);
    if (rc < 0 && (count <= size || count > kGroupsOfUserMax)) return std::nullopt;
    if (rc < 0) continue;
    account.groups.resize(static_cast<std::size_t>(count));
    account.groups.shrink_to_fit();
    return account;
  }
}

void Accounts::keep(uid_t uid, Account account) {
  if (known_.size() >= kUsersRemembered) known_.clear();
  known_[uid] = {std::move(account), false};
}

const Account* Accounts::find(uid_t uid) const {
  const auto found = known_.find(uid);
  return found == known_.end() || found->second.outdated ? nullptr : &found->second.account;
}

std::string Accounts::name(uid_t uid) const {
  const auto found = known_.find(uid);
  return found == known_.end() ? std::to_string(uid) : found->second.account.name;
}

void Accounts::outdate() {
  for (auto& [uid, known] : known_) known.outdated = true;
}

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

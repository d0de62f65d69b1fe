// Who is at the other end of a socket: the kernel's word at connect time (SO_PEERCRED,
// SO_PEERGROUPS, SO_PEERPIDFD), never anything a message says. A process is named by its pidfd; its
// pid is for people and for /proc.
#pragma once

#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "broker/devices/fd.h"
#include "broker/devices/process.h"

namespace sluice::daemon {

/// Groups of a process that are read. Each connection keeps them, and a user namespace can give a
/// process 65,536.
inline constexpr std::size_t kPeerGroupsMax = 1024;

struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  std::vector<gid_t> groups;  // primary first
  bool groups_known = true;   // false: it has groups that are not in `groups`
  /// The program that connected (devices/process.h): kProgramGone where it has closed its socket
  /// already, as exec does; 0 = not known.
  std::uint64_t program = 0;
  devices::Fd pidfd;
};

/// 0, or -errno: -ESRCH when the process ended before it could be held on to.
int peer_identify(int socket, Peer* out);

using devices::kProgramGone;
using devices::pidfd_ended;
using devices::process_look;
using devices::process_open;
using devices::process_start_ticks;

/// SIGKILL through the pidfd: never a stranger that got the same pid. 0 or -errno.
int pidfd_kill(int pidfd, int signal = SIGKILL);

/// The path of its cgroup in version 2's hierarchy (where there is none, in systemd's of version
/// 1), as this process sees it; empty where /proc does not tell. By number: whoever asks makes sure
/// that it still means the same process.
std::string process_cgroup(pid_t pid);
/// Returns that path from the text of /proc/PID/cgroup.
std::string cgroup_parse(std::istream& lines);

/// A user as the account databases have it.
struct Account {
  std::string name;           // its number where it has none
  std::vector<gid_t> groups;  // empty where there is no account
};
/// The C library's questions to the account databases; tests put others in their place.
struct AccountCalls {
  int (*user)(uid_t, passwd*, char*, std::size_t, passwd**) = getpwuid_r;
  int (*groups)(const char*, gid_t, gid_t*, int*) = getgrouplist;
};
/// Asks the account databases. Returns nothing if they cannot tell (an error, or more groups than
/// Linux knows); a user without an account has an Account without groups. A directory service may
/// take seconds to answer: not for the loop.
std::optional<Account> account_read(uid_t uid, const AccountCalls& calls = {});

/// The accounts that were read so far. Never asks anything itself.
class Accounts {
 public:
  void keep(uid_t uid, Account account);
  /// Null: not read yet, or outdated.
  const Account* find(uid_t uid) const;
  /// The name as far as it is known, else the number.
  std::string name(uid_t uid) const;
  /// What is known of groups is outdated from now on; names stay.
  void outdate();

 private:
  struct Known {
    Account account;
    bool outdated = false;
  };
  std::unordered_map<uid_t, Known> known_;
};

}  // namespace sluice::daemon

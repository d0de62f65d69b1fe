// Who is at the other end of a socket: the kernel's word at connect time (SO_PEERCRED,
// SO_PEERGROUPS, SO_PEERPIDFD), never anything a message says. A process is named by its pidfd; its
// pid is for people and for /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "broker/devices/fd.h"
#include "broker/devices/process.h"

namespace sluice::daemon {

struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  std::vector<gid_t> groups;  // primary first
  devices::Fd pidfd;
};

/// 0, or -errno: -ESRCH when the process ended before it could be held on to.
int peer_identify(int socket, Peer* out);

using devices::pidfd_ended;
using devices::process_open;
using devices::process_start_ticks;

/// SIGKILL through the pidfd: never a stranger that got the same pid. 0 or -errno.
int pidfd_kill(int pidfd);

/// Whether `pid` still has the file (device, inode) mapped: exec throws mappings away, a closed
/// socket does not. True also when /proc cannot be read: then nothing is known and the process
/// keeps what it has.
bool process_maps_file(pid_t pid, dev_t device, ino_t inode);

/// The path of its cgroup in version 2's hierarchy (where there is none, in systemd's of version
/// 1), as this process sees it; empty where /proc does not tell. By number: whoever asks makes sure
/// that it still means the same process.
std::string process_cgroup(pid_t pid);
/// The same from what /proc/PID/cgroup says.
std::string cgroup_parse(std::istream& lines);

/// Its name or its number; what was found once is remembered.
std::string user_name(uid_t uid);
/// The groups that the account databases give the user, whatever its process has; remembered until
/// user_groups_forget.
const std::vector<gid_t>& user_groups(uid_t uid);
void user_groups_forget();

}  // namespace sluice::daemon

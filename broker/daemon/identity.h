// Who is at the other end of a socket: the kernel's word at connect time (SO_PEERCRED,
// SO_PEERGROUPS, SO_PEERPIDFD), never anything a message says. A process is named by its pidfd; its
// pid is for people and for /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
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

/// Its name or its number; what was found once is remembered.
std::string user_name(uid_t uid);

}  // namespace sluice::daemon

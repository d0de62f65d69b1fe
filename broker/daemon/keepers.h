// Processes that have a tenant's lease page mapped: its members, and those that share the address
// space of one or have inherited it. Found by a walk through /proc, so beside the loop.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sluice::daemon {

/// The lease page as the kernel names it in /proc/PID/maps. Zeros name none: memory without a file
/// has these there.
struct PageName {
  dev_t device = 0;
  ino_t inode = 0;
};

/// True if a line of /proc/PID/maps is of this page.
bool maps_line_names(const std::string& line, const PageName& page);

enum class KeeperFate { kNamed, kEnded };
/// Returns the processes of the user that have the page mapped, and with kEnded kills each of them.
/// Looks at a bounded number of processes and reads a bounded part of their maps: a process can
/// make its maps long, or unmap the page, and is not found then.
std::vector<pid_t> keepers_find(uid_t uid, const PageName& page, KeeperFate fate);

}  // namespace sluice::daemon

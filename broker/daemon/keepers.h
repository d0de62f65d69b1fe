// Processes that have a tenant's lease page mapped: its members, and those that share the address
// space of one or have inherited it. Found by a walk through /proc, so beside the loop.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "broker/daemon/slow_work.h"

namespace sluice::daemon {

/// The lease page as the kernel names it in /proc/PID/maps. Zeros name none: memory without a file
/// has these there.
struct PageName {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const PageName&) const = default;
};

/// True if a line of /proc/PID/maps is of this page.
bool maps_line_names(const std::string& line, const PageName& page);

enum class KeeperFate { kNamed, kEnded };
/// So much is read for one look, about a second's work.
inline constexpr std::size_t kKeeperBytesMax = std::size_t{64} << 20;
/// Returns the processes of the user that have the page mapped, and with kEnded kills each of them.
/// Looks at a bounded number of processes and reads a bounded part of their maps, of each and of
/// all together (`bytes_max`): a user can make maps long, or unmap the page, and its processes are
/// not found then.
std::vector<pid_t> keepers_find(uid_t uid, const PageName& page, KeeperFate fate,
                                std::size_t bytes_max = kKeeperBytesMax);

/// Looks for keepers beside the loop, one look at a time: however long the maps of some users are,
/// the other threads are left to other work. Users take turns, and looks for one page are one look.
class KeeperLooks {
 public:
  /// Called in the loop.
  using Told = std::function<void(const std::vector<pid_t>& found)>;
  explicit KeeperLooks(SlowWork& slow) : slow_(slow) {}
  KeeperLooks(const KeeperLooks&) = delete;
  KeeperLooks& operator=(const KeeperLooks&) = delete;
  void want(uid_t uid, const PageName& page, KeeperFate fate, Told told);

 private:
  struct Look {
    PageName page;
    KeeperFate fate = KeeperFate::kNamed;
    std::vector<Told> told;
  };
  void next();
  SlowWork& slow_;
  std::map<uid_t, std::deque<Look>> wanted_;
  uid_t user_ = 0;  // of the last look
  bool looking_ = false;
};

}  // namespace sluice::daemon

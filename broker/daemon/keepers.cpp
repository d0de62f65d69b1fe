// See keepers.h. A process is held by a pidfd before it is looked at, so that what is killed is
// what was seen.
#include "broker/daemon/keepers.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "broker/devices/fd.h"

namespace sluice::daemon {
namespace {

constexpr int kProcessesMax = 65'536;
constexpr std::size_t kMapsBytesMax = 4 << 20;  // some 40,000 mappings
constexpr long kPidfdOpen = 434;
constexpr long kPidfdSendSignal = 424;

/// What is read is taken off `bytes_left`.
bool page_mapped(int process, const PageName& page, std::size_t* bytes_left) {
  const devices::Fd maps(openat(process, "maps", O_RDONLY | O_CLOEXEC));
  if (!maps) return false;
  std::string text;
  char buffer[16'384];
  ssize_t got = 0;
  for (std::size_t all = 0; all < kMapsBytesMax; all += static_cast<std::size_t>(got)) {
    got = read(maps.get(), buffer, std::min(sizeof buffer, *bytes_left));
    if (got <= 0) break;
    *bytes_left -= static_cast<std::size_t>(got);
    text.append(buffer, static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t end = text.find('\n'); end != std::string::npos;
         end = text.find('\n', begin)) {
      if (maps_line_names(text.substr(begin, end - begin), page)) return true;
      begin = end + 1;
    }
    text.erase(0, begin);
  }
  return false;
}

/// By the line of its users: files of a process that is not dumpable are root's.
bool of_user(int process, uid_t uid) {
  const devices::Fd status(openat(process, "status", O_RDONLY | O_CLOEXEC));
  char text[1024] = "";
  if (!status || read(status.get(), text, sizeof text - 1) <= 0) return false;
  const char* line = std::strstr(text, "\nUid:");
  unsigned real = 0;
  unsigned effective = 0;
  return line != nullptr && std::sscanf(line, "\nUid: %u %u", &real, &effective) == 2 &&
         real == uid && effective == uid;
}

bool keeps(pid_t pid, uid_t uid, const PageName& page, std::size_t* bytes_left) {
  const std::string path = "/proc/" + std::to_string(pid);
  const devices::Fd process(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return process && of_user(process.get(), uid) && page_mapped(process.get(), page, bytes_left);
}

}  // namespace

bool maps_line_names(const std::string& line, const PageName& page) {
  unsigned major_number = 0;
  unsigned minor_number = 0;
  unsigned long inode = 0;
  return page.inode != 0 &&
         std::sscanf(line.c_str(), "%*[0-9a-f]-%*[0-9a-f] %*s %*s %x:%x %lu", &major_number,
                     &minor_number, &inode) == 3 &&
         inode == page.inode && makedev(major_number, minor_number) == page.device;
}

std::vector<pid_t> keepers_find(uid_t uid, const PageName& page, KeeperFate fate,
                                std::size_t bytes_max) {
  std::vector<pid_t> found;
  DIR* directory = opendir("/proc");
  if (directory == nullptr) return found;
  int looks = 0;
  for (const dirent* entry = readdir(directory);
       entry != nullptr && looks < kProcessesMax && bytes_max != 0; entry = readdir(directory)) {
    const auto pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid <= 1 || pid == getpid()) continue;
    ++looks;
    const devices::Fd handle(static_cast<int>(syscall(kPidfdOpen, pid, 0)));
    if (!handle || !keeps(pid, uid, page, &bytes_max)) continue;
    found.push_back(pid);
    if (fate == KeeperFate::kEnded)
      (void)syscall(kPidfdSendSignal, handle.get(), SIGKILL, nullptr, 0);
  }
  closedir(directory);
  return found;
}

void KeeperLooks::want(uid_t uid, const PageName& page, KeeperFate fate, Told told) {
  std::deque<Look>& looks = wanted_[uid];
  auto at = std::ranges::find(looks, page, &Look::page);
  if (at == looks.end()) at = looks.insert(looks.end(), Look{page, fate, {}});
  if (fate == KeeperFate::kEnded) at->fate = fate;
  at->told.push_back(std::move(told));
  next();
}

void KeeperLooks::next() {
  if (looking_ || wanted_.empty()) return;
  auto user = wanted_.upper_bound(user_);
  if (user == wanted_.end()) user = wanted_.begin();
  user_ = user->first;
  Look look = std::move(user->second.front());
  user->second.pop_front();
  if (user->second.empty()) wanted_.erase(user);
  looking_ = true;
  slow_.run([this, uid = user_, look = std::move(look)]() -> Loop::Handler {
    return [this, look, found = keepers_find(uid, look.page, look.fate)] {
      looking_ = false;
      for (const Told& told : look.told) told(found);
      next();
    };
  });
}

}  // namespace sluice::daemon

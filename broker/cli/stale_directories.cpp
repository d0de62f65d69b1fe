// Everything goes by descriptors of directories that were looked at, never by a path twice: in /tmp
// any user can put a link where a directory was.
#include "broker/cli/stale_directories.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "broker/devices/fd.h"

namespace sluice::cli {
namespace {

/// A start looks at no more names than this: /tmp can have any number.
constexpr int kNamesMax = 4096;
constexpr char kLock[] = "sluiced.sock.lock";

bool name_fits(std::string_view name) {
  constexpr std::string_view kPattern = kPrivateDirectory;
  const std::size_t prefix = kPattern.find('X');  // no constant: UBSan of g++ 12 refuses it
  return name.size() == kPattern.size() && name.substr(0, prefix) == kPattern.substr(0, prefix) &&
         std::ranges::all_of(name.substr(prefix),
                             [](unsigned char c) { return std::isalnum(c) != 0; });
}

bool own_directory(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && status.st_uid == geteuid() &&
         (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

/// Takes the lock that a broker holds for as long as it lives. Empty = it lives, or may.
devices::Fd dead_lock(int directory) {
  devices::Fd lock(openat(directory, kLock, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!lock || fstat(lock.get(), &status) != 0) return {};
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid()) return {};
  if (time(nullptr) - status.st_mtime < kStaleAfterS) return {};
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return {};
  return lock;
}

}  // namespace

bool private_socket(const std::string& socket) {
  std::string_view path = socket;
  const std::size_t file = path.rfind('/');
  if (file == path.npos || path.substr(file + 1) != kPrivateSocket) return false;
  path = path.substr(0, file);
  return name_fits(path.substr(path.rfind('/') + 1));
}

void stale_directories_remove(const std::string& parent) {
  DIR* names = opendir(parent.c_str());
  if (names == nullptr) return;
  const dirent* entry = readdir(names);
  for (int i = 0; entry != nullptr && i < kNamesMax; ++i, entry = readdir(names)) {
    if (!name_fits(entry->d_name)) continue;
    const devices::Fd directory(
        openat(dirfd(names), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!directory || !own_directory(directory.get())) continue;
    const devices::Fd lock = dead_lock(directory.get());
    if (!lock) continue;
    for (const char* file : {"log", kPrivateSocket, kLock}) unlinkat(directory.get(), file, 0);
    unlinkat(dirfd(names), entry->d_name, AT_REMOVEDIR);
  }
  closedir(names);
}

}  // namespace sluice::cli

// See cutter.h.
#include "trainer/comm/cutter.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace sluice::train {
namespace {

/// Descriptors of all TCP connections of this process.
std::vector<int> connections_list() {
  std::vector<int> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
        peer.sin_family == AF_INET)
      found.push_back(fd);
  }
  return found;
}

}  // namespace

Cutter::Cutter() : before_(connections_list()) {}

Cutter::~Cutter() {
  for (const int fd : own_) close(fd);
}

void Cutter::made() {
  for (const int fd : connections_list()) {
    if (std::find(before_.begin(), before_.end(), fd) != before_.end()) continue;
    if (const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0); own >= 0) own_.push_back(own);
  }
}

void Cutter::cut() const {
  for (const int fd : own_) shutdown(fd, SHUT_RDWR);
}

}  // namespace sluice::train

// sd_notify(3) and sd_listen_fds(3) as their manuals describe the environment variables.
#include "broker/daemon/notify.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace sluice::daemon {

void notify_send(std::string_view state) {
  const char* path = getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(path);
  if (length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // abstract
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  sendto(fd, state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
         reinterpret_cast<const sockaddr*>(&address), size);
  close(fd);
}

int activation_socket() {
  constexpr int kFirst = 3;
  const char* pid = getenv("LISTEN_PID");
  const char* count = getenv("LISTEN_FDS");
  if (pid == nullptr || count == nullptr || std::strtol(pid, nullptr, 10) != getpid() ||
      std::strcmp(count, "1") != 0) {
    return -1;
  }
  int type = 0;
  int listening = 0;
  socklen_t size = sizeof type;
  if (getsockopt(kFirst, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_SEQPACKET)
    return -1;
  size = sizeof listening;
  if (getsockopt(kFirst, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0 || listening == 0)
    return -1;
  fcntl(kFirst, F_SETFD, FD_CLOEXEC);
  fcntl(kFirst, F_SETFL, fcntl(kFirst, F_GETFL) | O_NONBLOCK);
  return kFirst;
}

void starter_tell(int fd, std::string_view line) {
  if (fd < 0) return;
  std::string text(line);
  text += '\n';
  [[maybe_unused]] const ssize_t written = write(fd, text.data(), text.size());
  close(fd);
}

}  // namespace sluice::daemon

// Choosing the socket and connecting.
#include "broker/cli/client.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>

#include "broker/cli/stale_directories.h"
#include "config/reader/config.h"

namespace sluice::cli {

bool system_configured() { return access(config::kSystemConfig, F_OK) == 0; }

SocketChoice socket_choose(const std::string& option) {
  if (!option.empty()) return {option, true};
  if (const char* variable = secure_getenv(protocol::kSocketVariable);
      variable != nullptr && *variable != '\0') {
    return {variable, true};
  }
  return {protocol::kSystemSocket, false};
}

std::string start_text(bool root) {
  return (root ? "; start it with systemctl start sluiced or run sluiced"
               : "; ask the administrator to start it (systemctl start sluiced)") +
         std::string(", or check --socket and SLUICE_SOCKET");
}

std::string no_answer_text(int rc, int timeout_ms) {
  if (rc == -EAGAIN)
    return "the broker does not answer within " + std::to_string(timeout_ms / 1000) +
           " s; it hangs or is stopped: ask the administrator, who finds the reason in its log";
  return "the broker closed the connection without an answer; try again, then ask the "
         "administrator, who finds the reason in its log";
}

std::optional<Client> Client::connect(const std::string& path, std::string* error) {
  long owner = 0;
  const int fd = protocol::broker_connect(path.c_str(), kAnswer_ms, &owner);
  if (fd >= 0) return Client{devices::Fd(fd)};
  if (owner != 0) {
    char text[protocol::kStrangerTextBytes];
    protocol::stranger_format(path.c_str(), owner, text);
    *error = text;
    return std::nullopt;
  }
  if (private_socket(path) && (fd == -ECONNREFUSED || fd == -ENOENT)) {
    *error = "the private broker of this sluice run has ended (no answer at " + path +
             "), and its programs go on under their limits; end the outermost sluice run and start "
             "it again";
    return std::nullopt;
  }
  if (fd == -EAGAIN) {
    *error = no_answer_text(fd, kAnswer_ms);
    return std::nullopt;
  }
  *error = "no broker answers at " + path + " (" + std::strerror(-fd) + ")";
  switch (-fd) {
    case EACCES:
      *error += "; you may not use this socket; ask whoever runs the broker";
      break;
    case EINVAL:
    case ENAMETOOLONG:
      *error += "; that is not the path of a socket; give its absolute path";
      break;
    default:
      *error += start_text(geteuid() == 0);
      break;
  }
  return std::nullopt;
}

}  // namespace sluice::cli

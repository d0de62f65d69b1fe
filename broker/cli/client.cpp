// Choosing the socket and connecting.
#include "broker/cli/client.h"

#include <errno.h>
#include <stdlib.h>

#include <cstring>

#include "config/reader/config.h"

namespace sluice::cli {

bool system_configured() { return access(config::kSystemConfig, F_OK) == 0; }

SocketChoice socket_choose(const std::string& option) {
  if (!option.empty()) return {option, true};
  if (const char* variable = secure_getenv(protocol::kSocketVariable);
      variable != nullptr && *variable != '\0') {
    return {variable, true};
  }
  if (system_configured()) {
    const auto config = config::config_read(config::kSystemConfig);
    if (config.ok()) return {(*config).socket, false};
  }
  return {protocol::kSystemSocket, false};
}

std::optional<Client> Client::connect(const std::string& path, std::string* error) {
  const int fd = protocol::wire_connect(path.c_str());
  if (fd >= 0) {
    Client client{devices::Fd(fd)};
    const long owner = protocol::wire_owner(fd);
    if (protocol::wire_trusted(owner)) return client;
    *error =
        "the socket " + path + " belongs to uid " + std::to_string(owner) +
        ", which is neither root nor you; whoever that is, it is not asked for anything; check "
        "--socket and SLUICE_SOCKET";
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
      *error +=
          "; start it with systemctl start sluiced or run sluiced, or check --socket and "
          "SLUICE_SOCKET";
      break;
  }
  return std::nullopt;
}

}  // namespace sluice::cli

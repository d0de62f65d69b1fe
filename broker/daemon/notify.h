// The two things systemd and starters want of a daemon, without libsystemd: a word when it is
// ready, and a listening socket handed over in place of a path.
#pragma once

#include <string_view>

namespace sluice::daemon {

/// Sends `state` ("READY=1", "RELOADING=1", "STOPPING=1") to $NOTIFY_SOCKET; nothing where there is
/// none.
void notify_send(std::string_view state);

/// The listening SOCK_SEQPACKET descriptor of socket activation, or -1.
int activation_socket();

/// Writes one line to the starter's descriptor and closes it; -1 is nobody.
void starter_tell(int fd, std::string_view line);

}  // namespace sluice::daemon

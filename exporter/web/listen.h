// From the address that an administrator writes to sockets that listen there.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/reader/config.h"

namespace sluice::exporter {

/// Owns a listening socket.
class ListenSocket {
 public:
  explicit ListenSocket(int fd) : fd_(fd) {}
  ~ListenSocket();
  ListenSocket(ListenSocket&& other) noexcept : fd_(other.release()) {}
  ListenSocket& operator=(ListenSocket&&) = delete;

  int fd() const { return fd_; }
  /// Gives the descriptor away.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct Listening {
  std::vector<ListenSocket> sockets;  // all on one port
  std::string url;                    // as a browser takes it: http://HOST:PORT/metrics
};

/// Listens on every address that the name in `listen` stands for. Port 0 takes a free one. Without
/// a value, `error` says what cannot be listened on, why, and what to do.
std::optional<Listening> listen_open(const config::ListenAddress& listen, std::string* error);

}  // namespace sluice::exporter

// Carries connections from an IPv6 address to the web server, which Debian builds for IPv4 alone:
// bytes in both directions, unread. It must know nothing of HTTP.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>

namespace sluice::exporter {

class Relay {
 public:
  /// Listens on `address` (port 0: a free one) for the server on 127.0.0.1:`target_port`. On
  /// failure null, and `error` says why.
  static std::unique_ptr<Relay> start(const sockaddr_in6& address, int target_port,
                                      std::string* error);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return port_; }

 private:
  /// One direction of a connection: what was read and not yet written.
  struct Flow {
    int from = -1, to = -1;
    std::string waiting;
    bool ended = false;  // nothing more will be read, and `to` knows
  };
  struct Connection {
    Flow forth, back;
    bool asked = false;  // the client has sent something
    bool broken = false;
    std::uint64_t moved_ns = 0;  // when bytes last went either way
    ~Connection();
  };

  Relay(int listener, int stop, int port, int target_port);
  void run();
  void accept_one();
  /// Whether bytes moved.
  static bool move(Flow& flow, short from_ready, bool* broken);
  void finished_remove(std::uint64_t now_ns);

  int listener_, stop_, port_, target_port_;
  std::list<Connection> connections_;  // of the thread
  std::thread thread_;
};

}  // namespace sluice::exporter

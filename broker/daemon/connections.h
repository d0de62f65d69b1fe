// The table of connections: accepts within the per-user limit, reads datagrams with a budget per
// turn, sends without ever waiting, closes. What the messages mean is the sink's business. A peer
// that does not read its answers is disconnected, so that no message is ever dropped in silence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "broker/daemon/identity.h"
#include "broker/daemon/log.h"
#include "broker/daemon/loop.h"
#include "broker/protocol/wire.h"

namespace sluice::daemon {

using ConnectionId = std::uint64_t;  // never reused; 0 = none

/// Where answers go.
class Outbox {
 public:
  virtual ~Outbox() = default;
  /// False when the peer is gone or does not read; the connection is then closed soon, with the
  /// sink told.
  virtual bool send_bytes(ConnectionId connection, const void* message, std::size_t size,
                          const int* fds, int fd_count) = 0;
  /// What the peer has been sent and has not read, in the kernel's terms (with its overhead).
  virtual std::size_t unread_bytes(ConnectionId connection) const = 0;
  /// Closes once the current handler has returned: nothing is erased under anybody's feet.
  virtual void drop(ConnectionId connection) = 0;

  template <class M>
  bool send(ConnectionId connection, const M& message) {
    return send_bytes(connection, &message, sizeof message, nullptr, 0);
  }
};

/// Where messages go.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void message_received(ConnectionId connection, const Peer& peer,
                                const protocol::Envelope& envelope) = 0;
  /// A datagram that is no message at all.
  virtual void garbage_received(ConnectionId connection, const Peer& peer) = 0;
  /// `unread`: the peer left before it had read everything that it was sent.
  virtual void connection_closed(ConnectionId connection, bool unread) = 0;
};

struct ConnectionLimits {
  std::uint32_t total_max = 4096;
  std::uint32_t per_user_max = 2048;
};

class Connections : public Outbox {
 public:
  Connections(Loop& loop, Log& log, const ConnectionLimits& limits);
  ~Connections() override;
  void sink_set(Sink* sink) { sink_ = sink; }

  void accept(devices::Fd fd);
  bool send_bytes(ConnectionId connection, const void* message, std::size_t size, const int* fds,
                  int fd_count) override;
  std::size_t unread_bytes(ConnectionId connection) const override;
  void drop(ConnectionId connection) override;
  std::size_t count() const { return table_.size(); }
  void close_all();

 private:
  struct Connection {
    devices::Fd fd;
    Peer peer;
    Loop::Key key = 0;
    bool doomed = false;
    bool unread = false;
  };
  void readable(ConnectionId id);
  void reap();
  void erase(ConnectionId id);
  bool within_limits(uid_t uid) const;

  Loop& loop_;
  Log& log_;
  ConnectionLimits limits_;
  Sink* sink_ = nullptr;
  std::unordered_map<ConnectionId, std::unique_ptr<Connection>> table_;
  std::map<uid_t, std::uint32_t> per_user_;
  std::vector<ConnectionId> doomed_;
  ConnectionId next_ = 1;
};

}  // namespace sluice::daemon

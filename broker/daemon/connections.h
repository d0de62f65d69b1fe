// The table of connections: accepts within the limits of each user, reads datagrams, sends without
// ever waiting, closes. What the messages mean is the sink's business. A peer that does not read
// its answers is disconnected, so that no message is ever dropped in silence; one that says nothing
// is disconnected as well.
//
// Whatever a connection costs is its user's: the connections of one user hang on a loop of their
// own, which the daemon's loop asks in turn, for a bounded time, with those of other users and with
// everything else. So however many connections a user has and however much he sends, another one
// waits for one such turn of his.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "broker/daemon/charge.h"
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
  /// Whose connection it is; of one that is gone, nobody's in particular.
  virtual uid_t user_of(ConnectionId connection) const = 0;
  /// Closes once the current handler has returned: nothing is erased under anybody's feet.
  virtual void drop(ConnectionId connection) = 0;
  /// Adds the descriptors of the broker that each user's connections take.
  virtual void descriptors_add(Descriptors* out) const = 0;

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

/// The (n+1)th part: what one of so many users may have of a thing when all together have `taken`
/// of it, so that there is always something left for one more user, however many take what they
/// can.
constexpr std::uint64_t part_of_user(std::uint64_t total, std::uint64_t taken, std::uint64_t own,
                                     std::uint64_t users) {
  const std::uint64_t others = taken - own;
  return (total - (others < total ? others : total)) / (users + 1);
}

struct ConnectionLimits {
  std::uint32_t total_max = 4096;
  std::uint32_t per_user_max = 2048;             // and the part that is left to him
  std::int64_t silence_ns_max = 10'000'000'000;  // from connecting to the first message
  std::int64_t user_turn_ns = 500'000;           // of one user's messages before others' turn
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
  uid_t user_of(ConnectionId connection) const override;
  void drop(ConnectionId connection) override;
  void descriptors_add(Descriptors* out) const override;
  /// Ends what has been silent for too long; to be called now and then.
  void tend(std::int64_t now_ns);
  std::size_t count() const { return table_.size(); }
  void close_all();

 private:
  struct User {
    Loop loop;          // of his connections
    Loop::Key key = 0;  // of that loop in the daemon's
    std::uint32_t connections = 0;
    std::int64_t turn_end_ns = 0;
  };
  struct Connection {
    devices::Fd fd;
    Peer peer;
    std::shared_ptr<User> user;
    Loop::Key key = 0;
    std::int64_t accepted_ns = 0;
    bool spoke = false;
    bool doomed = false;
    bool unread = false;
  };
  std::shared_ptr<User> user_take(uid_t uid);
  void user_turn(User& user);
  void readable(ConnectionId id);
  void reap();
  void erase(ConnectionId id);
  std::uint32_t user_max(uid_t uid) const;
  bool within_limits(uid_t uid) const;

  Loop& loop_;
  Log& log_;
  ConnectionLimits limits_;
  Sink* sink_ = nullptr;
  std::unordered_map<ConnectionId, std::unique_ptr<Connection>> table_;
  std::map<uid_t, std::shared_ptr<User>> users_;
  std::map<ConnectionId, std::int64_t> silent_;  // since when; ids grow with time
  std::vector<ConnectionId> doomed_;
  ConnectionId next_ = 1;
};

}  // namespace sluice::daemon

// The broker's listening socket: made so that nobody but root (or, for a private broker, its user)
// can put another in its place, never beside a living broker, and accepting a bounded number of
// connections per turn even with no descriptors left. Must not know what is said on the
// connections.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "broker/daemon/loop.h"
#include "broker/daemon/timer.h"

namespace sluice::daemon {

struct ListenOptions {
  std::string path;
  bool is_private = false;
  int inherited_fd = -1;  // from socket activation: path and lock are systemd's
  /// Where clients look that are told no other place: a link there leads to `path`. Empty = none.
  std::string link;
};

class Listener {
 public:
  using Accepted = std::function<void(devices::Fd)>;

  /// Null with `error` (without prefix) when the socket cannot or must not be taken.
  static std::unique_ptr<Listener> open(Loop& loop, const ListenOptions& options, Accepted accepted,
                                        std::string* error);
  /// Removes the socket, its link and the locks, unless they are systemd's.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  /// No new connections from now on.
  void stop();
  /// Why there is no link although one was asked for; empty = there is one.
  const std::string& link_fault() const { return link_fault_; }
  /// Gives up the descriptor that is kept for the time when there are no others, as another thread
  /// can make it lost; for tests.
  void spare_give() { spare_.reset(); }

 private:
  Listener(Loop& loop, const ListenOptions& options, Accepted accepted);
  bool prepare(std::string* error);
  void link_make();
  void watch();
  void ready();
  bool shed();
  void pause();

  Loop& loop_;
  ListenOptions options_;
  int accepts_;  // in the next turn
  Accepted accepted_;
  devices::Fd lock_;
  devices::Fd link_lock_;
  std::string link_fault_;
  devices::Fd socket_;
  devices::Fd spare_;  // given up for a moment to refuse a connection when descriptors have run out
  Loop::Key key_ = 0;  // 0: it is not watched now
  Timer again_;        // watches it again
  bool bound_ = false;
  bool linked_ = false;
};

}  // namespace sluice::daemon

// The event loop: descriptors and what to call when they are readable. One thread, level-triggered
// epoll. A handler may remove any descriptor, its own included, while it runs: events already
// fetched for removed ones are dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "broker/devices/fd.h"

namespace sluice::daemon {

class Loop {
 public:
  using Handler = std::function<void()>;
  using Key = std::uint64_t;  // 0 = none

  Loop();
  /// Calls `handler` whenever `fd` is readable, hung up or in error, until removed. The caller
  /// keeps owning `fd` and removes the key before closing it.
  Key add(int fd, Handler handler);
  void remove(Key key);
  /// Calls `task` once, after the handler that is running now.
  void defer(Handler task) { deferred_.push_back(std::move(task)); }
  /// One turn: waits at most timeout_ms (-1 = for ever) and calls the handlers that are due.
  void turn(int timeout_ms);
  void run();
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }

 private:
  void deferred_run();
  struct Watch {
    int fd;
    std::shared_ptr<Handler> handler;
  };
  devices::Fd epoll_;
  std::unordered_map<Key, Watch> watches_;
  std::vector<Handler> deferred_;
  Key next_ = 1;
  bool stopped_ = false;
};

}  // namespace sluice::daemon

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
  /// At some tens of microseconds for a handler, a full turn delays an alarm by a few milliseconds;
  /// a user's turn may take half of one (ConnectionLimits::user_turn_ns), whatever it is about.
  static constexpr int kEventsPerTurn = 64;

  Loop();
  /// Why the loop (or a timer in it) could not be made, as an errno; 0 = it works.
  int fault() const { return fault_; }
  void fault_set(int error) { fault_ = error; }
  /// Calls `handler` whenever `fd` is readable, hung up or in error, until removed. The caller
  /// keeps owning `fd` and removes the key before closing it. `name` is a literal, for the report
  /// of a slow turn.
  Key add(int fd, Handler handler, const char* name = "other");
  void remove(Key key);
  /// Calls `task` once, after the handler that is running now.
  void defer(Handler task) { deferred_.push_back(std::move(task)); }
  /// One turn: waits at most timeout_ms (-1 = for ever) and calls the handlers that are due, at
  /// most `most` of them; the others come first in the next. How many were called.
  int turn(int timeout_ms, int most = kEventsPerTurn);
  /// What the kernel had no memory to watch, once more; every turn does this.
  void unwatched_retry();
  /// The tasks that were put off, now.
  void settle() { deferred_run(); }
  /// Readable while a handler of this loop is due: a loop can be watched by another.
  int fd() const { return epoll_.get(); }
  /// A turn that took longer than the limit from its wake-up to its end.
  struct SlowTurn {
    const char* handler = "";  // the one that took longest,
    std::int64_t handler_ns = 0;
    std::int64_t turn_ns = 0;  // the whole turn, and
    std::int64_t cpu_ns = 0;   // what of it this thread had a processor for
  };
  /// Counts turns that take longer than `limit_ns` and reports each, at its end, to `report`.
  void slow_watch(std::int64_t limit_ns, std::function<void(const SlowTurn&)> report);
  std::uint64_t slow_turns() const { return slow_turns_; }
  /// Makes the thread sleep for `rest_ns` between two handlers whenever it has not slept for
  /// `run_ns`. Under a flood of messages something is always due, so the wait for events never
  /// sleeps; a real-time thread then keeps its processor from every other program until the kernel
  /// ends it (RLIMIT_RTTIME). Not called: it never rests. Only for the thread that calls turn().
  void rest_after(std::int64_t run_ns, std::int64_t rest_ns);
  void run();
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  /// No later than what is being handled became readable: the end of the last wait, or, when that
  /// did not wait, of the one before it.
  std::int64_t readable_since_ns() const { return readable_since_ns_; }

 private:
  void deferred_run();
  void handle(Key key, SlowTurn* slowest);
  void rest_look();
  void slow_look(std::int64_t begin_ns, std::int64_t begin_cpu_ns, SlowTurn* slowest);
  bool watch(Key key, int fd);
  struct Watch {
    int fd;
    std::shared_ptr<Handler> handler;
    const char* name;
  };
  devices::Fd epoll_;
  std::unordered_map<Key, Watch> watches_;
  std::vector<Handler> deferred_;
  std::vector<Key> unwatched_;  // the kernel had no memory for them; tried again every turn
  int fault_ = 0;
  Key next_ = 1;
  bool stopped_ = false;
  std::int64_t readable_since_ns_ = 0;
  std::int64_t last_wait_end_ns_ = 0;
  std::int64_t slow_limit_ns_ = INT64_MAX;
  std::function<void(const SlowTurn&)> slow_report_;  // empty: nothing is measured
  std::uint64_t slow_turns_ = 0;
  std::int64_t rest_after_ns_ = INT64_MAX;
  std::int64_t rest_ns_ = 0;
  std::int64_t rest_looked_ns_ = 0;  // when it was last known that the thread had slept,
  long sleeps_seen_ = 0;             // and how often it had
};

}  // namespace sluice::daemon

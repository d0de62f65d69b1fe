// Which connections of the web server are open, and which of them have to go. libmicrohttpd ends a
// connection that is silent. It keeps one that sends a byte now and then, and when its connections
// are used up it accepts no further ones: slow clients would shut out the others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <thread>

namespace sluice::exporter {

struct ConnectionLimits {
  std::size_t crowd;    // above so many open ones, old ones go
  unsigned request_ms;  // the time to send a whole request
  unsigned life_ms;     // the time from the first byte to the last
};

/// Shuts connections down that are past a limit. In a crowd the oldest go that have sent no request
/// in the time that a prompt client needs; if that is not enough, those that do not take an answer
/// as promptly. A connection is never late while the server has bytes of it to read. Thread-safe.
/// Descriptors stay the web server's, which ends what was shut down.
class Connections {
 public:
  explicit Connections(ConnectionLimits limits);
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  /// A connection was accepted on `socket`.
  void opened(int socket);
  /// Its request is complete.
  void asked(int socket);
  /// The server is about to close `socket`.
  void closed(int socket);

 private:
  using Clock = std::chrono::steady_clock;
  struct Open {
    int socket;
    Clock::time_point since;
    bool has_asked;
    bool shut;
  };
  void late_shut(Clock::time_point now);
  void crowd_shut(Clock::time_point now);
  static bool is_late(const Open& open, Clock::time_point now, Clock::duration most);
  static void shut(Open& open);
  void watch();

  const ConnectionLimits limits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Open> open_;  // oldest first
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace sluice::exporter

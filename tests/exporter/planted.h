// Processes that wait for a known thing, to be watched by tests of observers.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>

namespace sluice::exporter {

/// What a planted process tells its test, in memory that both share.
struct Told {
  std::atomic<std::uint32_t> thread{0};  // one of its threads or children; the body says which
  std::atomic<std::uint32_t> process{0};
  std::atomic<std::uint64_t> begin_ns{0};  // CLOCK_MONOTONIC
  std::atomic<std::uint64_t> end_ns{0};
};

/// A child process that runs `body` when it is told to and then waits to be released. Killed and
/// reaped at the latest with this object; what it started dies with it.
class Planted {
 public:
  using Body = std::function<void(Told&)>;
  explicit Planted(Body body);
  ~Planted();
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;

  std::uint32_t pid() const { return static_cast<std::uint32_t>(pid_); }
  /// The body begins.
  void go();
  /// Until the body has ended; false after `seconds`.
  bool done_wait(int seconds = 30) const;
  /// Ends the process and reaps it.
  void end();
  Told& told() const { return *told_; }

 private:
  pid_t pid_ = -1;
  int go_ = -1;
  Told* told_ = nullptr;
};

std::uint32_t thread_number();
std::uint64_t now_ns();
void nap_ms(unsigned milliseconds);
/// A child of this process that dies when it does.
pid_t child_start(const std::function<void()>& body);
/// Until `condition` holds; false after `seconds`.
bool soon(const std::function<bool()>& condition, int seconds = 20);

/// Two ends of a connection over the loopback address.
struct Connection {
  int here = -1;
  int there = -1;
};
Connection loopback_connect();

/// Sleeps on a word until it has another value than `old`; wakes whoever sleeps on it.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t old);
void futex_wake(std::atomic<std::uint32_t>& word);

}  // namespace sluice::exporter

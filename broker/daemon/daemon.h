// sluiced as an object: loop, listener, connections, sessions, engine, heartbeat and signals,
// wired. The inventory comes from outside, so that tests serve GPUs of their own making.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "broker/daemon/engine.h"
#include "broker/daemon/listener.h"
#include "broker/daemon/sessions.h"

namespace sluice::daemon {

struct DaemonSetup {
  config::Config config;
  std::vector<ServedGpu> gpus;
  std::string socket_path;
  bool is_private = false;
  std::string state_directory;    // where the journal is kept; empty = there is none
  std::int64_t idle_exit_ns = 0;  // 0 = never
  int inherited_fd = -1;          // a listening socket from systemd
  std::string link_path;          // see ListenOptions::link
};

class Daemon {
 public:
  Daemon(Log& log, DaemonSetup setup);
  ~Daemon();
  /// Takes the socket, takes in the tenants of the broker before (state_directory) and blocks
  /// SIGHUP, SIGTERM and SIGINT for the loop. False with `error` (without prefix).
  [[nodiscard]] bool start(std::string* error);
  /// Serves until a signal or idleness ends it.
  void run() { loop_.run(); }
  void turn(int timeout_ms) { loop_.turn(timeout_ms); }
  bool stopped() const { return loop_.stopped(); }

 private:
  bool signals_take(std::string* error);
  void signal_ready();
  void beat();
  void slow_turn_say(const Loop::SlowTurn& turn);
  void idle_check();

  Log& log_;
  DaemonSetup setup_;
  Loop loop_;
  SlowThreads slow_{loop_};
  std::unique_ptr<Journal> journal_;
  std::uint64_t descriptors_;  // for clients
  Connections connections_;
  Engine engine_;
  Sessions sessions_;
  Timer heartbeat_;
  std::unique_ptr<Listener> listener_;
  devices::Fd signals_;
  Loop::Key signals_key_ = 0;
  std::int64_t idle_since_ns_ = 0;  // 0 = busy
  std::int64_t slow_said_ns_ = 0;   // a slow turn was in the log last,
  std::uint64_t slow_unsaid_ = 0;   // and so many since then are not
  bool served_ = false;             // somebody has been here
};

}  // namespace sluice::daemon

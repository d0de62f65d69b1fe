// sluiced's command line.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::daemon {

struct Options {
  std::string config_path;  // empty = the system's file if there is one, else built-in defaults
  std::string socket_path;  // empty = from the configuration
  std::string state_path;   // empty = from the configuration
  std::string log_path;     // empty = standard error
  bool realtime = false;    // before all ordinary programs, where the kernel lets it
  bool is_private = false;  // for one user's command tree: ends after its last tenant
  std::int64_t idle_exit_ns = 0;  // 0 = never (private brokers: 1 s)
  int ready_fd = -1;              // told "ready" or why not, then closed
};

enum class OptionsOutcome { kRun, kDone, kWrong };

/// kDone: --help or --version was answered. kWrong: a line on standard error said why.
OptionsOutcome options_parse(int argc, char** argv, Options* out);

}  // namespace sluice::daemon

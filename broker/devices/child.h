// Helper programs: the broker must never hang in a driver. Runs one to its end or to a deadline and
// collects what it prints, or starts one for a caller that waits for many things.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "broker/devices/fd.h"

namespace sluice::devices {

struct ChildOptions {
  std::string program;                   // absolute path
  std::vector<std::string> arguments;    // without argv[0]
  std::vector<std::string> environment;  // the whole environment, "NAME=value"
  std::int64_t deadline_ms = 30'000;
  std::size_t output_bytes_max = 64 * 1024;
  bool input = false;  // a socket for its standard input, otherwise that is empty
};

struct ChildResult {
  enum class End { kExited, kSignalled, kTimedOut, kNotStarted } end = End::kNotStarted;
  int status = 0;      // exit status, signal number, or errno
  std::string output;  // standard output
};

/// A helper that runs: in a process group of its own, and killed when the thread that started it
/// ends.
struct ChildProcess {
  pid_t pid = 0;
  Fd output;  // the reading end of its standard output
  Fd input;   // the writing end of its standard input, where that was asked for
};

/// 0 or -errno. A program that cannot be executed ends with status 127. The caller reaps it; the
/// limits among the options are the caller's, too.
int child_start(const ChildOptions& options, ChildProcess* out);

/// Blocks until the child is gone; a child past the deadline is killed with its process group.
ChildResult child_run(const ChildOptions& options);

}  // namespace sluice::devices

// Runs one helper program to its end or to a deadline and collects what it prints: the broker must
// never hang in a driver.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::devices {

struct ChildOptions {
  std::string program;                   // absolute path
  std::vector<std::string> arguments;    // without argv[0]
  std::vector<std::string> environment;  // the whole environment, "NAME=value"
  std::int64_t deadline_ms = 30'000;
  std::size_t output_bytes_max = 64 * 1024;
};

struct ChildResult {
  enum class End { kExited, kSignalled, kTimedOut, kNotStarted } end = End::kNotStarted;
  int status = 0;      // exit status, signal number, or errno
  std::string output;  // standard output
};

/// Blocks until the child is gone; a child past the deadline is killed with its process group.
ChildResult child_run(const ChildOptions& options);

}  // namespace sluice::devices

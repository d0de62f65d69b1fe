// Child processes of the lab: started in a group of their own, ended with it, never outliving the
// lab.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice::lab {

struct Command {
  std::vector<std::string> argv;           // argv[0] is the path of the program
  std::map<std::string, std::string> set;  // added to the environment
  std::vector<std::string> unset;          // removed from it
  std::string output_path;                 // stdout and stderr; empty = /dev/null
};

/// One running child. Movable, not copyable; destroying it kills the whole group.
class Child {
 public:
  /// Starts the command. On failure returns nothing and fills `error`.
  static std::optional<Child> start(const Command& command, std::string* error);
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();

  pid_t pid() const { return pid_; }
  std::int64_t started_ns() const { return started_ns_; }
  /// Reaps the child if it has ended. Exit status as the shell says it (128 + signal), nothing
  /// while it runs.
  std::optional<int> poll();
  /// poll() until it ends or `timeout_ms` has passed.
  std::optional<int> wait(int timeout_ms);
  void signal(int number);
  /// SIGTERM, then SIGKILL after `grace_ms`. Returns false when it had to be killed.
  bool end(int grace_ms);

 private:
  Child(pid_t pid, std::int64_t started_ns) : pid_(pid), started_ns_(started_ns) {}
  pid_t pid_ = -1;
  std::int64_t started_ns_ = 0;
  std::optional<int> status_;
};

/// Runs a command to its end and returns what it wrote to stdout; nothing when it fails or outlasts
/// timeout_ms.
std::optional<std::string> command_output(const Command& command, int timeout_ms,
                                          std::string* error);

/// CLOCK_MONOTONIC, the clock of all job logs.
std::int64_t now_ns();
void sleep_ms(int ms);

}  // namespace sluice::lab

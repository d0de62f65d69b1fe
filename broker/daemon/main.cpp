// sluiced: options, configuration, inventory, then the daemon. Says on the ready descriptor how
// that went.
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "broker/daemon/daemon.h"
#include "broker/daemon/inherited_limits.h"
#include "broker/daemon/kernel.h"
#include "broker/daemon/notify.h"
#include "broker/daemon/options.h"
#include "broker/protocol/wire.h"

namespace {

using namespace sluice;
using daemon::Level;

/// One line of the log for each line of `text`: several mistakes of a configuration are several.
int fail(daemon::Log& log, int ready_fd, const std::string& text) {
  std::string told;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    log.message(Level::kError, "failed", line, {});
    told.append(told.empty() ? "" : "\n").append("sluice: ").append(line);
  }
  if (log.in_file() && ready_fd < 0) std::fprintf(stderr, "%s\n", told.c_str());
  daemon::starter_tell(ready_fd, told);
  return 1;
}

std::string config_path(const daemon::Options& options) {
  if (!options.config_path.empty()) return options.config_path;
  const bool there = !options.is_private && access(config::kSystemConfig, F_OK) == 0;
  return there ? config::kSystemConfig : "";
}

bool config_load(const daemon::Options& options, daemon::Log& log, config::Config* out,
                 std::string* error) {
  const std::string path = config_path(options);
  if (path.empty()) {
    *out = config::config_default();
    return true;
  }
  std::vector<config::Origin> origins;
  const auto result = config::config_read_trusted(path, &origins);
  if (result.ok()) {
    *out = *result;
    for (const config::Error& unknown : config::accounts_unknown(origins, path))
      log.message(Level::kWarning, "config_account", unknown.text(), {});
    return true;
  }
  for (const config::Error& fault : result.errors()) {
    if (!error->empty()) *error += '\n';
    *error += fault.text();
  }
  return false;
}

/// The listener makes the directory of the configured socket, which a boot has taken away. One that
/// --socket names and that is not there is mistyped. Empty = it is there.
std::string socket_directory_missing(const daemon::Options& options) {
  const std::size_t slash = options.socket_path.rfind('/');
  if (slash == std::string::npos || slash == 0) return "";
  const std::string directory = options.socket_path.substr(0, slash);
  if (access(directory.c_str(), F_OK) == 0 || errno != ENOENT) return "";
  return "there is no directory " + directory + " for the socket; make it, or correct --socket";
}

/// Where a link to the socket is left: only the machine's broker answers at the system's place.
std::string link_place(const daemon::Options& options, const daemon::DaemonSetup& setup) {
  const bool machines = !options.is_private && options.socket_path.empty() &&
                        setup.inherited_fd < 0 && geteuid() == 0 &&
                        config::config_is_system(config_path(options));
  return machines ? protocol::kSystemSocket : "";
}

// A private broker's directory was made for it by `sluice run` and goes with it; one with anything
// else in it stays.
void private_directory_remove(const daemon::Options& options) {
  const std::string directory = options.socket_path.substr(0, options.socket_path.rfind('/') + 1);
  if (options.log_path.compare(0, directory.size(), directory) == 0)
    unlink(options.log_path.c_str());
  rmdir(directory.c_str());
}

// It runs for microseconds at a time, and however much clients send it sleeps now and then
// (Loop::rest_after). Should one handler ever run for seconds, the kernel ends the broker before it
// takes a processor from every other program for good, and systemd starts the next one. Start-up is
// ordinary, because a large journal may take longer. Its helpers are ordinary programs.
void realtime_begin(daemon::Log& log) {
  constexpr rlimit kWithoutWaiting_us = {2'000'000, 3'000'000};
  setrlimit(RLIMIT_RTTIME, &kWithoutWaiting_us);
  sched_param first = {};
  first.sched_priority = sched_get_priority_min(SCHED_FIFO);
  if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) == 0) return;
  log.message(Level::kWarning, "not_realtime",
              std::string("--realtime is not permitted (") + std::strerror(errno) +
                  "), so a busy host makes the broker wait; start it as root or give it "
                  "LimitRTPRIO=1 (ulimit -r 1)",
              {});
}

// A broker without memory ends; systemd starts the next one, which reads the journal.
[[noreturn]] void memory_gone() {
  constexpr char kText[] = "sluice: the broker has no memory left and ends; its jobs go on\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  std::set_new_handler(memory_gone);
  daemon::Options options;
  switch (daemon::options_parse(argc, argv, &options)) {
    case daemon::OptionsOutcome::kDone:
      return 0;
    case daemon::OptionsOutcome::kWrong:
      return 2;
    case daemon::OptionsOutcome::kRun:
      break;
  }
  // Helpers that live on would keep the starter waiting.
  if (options.ready_fd >= 0) fcntl(options.ready_fd, F_SETFD, FD_CLOEXEC);
  const std::string low_limit = daemon::inherited_limits_take();
  daemon::Log log;
  if (!options.log_path.empty()) {
    if (const int error = log.file_open(options.log_path)) {
      return fail(log, options.ready_fd,
                  "cannot write the log " + options.log_path + ": " + std::strerror(error));
    }
  }
  if (!low_limit.empty()) return fail(log, options.ready_fd, low_limit);
  if (const std::string missing = daemon::kernel_lacks(); !missing.empty())
    return fail(log, options.ready_fd, missing);
  daemon::DaemonSetup setup;
  std::string error;
  if (!config_load(options, log, &setup.config, &error)) return fail(log, options.ready_fd, error);
  log.level_set(setup.config.log_level);
  if (!daemon::inventory_take(setup.config.reserve_bytes, log, &setup.gpus, &error)) {
    return fail(log, options.ready_fd, error);
  }
  if (const std::string missing = socket_directory_missing(options); !missing.empty())
    return fail(log, options.ready_fd, missing);
  setup.socket_path = options.socket_path.empty() ? setup.config.socket : options.socket_path;
  setup.is_private = options.is_private;
  if (!options.is_private)
    setup.state_directory = options.state_path.empty() ? setup.config.state : options.state_path;
  setup.idle_exit_ns = options.idle_exit_ns;
  setup.inherited_fd = daemon::activation_socket();
  setup.link_path = link_place(options, setup);
  {
    daemon::Daemon broker(log, setup);
    if (!broker.start(&error)) return fail(log, options.ready_fd, error);
    if (options.realtime) realtime_begin(log);
    log.line(Level::kInfo, "ready", {{"socket", setup.socket_path}, {"gpus", setup.gpus.size()}});
    daemon::starter_tell(options.ready_fd, "ready");
    daemon::notify_send("READY=1");
    broker.run();
  }
  if (options.is_private) private_directory_remove(options);
  return 0;
}

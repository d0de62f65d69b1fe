// The wiring, the heartbeat, signals, and when to end.
#include "broker/daemon/daemon.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cstring>

#include "broker/daemon/notify.h"

namespace sluice::daemon {
namespace {

constexpr std::int64_t kHeartbeat_ns = 250'000'000;  // the protocol asks for one a second at least
// Clients that always have something to say cannot keep a real-time broker from sleeping: after at
// most twice this and one handler it does, far below what the kernel allows (main.cpp). Other
// programs have its processor then, and a lease waits for a millisecond at most.
constexpr std::int64_t kRestAfter_ns = 5'000'000;
constexpr std::int64_t kRest_ns = 1'000'000;
// A broker that was started for somebody waits this long for him to come at all.
constexpr std::int64_t kFirstVisit_ns = 10'000'000'000;
// One tenant with one process takes six: two pages, founder, process, and the process's connection
// with its pidfd.
constexpr std::uint64_t kDescriptorsPerConnection = 6;
constexpr std::uint64_t kDescriptorsKept = 64;
constexpr rlim_t kDescriptorsUsual = 1024;
constexpr std::uint64_t kConnectionsMax = 16384;

/// How many descriptors there are for clients.
std::uint64_t descriptors_for_clients() {
  rlimit limit{kDescriptorsUsual, kDescriptorsUsual};
  getrlimit(RLIMIT_NOFILE, &limit);  // should it fail, the usual limit stands
  return limit.rlim_cur > kDescriptorsKept ? limit.rlim_cur - kDescriptorsKept : 1;
}

ConnectionLimits limits_divide(std::uint64_t usable) {
  const std::uint64_t total =
      std::clamp<std::uint64_t>(usable / kDescriptorsPerConnection, 1, kConnectionsMax);
  ConnectionLimits out;
  out.total_max = static_cast<std::uint32_t>(total);
  out.per_user_max =
      std::max<std::uint32_t>(1, out.total_max / 2);  // no user can lock the others out
  return out;
}

// Of all users; each has a part of what the others leave (part_of_user).
std::uint32_t descriptors_shared(std::uint64_t usable) {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(usable, 2 * kDescriptorsPerConnection, UINT32_MAX));
}

// Without the boot's name nobody could tell a living process from one of an earlier boot.
std::unique_ptr<Journal> journal_make(Log& log, const std::string& directory, SlowWork& slow) {
  if (directory.empty()) return nullptr;
  const std::string boot_id = boot_id_read();
  if (!boot_id.empty())
    return std::make_unique<Journal>(std::make_shared<JournalFiles>(), log, directory, boot_id,
                                     &slow);
  log.message(
      Level::kError, "no_journal",
      "the kernel does not tell which boot this is (/proc/sys/kernel/random/boot_id), so no "
      "journal is kept; a broker started anew will not know the jobs of this one",
      {});
  return nullptr;
}

}  // namespace

Daemon::Daemon(Log& log, DaemonSetup setup)
    : log_(log),
      setup_(std::move(setup)),
      journal_(journal_make(log_, setup_.state_directory, slow_)),
      descriptors_(descriptors_for_clients()),
      connections_(loop_, log_, limits_divide(descriptors_)),
      engine_(loop_, log_, connections_, slow_, {setup_.gpus, setup_.config, journal_.get()}),
      sessions_(log_, engine_, connections_, loop_, descriptors_shared(descriptors_)),
      heartbeat_(
          loop_, [this] { beat(); }, "heartbeat") {
  connections_.sink_set(&sessions_);
  loop_.rest_after(kRestAfter_ns, kRest_ns);
  loop_.slow_watch(protocol::kSlowTurn_ns,
                   [this](const Loop::SlowTurn& turn) { slow_turn_say(turn); });
}

Daemon::~Daemon() {
  loop_.remove(signals_key_);
  connections_.close_all();
}

bool Daemon::start(std::string* error) {
  if (loop_.fault() != 0) {
    *error = std::string("cannot wait for events: ") + std::strerror(loop_.fault());
    return false;
  }
  if (!signals_take(error)) return false;
  ListenOptions options;
  options.path = setup_.socket_path;
  options.is_private = setup_.is_private;
  options.inherited_fd = setup_.inherited_fd;
  options.link = setup_.link_path;
  listener_ = Listener::open(
      loop_, options,
      [this](devices::Fd fd) {
        served_ = true;
        connections_.accept(std::move(fd));
      },
      error);
  if (listener_ == nullptr) return false;
  if (const std::string& fault = listener_->link_fault(); !fault.empty())
    log_.message(Level::kWarning, "socket_link",
                 "clients find this broker only with --socket or SLUICE_SOCKET " +
                     setup_.socket_path + ", for " + setup_.link_path +
                     " does not lead to it: " + fault,
                 {});
  // Whoever connects meanwhile is not heard before the loop turns.
  if (journal_ != nullptr && !journal_->open(error)) return false;
  engine_.restore();
  engine_.heartbeat();  // with it begins the watch over GPUs that may be lost
  idle_since_ns_ = clock_ns();
  heartbeat_.every(kHeartbeat_ns);
  return true;
}

bool Daemon::signals_take(std::string* error) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGHUP, SIGTERM, SIGINT}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signals_ = devices::Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) {
    *error = std::string("cannot watch for signals: ") + std::strerror(errno);
    return false;
  }
  signals_key_ = loop_.add(
      signals_.get(), [this] { signal_ready(); }, "signal");
  return true;
}

void Daemon::signal_ready() {
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGHUP) {
      engine_.reload();
      continue;
    }
    log_.line(Level::kInfo, "ending",
              {{"signal", info.ssi_signo}, {"tenants", engine_.tenant_count()}});
    notify_send("STOPPING=1");
    sessions_.shut();
    listener_->stop();
    loop_.stop();
  }
}

void Daemon::beat() {
  engine_.heartbeat();
  connections_.tend(clock_ns());
  log_.tend();
  idle_check();
}

// Everybody waits meanwhile. One line a second at most: they come in rows when a host is short of
// processors.
void Daemon::slow_turn_say(const Loop::SlowTurn& turn) {
  constexpr std::int64_t kEvery_ns = 1'000'000'000;
  constexpr double kNsPerMs = 1e6;
  ++slow_unsaid_;
  if (clock_ns() - slow_said_ns_ < kEvery_ns) return;
  slow_said_ns_ = clock_ns();
  log_.line(Level::kWarning, "slow_turn",
            {{"ms", static_cast<double>(turn.turn_ns) / kNsPerMs},
             {"cpu_ms", static_cast<double>(turn.cpu_ns) / kNsPerMs},
             {"handler", turn.handler},
             {"handler_ms", static_cast<double>(turn.handler_ns) / kNsPerMs},
             {"count", slow_unsaid_}});
  slow_unsaid_ = 0;
}

// Connections count as business: somebody who is connected is about to ask.
void Daemon::idle_check() {
  if (setup_.idle_exit_ns == 0) return;
  const std::int64_t now = clock_ns();
  if (!engine_.idle() || connections_.count() > 0) {
    idle_since_ns_ = 0;
    return;
  }
  if (idle_since_ns_ == 0) idle_since_ns_ = now;
  const std::int64_t patience =
      served_ ? setup_.idle_exit_ns : std::max(setup_.idle_exit_ns, kFirstVisit_ns);
  if (now - idle_since_ns_ < patience) return;
  log_.line(Level::kInfo, "ending", {{"idle_ns", now - idle_since_ns_}});
  loop_.stop();
}

}  // namespace sluice::daemon

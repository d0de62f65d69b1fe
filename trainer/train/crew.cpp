// See crew.h.
#include "trainer/train/crew.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "trainer/train/heartbeat.h"
#include "trainer/train/rank.h"

namespace sluice::train {
namespace {

constexpr Nanos kChangeLookGap = 2 * kNanosPerMilli;  // while the members of the job change
// A launcher that was itself stopped for longer than this begins to listen anew.
constexpr Nanos kOwnPauseMax = kNanosPerSecond;
// Changes of members one after the other, without a step between them, until it is given up.
constexpr int kFruitlessMax = 3;
// Replacements for one change: one that ends at once is not started for ever.
constexpr int kReplacementsMax = 4;

std::string ending_text(int status) {
  if (WIFSIGNALED(status)) {
    return text_format("was killed by signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  }
  return text_format("ended with status %d", WEXITSTATUS(status));
}

}  // namespace

Crew::Crew(Setup setup)
    : setup_(std::move(setup)),
      board_(setup_.meeting.board()),
      membership_(board_, setup_.plan.rank_count),
      processes_(static_cast<std::size_t>(setup_.plan.rank_count)) {}

Crew::~Crew() { signal_all(SIGKILL); }

void Crew::start() {
  listen_from_ns_ = looked_ns_ = now_ns();
  for (int rank = setup_.own_begin; rank < setup_.own_begin + setup_.own_count; ++rank)
    process_start(rank, false);
}

void Crew::process_start(int slot, bool joins) {
  // The path and not the link itself, so that the ranks carry the program's name in ps and in every
  // account.
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const RankPlace place{slot,  setup_.plan.rank_count,    setup_.plan.gpu_count, board_.fd(), slot,
                        joins, setup_.meeting.directory()};
  std::vector<std::string> words = setup_.arguments;
  words.push_back("--as-rank");
  words.push_back(place_format(place));
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw errno_failure("forking a rank");
  if (child == 0) {
    // A launcher that dies takes its ranks with it, however it dies.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    fcntl(board_.fd(), F_SETFD, 0);
    for (const int fd : setup_.inherited_fds) fcntl(fd, F_SETFD, 0);
    execv(program.c_str(), pointers.data());
    _exit(127);
  }
  Process& one = processes_[static_cast<std::size_t>(slot)];
  one = Process{.pid = child, .fd = static_cast<int>(syscall(SYS_pidfd_open, child, 0))};
}

bool Crew::look(Nanos until) {
  std::vector<pollfd> watched;
  for (const Process& one : processes_) {
    if (one.running() && one.fd >= 0) watched.push_back({one.fd, POLLIN, 0});
  }
  const Nanos begin = now_ns();
  // A rank that falls silent is noticed when its time is over, not at the next look.
  const Nanos gap = change_.detected_ns != 0 ? kChangeLookGap : earliest_due_ns() - begin;
  const Nanos wait = std::clamp<Nanos>(until - begin, 0, std::max<Nanos>(gap, 0));
  const timespec time = timespec_of(wait);
  ppoll(watched.data(), watched.size(), &time, nullptr);
  reap();
  const Nanos now = now_ns();
  if (now - looked_ns_ > kOwnPauseMax) listen_from_ns_ = now;
  looked_ns_ = now;
  if (!failed_ && !gave_up_) {
    hearts_listen(now);
    if (is_elastic()) change_lead(now);
  }
  return std::any_of(processes_.begin(), processes_.end(),
                     [](const Process& one) { return one.running(); });
}

void Crew::signal_all(int signal) {
  for (const Process& one : processes_) {
    if (one.running()) kill(one.pid, signal);
  }
}

void Crew::reap() {
  for (std::size_t slot = 0; slot < processes_.size(); ++slot) {
    Process& one = processes_[slot];
    if (!one.running() || waitpid(one.pid, &one.status, WNOHANG) != one.pid) continue;
    if (one.fd >= 0) close(std::exchange(one.fd, -1));
    ended(static_cast<int>(slot), std::exchange(one.pid, -1));
  }
}

/// A rank that only lost the others is an echo; the cause is waited for, and named first when both
/// are there.
void Crew::ended(int slot, pid_t pid) {
  const Process& one = processes_[static_cast<std::size_t>(slot)];
  if (WIFEXITED(one.status) && WEXITSTATUS(one.status) == 0) return;
  const bool echo = WIFEXITED(one.status) && WEXITSTATUS(one.status) == kPeerLostExit;
  std::string how = ending_text(one.status);
  if (one.was_silent) {
    how = text_format(one.hung ? "has not come forward for %g s (--heartbeat-timeout)"
                               : "has given no sign of life for %g s (--heartbeat-timeout)",
                      patience_s());
  }
  if (is_elastic() && !failed_ && !gave_up_) return loss_note(slot, how);
  // Survivors notice by themselves within milliseconds; a signal would only make them finish
  // politely.
  failed_ = true;
  if (gave_up_ || echo || cause_said()) return;
  cause_ = text_format("rank %d of %zu (pid %d) %s", slot, processes_.size(), pid, how.c_str());
  std::fprintf(stderr, "sluice: sluice-train: %s; ending the job\n", cause_.c_str());
}

double Crew::patience_s() const {
  const double asked = setup_.options.faults.heartbeat_timeout_s;
  return asked > 0 ? asked : kHeartbeatUsual_s;
}

bool Crew::is_heard(std::size_t slot) const {
  const Process& one = processes_[slot];
  // A rank that has not begun to beat is only being started.
  return one.running() && !one.was_silent && board_.line(static_cast<int>(slot)).alive_ns != 0;
}

Nanos Crew::due_ns(std::size_t slot) const {
  return silence_due(board_.line(static_cast<int>(slot)), nanos_of_seconds(patience_s()),
                     setup_.options.faults.heartbeat_timeout_s > 0, listen_from_ns_);
}

Nanos Crew::earliest_due_ns() const {
  Nanos earliest = INT64_MAX;
  if (failed_ || gave_up_) return earliest;  // nobody is listened to
  for (std::size_t slot = 0; slot < processes_.size(); ++slot)
    if (is_heard(slot)) earliest = std::min(earliest, due_ns(slot));
  return earliest;
}

void Crew::hearts_listen(Nanos now) {
  for (std::size_t slot = 0; slot < processes_.size(); ++slot) {
    Process& one = processes_[slot];
    if (!is_heard(slot) || now < due_ns(slot)) continue;
    // A process that is stopped does not come forward either.
    const Nanos silent_ns = now - board_.line(static_cast<int>(slot)).alive_ns;
    one.hung = silent_ns < nanos_of_seconds(patience_s()) / 2;
    one.was_silent = true;
    kill(one.pid, SIGKILL);  // it is lost when it is gone: nothing of it must still be sent
  }
}

void Crew::fail(const std::string& text) {
  failed_ = true;
  cause_ = text;
  std::fprintf(stderr, "sluice: sluice-train: %s\n", text.c_str());
  signal_all(SIGKILL);  // they wait for an epoch that does not come
}

void Crew::change_begin(const std::string& how) {
  membership_.breaks();
  if (change_.detected_ns != 0) {  // the next one, before that one was over
    change_.formed = false;
    return;
  }
  change_ = Change();
  change_.detected_ns = now_ns();
  change_.how = how;
  for (const int member : members())
    change_.steps = std::max(change_.steps, board_.line(member).steps.load());
  if (change_.steps > furthest_) fruitless_ = 0;
  furthest_ = std::max(furthest_, change_.steps);
}

void Crew::loss_note(int slot, const std::string& how) {
  change_begin(how);
  if (change_.silence_ns == 0) change_.silence_ns = now_ns() - board_.line(slot).alive_ns;
  change_.lost += (change_.lost.empty() ? "" : ",") + std::to_string(slot);
  std::fprintf(stderr, "sluice: sluice-train: worker %d %s; going on without it\n", slot,
               how.c_str());
}

void Crew::replacements_start() {
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    const Process& one = processes_[i];
    const bool done = WIFEXITED(one.status) && WEXITSTATUS(one.status) == 0;
    if (one.running() || done || change_.replacements == kReplacementsMax) continue;
    const int slot = static_cast<int>(i);
    ++change_.replacements;
    board_.line(slot).alive_ns = 0;
    board_.line(slot).ready_for = 0;
    process_start(slot, true);
  }
}

/// Step by step, as far as it goes now: the others leave, replacements start, all are ready, the
/// next epoch begins.
void Crew::change_lead(Nanos now) {
  if (change_.formed) change_log(now);
  if (!membership_.is_changing()) {
    // Ranks may lose each other and be there all the same: a connection that broke.
    const bool left = std::any_of(members().begin(), members().end(),
                                  [&](int slot) { return membership_.is_ready(slot); });
    if (!left) return;
    change_begin("ranks lost each other");
  }
  if (setup_.options.faults.replace) replacements_start();
  std::vector<int> present;
  bool all_ready = true;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    const int slot = static_cast<int>(i);
    Process& one = processes_[i];
    if (!one.running()) continue;
    present.push_back(slot);
    if (membership_.is_ready(slot)) continue;
    all_ready = false;
    if (one.was_silent || now - change_.detected_ns < nanos_of_seconds(patience_s())) continue;
    one.was_silent = one.hung = true;  // it never left its collective
    kill(one.pid, SIGKILL);
  }
  if (all_ready) next_epoch(present);
}

void Crew::next_epoch(const std::vector<int>& present) {
  const auto least = static_cast<std::size_t>(setup_.options.faults.elastic);
  if (present.size() < least) {
    return fail(text_format("%zu of %zu ranks are left, and --elastic asks for %zu; ending the job",
                            present.size(), processes_.size(), least));
  }
  if (++fruitless_ > kFruitlessMax) {
    return fail(text_format(
        "ranks were lost %d times without a new step in between; ending the job", fruitless_));
  }
  setup_.meeting.renew();
  membership_.form(present, setup_.meeting.directory());
  for (const int slot : present)
    change_.from = std::max(change_.from, board_.line(slot).commit_steps.load());
  change_.formed = true;
}

void Crew::change_log(Nanos now) {
  if (!membership_.trains()) return;
  const std::uint64_t from = std::max<std::uint64_t>(change_.from, 1) - 1;
  const std::uint64_t undone = change_.steps - std::min(change_.steps, from);
  const Nanos recover_ns = now - change_.detected_ns;
  setup_.log.write(JsonLine("membership", now)
                       .add("epoch", membership_.epoch())
                       .add("ranks", static_cast<int>(members().size()))
                       .add("lost", change_.lost)
                       .add("how", change_.how)
                       .add("step", from)
                       .add("undone_steps", undone)
                       .add("detect_ns", change_.silence_ns)
                       .add("recover_ns", recover_ns));
  setup_.say(
      text_format("members: %zu ranks from step %llu on, %.0f ms after the loss was noticed; "
                  "%llu steps are done again",
                  members().size(), static_cast<unsigned long long>(from), millis_of(recover_ns),
                  static_cast<unsigned long long>(undone)));
  change_ = Change();
}

}  // namespace sluice::train
